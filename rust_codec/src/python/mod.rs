//! The Python surface: conversions, errors, and nothing else. `smg_fast/_codec.pyi` documents it.

mod columns;
mod connection;
mod dispatcher;
mod http;
mod options;
mod outcome;
mod protocol;
mod text;
mod wire;

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

create_exception!(smg_fast._codec, CodecError, PyValueError);

impl From<crate::msgpack::Error> for PyErr {
    fn from(error: crate::msgpack::Error) -> Self {
        CodecError::new_err(error.to_string())
    }
}

#[pymodule(name = "_codec")]
mod codec {
    #[pymodule_export]
    use super::CodecError;
    #[pymodule_export]
    use super::columns::{Logprobs, TokenIds};
    #[pymodule_export]
    use super::connection::Connection;
    #[pymodule_export]
    use super::dispatcher::Dispatcher;
    #[pymodule_export]
    use super::http::RequestHead;
    #[pymodule_export]
    use super::options::{Prompt, ResponseFormat, TextOptions};
    #[pymodule_export]
    use super::outcome::{Load, Outcome, Output, Utility, Wave};
    #[pymodule_export]
    use super::protocol::Protocol;
    #[pymodule_export]
    use super::text::{Detokenizer, Tokenizer};
    #[pymodule_export]
    use super::wire::{
        Handshake, ReadyResponse, decode_handshake, decode_ready_response, encode_abort, encode_init,
        encode_start_wave, encode_tokenspeed_request, encode_vllm_request,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    // Told from outside, by those who build for others: a build script would make every commit a reason to build anew.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __revision__: Option<&str> = option_env!("SMG_FAST_REVISION");
}
