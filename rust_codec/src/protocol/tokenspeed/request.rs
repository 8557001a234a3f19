//! Generation requests.
//!
//! Values go on the wire as given; whoever builds a [`Request`] has normalised them.

use crate::msgpack::{Error, Reader, Writer};
use std::borrow::Cow;
use std::fmt;

const TAG: &str = "TokenizedGenerateReqInput";
/// Elements of a tagged request, the tag among them, and how many of them must be there.
const TAGGED: usize = 25;
const TAGGED_PREFIX: usize = 11;
const TAGGED_SAMPLING: usize = 29;
const TUPLE: usize = 5;
const TUPLE_SAMPLING: usize = 13;

/// How a request is laid out. The engine's revision decides; it cannot be seen on the wire beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// `TokenizedGenerateReqInput`.
    #[default]
    Tagged,
    /// `WireTokenizedGenerateReq`, the wire's first revision: no constraints.
    Tuple,
}

/// One sequence to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request<'a> {
    /// The request id.
    pub rid: Cow<'a, str>,
    /// The prompt's tokens.
    pub input_ids: Cow<'a, [u32]>,
    /// How to sample.
    pub sampling: Sampling<'a>,
    /// Whether the sampled tokens' logprobs are wanted.
    pub return_logprob: bool,
    /// Whether the tokens are wanted as they come.
    pub stream: bool,
}

/// How the engine shall sample. The defaults restrict nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling<'a> {
    /// Bound on the tokens to generate; `None` leaves it to the engine.
    pub max_new_tokens: Option<u32>,
    /// Tokens that end the generation besides the model's own; `None` for none.
    pub stop_token_ids: Option<Cow<'a, [u32]>>,
    /// Divides the logits.
    pub temperature: f64,
    /// Mass of the nucleus.
    pub top_p: f64,
    /// Candidates kept; 2^30 for all.
    pub top_k: i64,
    /// Least probability of a candidate, as a share of the best one's.
    pub min_p: f64,
    /// Subtracted from a token's logit for each time it was generated.
    pub frequency_penalty: f64,
    /// Subtracted from a token's logit once it was generated.
    pub presence_penalty: f64,
    /// Divides (or multiplies, if negative) the logit of a token that was there before.
    pub repetition_penalty: f64,
    /// Tokens before a stop token may be sampled.
    pub min_new_tokens: u32,
    /// A JSON schema the text must obey.
    pub json_schema: Option<Cow<'a, str>>,
    /// A regular expression the text must match.
    pub regex: Option<Cow<'a, str>>,
    /// A grammar the text must follow.
    pub ebnf: Option<Cow<'a, str>>,
    /// A structural tag, as JSON.
    pub structural_tag: Option<Cow<'a, str>>,
    /// Whether to go on past the model's end-of-sequence token.
    pub ignore_eos: bool,
    /// Makes the sampling repeatable.
    pub seed: Option<i64>,
}

impl Default for Sampling<'_> {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            stop_token_ids: None,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 1 << 30,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            min_new_tokens: 0,
            json_schema: None,
            regex: None,
            ebnf: None,
            structural_tag: None,
            ignore_eos: false,
            seed: None,
        }
    }
}

/// A constrained request in a form that has no place for the constraint, which is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConstraintRefused(pub &'static str);

impl fmt::Display for ConstraintRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the engine's request form has no {}", self.0)
    }
}

impl std::error::Error for ConstraintRefused {}

/// The payload of an [`ADD`](crate::protocol::request::ADD) message.
///
/// # Errors
/// The request is constrained and `form` has no place for that.
pub fn encode_request(request: &Request<'_>, form: Form) -> Result<Vec<u8>, ConstraintRefused> {
    let mut writer = Writer::with_capacity(256 + 5 * request.input_ids.len());
    match form {
        Form::Tagged => write_tagged(&mut writer, request),
        Form::Tuple => {
            request.sampling.refuse_constraint()?;
            write_tuple(&mut writer, request);
        }
    }
    Ok(writer.into_bytes())
}

fn write_tagged(writer: &mut Writer, request: &Request<'_>) {
    writer.array(TAGGED);
    writer.str(TAG);
    writer.str(&request.rid);
    nils(writer, 2); // http_worker_ipc, input_text
    writer.u32s(&request.input_ids);
    write_tagged_sampling(writer, &request.sampling);
    writer.bool(request.return_logprob);
    writer.int(-1); // logprob_start_len: none of the prompt's
    writer.uint(0); // top_logprobs_num
    nils(writer, 1); // token_ids_logprob
    writer.bool(request.stream);
    nils(writer, 3); // input_embeds, session_params, custom_logit_processor
    writer.bool(false); // return_hidden_states
    writer.f64(0.0); // created_time
    nils(writer, 9); // bootstrap_host and what follows it
}

fn write_tagged_sampling(writer: &mut Writer, sampling: &Sampling<'_>) {
    writer.array(TAGGED_SAMPLING);
    writer.optional(sampling.max_new_tokens, |writer, value| writer.uint(u64::from(value)));
    nils(writer, 1); // stop: the engine never sees strings
    writer.optional(sampling.stop_token_ids.as_deref(), Writer::u32s);
    write_distribution(writer, sampling);
    writer.optional(sampling.json_schema.as_deref(), Writer::str);
    writer.optional(sampling.regex.as_deref(), Writer::str);
    writer.optional(sampling.ebnf.as_deref(), Writer::str);
    writer.optional(sampling.structural_tag.as_deref(), Writer::str);
    writer.bool(sampling.ignore_eos);
    writer.bool(true); // skip_special_tokens
    writer.bool(true); // spaces_between_special_tokens
    writer.bool(false); // no_stop_trim
    nils(writer, 4); // thinking_budget, custom_params, stream_interval, logit_bias
    writer.optional(sampling.seed, Writer::int);
    nils(writer, 1); // logprobs
    writer.uint(1); // n
    writer.array(0); // stop_strs
    writer.uint(0); // stop_str_max_len
    writer.bool(true); // is_normalized
}

fn write_tuple(writer: &mut Writer, request: &Request<'_>) {
    writer.array(TUPLE);
    writer.str(&request.rid);
    writer.u32s(&request.input_ids);
    let sampling = &request.sampling;
    writer.array(TUPLE_SAMPLING);
    writer.optional(sampling.max_new_tokens, |writer, value| writer.uint(u64::from(value)));
    writer.optional(sampling.stop_token_ids.as_deref(), Writer::u32s);
    write_distribution(writer, sampling);
    writer.bool(sampling.ignore_eos);
    writer.optional(sampling.seed, Writer::int);
    writer.uint(1); // n
    writer.bool(request.return_logprob);
    writer.bool(request.stream);
}

/// The run of fields that both forms have in the same order.
fn write_distribution(writer: &mut Writer, sampling: &Sampling<'_>) {
    writer.f64(sampling.temperature);
    writer.f64(sampling.top_p);
    writer.int(sampling.top_k);
    writer.f64(sampling.min_p);
    writer.f64(sampling.frequency_penalty);
    writer.f64(sampling.presence_penalty);
    writer.f64(sampling.repetition_penalty);
    writer.uint(u64::from(sampling.min_new_tokens));
}

fn nils(writer: &mut Writer, count: usize) {
    for _ in 0..count {
        writer.nil();
    }
}

impl Sampling<'_> {
    fn refuse_constraint(&self) -> Result<(), ConstraintRefused> {
        let constraints = [
            ("json_schema", &self.json_schema),
            ("regex", &self.regex),
            ("ebnf", &self.ebnf),
            ("structural_tag", &self.structural_tag),
        ];
        match constraints.into_iter().find(|(_, value)| value.is_some()) {
            Some((name, _)) => Err(ConstraintRefused(name)),
            None => Ok(()),
        }
    }
}

/// Reads what [`encode_request`] writes, in the form that the payload shows. Fields without a place in [`Request`] are skipped.
///
/// # Errors
/// Not such a request; the error names the field.
pub fn decode_request(payload: &[u8]) -> Result<(Request<'_>, Form), Error> {
    let mut reader = Reader::new(payload);
    let offset = reader.position();
    let length = reader.array()?;
    // The first element is a string in both forms: the tag, or the request id.
    let (form, known) = match length {
        TUPLE => (Form::Tuple, TUPLE),
        TAGGED_PREFIX.. => (Form::Tagged, TAGGED_PREFIX),
        _ => {
            return Err(Error::new(offset, "5 elements, or 11 and more", length.to_string()));
        }
    };
    let request = match form {
        Form::Tagged => read_tagged(&mut reader)?,
        Form::Tuple => read_tuple(&mut reader)?,
    };
    reader.skip(length - known)?;
    reader.finish()?;
    Ok((request, form))
}

fn read_tagged<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, Error> {
    let offset = reader.position();
    if reader.field("tag", Reader::str)? != TAG {
        return Err(Error::new(offset, TAG, "another string").in_field("tag"));
    }
    let rid = Cow::Borrowed(reader.field("rid", Reader::str)?);
    reader.skip(2)?; // http_worker_ipc, input_text
    let input_ids = Cow::Owned(reader.field("input_ids", read_u32s)?);
    let sampling = reader.field("sampling_params", read_tagged_sampling)?;
    let return_logprob = reader.field("return_logprob", Reader::bool)?;
    reader.skip(3)?; // logprob_start_len, top_logprobs_num, token_ids_logprob
    let stream = reader.field("stream", Reader::bool)?;
    Ok(Request { rid, input_ids, sampling, return_logprob, stream })
}

fn read_tagged_sampling<'a>(reader: &mut Reader<'a>) -> Result<Sampling<'a>, Error> {
    let more = elements(reader, TAGGED_SAMPLING)?;
    let max_new_tokens = reader.field("max_new_tokens", |reader| reader.optional(Reader::u32))?;
    reader.skip(1)?; // stop
    let mut sampling = Sampling {
        max_new_tokens,
        stop_token_ids: reader.field("stop_token_ids", |reader| reader.optional(read_u32s))?.map(Cow::Owned),
        ..Sampling::default()
    };
    read_distribution(reader, &mut sampling)?;
    sampling.json_schema = reader.field("json_schema", |reader| reader.optional(Reader::str))?.map(Cow::Borrowed);
    sampling.regex = reader.field("regex", |reader| reader.optional(Reader::str))?.map(Cow::Borrowed);
    sampling.ebnf = reader.field("ebnf", |reader| reader.optional(Reader::str))?.map(Cow::Borrowed);
    sampling.structural_tag = reader.field("structural_tag", |reader| reader.optional(Reader::str))?.map(Cow::Borrowed);
    sampling.ignore_eos = reader.field("ignore_eos", Reader::bool)?;
    reader.skip(7)?; // skip_special_tokens to logit_bias
    sampling.seed = reader.field("seed", |reader| reader.optional(Reader::i64))?;
    reader.skip(5 + more)?;
    Ok(sampling)
}

fn read_tuple<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, Error> {
    Ok(Request {
        rid: Cow::Borrowed(reader.field("rid", Reader::str)?),
        input_ids: Cow::Owned(reader.field("input_ids", read_u32s)?),
        sampling: reader.field("sampling_params", read_tuple_sampling)?,
        return_logprob: reader.field("return_logprob", Reader::bool)?,
        stream: reader.field("stream", Reader::bool)?,
    })
}

fn read_tuple_sampling<'a>(reader: &mut Reader<'a>) -> Result<Sampling<'a>, Error> {
    let more = elements(reader, TUPLE_SAMPLING)?;
    let mut sampling = Sampling {
        max_new_tokens: reader.field("max_new_tokens", |reader| reader.optional(Reader::u32))?,
        stop_token_ids: reader.field("stop_token_ids", |reader| reader.optional(read_u32s))?.map(Cow::Owned),
        ..Sampling::default()
    };
    read_distribution(reader, &mut sampling)?;
    sampling.ignore_eos = reader.field("ignore_eos", Reader::bool)?;
    sampling.seed = reader.field("seed", |reader| reader.optional(Reader::i64))?;
    reader.skip(1 + more)?; // n
    Ok(sampling)
}

fn read_distribution(reader: &mut Reader<'_>, sampling: &mut Sampling<'_>) -> Result<(), Error> {
    sampling.temperature = reader.field("temperature", Reader::f64)?;
    sampling.top_p = reader.field("top_p", Reader::f64)?;
    sampling.top_k = reader.field("top_k", Reader::i64)?;
    sampling.min_p = reader.field("min_p", Reader::f64)?;
    sampling.frequency_penalty = reader.field("frequency_penalty", Reader::f64)?;
    sampling.presence_penalty = reader.field("presence_penalty", Reader::f64)?;
    sampling.repetition_penalty = reader.field("repetition_penalty", Reader::f64)?;
    sampling.min_new_tokens = reader.field("min_new_tokens", Reader::u32)?;
    Ok(())
}

/// The head of an array of at least so many elements: how many more there are.
fn elements(reader: &mut Reader<'_>, least: usize) -> Result<usize, Error> {
    let offset = reader.position();
    let length = reader.array()?;
    length.checked_sub(least).ok_or_else(|| Error::new(offset, format!("{least} elements or more"), length.to_string()))
}

fn read_u32s(reader: &mut Reader<'_>) -> Result<Vec<u32>, Error> {
    let mut values = Vec::new();
    reader.append_u32s(&mut values)?;
    Ok(values)
}
