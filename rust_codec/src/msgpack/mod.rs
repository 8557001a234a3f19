//! MessagePack over a byte slice: a bounded reader that borrows, and a writer of the shortest form.
//!
//! The reader trusts nothing: a declared length is checked against the bytes that are left before anything is done with
//! it (an element takes at least one byte), nesting is bounded, and every way out is a value or an [`Error`].
#![deny(unsafe_code)]

mod reader;
mod writer;

use std::borrow::Cow;
use std::fmt;

pub use reader::{MAX_DEPTH, Reader};
pub use writer::Writer;

/// Why bytes could not be read: where, what was expected there and what was seen.
#[derive(Debug)]
pub struct Error(Box<Fault>);

#[derive(Debug)]
struct Fault {
    path: String,
    expected: Cow<'static, str>,
    seen: Cow<'static, str>,
    offset: usize,
}

impl Error {
    /// A fault at a byte of the frame. `expected` and `seen` are noun phrases.
    #[cold]
    #[inline(never)]
    pub fn new(offset: usize, expected: impl Into<Cow<'static, str>>, seen: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Fault { path: String::new(), expected: expected.into(), seen: seen.into(), offset }))
    }

    /// The same fault, seen from the field that holds it.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub fn in_field(mut self, name: &str) -> Self {
        let path = &mut self.0.path;
        if !path.is_empty() && !path.starts_with('[') {
            path.insert(0, '.');
        }
        path.insert_str(0, name);
        self
    }

    /// The same fault, seen from the array that holds it.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub fn in_element(self, index: usize) -> Self {
        self.in_field(&format!("[{index}]"))
    }

    /// The field, as `sampling_params.top_k` or `output_ids[3][0]`; empty where the whole message is meant.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// The byte of the frame where reading failed.
    pub fn offset(&self) -> usize {
        self.0.offset
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { path, expected, seen, offset } = &*self.0;
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        write!(f, "expected {expected}, seen {seen} (at byte {offset})")
    }
}

impl std::error::Error for Error {}
