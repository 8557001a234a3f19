//! The per-token path of smg-fast: an engine's bytes in, an API's bytes out.
//!
//! Layers, each ignorant of the ones below it in this list: [`msgpack`], [`protocol`] (an engine family's wire), [`encoding`] (text to
//! token ids), [`generation`] (one sequence's life), [`render`] (API bytes), [`dispatcher`] (request id to generation), and the Python surface.

pub mod dispatcher;
pub mod encoding;
pub mod generation;
pub mod msgpack;
pub mod protocol;
pub mod render;

#[cfg(feature = "python")]
mod python;
