//! The dispatcher, its options and its results.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyString};

use super::columns::{Logprobs, TokenIds};
use super::protocol::Protocol;
use super::text::Tokenizer;
use crate::dispatcher::{self, Choice, Ending, Opening, Outbox, Target};
use crate::generation::{self, StopReason, StopStrings};
use crate::protocol;
use crate::render::{Api, Format, HTTP_CHUNK_TAIL, finish_reason, http_chunk_head};

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct TextOptions {
    inner: Arc<generation::TextOptions>,
}

#[pymethods]
impl TextOptions {
    #[new]
    #[pyo3(signature = (*, stop = vec![], stop_token_ids = vec![], eos_token_ids = vec![], include_stop_str = false,
                        min_tokens = 0, skip_special_tokens = true, logprobs = false))]
    fn new(
        stop: Vec<String>,
        stop_token_ids: Vec<u32>,
        eos_token_ids: Vec<u32>,
        include_stop_str: bool,
        min_tokens: usize,
        skip_special_tokens: bool,
        logprobs: bool,
    ) -> PyResult<Self> {
        if stop.iter().any(String::is_empty) {
            return Err(PyValueError::new_err("a stop string must not be empty"));
        }
        let inner = generation::TextOptions {
            stop: StopStrings::new(&stop),
            stop_token_ids,
            eos_token_ids,
            include_stop_str,
            min_tokens,
            skip_special_tokens,
            logprobs,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct ResponseFormat {
    /// `None`: the generations themselves.
    rendered: Option<Rendered>,
}

struct Rendered {
    api: Api,
    id: String,
    model: String,
    created: u64,
    stream: bool,
    include_usage: bool,
}

impl ResponseFormat {
    fn target(&self) -> Target {
        match &self.rendered {
            None => Target::Outputs,
            Some(Rendered { api, id, model, created, stream: true, include_usage }) => {
                Target::Events(Format::events(*api, id, model, *created, *include_usage))
            }
            Some(Rendered { api, id, model, created, .. }) => Target::Body(Format::body(*api, id, model, *created)),
        }
    }
}

#[pymethods]
impl ResponseFormat {
    #[staticmethod]
    #[pyo3(signature = (*, id, model, created, stream, include_usage = false))]
    fn chat(id: String, model: String, created: u64, stream: bool, include_usage: bool) -> Self {
        Self { rendered: Some(Rendered { api: Api::Chat, id, model, created, stream, include_usage }) }
    }

    #[staticmethod]
    #[pyo3(signature = (*, id, model, created, stream, include_usage = false))]
    fn completion(id: String, model: String, created: u64, stream: bool, include_usage: bool) -> Self {
        Self { rendered: Some(Rendered { api: Api::Completion, id, model, created, stream, include_usage }) }
    }

    #[staticmethod]
    fn outputs() -> Self {
        Self { rendered: None }
    }
}

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct Output {
    index: usize,
    text: String,
    token_ids: Py<TokenIds>,
    logprobs: Option<Py<Logprobs>>,
    finish_reason: &'static str,
    stop_reason: Option<Py<PyAny>>,
    cached_tokens: u32,
}

impl Output {
    fn new(py: Python<'_>, index: usize, choice: Choice) -> PyResult<Self> {
        let Choice { generation, cached_tokens, .. } = choice;
        let stop_reason = match generation.stop_reason() {
            None => None,
            Some(StopReason::String(text)) => Some(PyString::new(py, text).into_any().unbind()),
            Some(StopReason::Token(id)) => Some(id.into_pyobject(py)?.into_any().unbind()),
        };
        let has_logprobs = generation.options().logprobs;
        let finish_reason = generation.finish().map_or("", finish_reason);
        let (ids, values, text) = generation.into_columns();
        Ok(Self {
            index,
            text,
            token_ids: Py::new(py, TokenIds { ids })?,
            logprobs: if has_logprobs { Some(Py::new(py, Logprobs { values })?) } else { None },
            finish_reason,
            stop_reason,
            cached_tokens,
        })
    }
}

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct Load {
    engine_index: u32,
    running: u64,
    waiting: u64,
    kv_usage: f64,
}

impl From<protocol::Load> for Load {
    fn from(load: protocol::Load) -> Self {
        let protocol::Load { engine_index, running, waiting, kv_usage } = load;
        Self { engine_index, running, waiting, kv_usage }
    }
}

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct Outcome {
    chunks: Py<PyList>,
    ended: Py<PyList>,
    aborts: Py<PyList>,
    finished: Py<PyList>,
    loads: Py<PyList>,
    refused: Option<String>,
    engine_dead: bool,
    consumed: usize,
}

/// Gathers what a call has to say. While the dispatcher is locked nothing may run Python code: byte strings are made at once,
/// since they are no business of the garbage collector, and everything that is waits for [`Self::into_outcome`].
struct Gathered<'py> {
    py: Python<'py>,
    chunks: Vec<(Py<PyAny>, PyResult<Bound<'py, PyBytes>>)>,
    ended: Vec<(Py<PyAny>, Ending)>,
    aborts: Vec<Box<[u8]>>,
    finished: Vec<Box<[u8]>>,
    loads: Vec<protocol::Load>,
    refused: Option<String>,
    engine_dead: bool,
    consumed: usize,
}

impl Outbox<Py<PyAny>> for Gathered<'_> {
    fn events(&mut self, sink: &Py<PyAny>, events: &[u8]) {
        self.chunks.push((sink.clone_ref(self.py), http_chunk(self.py, events)));
    }

    fn ended(&mut self, sink: Py<PyAny>, ending: Ending) {
        self.ended.push((sink, ending));
    }

    fn abort(&mut self, rid: &[u8]) {
        self.aborts.push(rid.into());
    }

    fn finished(&mut self, rid: &[u8]) {
        self.finished.push(rid.into());
    }

    fn load(&mut self, load: protocol::Load) {
        self.loads.push(load);
    }

    fn refused(&mut self, error: protocol::Error) {
        self.refused = Some(error.to_string());
    }

    fn engine_dead(&mut self) {
        self.engine_dead = true;
    }
}

/// Events as one chunk of HTTP/1.1's chunked transfer coding.
fn http_chunk<'py>(py: Python<'py>, events: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let head = http_chunk_head(events.len());
    let (body, end) = (head.len(), head.len() + events.len());
    PyBytes::new_with(py, end + HTTP_CHUNK_TAIL.len(), |chunk| {
        chunk[..body].copy_from_slice(&head);
        chunk[body..end].copy_from_slice(events);
        chunk[end..].copy_from_slice(HTTP_CHUNK_TAIL);
        Ok(())
    })
}

impl<'py> Gathered<'py> {
    fn new(py: Python<'py>) -> Self {
        Self {
            py,
            chunks: Vec::new(),
            ended: Vec::new(),
            aborts: Vec::new(),
            finished: Vec::new(),
            loads: Vec::new(),
            refused: None,
            engine_dead: false,
            consumed: 0,
        }
    }

    fn into_outcome(self) -> PyResult<Outcome> {
        let py = self.py;
        let chunks = PyList::empty(py);
        for (sink, chunk) in self.chunks {
            chunks.append((sink, chunk?))?;
        }
        let ended = PyList::empty(py);
        for (sink, ending) in self.ended {
            match ending {
                Ending::Events(bytes) | Ending::Body(bytes) => {
                    ended.append((sink, PyBytes::new(py, &bytes), py.None()))?;
                }
                Ending::Outputs(choices) => {
                    let outputs = PyList::empty(py);
                    for (index, choice) in choices.into_iter().enumerate() {
                        outputs.append(Output::new(py, index, choice)?)?;
                    }
                    ended.append((sink, outputs, py.None()))?;
                }
                Ending::Failed(why) => ended.append((sink, py.None(), why))?,
            }
        }
        Ok(Outcome {
            chunks: chunks.unbind(),
            ended: ended.unbind(),
            aborts: strings(py, &self.aborts)?.unbind(),
            finished: strings(py, &self.finished)?.unbind(),
            loads: PyList::new(py, self.loads.into_iter().map(Load::from))?.unbind(),
            refused: self.refused,
            engine_dead: self.engine_dead,
            consumed: self.consumed,
        })
    }
}

/// Request ids came in as Python strings, or were checked to be UTF-8 by the protocol.
fn strings<'py>(py: Python<'py>, rids: &[Box<[u8]>]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, rids.iter().map(|rid| String::from_utf8_lossy(rid)))
}

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Dispatcher {
    inner: Mutex<dispatcher::Dispatcher<Py<PyAny>>>,
}

impl Dispatcher {
    fn lock(&self) -> MutexGuard<'_, dispatcher::Dispatcher<Py<PyAny>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Dispatcher {
    #[new]
    fn new() -> Self {
        Self { inner: Mutex::new(dispatcher::Dispatcher::default()) }
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    #[pyo3(signature = (sink, format, tokenizer, options, rids, prompt_tokens, n = 1))]
    #[expect(clippy::too_many_arguments, reason = "a Python signature")]
    fn open(
        &self,
        sink: Py<PyAny>,
        format: &ResponseFormat,
        tokenizer: &Tokenizer,
        options: &TextOptions,
        rids: Vec<String>,
        prompt_tokens: u64,
        n: usize,
    ) -> PyResult<u64> {
        let opening = Opening {
            sink,
            target: format.target(),
            tokenizer: tokenizer.inner.clone(),
            options: options.inner.clone(),
            rids: rids.into_iter().map(|rid| rid.into_bytes().into_boxed_slice()).collect(),
            prompt_tokens,
            n,
        };
        self.lock().open(opening).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn feed<'py>(&self, py: Python<'py>, protocol: &Protocol, messages: &Bound<'py, PySequence>) -> PyResult<Outcome> {
        let messages: Vec<Vec<Bound<'py, PyBytes>>> = messages.extract()?;
        let messages: Vec<Vec<&[u8]>> =
            messages.iter().map(|frames| frames.iter().map(|frame| frame.as_bytes()).collect()).collect();
        let mut gathered = Gathered::new(py);
        gathered.consumed = self.lock().feed(protocol.inner, messages.iter().map(Vec::as_slice), &mut gathered);
        gathered.into_outcome()
    }

    fn fail(&self, py: Python<'_>, rids: Vec<String>, message: &str) -> PyResult<Outcome> {
        let mut gathered = Gathered::new(py);
        self.lock().fail(rids.iter().map(String::as_bytes), message, &mut gathered);
        gathered.into_outcome()
    }

    fn cancel<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Bound<'py, PyList>> {
        // The sink is dropped after the lock is: dropping it may run Python code.
        let cancelled = self.lock().cancel(key);
        match cancelled {
            None => Ok(PyList::empty(py)),
            Some((_sink, rids)) => strings(py, &rids),
        }
    }

    fn pause(&self, key: u64) {
        self.lock().pause(key);
    }

    fn resume<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let events = self.lock().resume(key);
        if events.is_empty() { Ok(None) } else { http_chunk(py, &events).map(Some) }
    }
}
