//! What a response is opened with.

use std::fmt;
use std::sync::Arc;

use crate::generation::{Prompt, TextOptions, Tokenizer};
use crate::render::Format;

/// What a response becomes.
pub enum Target {
    /// Events, as they come.
    Events(Format),
    /// One body, at the end.
    Body(Format),
    /// The generations themselves, at the end.
    Outputs,
}

/// A response to be opened.
pub struct Opening<S> {
    /// The caller's handle.
    pub sink: S,
    /// What it becomes.
    pub target: Target,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// What the request asks of the text.
    pub options: Arc<TextOptions>,
    /// Request ids, in the order of the choices.
    pub rids: Vec<Box<[u8]>>,
    /// What they answer: each prompt has as many choices as the others, and the first ids are those of the first.
    pub prompts: Vec<Arc<Prompt>>,
}

/// Why a response cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenError {
    /// There is no request id.
    NoRid,
    /// A request id is in flight already, or comes twice.
    Duplicate(String),
    /// The request ids cannot be shared out evenly among the prompts.
    Uneven {
        /// Request ids.
        rids: usize,
        /// Prompts.
        prompts: usize,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRid => f.write_str("a response needs at least one request id"),
            Self::Duplicate(rid) => write!(f, "request id {rid:?} is in flight already"),
            Self::Uneven { rids, prompts } => {
                write!(f, "request ids: {rids} cannot be shared out evenly among prompts: {prompts}")
            }
        }
    }
}

impl std::error::Error for OpenError {}
