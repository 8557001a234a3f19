//! The wire of vLLM's EngineCore.

mod array;
mod constraint;
mod layout;
mod output;
mod request;
mod sampling;

pub use constraint::{Constraint, StructuredOutputs};
pub use layout::{Layout, Selection, UnknownVersion, Version};
pub use output::decode_output;
pub use request::{Request, START_DP_WAVE, decode_request, encode_request, encode_start_wave};
pub use sampling::Sampling;
