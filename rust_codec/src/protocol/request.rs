//! What every engine family is sent in the same form: the type byte before a payload, and the abort.

use crate::msgpack::{Error, Reader, Writer};

/// The type byte of a generation request.
pub const ADD: &[u8] = &[0];
/// The type byte of an abort.
pub const ABORT: &[u8] = &[1];

/// The payload of an [`ABORT`] message.
pub fn encode_abort<S: AsRef<str>>(rids: &[S]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.strs(rids);
    writer.into_bytes()
}

/// Reads what [`encode_abort`] writes.
///
/// # Errors
/// Not an array of strings.
pub fn decode_abort(payload: &[u8]) -> Result<Vec<&str>, Error> {
    let mut reader = Reader::new(payload);
    let mut rids = Vec::new();
    for index in 0..reader.array()? {
        rids.push(reader.str().map_err(|error| error.in_element(index))?);
    }
    reader.finish()?;
    Ok(rids)
}
