//! API bytes: server-sent events and final JSON bodies of OpenAI's chat completions and completions.
#![deny(unsafe_code)]

mod chat;
mod completion;
mod json;
mod logprobs;

use crate::generation::{Echo, Finish, Generation, StopReason, TokenSpan};

/// Which API a response belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// A piece of a generation's text, by what it is to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The answer itself.
    Content(&'a str),
}

/// Tokens of a response, counted once per prompt and per generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all generations.
    pub completion_tokens: u64,
    /// Of the prompts, found in the engine's cache. `None`: not told.
    pub cached_tokens: Option<u64>,
}

/// The usage that the events of a stream have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamUsage {
    /// An event of its own at the end has that of the whole response.
    pub at_end: bool,
    /// Every event has that of its choice so far.
    pub continuous: bool,
}

/// How one response is rendered. The parts that never change are rendered once.
pub struct Format {
    api: Api,
    /// `"id":…,"model":…,"choices":[`, behind whatever opens an event or a body.
    head: Vec<u8>,
    /// Whose a chat's answer is, as JSON.
    role: Vec<u8>,
    usage: StreamUsage,
}

const ASSISTANT: &[u8] = b"\"assistant\"";

/// The last event of every stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

impl Format {
    /// For a response rendered as events.
    #[must_use]
    pub fn events(api: Api, id: &str, model: &str, created: u64, usage: StreamUsage) -> Self {
        let object = match api {
            Api::Chat => "chat.completion.chunk",
            Api::Completion => "text_completion",
        };
        Self { api, head: head(b"data: {", id, object, model, created), role: ASSISTANT.into(), usage }
    }

    /// For a response rendered as one body.
    #[must_use]
    pub fn body(api: Api, id: &str, model: &str, created: u64) -> Self {
        let object = match api {
            Api::Chat => "chat.completion",
            Api::Completion => "text_completion",
        };
        Self {
            api,
            head: head(b"{", id, object, model, created),
            role: ASSISTANT.into(),
            usage: StreamUsage::default(),
        }
    }

    /// The same for a chat's answer that is somebody else's than the assistant's.
    #[must_use]
    pub fn with_role(mut self, role: &str) -> Self {
        self.role.clear();
        json::string(&mut self.role, role);
        self
    }

    /// Append the events for what is new in a generation, and mark it emitted. Nothing new to show, no event; and none before
    /// the logprobs of the prompt, which belong to the first.
    pub fn write_events(&self, out: &mut Vec<u8>, index: usize, generation: &mut Generation) {
        let text = generation.new_text();
        let finish = generation.new_finish();
        if (text.is_empty() && finish.is_none()) || generation.awaits_prompt_logprobs() {
            return;
        }
        let delta = Delta {
            index,
            echo: generation.prompt().echo().filter(|_| !generation.has_emitted()),
            parts: &[Part::Content(text)],
            tokens: generation.new_tokens(),
            finish,
            stop_reason: generation.stop_reason(),
            is_whole: false,
            generation,
        };
        match self.api {
            Api::Chat => chat::write_events(self, out, &delta),
            Api::Completion => completion::write_event(self, out, &delta),
        }
        generation.mark_emitted();
    }

    /// Append what ends a stream: the usage event, if asked for, and `[DONE]`.
    pub fn write_end(&self, out: &mut Vec<u8>, usage: Usage) {
        if self.usage.at_end {
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b"],\"usage\":");
            write_usage(out, usage);
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(DONE);
    }

    /// Append the whole body of a response whose generations have all ended.
    pub fn write_body<'a>(&self, out: &mut Vec<u8>, generations: impl Iterator<Item = &'a Generation>, usage: Usage) {
        out.extend_from_slice(&self.head);
        let mut last = None;
        for (index, generation) in generations.enumerate() {
            if index > 0 {
                out.push(b',');
            }
            let whole = Delta {
                index,
                echo: generation.prompt().echo(),
                parts: &[Part::Content(generation.text())],
                tokens: generation.tokens(),
                finish: generation.finish(),
                stop_reason: generation.stop_reason(),
                is_whole: true,
                generation,
            };
            match self.api {
                Api::Chat => chat::write_choice(self, out, &whole),
                Api::Completion => completion::write_choice(out, &whole),
            }
            last = Some(generation);
        }
        out.extend_from_slice(b"],\"usage\":");
        write_usage(out, usage);
        // All choices of a chat answer one prompt.
        if let (Api::Chat, Some(generation)) = (self.api, last) {
            logprobs::write_prompt(out, generation);
        }
        out.push(b'}');
    }

    /// One event around a choice, of which `completion_tokens` have been generated.
    fn write_event(
        &self,
        out: &mut Vec<u8>,
        delta: &Delta<'_>,
        completion_tokens: usize,
        choice: impl FnOnce(&mut Vec<u8>),
    ) {
        out.extend_from_slice(&self.head);
        choice(out);
        match self.usage {
            StreamUsage { continuous: true, .. } => {
                let prompt_tokens = delta.generation.prompt().len() as u64;
                let completion_tokens = completion_tokens as u64;
                out.extend_from_slice(b"],\"usage\":");
                write_usage(out, Usage { prompt_tokens, completion_tokens, cached_tokens: None });
                out.extend_from_slice(b"}\n\n");
            }
            // Every event has the field, and all but the last have null.
            StreamUsage { at_end: true, .. } => out.extend_from_slice(b"],\"usage\":null}\n\n"),
            _ => out.extend_from_slice(b"]}\n\n"),
        }
    }
}

/// What is to be told of one generation: what is new for an event, the whole for a body.
struct Delta<'a> {
    index: usize,
    /// What goes before the text, unless an event has carried it.
    echo: Option<&'a Echo>,
    parts: &'a [Part<'a>],
    tokens: TokenSpan<'a>,
    finish: Option<Finish>,
    stop_reason: Option<StopReason<'a>>,
    is_whole: bool,
    generation: &'a Generation,
}

impl Delta<'_> {
    fn has_text(&self) -> bool {
        self.parts.iter().any(|Part::Content(text)| !text.is_empty())
    }

    fn write_content(&self, out: &mut Vec<u8>) {
        for Part::Content(text) in self.parts {
            json::escape_into(out, text);
        }
    }

    fn write_echo(&self, out: &mut Vec<u8>) {
        if let Some(echo) = self.echo {
            json::escape_into(out, &echo.text);
        }
    }

    fn write_index(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"index\":");
        json::integer(out, self.index as u64);
    }

    /// `,"finish_reason":…`, with the stop reason where the generation has ended.
    fn write_finish(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"finish_reason\":");
        let Some(finish) = self.finish else {
            out.extend_from_slice(b"null");
            return;
        };
        json::string(out, finish_reason(finish));
        out.extend_from_slice(b",\"stop_reason\":");
        match self.stop_reason {
            None => out.extend_from_slice(b"null"),
            Some(StopReason::Text(text)) => json::string(out, text),
            Some(StopReason::Token(id)) => json::integer(out, u64::from(id)),
        }
    }
}

/// The API's name for an end.
#[must_use]
pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Abort => "abort",
        Finish::Repetition => "repetition",
    }
}

/// What follows the data of an HTTP/1.1 chunk.
pub const HTTP_CHUNK_TAIL: &[u8] = b"\r\n";

/// What ends a body in HTTP/1.1's chunked transfer coding.
pub const HTTP_LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The size line of an HTTP/1.1 chunk. Leading zeros are legal (RFC 9112, 7.1), and make it of one length for every chunk.
#[must_use]
pub fn http_chunk_head(len: usize) -> [u8; 18] {
    let mut head = *b"0000000000000000\r\n";
    let mut rest = len;
    for digit in head[..16].iter_mut().rev() {
        *digit = b"0123456789abcdef"[rest & 15];
        rest >>= 4;
    }
    head
}

fn head(open: &[u8], id: &str, object: &str, model: &str, created: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(open.len() + id.len() + object.len() + model.len() + 80);
    out.extend_from_slice(open);
    out.extend_from_slice(b"\"id\":");
    json::string(&mut out, id);
    out.extend_from_slice(b",\"object\":");
    json::string(&mut out, object);
    out.extend_from_slice(b",\"created\":");
    json::integer(&mut out, created);
    out.extend_from_slice(b",\"model\":");
    json::string(&mut out, model);
    out.extend_from_slice(b",\"choices\":[");
    out
}

fn write_usage(out: &mut Vec<u8>, usage: Usage) {
    out.extend_from_slice(b"{\"prompt_tokens\":");
    json::integer(out, usage.prompt_tokens);
    out.extend_from_slice(b",\"completion_tokens\":");
    json::integer(out, usage.completion_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    json::integer(out, usage.prompt_tokens + usage.completion_tokens);
    if let Some(cached_tokens) = usage.cached_tokens {
        out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
        json::integer(out, cached_tokens);
        out.push(b'}');
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_line_of_a_chunk_is_right_for_any_size() {
        for size in [0, 1, 0x1f, u32::MAX as usize, usize::MAX / 16 + 1, usize::MAX] {
            let head = http_chunk_head(size);
            let digits = std::str::from_utf8(&head).unwrap().strip_suffix("\r\n").unwrap();
            assert_eq!(usize::from_str_radix(digits, 16), Ok(size));
        }
    }
}
