//! The dispatcher, and how it gathers what there is to do.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence};

use super::options::{Prompt, ResponseFormat, TextOptions};
use super::outcome::{Load, Outcome, Output, Utility, Wave};
use super::protocol::Protocol;
use super::text::Tokenizer;
use crate::dispatcher::{self, Ending, Opening, Outbox};
use crate::protocol;
use crate::render::{HTTP_CHUNK_TAIL, http_chunk_head};

/// Gathers what a call has to say. While the dispatcher is locked nothing may run Python code: byte strings are made at once,
/// since they are no business of the garbage collector, and everything that is waits for [`Self::into_outcome`].
struct Gathered<'py> {
    py: Python<'py>,
    chunks: Vec<(Py<PyAny>, PyResult<Bound<'py, PyBytes>>)>,
    ended: Vec<(Py<PyAny>, Ending)>,
    aborts: Vec<Box<[u8]>>,
    finished: Vec<Box<[u8]>>,
    loads: Vec<protocol::Load>,
    waves: Vec<protocol::Wave>,
    utilities: Vec<protocol::Utility>,
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

    fn wave(&mut self, wave: protocol::Wave) {
        self.waves.push(wave);
    }

    fn utility(&mut self, utility: protocol::Utility) {
        self.utilities.push(utility);
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
            waves: Vec::new(),
            utilities: Vec::new(),
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
            waves: PyList::new(py, self.waves.into_iter().map(Wave::from))?.unbind(),
            utilities: PyList::new(py, self.utilities.into_iter().map(Utility::from))?.unbind(),
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

    fn open(
        &self,
        sink: Py<PyAny>,
        format: &ResponseFormat,
        tokenizer: &Tokenizer,
        options: &TextOptions,
        rids: Vec<String>,
        prompts: Vec<Bound<'_, Prompt>>,
    ) -> PyResult<u64> {
        let opening = Opening {
            sink,
            target: format.target(),
            tokenizer: tokenizer.inner.clone(),
            options: options.inner.clone(),
            rids: rids.into_iter().map(|rid| rid.into_bytes().into_boxed_slice()).collect(),
            prompts: prompts.iter().map(|prompt| prompt.get().inner.clone()).collect(),
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
