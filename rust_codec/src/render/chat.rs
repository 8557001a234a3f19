//! Chat completions.

use super::{Delta, Format, logprobs};

/// The role, once, and the echo, if any; then content, if any; then the end, in an event of its own with an empty delta.
pub(super) fn write_events(format: &Format, out: &mut Vec<u8>, delta: &Delta<'_>) {
    if !delta.generation.has_emitted() {
        format.write_event(out, delta, 0, |out| {
            delta.write_index(out);
            out.extend_from_slice(b",\"delta\":{\"role\":");
            out.extend_from_slice(&format.role);
            out.extend_from_slice(b",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
        });
    }
    if delta.echo.is_some_and(|echo| !echo.text.is_empty()) {
        format.write_event(out, delta, 0, |out| {
            delta.write_index(out);
            out.extend_from_slice(b",\"delta\":{\"content\":\"");
            delta.write_echo(out);
            out.extend_from_slice(b"\"},\"logprobs\":null,\"finish_reason\":null}");
        });
    }
    let has_text = delta.has_text();
    let completion_tokens = delta.generation.completion_tokens();
    if has_text {
        format.write_event(out, delta, completion_tokens, |out| {
            delta.write_index(out);
            out.extend_from_slice(b",\"delta\":{\"content\":\"");
            delta.write_content(out);
            out.extend_from_slice(b"\"}");
            logprobs::write_chat(out, delta);
            out.extend_from_slice(b",\"finish_reason\":null}");
        });
    }
    if delta.finish.is_some() {
        format.write_event(out, delta, completion_tokens, |out| {
            delta.write_index(out);
            out.extend_from_slice(b",\"delta\":{}");
            if has_text {
                out.extend_from_slice(b",\"logprobs\":null");
            } else {
                // Tokens without text, such as the end-of-sequence token.
                logprobs::write_chat(out, delta);
            }
            delta.write_finish(out);
            out.push(b'}');
        });
    }
}

/// A choice of a whole body.
pub(super) fn write_choice(format: &Format, out: &mut Vec<u8>, whole: &Delta<'_>) {
    whole.write_index(out);
    out.extend_from_slice(b",\"message\":{\"role\":");
    out.extend_from_slice(&format.role);
    out.extend_from_slice(b",\"content\":\"");
    whole.write_echo(out);
    whole.write_content(out);
    out.extend_from_slice(b"\",\"refusal\":null}");
    logprobs::write_chat(out, whole);
    whole.write_finish(out);
    out.push(b'}');
}
