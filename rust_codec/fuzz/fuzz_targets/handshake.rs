//! HELLO, READY and the registration.
#![no_main]

use _codec::protocol::handshake::{Handshake, ReadyResponse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| {
    let _ = Handshake::decode(message);
    let _ = ReadyResponse::decode(message);
});
