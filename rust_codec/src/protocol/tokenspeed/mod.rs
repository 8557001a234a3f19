//! TokenSpeed's wire.

mod output;
mod request;

pub use output::decode_output;
pub use request::{
    ABORT, ADD, ConstraintRefused, Form, Request, Sampling, decode_abort, decode_request, encode_abort, encode_request,
};
