//! Chat completions.

use super::{Delta, Format, json};

/// The role, once; then content, if any; then the end, in an event of its own with an empty delta.
pub(super) fn write_events(format: &Format, out: &mut Vec<u8>, delta: &Delta<'_>) {
    if !delta.generation.has_emitted() {
        format.write_event(out, |out| {
            delta.write_index(out);
            out.extend_from_slice(
                b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}",
            );
        });
    }
    let has_text = delta.has_text();
    if has_text {
        format.write_event(out, |out| {
            delta.write_index(out);
            out.extend_from_slice(b",\"delta\":{\"content\":\"");
            delta.write_content(out);
            out.extend_from_slice(b"\"}");
            write_logprobs(out, delta);
            out.extend_from_slice(b",\"finish_reason\":null}");
        });
    }
    if delta.finish.is_some() {
        format.write_event(out, |out| {
            delta.write_index(out);
            out.extend_from_slice(b",\"delta\":{}");
            if has_text {
                out.extend_from_slice(b",\"logprobs\":null");
            } else {
                // Tokens without text, such as the end-of-sequence token.
                write_logprobs(out, delta);
            }
            delta.write_finish(out);
        });
    }
}

/// A choice of a whole body.
pub(super) fn write_choice(out: &mut Vec<u8>, whole: &Delta<'_>) {
    whole.write_index(out);
    out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":\"");
    whole.write_content(out);
    out.extend_from_slice(b"\",\"refusal\":null}");
    write_logprobs(out, whole);
    whole.write_finish(out);
}

fn write_logprobs(out: &mut Vec<u8>, delta: &Delta<'_>) {
    let tokens = delta.tokens;
    if tokens.logprobs.is_empty() {
        out.extend_from_slice(b",\"logprobs\":null");
        return;
    }
    out.extend_from_slice(b",\"logprobs\":{\"content\":");
    json::array(out, tokens.ids.iter().zip(tokens.logprobs), |out, (&id, &logprob)| {
        let bytes = delta.tokenizer().token_bytes(id);
        out.extend_from_slice(b"{\"token\":");
        json::string(out, &String::from_utf8_lossy(&bytes));
        out.extend_from_slice(b",\"logprob\":");
        json::logprob(out, logprob);
        out.extend_from_slice(b",\"bytes\":");
        json::array(out, bytes.iter(), |out, &byte| json::integer(out, u64::from(byte)));
        out.extend_from_slice(b",\"top_logprobs\":[]}");
    });
    out.extend_from_slice(b",\"refusal\":null}");
}
