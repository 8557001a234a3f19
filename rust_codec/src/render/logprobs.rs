//! Logprobs: of a prompt as vLLM's API shows them, and the two forms of OpenAI's.

use rustc_hash::{FxBuildHasher, FxHashSet};

use super::{Delta, json};
use crate::generation::{Generation, Position, Tokenizer};

/// `,"logprobs":…` of a chat completion.
pub(super) fn write_chat(out: &mut Vec<u8>, delta: &Delta<'_>) {
    let Some(count) = delta.generation.options().logprobs.filter(|_| delta.is_whole || !delta.tokens.ids.is_empty())
    else {
        out.extend_from_slice(b",\"logprobs\":null");
        return;
    };
    out.extend_from_slice(b",\"logprobs\":{\"content\":");
    let tokenizer = delta.generation.tokenizer();
    json::array(out, 0..delta.tokens.ids.len(), |out, index| {
        let Position { ids, logprobs } = delta.tokens.position(index);
        let before = delta.tokens.before(index);
        write_token(out, tokenizer, before, ids[0], logprobs[0]);
        out.extend_from_slice(b",\"top_logprobs\":");
        json::array(out, ids.iter().zip(logprobs).take(count), |out, (&id, &logprob)| {
            write_token(out, tokenizer, before, id, logprob);
            out.push(b'}');
        });
        out.push(b'}');
    });
    out.extend_from_slice(b",\"refusal\":null}");
}

/// A token of a chat completion, its object left open.
fn write_token(out: &mut Vec<u8>, tokenizer: &Tokenizer, before: &[u32], id: u32, logprob: f64) {
    let bytes = tokenizer.token_bytes_after(before, id);
    out.extend_from_slice(b"{\"token\":");
    json::string(out, &String::from_utf8_lossy(&bytes));
    out.extend_from_slice(b",\"logprob\":");
    json::logprob(out, logprob);
    out.extend_from_slice(b",\"bytes\":");
    json::array(out, bytes.iter(), |out, &byte| json::integer(out, u64::from(byte)));
}

/// A token of a completion or of its echo.
struct Token<'a> {
    before: &'a [u32],
    id: u32,
    /// `None` for a prompt's first token, which follows upon nothing.
    position: Option<Position<'a>>,
}

/// `,"logprobs":…` of a completion: those of an echo's tokens first, if they are known.
pub(super) fn write_completion(out: &mut Vec<u8>, delta: &Delta<'_>) {
    let generated = &delta.tokens;
    let tokenizer = delta.generation.tokenizer();
    let echo = delta.echo.zip(delta.generation.prompt_logprobs());
    let has_tokens = delta.is_whole || echo.is_some() || !generated.ids.is_empty();
    let Some(count) = delta.generation.options().logprobs.filter(|_| has_tokens) else {
        out.extend_from_slice(b",\"logprobs\":null");
        return;
    };
    let tokens = || {
        let of_prompt = echo.into_iter().flat_map(|(echo, logprobs)| {
            (0..echo.ids.len()).map(move |index| Token {
                before: &echo.ids[..index],
                id: echo.ids[index],
                position: index.checked_sub(1).map(|index| logprobs.candidates().position(index)),
            })
        });
        let of_completion = (0..generated.ids.len()).map(|index| Token {
            before: generated.before(index),
            id: generated.ids[index],
            position: Some(generated.position(index)),
        });
        of_prompt.chain(of_completion)
    };
    out.extend_from_slice(b",\"logprobs\":{\"tokens\":");
    json::array(out, tokens(), |out, Token { before, id, .. }| {
        json::string(out, &tokenizer.token_text_after(before, id));
    });
    out.extend_from_slice(b",\"token_logprobs\":");
    json::array(out, tokens(), |out, Token { position, .. }| match position {
        Some(position) => json::logprob(out, position.logprobs[0]),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"top_logprobs\":");
    json::array(out, tokens(), |out, Token { before, position, .. }| match position {
        // The token itself, and the others that were asked for.
        Some(position) => write_texts(out, tokenizer, before, position, count.saturating_add(1)),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"text_offset\":");
    let offsets = echo.map_or_else(Vec::new, |(echo, _)| echo.text_offsets(tokenizer));
    json::array(out, offsets.iter().chain(generated.text_offsets), |out, &offset| {
        json::integer(out, u64::from(offset))
    });
    out.push(b'}');
}

/// An object of logprobs by the text of their token. Tokens may be alike in it, as those that end within characters are: the
/// first of them stays, which is the token itself, or the likelier one.
fn write_texts(out: &mut Vec<u8>, tokenizer: &Tokenizer, before: &[u32], position: Position<'_>, count: usize) {
    let mut texts = FxHashSet::with_capacity_and_hasher(count.min(position.ids.len()), FxBuildHasher);
    let candidates = position.ids.iter().zip(position.logprobs).take(count);
    let named = candidates.map(|(&id, &logprob)| (tokenizer.token_text_after(before, id), logprob));
    out.push(b'{');
    for (number, (text, logprob)) in named.filter(|(text, _)| texts.insert(text.clone())).enumerate() {
        if number > 0 {
            out.push(b',');
        }
        json::string(out, &text);
        out.push(b':');
        json::logprob(out, logprob);
    }
    out.push(b'}');
}

/// `,"prompt_logprobs":…`, where they were asked for.
pub(super) fn write_prompt(out: &mut Vec<u8>, generation: &Generation) {
    let Some(prompt) = generation.prompt_logprobs() else { return };
    let tokens: Vec<u32> = prompt.candidates().positions().map(|position| position.ids[0]).collect();
    out.extend_from_slice(b",\"prompt_logprobs\":[null");
    for (index, Position { ids, logprobs }) in prompt.candidates().positions().enumerate() {
        out.extend_from_slice(b",{");
        for (number, ((&id, &logprob), &rank)) in ids.iter().zip(logprobs).zip(prompt.ranks(index)).enumerate() {
            out.extend_from_slice(if number == 0 { b"\"" } else { b",\"" });
            json::integer(out, u64::from(id));
            out.extend_from_slice(b"\":{\"logprob\":");
            json::logprob(out, logprob);
            out.extend_from_slice(b",\"rank\":");
            json::integer(out, u64::from(rank));
            out.extend_from_slice(b",\"decoded_token\":");
            json::string(out, &generation.tokenizer().token_text_after(&tokens[..index], id));
            out.push(b'}');
        }
        out.push(b'}');
    }
    out.push(b']');
}
