//! The engines' wire, against recorded bytes and random messages.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod decode_time;
mod handshake;
mod msgpack;
mod tokenspeed_output;
mod tokenspeed_request;
mod vllm_array;
mod vllm_layout;
mod vllm_output;
mod vllm_request;
