//! The per-token path of smg-fast: an engine's bytes in, an API's bytes out.
//!
//! Layers, each ignorant of the ones below it in this list: [`msgpack`], [`protocol`] (an engine family's wire), [`encoding`] (text to
//! token ids), [`generation`] (one sequence's life), [`render`] (API bytes), [`dispatcher`] (request id to generation), and the Python surface.
//! Beside them stands [`http`], the head of a client's request.

pub mod dispatcher;
pub mod encoding;
pub mod generation;
pub mod http;
pub mod msgpack;
pub mod protocol;
pub mod render;

#[cfg(feature = "python")]
mod python;
