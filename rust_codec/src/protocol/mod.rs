//! The engines' wire: bytes to typed ticks, typed requests to bytes. One folder per engine family.
//!
//! A family's `output` module fills a [`Tick`], the engine-neutral form of one output message; its `request` module
//! encodes what is sent. Nothing here knows what becomes of a tick.
#![deny(unsafe_code)]

pub mod handshake;
pub mod request;
pub mod tokenspeed;
pub mod vllm;

pub use crate::msgpack::Error;
use std::ops::Range;

/// Why an engine ended a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The end-of-sequence token, or a stop token.
    Stop,
    /// The bound on tokens was reached.
    Length,
    /// Aborted, by the gateway or by the engine.
    Abort,
    /// The engine failed the request.
    Error,
    /// The engine found the output repeating itself.
    Repetition,
}

/// What made an engine end a generation, where it says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// A stop token.
    Token(u32),
    /// A text: where it lies in the message's first frame, in bytes. Valid UTF-8.
    Text(Range<u32>),
}

/// One generation's share of a tick.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Where the request id lies in the message's first frame, in bytes. Valid UTF-8.
    pub id: Range<u32>,
    /// The new tokens, in [`Tick::token_ids`]. May be empty.
    pub tokens: Range<u32>,
    /// Their logprobs, in [`Tick::logprobs`]: empty, or as long as `tokens`.
    pub logprobs: Range<u32>,
    /// Prompt tokens the engine found in its prefix cache. 0 where the tick does not say.
    pub cached_tokens: u32,
    /// `None` while the generation runs.
    pub finish: Option<FinishReason>,
    /// Its place in `Tick::extras`, counted from 1; 0 for most rows, which have nothing there.
    extra: u32,
}

/// What few rows have; apart, so that the others stay small.
#[derive(Debug, Clone, Default, PartialEq)]
struct Extra {
    tops: Range<u32>,
    /// Its place in `Tick::prompt_logprobs`.
    prompt_logprobs: Option<u32>,
    stop_reason: Option<StopReason>,
}

/// The likeliest candidates for each token of a row: `width` columns a token, the sampled one first, then the others in the
/// order of their rank (it is there again if it is among them). Empty where there are none but the sampled one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tops<'a> {
    /// Columns for each token.
    pub width: usize,
    /// Token ids, token by token.
    pub ids: &'a [u32],
    /// Their logprobs.
    pub logprobs: &'a [f64],
}

/// Logprobs of a prompt's tokens, from the second on: the first follows upon nothing. They come once, or in parts in the
/// order of the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptLogprobs {
    /// Columns for a position: the prompt's own token first, then the likeliest ones in the order of their rank.
    pub width: u32,
    /// Token ids, position by position.
    pub token_ids: Vec<u32>,
    /// Their logprobs.
    pub logprobs: Vec<f64>,
    /// The rank of the prompt's own token; one for each position. The likeliest has rank 1.
    pub ranks: Vec<u32>,
}

/// The answer to a call of an engine's utility method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Utility {
    /// The number the call was given.
    pub call_id: i64,
    /// Why it failed. `None`: it did not.
    pub failure: Option<String>,
}

/// How busy an engine says it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// The engine that says so (its data-parallel rank).
    pub engine_index: u32,
    /// Requests running.
    pub running: u64,
    /// Requests waiting.
    pub waiting: u64,
    /// The share of its KV cache that is in use, in 0..=1.
    pub kv_usage: f64,
}

/// One engine output message. Reused from tick to tick, so that decoding allocates nothing once the buffers have grown.
#[derive(Debug, Default, PartialEq)]
pub struct Tick {
    /// One per generation that has something new, in the order of the message. An id may come more than once.
    pub rows: Vec<Row>,
    /// The new tokens of all rows.
    pub token_ids: Vec<u32>,
    /// The logprobs of all rows.
    pub logprobs: Vec<f64>,
    extras: Vec<Extra>,
    /// Of all rows' candidates.
    top_ids: Vec<u32>,
    top_logprobs: Vec<f64>,
    /// Of the few rows that have them.
    prompt_logprobs: Vec<PromptLogprobs>,
    /// Ids of requests the engine is done with, as ranges of the message's first frame; valid UTF-8. They repeat what
    /// rows say.
    pub finished: Vec<Range<u32>>,
    /// The answer to a utility call.
    pub utility: Option<Utility>,
    /// The wave of data-parallel steps that the engine has completed.
    pub wave_complete: Option<u64>,
    /// The wave that the engine wants the others to start.
    pub start_wave: Option<u64>,
    /// The engine the message is from, where it says so.
    pub engine_index: Option<u32>,
    /// The engine's load, where the message carries it.
    pub load: Option<Load>,
}

impl Tick {
    /// Empties the tick and keeps its buffers.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.token_ids.clear();
        self.logprobs.clear();
        self.extras.clear();
        self.top_ids.clear();
        self.top_logprobs.clear();
        self.prompt_logprobs.clear();
        self.finished.clear();
        self.utility = None;
        self.wave_complete = None;
        self.start_wave = None;
        self.engine_index = None;
        self.load = None;
    }

    fn extra(&self, row: &Row) -> Option<&Extra> {
        self.extras.get((row.extra as usize).checked_sub(1)?)
    }

    /// The candidates for the tokens of one of this tick's rows.
    pub fn tops(&self, row: &Row) -> Tops<'_> {
        let Some(Extra { tops, .. }) = self.extra(row) else { return Tops::default() };
        let range = tops.start as usize..tops.end as usize;
        Tops {
            width: range.len().checked_div(row.tokens.len()).unwrap_or(0),
            ids: &self.top_ids[range.clone()],
            logprobs: &self.top_logprobs[range],
        }
    }

    /// Logprobs of the prompt that one of this tick's rows answers: all, or the next part of them.
    pub fn prompt_logprobs(&self, row: &Row) -> Option<&PromptLogprobs> {
        self.prompt_logprobs.get(self.extra(row)?.prompt_logprobs? as usize)
    }

    /// The news of waves, where there are any.
    pub fn wave(&self) -> Option<Wave> {
        let Self { wave_complete: complete, start_wave: start, .. } = *self;
        let wave = Wave { engine_index: self.engine_index.unwrap_or(0), complete, start };
        (complete.is_some() || start.is_some()).then_some(wave)
    }

    /// What ended the generation of one of this tick's rows.
    pub fn stop_reason(&self, row: &Row) -> Option<&StopReason> {
        self.extra(row)?.stop_reason.as_ref()
    }
}

/// What an engine of a group that runs in lockstep says of its waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wave {
    /// The engine that says so.
    pub engine_index: u32,
    /// The wave that has ended.
    pub complete: Option<u64>,
    /// The wave that the others shall start.
    pub start: Option<u64>,
}

/// What a decoded output message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Rows, load, other news; possibly nothing. All in the [`Tick`].
    Tick,
    /// The engine's last word: it is gone.
    EngineDead,
}

/// The single frame an engine process sends when it dies in an orderly way. Shared by the engine families.
pub const ENGINE_DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// Which wire an engine speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TokenSpeed, every revision.
    TokenSpeed,
    /// vLLM's EngineCore, as a version lays it out.
    Vllm(&'static vllm::Layout),
}

impl Protocol {
    /// Whether an abort before any token is how the engine refuses a request: TokenSpeed's way. To vLLM's own server it is an
    /// end like others.
    #[must_use]
    pub fn refuses_by_abort(self) -> bool {
        self == Self::TokenSpeed
    }

    /// Decodes one output message into `tick`, whose former content is dropped.
    ///
    /// # Errors
    /// The bytes are not a message of this protocol. The tick's content then means nothing.
    pub fn decode(self, frames: &[&[u8]], tick: &mut Tick) -> Result<Message, Error> {
        tick.clear();
        if let [ENGINE_DEAD] = frames {
            return Ok(Message::EngineDead);
        }
        match self {
            Self::TokenSpeed => tokenspeed::decode_output(frames, tick)?,
            Self::Vllm(layout) => vllm::decode_output(frames, layout, tick)?,
        }
        Ok(Message::Tick)
    }
}
