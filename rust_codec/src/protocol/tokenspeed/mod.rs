//! TokenSpeed's wire.

mod output;
mod request;

pub use output::decode_output;
pub use request::{ConstraintRefused, Form, Request, Sampling, decode_request, encode_request};
