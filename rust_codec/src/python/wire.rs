//! Handshake and requests.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::columns::TokenIds;
use super::protocol::Protocol;
use crate::protocol::{handshake, request, tokenspeed, vllm};

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct Handshake {
    status: &'static str,
    local: bool,
    headless: bool,
}

#[pyclass(frozen, get_all, module = "smg_fast._codec")]
pub struct ReadyResponse {
    max_model_len: Option<u64>,
    num_gpu_blocks: Option<u64>,
    block_size: Option<u64>,
    vllm_version: Option<String>,
    dtype: Option<String>,
    world_size: Option<u64>,
    data_parallel_size: Option<u64>,
    data_parallel_rank: Option<u64>,
    max_num_seqs: Option<u64>,
    max_num_batched_tokens: Option<i64>,
}

#[pyfunction]
pub fn decode_handshake(payload: &[u8]) -> PyResult<Handshake> {
    let handshake::Handshake { status, local, headless, .. } = handshake::Handshake::decode(payload)?;
    Ok(Handshake { status: status.as_str(), local, headless })
}

#[pyfunction]
pub fn decode_ready_response(payload: &[u8]) -> PyResult<ReadyResponse> {
    let ready = handshake::ReadyResponse::decode(payload)?;
    Ok(ReadyResponse {
        max_model_len: ready.max_model_len,
        num_gpu_blocks: ready.num_gpu_blocks,
        block_size: ready.block_size,
        vllm_version: ready.vllm_version,
        dtype: ready.dtype,
        world_size: ready.world_size,
        data_parallel_size: ready.data_parallel_size,
        data_parallel_rank: ready.data_parallel_rank,
        max_num_seqs: ready.max_num_seqs,
        max_num_batched_tokens: ready.max_num_batched_tokens,
    })
}

#[pyfunction]
pub fn encode_init<'py>(py: Python<'py>, inputs: Vec<String>, outputs: Vec<String>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &handshake::encode_init(&inputs, &outputs))
}

/// A request message's frames, behind the identity.
type Frames<'py> = Vec<Bound<'py, PyBytes>>;

#[pyfunction]
pub fn encode_abort<'py>(py: Python<'py>, rids: Vec<String>) -> Frames<'py> {
    vec![PyBytes::new(py, request::ABORT), PyBytes::new(py, &request::encode_abort(&rids))]
}

#[pyfunction]
pub fn encode_start_wave(py: Python<'_>, wave: u64) -> Frames<'_> {
    vec![PyBytes::new(py, vllm::START_DP_WAVE), PyBytes::new(py, &vllm::encode_start_wave(wave))]
}

#[pyfunction]
#[pyo3(signature = (rid, input_ids, *, form = "tagged", max_new_tokens = None, stop_token_ids = None, temperature = 1.0,
                    top_p = 1.0, top_k = 1 << 30, min_p = 0.0, frequency_penalty = 0.0, presence_penalty = 0.0,
                    repetition_penalty = 1.0, min_new_tokens = 0, ignore_eos = false, seed = None, json_schema = None,
                    regex = None, ebnf = None, structural_tag = None, return_logprob = false, stream = true))]
#[expect(clippy::too_many_arguments, reason = "a Python signature")]
pub fn encode_tokenspeed_request<'py>(
    py: Python<'py>,
    rid: &str,
    input_ids: &Bound<'py, TokenIds>,
    form: &str,
    max_new_tokens: Option<u32>,
    stop_token_ids: Option<Vec<u32>>,
    temperature: f64,
    top_p: f64,
    top_k: i64,
    min_p: f64,
    frequency_penalty: f64,
    presence_penalty: f64,
    repetition_penalty: f64,
    min_new_tokens: u32,
    ignore_eos: bool,
    seed: Option<i64>,
    json_schema: Option<&str>,
    regex: Option<&str>,
    ebnf: Option<&str>,
    structural_tag: Option<&str>,
    return_logprob: bool,
    stream: bool,
) -> PyResult<Frames<'py>> {
    let form = match form {
        "tagged" => tokenspeed::Form::Tagged,
        "tuple" => tokenspeed::Form::Tuple,
        _ => return Err(PyValueError::new_err(format!("unknown request form {form:?}; known: tagged, tuple"))),
    };
    let sampling = tokenspeed::Sampling {
        max_new_tokens,
        stop_token_ids: stop_token_ids.map(Cow::Owned),
        temperature,
        top_p,
        top_k,
        min_p,
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        min_new_tokens,
        json_schema: json_schema.map(Cow::Borrowed),
        regex: regex.map(Cow::Borrowed),
        ebnf: ebnf.map(Cow::Borrowed),
        structural_tag: structural_tag.map(Cow::Borrowed),
        ignore_eos,
        seed,
    };
    let request = tokenspeed::Request {
        rid: Cow::Borrowed(rid),
        input_ids: Cow::Borrowed(&input_ids.get().ids),
        sampling,
        return_logprob,
        stream,
    };
    let payload =
        tokenspeed::encode_request(&request, form).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(vec![PyBytes::new(py, request::ADD), PyBytes::new(py, &payload)])
}

#[pyfunction]
#[pyo3(signature = (protocol, rid, prompt_token_ids, *, max_tokens, min_tokens = 0, temperature = 1.0, top_p = 1.0, top_k = 0,
                    min_p = 0.0, presence_penalty = 0.0, frequency_penalty = 0.0, repetition_penalty = 1.0, seed = None,
                    stop_token_ids = vec![], ignore_eos = false, eos_token_id = None, all_stop_token_ids = vec![],
                    logprobs = None, prompt_logprobs = None, logit_bias = None, allowed_token_ids = None,
                    bad_words_token_ids = vec![], json = None, regex = None, choice = None, grammar = None,
                    json_object = false, structural_tag = None, backend = None, disable_any_whitespace = false,
                    disable_additional_properties = false, whitespace_pattern = None, skip_reading_prefix_cache = false,
                    arrival_time = 0.0, cache_salt = None, data_parallel_rank = None, client_index = 0,
                    current_wave = 0, priority = 0))]
#[expect(clippy::too_many_arguments, reason = "a Python signature")]
pub fn encode_vllm_request<'py>(
    py: Python<'py>,
    protocol: &Protocol,
    rid: &str,
    prompt_token_ids: &Bound<'py, TokenIds>,
    max_tokens: u32,
    min_tokens: u32,
    temperature: f64,
    top_p: f64,
    top_k: i64,
    min_p: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    repetition_penalty: f64,
    seed: Option<i64>,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    eos_token_id: Option<u32>,
    all_stop_token_ids: Vec<u32>,
    logprobs: Option<i32>,
    prompt_logprobs: Option<i32>,
    logit_bias: Option<BTreeMap<u32, f64>>,
    allowed_token_ids: Option<Vec<u32>>,
    bad_words_token_ids: Vec<Vec<u32>>,
    json: Option<&str>,
    regex: Option<&str>,
    choice: Option<Vec<String>>,
    grammar: Option<&str>,
    json_object: bool,
    structural_tag: Option<&str>,
    backend: Option<&str>,
    disable_any_whitespace: bool,
    disable_additional_properties: bool,
    whitespace_pattern: Option<&str>,
    skip_reading_prefix_cache: bool,
    arrival_time: f64,
    cache_salt: Option<&str>,
    data_parallel_rank: Option<u32>,
    client_index: u32,
    current_wave: u64,
    priority: i64,
) -> PyResult<Frames<'py>> {
    use vllm::Constraint;
    let constraints = [
        json.map(|schema| Constraint::Json(schema.into())),
        regex.map(|regex| Constraint::Regex(regex.into())),
        choice.map(|texts| Constraint::Choice(texts.into_iter().map(Cow::Owned).collect())),
        grammar.map(|grammar| Constraint::Grammar(grammar.into())),
        json_object.then_some(Constraint::JsonObject),
        structural_tag.map(|tag| Constraint::StructuralTag(tag.into())),
    ];
    let mut constraints = constraints.into_iter().flatten();
    let structured_outputs = constraints.next().map(|constraint| vllm::StructuredOutputs {
        constraint,
        backend: backend.map(Cow::Borrowed),
        disable_any_whitespace,
        disable_additional_properties,
        whitespace_pattern: whitespace_pattern.map(Cow::Borrowed),
    });
    if constraints.next().is_some() {
        return Err(PyValueError::new_err("a request has one constraint at most"));
    }
    let sampling = vllm::Sampling {
        max_tokens,
        min_tokens,
        temperature,
        top_p,
        top_k,
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        seed,
        stop_token_ids: stop_token_ids.into(),
        ignore_eos,
        eos_token_id,
        all_stop_token_ids: all_stop_token_ids.into(),
        logprobs,
        prompt_logprobs,
        logit_bias: logit_bias.into_iter().flatten().collect(),
        allowed_token_ids: allowed_token_ids.map(Cow::Owned),
        bad_words_token_ids,
        structured_outputs,
        skip_reading_prefix_cache,
    };
    let request = vllm::Request {
        arrival_time,
        cache_salt: cache_salt.map(Cow::Borrowed),
        data_parallel_rank,
        client_index,
        current_wave,
        priority,
        ..vllm::Request::new(rid, prompt_token_ids.get().ids.as_slice(), sampling)
    };
    let payload = vllm::encode_request(&request, protocol.layout()?);
    Ok(vec![PyBytes::new(py, request::ADD), PyBytes::new(py, &payload)])
}
