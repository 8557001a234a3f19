//! The dispatcher, and how it gathers what there is to do.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence};

use super::connection::{Connection, HttpStream};
use super::options::{Prompt, ResponseFormat, TextOptions};
use super::outcome::{Load, Outcome, Output, Utility, Wave};
use super::protocol::Protocol;
use super::text::Tokenizer;
use crate::dispatcher::{self, Choice, Ending, Opening, Outbox};
use crate::protocol;

/// Where a response goes: the caller's sink, and for a stream that it writes to a connection, what is known of that.
struct Sink {
    object: Py<PyAny>,
    stream: Option<HttpStream>,
}

/// How a response ends for its sink.
enum Ended {
    Bytes(Py<PyBytes>),
    Outputs(Vec<Choice>),
    Failed { why: String, has_begun: bool },
}

/// Gathers what a call has to say. While the dispatcher is locked nothing may run Python code: byte strings are made at once,
/// since they are no business of the garbage collector, and everything that is waits for [`Self::into_outcome`].
struct Gathered<'py> {
    py: Python<'py>,
    chunks: Vec<(Py<PyAny>, Py<PyBytes>)>,
    ended: Vec<(Py<PyAny>, Ended)>,
    aborts: Vec<Box<[u8]>>,
    finished: Vec<Box<[u8]>>,
    loads: Vec<protocol::Load>,
    waves: Vec<protocol::Wave>,
    utilities: Vec<protocol::Utility>,
    refused: Option<String>,
    engine_dead: bool,
    consumed: usize,
    /// What is sent to one connection at a time.
    frame: Vec<u8>,
}

impl Outbox<Sink> for Gathered<'_> {
    fn events(&mut self, sink: &mut Sink, events: &[u8]) {
        let left = match &mut sink.stream {
            Some(stream) => stream.send(&mut self.frame, events, false),
            None => events,
        };
        if !left.is_empty() {
            self.chunks.push((sink.object.clone_ref(self.py), PyBytes::new(self.py, left).unbind()));
        }
    }

    fn ended(&mut self, mut sink: Sink, ending: Ending) {
        let ended = match ending {
            Ending::Events(events) => Ended::Bytes(match &mut sink.stream {
                Some(stream) => PyBytes::new(self.py, stream.send(&mut self.frame, &events, true)).unbind(),
                None => PyBytes::new(self.py, &events).unbind(),
            }),
            Ending::Body(body) => Ended::Bytes(PyBytes::new(self.py, &body).unbind()),
            Ending::Outputs(choices) => Ended::Outputs(choices),
            Ending::Failed(why) => {
                Ended::Failed { why, has_begun: sink.stream.is_some_and(|stream| stream.has_begun()) }
            }
        };
        self.ended.push((sink.object, ended));
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
            frame: Vec::new(),
        }
    }

    /// Whether there is nothing to do but to go on.
    fn is_quiet(&self) -> bool {
        self.chunks.is_empty()
            && self.ended.is_empty()
            && self.aborts.is_empty()
            && self.finished.is_empty()
            && self.waves.is_empty()
            && self.utilities.is_empty()
            && self.refused.is_none()
            && !self.engine_dead
    }

    fn into_outcome(self) -> PyResult<Outcome> {
        let py = self.py;
        let quiet = self.is_quiet();
        let chunks = PyList::empty(py);
        for (sink, chunk) in self.chunks {
            chunks.append((sink, chunk))?;
        }
        let ended = PyList::empty(py);
        for (sink, ending) in self.ended {
            match ending {
                Ended::Bytes(bytes) => ended.append((sink, bytes, py.None()))?,
                Ended::Outputs(choices) => {
                    let outputs = PyList::empty(py);
                    for (index, choice) in choices.into_iter().enumerate() {
                        outputs.append(Output::new(py, index, choice)?)?;
                    }
                    ended.append((sink, outputs, py.None()))?;
                }
                Ended::Failed { why, has_begun: true } => ended.append((sink, PyBytes::new(py, b""), why))?,
                Ended::Failed { why, has_begun: false } => ended.append((sink, py.None(), why))?,
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
            quiet,
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
    inner: Mutex<dispatcher::Dispatcher<Sink>>,
}

impl Dispatcher {
    fn lock(&self) -> MutexGuard<'_, dispatcher::Dispatcher<Sink>> {
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

    #[pyo3(signature = (sink, format, tokenizer, options, rids, prompts, connection = None))]
    #[allow(clippy::too_many_arguments, reason = "it is Python's, and they have names there")]
    fn open(
        &self,
        sink: Py<PyAny>,
        format: &ResponseFormat,
        tokenizer: &Tokenizer,
        options: &TextOptions,
        rids: Vec<String>,
        prompts: Vec<Bound<'_, Prompt>>,
        connection: Option<&Connection>,
    ) -> PyResult<u64> {
        let opening = Opening {
            sink: Sink { object: sink, stream: connection.map(HttpStream::new) },
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

    fn resume(&self, py: Python<'_>, key: u64) -> Option<Py<PyBytes>> {
        let mut gathered = Gathered::new(py);
        let mut inner = self.lock();
        if let Some(stream) = inner.sink_mut(key).and_then(|sink| sink.stream.as_mut()) {
            stream.unblock();
        }
        inner.resume(key, &mut gathered);
        // Its sinks are dropped after the lock is: dropping them may run Python code.
        drop(inner);
        gathered.chunks.pop().map(|(_, chunk)| chunk)
    }
}
