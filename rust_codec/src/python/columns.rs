//! Columns that numpy sees without a copy.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// numpy's description of `len` elements at `address`. They are immutable and live as long as the object that hands this out,
/// which numpy keeps as the array's base.
fn array_interface<'py>(py: Python<'py>, kind: &str, address: usize, len: usize) -> PyResult<Bound<'py, PyDict>> {
    let order = if cfg!(target_endian = "little") { '<' } else { '>' };
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", (len,))?;
    interface.set_item("typestr", format!("{order}{kind}"))?;
    interface.set_item("data", (address, true))?;
    Ok(interface)
}

fn position(index: isize, len: usize) -> PyResult<usize> {
    let from_start = if index < 0 { index.checked_add_unsigned(len) } else { Some(index) };
    from_start
        .and_then(|at| usize::try_from(at).ok())
        .filter(|&at| at < len)
        .ok_or_else(|| PyIndexError::new_err(format!("index {index} is outside a column of {len}")))
}

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct TokenIds {
    pub ids: Vec<u32>,
}

/// Token ids as Python code gives them: a column, or anything that yields integers.
#[derive(FromPyObject)]
pub enum IdsArgument<'py> {
    Column(Bound<'py, TokenIds>),
    List(Vec<u32>),
    Iterable(Bound<'py, PyAny>),
}

impl IdsArgument<'_> {
    /// The ids, copied only where they are no column.
    pub fn with<T>(&self, use_ids: impl FnOnce(&[u32]) -> T) -> PyResult<T> {
        match self {
            Self::Column(column) => Ok(use_ids(&column.get().ids)),
            Self::List(ids) => Ok(use_ids(ids)),
            Self::Iterable(iterable) => {
                let ids: Vec<u32> = iterable.try_iter()?.map(|id| id?.extract()).collect::<PyResult<_>>()?;
                Ok(use_ids(&ids))
            }
        }
    }
}

#[pymethods]
impl TokenIds {
    #[new]
    #[pyo3(signature = (ids = None, /))]
    fn new(ids: Option<IdsArgument<'_>>) -> PyResult<Self> {
        let ids = match ids {
            None => Vec::new(),
            Some(ids) => ids.with(<[u32]>::to_vec)?,
        };
        Ok(Self { ids })
    }

    fn __len__(&self) -> usize {
        self.ids.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<u32> {
        Ok(self.ids[position(index, self.ids.len())?])
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tolist(py)?.into_any().try_iter()?.into_any())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().ids == self.ids)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.ids.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("TokenIds({:?})", self.ids)
    }

    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.ids)
    }

    fn max(&self) -> Option<u32> {
        self.ids.iter().copied().max()
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, "u4", self.ids.as_ptr().addr(), self.ids.len())
    }
}

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Logprobs {
    pub values: Vec<f64>,
}

#[pymethods]
impl Logprobs {
    fn __len__(&self) -> usize {
        self.values.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<f64> {
        Ok(self.values[position(index, self.values.len())?])
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.tolist(py)?.into_any().try_iter()?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("Logprobs({:?})", self.values)
    }

    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.values)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, "f8", self.values.as_ptr().addr(), self.values.len())
    }
}
