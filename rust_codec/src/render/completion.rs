//! Completions, with their older form of logprobs.

use super::{Delta, Format, logprobs};

/// Everything in one event; the first has the echo too.
pub(super) fn write_event(format: &Format, out: &mut Vec<u8>, delta: &Delta<'_>) {
    format.write_event(out, delta, delta.generation.completion_tokens(), |out| write_choice(out, delta));
}

/// A choice: the same in an event and in a whole body, but that a body has the logprobs of the prompt.
pub(super) fn write_choice(out: &mut Vec<u8>, delta: &Delta<'_>) {
    delta.write_index(out);
    out.extend_from_slice(b",\"text\":\"");
    delta.write_echo(out);
    delta.write_content(out);
    out.push(b'"');
    logprobs::write_completion(out, delta);
    delta.write_finish(out);
    if delta.is_whole {
        logprobs::write_prompt(out, delta.generation);
    }
    out.push(b'}');
}
