//! Which wire an engine speaks.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::protocol;
use crate::protocol::vllm::{Layout, Selection};

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Protocol {
    pub inner: protocol::Protocol,
    #[pyo3(get)]
    warning: Option<String>,
}

impl Protocol {
    /// The layout of a vLLM.
    pub fn layout(&self) -> PyResult<&'static Layout> {
        match self.inner {
            protocol::Protocol::Vllm(layout) => Ok(layout),
            protocol::Protocol::TokenSpeed => Err(PyValueError::new_err("the protocol is not vLLM's")),
        }
    }
}

#[pymethods]
impl Protocol {
    #[staticmethod]
    fn tokenspeed() -> Self {
        Self { inner: protocol::Protocol::TokenSpeed, warning: None }
    }

    #[staticmethod]
    fn vllm(version: &str) -> PyResult<Self> {
        let Selection { layout, warning } =
            Layout::select(version).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { inner: protocol::Protocol::Vllm(layout), warning })
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().inner == self.inner)
    }

    fn __hash__(&self) -> u64 {
        // Protocols that are equal may have been made of different versions.
        match self.inner {
            protocol::Protocol::TokenSpeed => 0,
            protocol::Protocol::Vllm(_) => 1,
        }
    }

    fn __repr__(&self) -> String {
        match self.inner {
            protocol::Protocol::TokenSpeed => "Protocol.tokenspeed()".to_owned(),
            protocol::Protocol::Vllm(layout) => format!("Protocol.vllm({:?})", layout.version().to_string()),
        }
    }
}
