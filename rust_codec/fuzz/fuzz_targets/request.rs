//! Requests and aborts. What decodes must mean the same after it was encoded again.
#![no_main]

use _codec::protocol::request::{decode_abort, encode_abort};
use _codec::protocol::tokenspeed::{decode_request, encode_request};
use _codec::protocol::vllm::{self, Layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| {
    if let Ok((request, form)) = decode_request(message) {
        let encoded = encode_request(&request, form).expect("a form holds what came in it");
        let (again, _) = decode_request(&encoded).expect("our own encoding");
        // As bytes: a NaN is not equal to itself.
        assert_eq!(encode_request(&again, form).as_ref(), Ok(&encoded));
    }
    for layout in Layout::all() {
        if let Ok(request) = vllm::decode_request(message, layout) {
            let encoded = vllm::encode_request(&request, layout);
            let again = vllm::decode_request(&encoded, layout).expect("our own encoding");
            assert_eq!(vllm::encode_request(&again, layout), encoded);
        }
    }
    if let Ok(rids) = decode_abort(message) {
        assert_eq!(decode_abort(&encode_abort(&rids)).expect("our own encoding"), rids);
    }
});
