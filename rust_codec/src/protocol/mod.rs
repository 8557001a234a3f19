//! The engines' wire: bytes to typed ticks, typed requests to bytes. One folder per engine family.
//!
//! A family's `output` module fills a [`Tick`], the engine-neutral form of one output message; its `request` module
//! encodes what is sent. Nothing here knows what becomes of a tick.
#![deny(unsafe_code)]

pub mod handshake;
pub mod tokenspeed;

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
}

/// One generation's share of a tick.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Where the request id lies in the message's first frame, in bytes. Valid UTF-8.
    pub id: Range<u32>,
    /// The new tokens, in [`Tick::token_ids`]. May be empty.
    pub tokens: Range<u32>,
    /// Their logprobs, in [`Tick::logprobs`]: empty, or as long as `tokens`.
    pub logprobs: Range<u32>,
    /// Tokens of the prompt, as the engine counts them.
    pub prompt_tokens: u32,
    /// Tokens generated so far, this tick's included, as the engine counts them.
    pub completion_tokens: u32,
    /// Prompt tokens the engine found in its prefix cache.
    pub cached_tokens: u32,
    /// `None` while the generation runs.
    pub finish: Option<FinishReason>,
}

/// How busy an engine says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The engine that says so (its data-parallel rank).
    pub engine_index: u32,
    /// Requests running.
    pub running: u64,
    /// Requests waiting.
    pub waiting: u64,
    /// KV pages in use.
    pub kv_active_pages: u64,
    /// KV pages in all. Never 0: an engine without a snapshot has no `Load`.
    pub kv_total_pages: u64,
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
        self.engine_index = None;
        self.load = None;
    }
}

/// What a decoded output message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Rows, load or both; possibly neither. They are in the [`Tick`].
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
}

impl Protocol {
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
        }
        Ok(Message::Tick)
    }
}
