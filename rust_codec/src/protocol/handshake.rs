//! How an engine introduces itself. The same for every engine family: maps with named keys, of which each engine sends
//! its own selection, so keys that are not known here are skipped.

use crate::msgpack::{Error, Reader, Writer};

/// What a handshake message says the engine is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It wants the addresses.
    Hello,
    /// Its model is loaded.
    Ready,
}

impl Status {
    /// As it is on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hello => "HELLO",
            Self::Ready => "READY",
        }
    }
}

/// HELLO or READY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// Which of the two.
    pub status: Status,
    /// Whether the engine thinks it shares the host with its frontend. False where it does not say.
    pub local: bool,
    /// Whether the engine runs without a frontend of its own. False where it does not say.
    pub headless: bool,
}

impl Handshake {
    /// Decodes HELLO or READY.
    ///
    /// # Errors
    /// Not such a map; the error names the key.
    pub fn decode(payload: &[u8]) -> Result<Self, Error> {
        let (mut status, mut local, mut headless) = (None, None, None);
        decode_map(payload, |key, reader| {
            match key {
                "status" => status = reader.optional(decode_status)?,
                "local" => local = reader.optional(Reader::bool)?,
                "headless" => headless = reader.optional(Reader::bool)?,
                _ => reader.skip(1)?,
            }
            Ok(())
        })?;
        Ok(Self {
            status: status.ok_or_else(|| Error::new(payload.len(), "HELLO or READY", "nothing").in_field("status"))?,
            local: local.unwrap_or(false),
            headless: headless.unwrap_or(false),
        })
    }
}

fn decode_status(reader: &mut Reader<'_>) -> Result<Status, Error> {
    let offset = reader.position();
    match reader.str()? {
        "HELLO" => Ok(Status::Hello),
        "READY" => Ok(Status::Ready),
        _ => Err(Error::new(offset, "HELLO or READY", "another string")),
    }
}

/// What an engine tells of itself when it registers on the input socket. `None`: it did not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadyResponse {
    /// Tokens of prompt and output together.
    pub max_model_len: Option<u64>,
    /// KV blocks on the device.
    pub num_gpu_blocks: Option<u64>,
    /// Tokens a KV block holds: `block_size`, or `prefix_granularity` as TokenSpeed names it.
    pub block_size: Option<u64>,
    /// The engine's version; TokenSpeed puts its own name and version here.
    pub vllm_version: Option<String>,
    /// The model's data type, such as `bfloat16`.
    pub dtype: Option<String>,
    /// Processes of the engine.
    pub world_size: Option<u64>,
    /// Engines that share the sockets.
    pub data_parallel_size: Option<u64>,
    /// Which of them this is.
    pub data_parallel_rank: Option<u64>,
    /// Requests the engine runs at a time.
    pub max_num_seqs: Option<u64>,
    /// Tokens of one step; -1 is legal.
    pub max_num_batched_tokens: Option<i64>,
}

impl ReadyResponse {
    /// Decodes the second frame of a registration.
    ///
    /// # Errors
    /// Not such a map; the error names the key.
    pub fn decode(payload: &[u8]) -> Result<Self, Error> {
        let mut response = Self::default();
        let mut prefix_granularity = None;
        decode_map(payload, |key, reader| {
            match key {
                "max_model_len" => response.max_model_len = reader.optional(Reader::u64)?,
                "num_gpu_blocks" => response.num_gpu_blocks = reader.optional(Reader::u64)?,
                "block_size" => response.block_size = reader.optional(Reader::u64)?,
                "prefix_granularity" => prefix_granularity = reader.optional(Reader::u64)?,
                "vllm_version" => response.vllm_version = reader.optional(decode_string)?,
                "dtype" => response.dtype = reader.optional(decode_string)?,
                "world_size" => response.world_size = reader.optional(Reader::u64)?,
                "data_parallel_size" => response.data_parallel_size = reader.optional(Reader::u64)?,
                "data_parallel_rank" => response.data_parallel_rank = reader.optional(Reader::u64)?,
                "max_num_seqs" => response.max_num_seqs = reader.optional(Reader::u64)?,
                "max_num_batched_tokens" => {
                    response.max_num_batched_tokens = reader.optional(Reader::i64)?;
                }
                _ => reader.skip(1)?,
            }
            Ok(())
        })?;
        response.block_size = response.block_size.or(prefix_granularity);
        Ok(response)
    }
}

fn decode_string(reader: &mut Reader<'_>) -> Result<String, Error> {
    reader.str().map(str::to_owned)
}

fn decode_map<'a>(
    payload: &'a [u8],
    mut field: impl FnMut(&'a str, &mut Reader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut reader = Reader::new(payload);
    for _ in 0..reader.map()? {
        let key = reader.str()?;
        reader.field(key, |reader| field(key, reader))?;
    }
    reader.finish()
}

/// INIT, the answer to HELLO: the addresses the engine shall connect to.
pub fn encode_init<S: AsRef<str>>(inputs: &[S], outputs: &[S]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(256);
    writer.map(2);
    writer.str("addresses");
    writer.map(5);
    writer.str("inputs");
    writer.strs(inputs);
    writer.str("outputs");
    writer.strs(outputs);
    for absent in ["coordinator_input", "coordinator_output", "frontend_stats_publish_address"] {
        writer.str(absent);
        writer.nil();
    }
    writer.str("parallel_config");
    writer.map(0);
    writer.into_bytes()
}
