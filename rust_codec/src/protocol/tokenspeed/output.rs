//! Output ticks, in every revision of the wire. They are told apart by themselves: the first element of the oldest is a
//! column, of the others a tag; the later ones are longer.

use crate::msgpack::{Error, Reader};
use crate::protocol::{Extra, FinishReason, Load, Row, StopReason, Tick};

const TAG: &str = "BatchTokenIDOutSlim";

/// Elements up to and with the logprob columns, with `engine_index`, and with the load. The tag counts.
const COLUMNS: usize = 9;
const WITH_RANK: usize = 10;
const WITH_LOAD: usize = 14;

/// Decodes an output batch into `tick`, which must be empty. Frames after the first are not TokenSpeed's and are ignored.
///
/// # Errors
/// Not such a batch, or its columns are ragged. The tick's content then means nothing.
pub fn decode_output(frames: &[&[u8]], tick: &mut Tick) -> Result<(), Error> {
    let frame = *frames.first().ok_or_else(|| Error::new(0, "a frame", "none"))?;
    if u32::try_from(frame.len()).is_err() {
        return Err(Error::new(0, "a frame below 4 GiB", "more"));
    }
    let mut reader = Reader::new(frame);
    let length = decode_head(&mut reader)?;
    decode_columns(&mut reader, tick)?;
    if length >= WITH_RANK {
        tick.engine_index = Some(reader.field("engine_index", Reader::u32)?);
    }
    let mut known = length.min(WITH_RANK);
    if length >= WITH_LOAD {
        tick.load = decode_load(&mut reader, tick.engine_index.unwrap_or(0))?;
        known = WITH_LOAD;
    }
    reader.skip(length - known)?;
    reader.finish()
}

/// Reads as far as the first column. Returns how many elements the batch has, counting a tag where there is none.
fn decode_head(reader: &mut Reader<'_>) -> Result<usize, Error> {
    let offset = reader.position();
    let length = reader.array()?;
    if !reader.at_str() {
        return if length == COLUMNS - 1 {
            Ok(COLUMNS)
        } else {
            Err(Error::new(offset, "8 elements without a tag", length.to_string()))
        };
    }
    let tag_offset = reader.position();
    if reader.str()? != TAG {
        return Err(Error::new(tag_offset, TAG, "another string").in_field("tag"));
    }
    if length < COLUMNS {
        return Err(Error::new(offset, "9 elements or more with the tag", length.to_string()));
    }
    Ok(length)
}

fn decode_columns(reader: &mut Reader<'_>, tick: &mut Tick) -> Result<(), Error> {
    let Tick { rows, token_ids, logprobs, extras, .. } = tick;
    decode_ids(reader, rows).map_err(|error| error.in_field("rids"))?;
    column("output_ids", reader, rows, |reader, row| {
        let start = token_ids.len() as u32;
        reader.append_u32s(token_ids)?;
        row.tokens = start..token_ids.len() as u32;
        Ok(())
    })?;
    column("finished_reasons", reader, rows, |reader, row| {
        row.finish = decode_finish(reader, row, extras)?;
        Ok(())
    })?;
    // What the dispatcher counts itself.
    for name in ["prompt_tokens", "completion_tokens"] {
        column(name, reader, rows, |reader, _| reader.u32().map(drop))?;
    }
    column("cached_tokens", reader, rows, |reader, row| {
        row.cached_tokens = reader.u32()?;
        Ok(())
    })?;
    column("output_token_logprobs_val", reader, rows, |reader, row| {
        let offset = reader.position();
        let start = logprobs.len() as u32;
        let length = reader.append_f64s(logprobs)?;
        row.logprobs = start..logprobs.len() as u32;
        if length != 0 && length != row.tokens.len() {
            return Err(ragged(offset, row.tokens.len(), "output_ids", length));
        }
        Ok(())
    })?;
    column("output_token_logprobs_idx", reader, rows, |reader, row| {
        let offset = reader.position();
        let length = reader.array()?;
        if length != row.logprobs.len() {
            return Err(ragged(offset, row.logprobs.len(), "output_token_logprobs_val", length));
        }
        for index in 0..length {
            reader.u32().map_err(|error| error.in_element(index))?;
        }
        Ok(())
    })
}

/// Begins one row per request id.
fn decode_ids(reader: &mut Reader<'_>, rows: &mut Vec<Row>) -> Result<(), Error> {
    for index in 0..reader.array()? {
        let id = reader.str_range().map_err(|error| error.in_element(index))?;
        rows.push(Row { id: id.start as u32..id.end as u32, ..Row::default() });
    }
    Ok(())
}

/// What is after this in a finished reason is why the engine failed the request.
const CAUSE: &[u8] = b"error: ";

#[inline]
fn decode_finish(
    reader: &mut Reader<'_>,
    row: &mut Row,
    extras: &mut Vec<Extra>,
) -> Result<Option<FinishReason>, Error> {
    if reader.take_nil() {
        return Ok(None);
    }
    Ok(match reader.str_bytes()? {
        b"" => None,
        b"stop" => Some(FinishReason::Stop),
        b"length" => Some(FinishReason::Length),
        b"abort" => Some(FinishReason::Abort),
        other => {
            if let Some(cause) = other.strip_prefix(CAUSE)
                && std::str::from_utf8(cause).is_ok()
            {
                let end = reader.position() as u32;
                let stop_reason = Some(StopReason::Text(end - cause.len() as u32..end));
                extras.push(Extra { stop_reason, ..Extra::default() });
                row.extra = extras.len() as u32;
            }
            Some(FinishReason::Error)
        }
    })
}

fn decode_load(reader: &mut Reader<'_>, engine_index: u32) -> Result<Option<Load>, Error> {
    let running = reader.field("num_running", Reader::u64)?;
    let waiting = reader.field("num_waiting", Reader::u64)?;
    let active_pages = reader.field("kv_active_pages", Reader::u64)?;
    let total_pages = reader.field("kv_total_pages", Reader::u64)?;
    // No pages at all: the engine took no snapshot.
    let load = || Load { engine_index, running, waiting, kv_usage: active_pages as f64 / total_pages as f64 };
    Ok((total_pages != 0).then(load))
}

/// Reads one column, a value for each row.
#[inline]
fn column<'a>(
    name: &'static str,
    reader: &mut Reader<'a>,
    rows: &mut [Row],
    mut read: impl FnMut(&mut Reader<'a>, &mut Row) -> Result<(), Error>,
) -> Result<(), Error> {
    let offset = reader.position();
    let length = reader.array().map_err(|error| error.in_field(name))?;
    if length != rows.len() {
        return Err(ragged(offset, rows.len(), "rids", length).in_field(name));
    }
    for (index, row) in rows.iter_mut().enumerate() {
        read(reader, row).map_err(|error| error.in_element(index).in_field(name))?;
    }
    Ok(())
}

#[cold]
fn ragged(offset: usize, expected: usize, of: &str, seen: usize) -> Error {
    Error::new(offset, format!("{expected} elements, as many as {of}"), seen.to_string())
}
