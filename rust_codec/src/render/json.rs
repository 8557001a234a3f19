//! JSON text, appended to a byte buffer.

/// Append `text` as the inside of a JSON string, without the quotes.
pub fn escape_into(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    let mut start = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[start..i]);
        start = i + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[start..]);
}

/// Append `text` as a JSON string.
pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape_into(out, text);
    out.push(b'"');
}

/// Append an integer.
pub fn integer(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// The least logprob that is shown, as in OpenAI's API. JSON knows no infinity.
const LEAST_LOGPROB: f64 = -9999.0;

/// Append a logprob, exact to the last bit. What is less than -9999.0, or not finite, is that.
pub fn logprob(out: &mut Vec<u8>, value: f64) {
    let value = if value.is_finite() { value.max(LEAST_LOGPROB) } else { LEAST_LOGPROB };
    out.extend_from_slice(ryu::Buffer::new().format_finite(value).as_bytes());
}

/// Append `items` between brackets, with commas.
pub fn array<T>(out: &mut Vec<u8>, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (i, value) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        item(out, value);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_survive_a_json_parser() {
        let all: String = (0u32..0x250).filter_map(char::from_u32).chain("日本🎉\u{2028}\u{FFFD}".chars()).collect();
        let mut out = Vec::new();
        string(&mut out, &all);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), all);
    }

    #[test]
    fn logprobs_keep_every_bit() {
        for value in [-0.5, -1e-300, -3.25e-17, -0.0, -1.8095355033874512, -9998.999] {
            let mut out = Vec::new();
            logprob(&mut out, value);
            assert_eq!(serde_json::from_slice::<f64>(&out).unwrap().to_bits(), value.to_bits());
        }
        for value in [f64::NEG_INFINITY, f64::NAN, f64::INFINITY, f64::MIN, -9999.5] {
            let mut out = Vec::new();
            logprob(&mut out, value);
            assert_eq!(out, b"-9999.0");
        }
    }
}
