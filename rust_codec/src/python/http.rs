//! Heads of HTTP requests.

use pyo3::prelude::*;

use crate::http;

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct RequestHead {
    #[pyo3(get)]
    path: String,
    #[pyo3(get)]
    content_length: usize,
    #[pyo3(get)]
    keep_alive: bool,
    #[pyo3(get)]
    rank: Option<String>,
    #[pyo3(get)]
    size: usize,
}

#[pymethods]
impl RequestHead {
    #[staticmethod]
    fn parse(data: &[u8]) -> Option<Self> {
        let head = http::RequestHead::parse(data)?;
        Some(Self {
            path: head.path.to_owned(),
            content_length: head.content_length,
            keep_alive: head.keep_alive,
            // Any bytes have a text, which is quoted when it is no rank.
            rank: head.rank.map(|rank| String::from_utf8_lossy(rank).into_owned()),
            size: head.size,
        })
    }
}
