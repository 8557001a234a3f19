//! Sampling parameters: a map, from which defaults are left out.

use super::constraint::StructuredOutputs;
use crate::msgpack::{Error, Reader, Writer};
use std::borrow::Cow;

/// `output_kind`: each output has what is new since the one before.
const DELTA: u64 = 1;
/// The bound on tokens where none is stated.
const MAX_TOKENS: i64 = 16;

/// How the engine shall sample. The defaults restrict nothing but the length.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling<'a> {
    /// Bound on the tokens to generate.
    pub max_tokens: u32,
    /// Tokens before a stop token may be sampled.
    pub min_tokens: u32,
    /// Divides the logits; 0 for the likeliest token.
    pub temperature: f64,
    /// Mass of the nucleus.
    pub top_p: f64,
    /// Candidates kept; 0 or -1 for all.
    pub top_k: i64,
    /// Least probability of a candidate, as a share of the best one's.
    pub min_p: f64,
    /// Subtracted from a token's logit once it was generated.
    pub presence_penalty: f64,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f64,
    /// Divides (or multiplies, if negative) the logit of a token that was there before.
    pub repetition_penalty: f64,
    /// Makes the sampling repeatable.
    pub seed: Option<i64>,
    /// Tokens that end the generation besides the model's own.
    pub stop_token_ids: Cow<'a, [u32]>,
    /// Whether to go on past the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// The token that ends a generation; the engine does not know it of itself.
    pub eos_token_id: Option<u32>,
    /// Every token that ends a generation: the model's and the request's.
    pub all_stop_token_ids: Cow<'a, [u32]>,
    /// Candidates whose logprobs are wanted besides the sampled token's; -1 for the whole vocabulary.
    pub logprobs: Option<i32>,
    /// The same for the prompt's tokens.
    pub prompt_logprobs: Option<i32>,
    /// Added to the logits of tokens.
    pub logit_bias: Vec<(u32, f64)>,
    /// The only tokens that may be sampled.
    pub allowed_token_ids: Option<Cow<'a, [u32]>>,
    /// Sequences of tokens that must not be generated.
    pub bad_words_token_ids: Vec<Vec<u32>>,
    /// A constraint on the text.
    pub structured_outputs: Option<StructuredOutputs<'a>>,
    /// Compute the whole prompt, as its logprobs require.
    pub skip_reading_prefix_cache: bool,
}

impl Default for Sampling<'_> {
    fn default() -> Self {
        Self {
            max_tokens: MAX_TOKENS as u32,
            min_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            stop_token_ids: Cow::Borrowed(&[]),
            ignore_eos: false,
            eos_token_id: None,
            all_stop_token_ids: Cow::Borrowed(&[]),
            logprobs: None,
            prompt_logprobs: None,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words_token_ids: Vec::new(),
            structured_outputs: None,
            skip_reading_prefix_cache: false,
        }
    }
}

/// The entries of a map that is being written.
#[derive(Default)]
struct Entries {
    writer: Writer,
    count: usize,
}

impl Entries {
    fn value(&mut self, key: &str) -> &mut Writer {
        self.count += 1;
        self.writer.str(key);
        &mut self.writer
    }

    #[expect(clippy::float_cmp, reason = "a default is exactly the default")]
    fn number(&mut self, key: &str, value: f64, default: f64) {
        if value != default {
            self.value(key).f64(value);
        }
    }

    fn integer(&mut self, key: &str, value: Option<i64>) {
        if let Some(value) = value {
            self.value(key).int(value);
        }
    }

    fn finish(self, writer: &mut Writer) {
        writer.map(self.count);
        writer.append(&self.writer);
    }
}

impl<'a> Sampling<'a> {
    /// Writes the map. `with_eos`: it is the place for `_eos_token_id`, in versions that do not have that elsewhere.
    pub(super) fn write(&self, writer: &mut Writer, with_eos: bool) {
        let mut entries = Entries::default();
        entries.number("presence_penalty", self.presence_penalty, 0.0);
        entries.number("frequency_penalty", self.frequency_penalty, 0.0);
        entries.number("repetition_penalty", self.repetition_penalty, 1.0);
        entries.number("temperature", self.temperature, 1.0);
        entries.number("top_p", self.top_p, 1.0);
        entries.integer("top_k", Some(self.top_k).filter(|top_k| *top_k != 0));
        entries.number("min_p", self.min_p, 0.0);
        entries.integer("seed", self.seed);
        entries.value("stop").array(0); // the engine never sees strings
        entries.value("stop_token_ids").u32s(&self.stop_token_ids);
        if self.ignore_eos {
            entries.value("ignore_eos").bool(true);
        }
        entries.integer("max_tokens", Some(self.max_tokens.into()).filter(|max_tokens| *max_tokens != MAX_TOKENS));
        entries.integer("min_tokens", Some(self.min_tokens.into()).filter(|min_tokens| *min_tokens != 0));
        entries.integer("logprobs", self.logprobs.map(i64::from));
        entries.integer("prompt_logprobs", self.prompt_logprobs.map(i64::from));
        entries.value("output_kind").uint(DELTA);
        if with_eos {
            entries.integer("_eos_token_id", self.eos_token_id.map(i64::from));
        }
        if !self.all_stop_token_ids.is_empty() {
            entries.value("_all_stop_token_ids").u32s(&self.all_stop_token_ids);
        }
        if let Some(structured_outputs) = &self.structured_outputs {
            structured_outputs.write(entries.value("structured_outputs"));
        }
        if !self.logit_bias.is_empty() {
            let writer = entries.value("logit_bias");
            writer.map(self.logit_bias.len());
            for (token, bias) in &self.logit_bias {
                writer.uint(u64::from(*token));
                writer.f64(*bias);
            }
        }
        if let Some(allowed) = &self.allowed_token_ids {
            entries.value("allowed_token_ids").u32s(allowed);
        }
        entries.value("bad_words").array(0); // nor these as strings
        if !self.bad_words_token_ids.is_empty() {
            let writer = entries.value("_bad_words_token_ids");
            writer.array(self.bad_words_token_ids.len());
            for word in &self.bad_words_token_ids {
                writer.u32s(word);
            }
        }
        entries.value("skip_reading_prefix_cache").bool(self.skip_reading_prefix_cache);
        entries.finish(writer);
    }

    /// Reads the map. What has no place here is skipped.
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, Error> {
        let mut sampling = Self::default();
        for _ in 0..reader.map()? {
            let key = reader.str()?;
            if !reader.take_nil() {
                reader.field(key, |reader| sampling.decode_entry(key, reader))?;
            }
        }
        Ok(sampling)
    }

    fn decode_entry(&mut self, key: &str, reader: &mut Reader<'a>) -> Result<(), Error> {
        match key {
            "presence_penalty" => self.presence_penalty = reader.f64()?,
            "frequency_penalty" => self.frequency_penalty = reader.f64()?,
            "repetition_penalty" => self.repetition_penalty = reader.f64()?,
            "temperature" => self.temperature = reader.f64()?,
            "top_p" => self.top_p = reader.f64()?,
            "top_k" => self.top_k = reader.i64()?,
            "min_p" => self.min_p = reader.f64()?,
            "seed" => self.seed = Some(reader.i64()?),
            "stop_token_ids" => self.stop_token_ids = decode_ids(reader)?.into(),
            "ignore_eos" => self.ignore_eos = reader.bool()?,
            "max_tokens" => self.max_tokens = reader.u32()?,
            "min_tokens" => self.min_tokens = reader.u32()?,
            "logprobs" => self.logprobs = Some(decode_candidates(reader)?),
            "prompt_logprobs" => self.prompt_logprobs = Some(decode_candidates(reader)?),
            "_eos_token_id" => self.eos_token_id = Some(reader.u32()?),
            "_all_stop_token_ids" => self.all_stop_token_ids = decode_ids(reader)?.into(),
            "structured_outputs" => self.structured_outputs = Some(StructuredOutputs::decode(reader)?),
            "logit_bias" => {
                for _ in 0..reader.map()? {
                    self.logit_bias.push((reader.u32()?, reader.f64()?));
                }
            }
            "allowed_token_ids" => self.allowed_token_ids = Some(decode_ids(reader)?.into()),
            "_bad_words_token_ids" => {
                for index in 0..reader.array()? {
                    let word = decode_ids(reader).map_err(|error| error.in_element(index))?;
                    self.bad_words_token_ids.push(word);
                }
            }
            "skip_reading_prefix_cache" => self.skip_reading_prefix_cache = reader.bool()?,
            _ => reader.skip(1)?,
        }
        Ok(())
    }
}

fn decode_candidates(reader: &mut Reader<'_>) -> Result<i32, Error> {
    let offset = reader.position();
    let count = reader.i64()?;
    i32::try_from(count).map_err(|_| Error::new(offset, "an integer in -2^31..2^31", count.to_string()))
}

pub(super) fn decode_ids(reader: &mut Reader<'_>) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    reader.append_u32s(&mut ids)?;
    Ok(ids)
}
