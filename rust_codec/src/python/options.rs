//! What a response is opened with.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::columns::TokenIds;
use crate::dispatcher::Target;
use crate::generation::{self, StopStrings};
use crate::render::{Api, Format, StreamUsage};

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct TextOptions {
    pub inner: Arc<generation::TextOptions>,
}

#[pymethods]
impl TextOptions {
    #[new]
    #[pyo3(signature = (*, stop = vec![], stop_token_ids = vec![], eos_token_ids = vec![], include_stop_str = false,
                        min_tokens = 0, skip_special_tokens = true, logprobs = None, prompt_logprobs = None,
                        hide_output = false))]
    #[expect(clippy::too_many_arguments, reason = "a Python signature")]
    fn new(
        stop: Vec<String>,
        stop_token_ids: Vec<u32>,
        eos_token_ids: Vec<u32>,
        include_stop_str: bool,
        min_tokens: usize,
        skip_special_tokens: bool,
        logprobs: Option<usize>,
        prompt_logprobs: Option<usize>,
        hide_output: bool,
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
            prompt_logprobs,
            hide_output,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Prompt {
    pub inner: Arc<generation::Prompt>,
}

#[pymethods]
impl Prompt {
    #[new]
    #[pyo3(signature = (ids, *, echo = None))]
    fn new(ids: &TokenIds, echo: Option<String>) -> Self {
        Self { inner: Arc::new(generation::Prompt::new(&ids.ids, echo)) }
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
    role: String,
    stream: bool,
    usage: StreamUsage,
}

impl ResponseFormat {
    pub fn target(&self) -> Target {
        match &self.rendered {
            None => Target::Outputs,
            Some(Rendered { api, id, model, created, role, stream: true, usage }) => {
                Target::Events(Format::events(*api, id, model, *created, *usage).with_role(role))
            }
            Some(Rendered { api, id, model, created, role, .. }) => {
                Target::Body(Format::body(*api, id, model, *created).with_role(role))
            }
        }
    }
}

#[pymethods]
impl ResponseFormat {
    #[staticmethod]
    #[pyo3(signature = (*, id, model, created, stream, include_usage = false, continuous_usage = false,
                        role = "assistant"))]
    fn chat(
        id: String,
        model: String,
        created: u64,
        stream: bool,
        include_usage: bool,
        continuous_usage: bool,
        role: &str,
    ) -> Self {
        let usage = StreamUsage { at_end: include_usage, continuous: continuous_usage };
        Self { rendered: Some(Rendered { api: Api::Chat, id, model, created, role: role.to_owned(), stream, usage }) }
    }

    #[staticmethod]
    #[pyo3(signature = (*, id, model, created, stream, include_usage = false, continuous_usage = false))]
    fn completion(
        id: String,
        model: String,
        created: u64,
        stream: bool,
        include_usage: bool,
        continuous_usage: bool,
    ) -> Self {
        let usage = StreamUsage { at_end: include_usage, continuous: continuous_usage };
        Self {
            rendered: Some(Rendered { api: Api::Completion, id, model, created, role: String::new(), stream, usage }),
        }
    }

    #[staticmethod]
    fn outputs() -> Self {
        Self { rendered: None }
    }
}
