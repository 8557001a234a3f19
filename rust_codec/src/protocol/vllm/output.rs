//! Output messages, by the layout of the engine's version.

use super::array::{Array, Frames};
use super::layout::{BatchField, Layout, OutputField};
use crate::msgpack::{Error, Reader};
use crate::protocol::{Extra, FinishReason, Load, PromptLogprobs, Row, StopReason, Tick, Utility};
use std::ops::Range;

/// Elements that an output begins with in every version: its request id and its tokens.
const REQUIRED: usize = 2;

/// Decodes an output message into `tick`, which must be empty. Elements that are missing at an end have their defaults,
/// those beyond what the layout knows are skipped.
///
/// # Errors
/// Not such a message; the error names the field. The tick's content then means nothing.
pub fn decode_output(frames: &[&[u8]], layout: &Layout, tick: &mut Tick) -> Result<(), Error> {
    let frame = *frames.first().ok_or_else(|| Error::new(0, "a frame", "none"))?;
    if u32::try_from(frames.iter().map(|frame| frame.len()).sum::<usize>()).is_err() {
        return Err(Error::new(0, "frames below 4 GiB", "more"));
    }
    let mut frames = Frames::new(frames);
    let mut reader = Reader::new(frame);
    let length = reader.array()?;
    tick.engine_index = Some(0);
    for field in layout.batch.iter().take(length) {
        decode_batch_field(field.kind, &mut reader, layout, &mut frames, tick)
            .map_err(|error| error.in_field(field.name))?;
    }
    reader.skip(length.saturating_sub(layout.batch.len()))?;
    if let (Some(load), Some(index)) = (&mut tick.load, tick.engine_index) {
        load.engine_index = index;
    }
    reader.finish()
}

fn decode_batch_field<'a>(
    field: BatchField,
    reader: &mut Reader<'a>,
    layout: &Layout,
    frames: &mut Frames<'a>,
    tick: &mut Tick,
) -> Result<(), Error> {
    match field {
        BatchField::EngineIndex => tick.engine_index = Some(reader.u32()?),
        BatchField::Outputs => {
            for index in 0..reader.array()? {
                decode_row(reader, layout, frames, tick).map_err(|error| error.in_element(index))?;
            }
        }
        BatchField::SchedulerStats => tick.load = reader.optional(decode_load)?,
        BatchField::UtilityOutput => tick.utility = reader.optional(decode_utility)?,
        BatchField::FinishedRequests => {
            if !reader.take_nil() {
                for index in 0..reader.array()? {
                    tick.finished.push(text(reader).map_err(|error| error.in_element(index))?);
                }
            }
        }
        BatchField::WaveComplete => tick.wave_complete = reader.optional(Reader::u64)?,
        BatchField::StartWave => tick.start_wave = reader.optional(Reader::u64)?,
        BatchField::Other => reader.skip(1)?,
    }
    Ok(())
}

/// Where the next value, a string, lies in the frame.
fn text(reader: &mut Reader<'_>) -> Result<Range<u32>, Error> {
    let range = reader.str_range()?;
    Ok(range.start as u32..range.end as u32)
}

#[inline]
fn decode_row<'a>(
    reader: &mut Reader<'a>,
    layout: &Layout,
    frames: &mut Frames<'a>,
    tick: &mut Tick,
) -> Result<(), Error> {
    let offset = reader.position();
    let length = reader.array()?;
    if length < REQUIRED {
        return Err(Error::new(offset, format!("{REQUIRED} elements or more"), length.to_string()));
    }
    let (mut row, mut extra) = (Row::default(), Extra::default());
    for field in layout.output.iter().take(length) {
        decode_row_field(field.kind, reader, frames, &mut row, &mut extra, tick)
            .map_err(|error| error.in_field(field.name))?;
    }
    reader.skip(length.saturating_sub(layout.output.len()))?;
    if extra != Extra::default() {
        tick.extras.push(extra);
        row.extra = tick.extras.len() as u32;
    }
    tick.rows.push(row);
    Ok(())
}

#[inline]
fn decode_row_field<'a>(
    field: OutputField,
    reader: &mut Reader<'a>,
    frames: &mut Frames<'a>,
    row: &mut Row,
    extra: &mut Extra,
    tick: &mut Tick,
) -> Result<(), Error> {
    match field {
        OutputField::RequestId => row.id = text(reader)?,
        OutputField::NewTokenIds => {
            let start = tick.token_ids.len() as u32;
            reader.append_u32s(&mut tick.token_ids)?;
            row.tokens = start..tick.token_ids.len() as u32;
        }
        _ if reader.take_nil() => {}
        OutputField::NewLogprobs => decode_logprobs(reader, frames, row, extra, tick)?,
        OutputField::NewPromptLogprobs => {
            extra.prompt_logprobs = Some(tick.prompt_logprobs.len() as u32);
            tick.prompt_logprobs.push(decode_prompt_logprobs(reader, frames)?);
        }
        OutputField::FinishReason => row.finish = Some(decode_finish(reader)?),
        OutputField::StopReason => {
            let reason =
                if reader.at_str() { StopReason::Text(text(reader)?) } else { StopReason::Token(reader.u32()?) };
            extra.stop_reason = Some(reason);
        }
        OutputField::NumCachedTokens => row.cached_tokens = decode_count(reader)?,
        OutputField::PrefillStats => decode_prefill_stats(reader, row)?,
        OutputField::Other => reader.skip(1)?,
    }
    Ok(())
}

fn decode_finish(reader: &mut Reader<'_>) -> Result<FinishReason, Error> {
    Ok(match reader.u64()? {
        0 => FinishReason::Stop,
        1 => FinishReason::Length,
        2 => FinishReason::Abort,
        4 => FinishReason::Repetition,
        // 3, and what a later version may add: better an error than an end that is taken for a success.
        _ => FinishReason::Error,
    })
}

/// A count of tokens; a request that was never scheduled may have -1.
fn decode_count(reader: &mut Reader<'_>) -> Result<u32, Error> {
    let count = reader.i64()?;
    Ok(count.clamp(0, i64::from(u32::MAX)) as u32)
}

fn decode_prefill_stats(reader: &mut Reader<'_>, row: &mut Row) -> Result<(), Error> {
    for _ in 0..reader.map()? {
        match reader.str_bytes()? {
            b"num_cached_tokens" => row.cached_tokens = reader.field("num_cached_tokens", decode_count)?,
            _ => reader.skip(1)?,
        }
    }
    Ok(())
}

/// Token ids, logprobs and ranks: the first two with a row for each position and the position's own token in column 0.
struct LogprobArrays<'a> {
    positions: usize,
    width: usize,
    token_ids: Array<'a>,
    logprobs: Array<'a>,
    ranks: Array<'a>,
}

impl<'a> LogprobArrays<'a> {
    fn decode(reader: &mut Reader<'a>, frames: &mut Frames<'a>, ranks_name: &str) -> Result<Self, Error> {
        let offset = reader.position();
        let length = reader.array()?;
        if length < 3 {
            return Err(Error::new(offset, "3 arrays or more", length.to_string()));
        }
        let token_ids = reader.field("logprob_token_ids", |reader| Array::decode(reader, frames))?;
        let (positions, width) =
            (token_ids.rows(), token_ids.width().map_err(|error| error.in_field("logprob_token_ids"))?);
        let logprobs = reader.field("logprobs", |reader| {
            let array = Array::decode(reader, frames)?;
            array.expect(positions, Some(width))?;
            Ok(array)
        })?;
        let ranks = reader.field(ranks_name, |reader| {
            let array = Array::decode(reader, frames)?;
            array.expect(positions, None)?;
            Ok(array)
        })?;
        // Where each request's rows begin in the engine's own batch: nothing that concerns this one.
        reader.skip(length - 3)?;
        Ok(Self { positions, width, token_ids, logprobs, ranks })
    }
}

fn decode_logprobs<'a>(
    reader: &mut Reader<'a>,
    frames: &mut Frames<'a>,
    row: &mut Row,
    extra: &mut Extra,
    tick: &mut Tick,
) -> Result<(), Error> {
    let offset = reader.position();
    let LogprobArrays { positions, width, token_ids, logprobs, .. } =
        LogprobArrays::decode(reader, frames, "sampled_token_ranks")?;
    let tokens = row.tokens.len();
    // There may be more: of tokens that were speculated beyond a stop.
    if positions < tokens {
        let expected = format!("{tokens} positions or more, as many as new_token_ids");
        return Err(Error::new(offset, expected, positions.to_string()));
    }
    let start = tick.logprobs.len() as u32;
    logprobs.append_f64s(width, tokens, &mut tick.logprobs).map_err(|error| error.in_field("logprobs"))?;
    row.logprobs = start..tick.logprobs.len() as u32;
    if width > 1 {
        let start = tick.top_ids.len() as u32;
        let count = tokens * width;
        token_ids.append_u32s(1, count, &mut tick.top_ids).map_err(|error| error.in_field("logprob_token_ids"))?;
        logprobs.append_f64s(1, count, &mut tick.top_logprobs).map_err(|error| error.in_field("logprobs"))?;
        extra.tops = start..tick.top_ids.len() as u32;
    }
    Ok(())
}

fn decode_prompt_logprobs<'a>(reader: &mut Reader<'a>, frames: &mut Frames<'a>) -> Result<PromptLogprobs, Error> {
    let LogprobArrays { positions, width, token_ids, logprobs, ranks } =
        LogprobArrays::decode(reader, frames, "selected_token_ranks")?;
    let mut prompt = PromptLogprobs { width: width as u32, ..PromptLogprobs::default() };
    let count = positions * width;
    token_ids.append_u32s(1, count, &mut prompt.token_ids).map_err(|error| error.in_field("logprob_token_ids"))?;
    logprobs.append_f64s(1, count, &mut prompt.logprobs).map_err(|error| error.in_field("logprobs"))?;
    ranks.append_u32s(1, positions, &mut prompt.ranks).map_err(|error| error.in_field("selected_token_ranks"))?;
    Ok(prompt)
}

fn decode_load(reader: &mut Reader<'_>) -> Result<Load, Error> {
    let mut load = Load { engine_index: 0, running: 0, waiting: 0, kv_usage: 0.0 };
    for _ in 0..reader.map()? {
        match reader.str_bytes()? {
            b"num_running_reqs" => load.running = reader.field("num_running_reqs", Reader::u64)?,
            b"num_waiting_reqs" => load.waiting = reader.field("num_waiting_reqs", Reader::u64)?,
            b"kv_cache_usage" => load.kv_usage = reader.field("kv_cache_usage", Reader::f64)?,
            _ => reader.skip(1)?,
        }
    }
    Ok(load)
}

fn decode_utility(reader: &mut Reader<'_>) -> Result<Utility, Error> {
    let offset = reader.position();
    let length = reader.array()?;
    if length == 0 {
        return Err(Error::new(offset, "a call id", "nothing"));
    }
    let call_id = reader.field("call_id", Reader::i64)?;
    let failure = match length {
        1 => None,
        _ => reader.field("failure_message", |reader| reader.optional(Reader::str))?.map(str::to_owned),
    };
    // What the method has returned.
    reader.skip(length.saturating_sub(2))?;
    Ok(Utility { call_id, failure })
}
