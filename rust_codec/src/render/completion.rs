//! Completions, with their older form of logprobs.

use super::{Delta, Format, json};

pub(super) fn write_event(format: &Format, out: &mut Vec<u8>, delta: &Delta<'_>) {
    format.write_event(out, |out| write_choice(out, delta));
}

/// A choice: the same in an event and in a whole body.
pub(super) fn write_choice(out: &mut Vec<u8>, delta: &Delta<'_>) {
    delta.write_index(out);
    out.extend_from_slice(b",\"text\":\"");
    delta.write_content(out);
    out.push(b'"');
    write_logprobs(out, delta);
    delta.write_finish(out);
}

fn write_logprobs(out: &mut Vec<u8>, delta: &Delta<'_>) {
    let tokens = delta.tokens;
    if tokens.logprobs.is_empty() {
        out.extend_from_slice(b",\"logprobs\":null");
        return;
    }
    let token = |out: &mut Vec<u8>, id: u32| {
        json::string(out, &String::from_utf8_lossy(&delta.tokenizer().token_bytes(id)));
    };
    out.extend_from_slice(b",\"logprobs\":{\"tokens\":");
    json::array(out, tokens.ids, |out, &id| token(out, id));
    out.extend_from_slice(b",\"token_logprobs\":");
    json::array(out, tokens.logprobs, |out, &logprob| json::logprob(out, logprob));
    out.extend_from_slice(b",\"top_logprobs\":");
    json::array(out, tokens.ids.iter().zip(tokens.logprobs), |out, (&id, &logprob)| {
        out.push(b'{');
        token(out, id);
        out.push(b':');
        json::logprob(out, logprob);
        out.push(b'}');
    });
    out.extend_from_slice(b",\"text_offset\":");
    json::array(out, tokens.text_offsets, |out, &offset| json::integer(out, u64::from(offset)));
    out.push(b'}');
}
