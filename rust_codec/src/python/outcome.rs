//! What a call to the dispatcher gives back.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::columns::{Logprobs, TokenIds};
use crate::dispatcher::Choice;
use crate::generation::{Candidates, Columns, Position, PromptLogprobs, StopReason};
use crate::protocol;
use crate::render::finish_reason;

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Output {
    #[pyo3(get)]
    index: usize,
    #[pyo3(get)]
    text: String,
    #[pyo3(get)]
    token_ids: Py<TokenIds>,
    #[pyo3(get)]
    logprobs: Option<Py<Logprobs>>,
    #[pyo3(get)]
    finish_reason: &'static str,
    #[pyo3(get)]
    stop_reason: Option<Py<PyAny>>,
    #[pyo3(get)]
    cached_tokens: u32,
    candidates: Option<Box<Candidates>>,
    of_prompt: Option<Box<PromptLogprobs>>,
}

impl Output {
    pub fn new(py: Python<'_>, index: usize, choice: Choice) -> PyResult<Self> {
        let Choice { generation, cached_tokens, .. } = choice;
        let stop_reason = match generation.stop_reason() {
            None => None,
            Some(StopReason::Text(text)) => Some(PyString::new(py, text).into_any().unbind()),
            Some(StopReason::Token(id)) => Some(id.into_pyobject(py)?.into_any().unbind()),
        };
        let finish_reason = generation.finish().map_or("", finish_reason);
        let Columns { ids, logprobs, candidates, prompt_logprobs, text } = generation.into_columns();
        Ok(Self {
            index,
            text,
            token_ids: Py::new(py, TokenIds { ids })?,
            logprobs: logprobs.map(|values| Py::new(py, Logprobs { values })).transpose()?,
            finish_reason,
            stop_reason,
            cached_tokens,
            candidates,
            of_prompt: prompt_logprobs,
        })
    }
}

#[pymethods]
impl Output {
    #[getter]
    fn top_logprobs(&self) -> Option<Vec<Vec<(u32, f64)>>> {
        let pairs =
            |Position { ids, logprobs }: Position<'_>| ids.iter().copied().zip(logprobs.iter().copied()).collect();
        Some(self.candidates.as_ref()?.positions().map(pairs).collect())
    }

    #[getter]
    fn prompt_logprobs(&self) -> Option<Vec<Option<Ranked>>> {
        let prompt = self.of_prompt.as_ref()?;
        let ranked = |(index, Position { ids, logprobs }): (usize, Position<'_>)| {
            let ranked = ids.iter().zip(logprobs).zip(prompt.ranks(index));
            Some(ranked.map(|((&id, &logprob), &rank)| (id, logprob, rank)).collect())
        };
        Some(std::iter::once(None).chain(prompt.candidates().positions().enumerate().map(ranked)).collect())
    }
}

/// The candidates for a position: id, logprob, rank.
type Ranked = Vec<(u32, f64, u32)>;

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
pub struct Wave {
    engine_index: u32,
    complete: Option<u64>,
    start: Option<u64>,
}

impl From<protocol::Wave> for Wave {
    fn from(wave: protocol::Wave) -> Self {
        let protocol::Wave { engine_index, complete, start } = wave;
        Self { engine_index, complete, start }
    }
}

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct Utility {
    call_id: i64,
    failure: Option<String>,
}

impl From<protocol::Utility> for Utility {
    fn from(utility: protocol::Utility) -> Self {
        let protocol::Utility { call_id, failure } = utility;
        Self { call_id, failure }
    }
}

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct Outcome {
    pub chunks: Py<PyList>,
    pub ended: Py<PyList>,
    pub aborts: Py<PyList>,
    pub finished: Py<PyList>,
    pub loads: Py<PyList>,
    pub waves: Py<PyList>,
    pub utilities: Py<PyList>,
    pub refused: Option<String>,
    pub engine_dead: bool,
    pub quiet: bool,
    pub consumed: usize,
}
