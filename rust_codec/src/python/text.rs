//! Tokenizer and incremental detokenizer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::columns::{IdsArgument, TokenIds};
use crate::generation::{self, TokenizerError};

impl From<TokenizerError> for PyErr {
    fn from(error: TokenizerError) -> Self {
        match error {
            TokenizerError::Io(error) => error.into(),
            TokenizerError::Invalid(message) => PyValueError::new_err(message),
        }
    }
}

/// Bytes of a text from which on it is encoded without the GIL.
const GIL_FREE: usize = 4096;

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Tokenizer {
    pub inner: Arc<generation::Tokenizer>,
}

#[pymethods]
impl Tokenizer {
    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let inner = py.detach(|| generation::Tokenizer::from_file(&path))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    #[pyo3(signature = (text, add_special_tokens = false))]
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<TokenIds> {
        // Whoever gets the GIL in the meantime may keep it for long.
        let encode = || self.inner.encode(text, add_special_tokens);
        let ids = if text.len() < GIL_FREE { encode() } else { py.detach(encode) }?;
        Ok(TokenIds { ids })
    }

    fn encoding_cost(&self, text: &str) -> usize {
        self.inner.encoding_cost(text)
    }

    #[pyo3(signature = (ids, skip_special_tokens = true))]
    fn decode(&self, ids: IdsArgument<'_>, skip_special_tokens: bool) -> PyResult<String> {
        Ok(ids.with(|ids| self.inner.decode(ids, skip_special_tokens))??)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    fn stop_token(&self, text: &str) -> Option<u32> {
        self.inner.stop_token(text)
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    #[getter]
    fn max_token_bytes(&self) -> usize {
        self.inner.max_token_bytes()
    }
}

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Detokenizer {
    tokenizer: Arc<generation::Tokenizer>,
    state: Mutex<generation::Detokenizer>,
}

#[pymethods]
impl Detokenizer {
    #[new]
    #[pyo3(signature = (tokenizer, skip_special_tokens = true))]
    fn new(tokenizer: &Tokenizer, skip_special_tokens: bool) -> Self {
        let state = generation::Detokenizer::new(&tokenizer.inner, skip_special_tokens);
        Self { tokenizer: tokenizer.inner.clone(), state: Mutex::new(state) }
    }

    fn push(&self, ids: IdsArgument<'_>) -> PyResult<String> {
        ids.with(|ids| {
            let mut text = String::new();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for &id in ids {
                state.push(&self.tokenizer, id, &mut text);
            }
            text
        })
    }

    fn finish(&self) -> String {
        let mut text = String::new();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).finish(&self.tokenizer, &mut text);
        text
    }
}
