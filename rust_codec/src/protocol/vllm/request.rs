//! What is sent to an EngineCore: generation requests, by the layout of its version, and what all versions share.
//!
//! Values go on the wire as given; whoever builds a [`Request`] has checked them, for the engine does not.

use super::layout::{Layout, RequestField};
use super::sampling::{Sampling, decode_ids};
use crate::msgpack::{Error, Reader, Writer};
use std::borrow::Cow;

/// The type byte of a message that starts a wave of data-parallel steps.
pub const START_DP_WAVE: &[u8] = &[2];

/// One sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// The request id.
    pub request_id: Cow<'a, str>,
    /// The prompt's tokens.
    pub prompt_token_ids: Cow<'a, [u32]>,
    /// How to sample.
    pub sampling: Sampling<'a>,
    /// When it came, in seconds; requests of one priority are taken in this order.
    pub arrival_time: f64,
    /// Keeps what is cached of the prompt from requests with another salt.
    pub cache_salt: Option<Cow<'a, str>>,
    /// The engine it is meant for, if the sender chose one.
    pub data_parallel_rank: Option<u32>,
    /// The frontend that gets the outputs.
    pub client_index: u32,
    /// The wave of data-parallel steps that the sender believes to be running.
    pub current_wave: u64,
    /// The lower, the sooner.
    pub priority: i64,
}

impl<'a> Request<'a> {
    /// A request of the only frontend, with no preferences.
    pub fn new(
        request_id: impl Into<Cow<'a, str>>,
        prompt_token_ids: impl Into<Cow<'a, [u32]>>,
        sampling: Sampling<'a>,
    ) -> Self {
        Self {
            request_id: request_id.into(),
            prompt_token_ids: prompt_token_ids.into(),
            sampling,
            arrival_time: 0.0,
            cache_salt: None,
            data_parallel_rank: None,
            client_index: 0,
            current_wave: 0,
            priority: 0,
        }
    }
}

/// The payload of an [`ADD`](crate::protocol::request::ADD) message.
pub fn encode_request(request: &Request<'_>, layout: &Layout) -> Vec<u8> {
    let has_own_eos = layout.request.iter().any(|field| field.kind == RequestField::EosTokenId);
    let mut writer = Writer::with_capacity(512 + 5 * request.prompt_token_ids.len());
    writer.array(layout.request.len());
    for field in &layout.request {
        match field.kind {
            RequestField::RequestId => writer.str(&request.request_id),
            RequestField::PromptTokenIds => writer.u32s(&request.prompt_token_ids),
            RequestField::SamplingParams => request.sampling.write(&mut writer, !has_own_eos),
            RequestField::EosTokenId => {
                writer.optional(request.sampling.eos_token_id, |writer, id| writer.uint(id.into()));
            }
            RequestField::ArrivalTime => writer.f64(request.arrival_time),
            RequestField::CacheSalt => writer.optional(request.cache_salt.as_deref(), Writer::str),
            RequestField::DataParallelRank => {
                writer.optional(request.data_parallel_rank, |writer, rank| writer.uint(rank.into()));
            }
            RequestField::ClientIndex => writer.uint(request.client_index.into()),
            RequestField::CurrentWave => writer.uint(request.current_wave),
            RequestField::Priority => writer.int(request.priority),
            RequestField::Flag => writer.bool(false),
            RequestField::Other => writer.nil(),
        }
    }
    writer.into_bytes()
}

/// Reads what [`encode_request`] writes. Elements that are missing at the end have their defaults; what has no place in
/// [`Request`] is skipped.
///
/// # Errors
/// Not such a request; the error names the field.
pub fn decode_request<'a>(payload: &'a [u8], layout: &Layout) -> Result<Request<'a>, Error> {
    let mut reader = Reader::new(payload);
    let offset = reader.position();
    let length = reader.array()?;
    let mut request = Request::new("", Vec::new(), Sampling::default());
    let mut eos_token_id = None;
    let mut has_sampling = false;
    for field in layout.request.iter().take(length) {
        reader.field(field.name, |reader| {
            match field.kind {
                RequestField::RequestId => request.request_id = reader.str()?.into(),
                RequestField::PromptTokenIds => request.prompt_token_ids = decode_ids(reader)?.into(),
                RequestField::SamplingParams => {
                    request.sampling = Sampling::decode(reader)?;
                    has_sampling = true;
                }
                RequestField::EosTokenId => eos_token_id = reader.optional(Reader::u32)?,
                RequestField::ArrivalTime => request.arrival_time = reader.f64()?,
                RequestField::CacheSalt => request.cache_salt = reader.optional(Reader::str)?.map(Cow::Borrowed),
                RequestField::DataParallelRank => request.data_parallel_rank = reader.optional(Reader::u32)?,
                RequestField::ClientIndex => request.client_index = reader.u32()?,
                RequestField::CurrentWave => request.current_wave = reader.u64()?,
                RequestField::Priority => request.priority = reader.i64()?,
                RequestField::Flag | RequestField::Other => reader.skip(1)?,
            }
            Ok(())
        })?;
    }
    if !has_sampling {
        return Err(Error::new(offset, "elements up to sampling_params or more", length.to_string()));
    }
    reader.skip(length.saturating_sub(layout.request.len()))?;
    reader.finish()?;
    request.sampling.eos_token_id = request.sampling.eos_token_id.or(eos_token_id);
    Ok(request)
}

/// The payload of a [`START_DP_WAVE`] message: the engine begins the wave, unless it has passed it.
pub fn encode_start_wave(wave: u64) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(2);
    writer.uint(wave);
    // The engine that has begun it already: none.
    writer.nil();
    writer.into_bytes()
}
