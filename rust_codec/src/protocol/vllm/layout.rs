//! Where the fields of the positional structs are, version by version. Fields come in the middle as well as at the end.

use std::fmt;
use std::sync::LazyLock;

const REQUEST_0_12_0: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params eos_token_id arrival_time lora_request \
    cache_salt data_parallel_rank prompt_embeds client_index current_wave priority trace_headers";
const OUTPUT_0_12_0: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params trace_headers num_cached_tokens num_nans_in_logits";
const BATCH_0_12_0: &str = "\
    engine_index outputs scheduler_stats timestamp utility_output finished_requests wave_complete start_wave";
const REQUEST_0_15_1: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params eos_token_id arrival_time lora_request \
    cache_salt data_parallel_rank prompt_embeds client_index current_wave priority trace_headers resumable \
    external_req_id";
const OUTPUT_0_15_1: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params trace_headers num_cached_tokens routed_experts num_nans_in_logits";
const REQUEST_0_18_1: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params arrival_time lora_request cache_salt \
    data_parallel_rank prompt_embeds client_index current_wave priority trace_headers resumable external_req_id \
    reasoning_ended";
const OUTPUT_0_18_1: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params trace_headers num_cached_tokens num_external_computed_tokens routed_experts num_nans_in_logits";
const REQUEST_0_20_2: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params arrival_time lora_request cache_salt \
    data_parallel_rank prompt_embeds client_index current_wave priority trace_headers resumable external_req_id \
    reasoning_ended reasoning_parser_kwargs";
const OUTPUT_0_20_2: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params trace_headers prefill_stats routed_experts num_nans_in_logits";
const REQUEST_0_22_1: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params arrival_time lora_request cache_salt \
    data_parallel_rank prompt_embeds prompt_is_token_ids client_index current_wave priority trace_headers resumable \
    external_req_id reasoning_ended reasoning_parser_kwargs abort_immediately";
const OUTPUT_0_26_0: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params ec_transfer_params trace_headers prefill_stats routed_experts num_nans_in_logits";
const REQUEST_0_28_0: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params arrival_time lora_request cache_salt \
    data_parallel_rank prompt_embeds prompt_is_token_ids client_index current_wave priority trace_headers resumable \
    external_req_id reasoning_ended reasoning_parser_kwargs abort_immediately session_id";
const OUTPUT_0_28_0: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params ec_transfer_params trace_headers prefill_stats routed_experts num_nans_in_logits \
    mm_cache_miss_hashes new_sampling_mask";
const OUTPUT_0_30_0: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params ec_transfer_params trace_headers prefill_stats routed_experts num_nans_in_logits \
    mm_cache_miss_hashes new_sampling_mask spec_decode_metrics";
const REQUEST_0_31_0: &str = "\
    request_id prompt_token_ids mm_features sampling_params pooling_params arrival_time lora_request cache_salt \
    data_parallel_rank prompt_embeds prompt_is_token_ids client_index current_wave priority trace_headers resumable \
    external_req_id reasoning_ended reasoning_parser_kwargs abort_immediately session_id kv_hints";
const OUTPUT_0_31_0: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params ec_transfer_params trace_headers prefill_stats routed_experts num_nans_in_logits \
    mm_cache_miss_hashes new_sampling_mask spec_decode_metrics prompt_token_id_logprobs";
const BATCH_0_32_0: &str = "\
    engine_index outputs scheduler_stats timestamp utility_output finished_requests wave_complete start_wave \
    weight_version";
const OUTPUT_0_33_0: &str = "\
    request_id new_token_ids new_logprobs new_prompt_logprobs_tensors pooling_output finish_reason stop_reason events \
    kv_transfer_params ec_transfer_params trace_headers prefill_stats routed_experts num_nans_in_logits \
    mm_cache_miss_hashes new_sampling_mask spec_decode_metrics prompt_token_id_logprobs error";

/// Every version whose wire is known, the oldest first.
const KNOWN: [Known; 12] = [
    Known((0, 12, 0), REQUEST_0_12_0, OUTPUT_0_12_0, BATCH_0_12_0),
    Known((0, 15, 1), REQUEST_0_15_1, OUTPUT_0_15_1, BATCH_0_12_0),
    Known((0, 18, 1), REQUEST_0_18_1, OUTPUT_0_18_1, BATCH_0_12_0),
    Known((0, 20, 2), REQUEST_0_20_2, OUTPUT_0_20_2, BATCH_0_12_0),
    Known((0, 22, 1), REQUEST_0_22_1, OUTPUT_0_20_2, BATCH_0_12_0),
    Known((0, 24, 0), REQUEST_0_22_1, OUTPUT_0_20_2, BATCH_0_12_0),
    Known((0, 26, 0), REQUEST_0_22_1, OUTPUT_0_26_0, BATCH_0_12_0),
    Known((0, 28, 0), REQUEST_0_28_0, OUTPUT_0_28_0, BATCH_0_12_0),
    Known((0, 30, 0), REQUEST_0_28_0, OUTPUT_0_30_0, BATCH_0_12_0),
    Known((0, 31, 0), REQUEST_0_31_0, OUTPUT_0_31_0, BATCH_0_12_0),
    Known((0, 32, 0), REQUEST_0_31_0, OUTPUT_0_31_0, BATCH_0_32_0),
    Known((0, 33, 0), REQUEST_0_31_0, OUTPUT_0_33_0, BATCH_0_32_0),
];

/// A version and its `EngineCoreRequest`, `EngineCoreOutput` and `EngineCoreOutputs`.
struct Known((u32, u32, u32), &'static str, &'static str, &'static str);

static LAYOUTS: LazyLock<Vec<Layout>> = LazyLock::new(|| KNOWN.iter().map(Layout::new).collect());

/// One element of a positional struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<K> {
    /// As vLLM names it.
    pub name: &'static str,
    /// What it is to us.
    pub kind: K,
}

/// An element of `EngineCoreRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestField {
    RequestId,
    PromptTokenIds,
    SamplingParams,
    EosTokenId,
    ArrivalTime,
    CacheSalt,
    DataParallelRank,
    ClientIndex,
    CurrentWave,
    Priority,
    /// Not used here; false by default.
    Flag,
    /// Not used here; nil by default.
    Other,
}

impl RequestField {
    fn named(name: &str) -> Self {
        match name {
            "request_id" => Self::RequestId,
            "prompt_token_ids" => Self::PromptTokenIds,
            "sampling_params" => Self::SamplingParams,
            "eos_token_id" => Self::EosTokenId,
            "arrival_time" => Self::ArrivalTime,
            "cache_salt" => Self::CacheSalt,
            "data_parallel_rank" => Self::DataParallelRank,
            "client_index" => Self::ClientIndex,
            "current_wave" => Self::CurrentWave,
            "priority" => Self::Priority,
            "resumable" | "abort_immediately" => Self::Flag,
            _ => Self::Other,
        }
    }
}

/// An element of `EngineCoreOutput`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputField {
    RequestId,
    NewTokenIds,
    NewLogprobs,
    NewPromptLogprobs,
    FinishReason,
    StopReason,
    NumCachedTokens,
    PrefillStats,
    /// Not used here.
    Other,
}

impl OutputField {
    fn named(name: &str) -> Self {
        match name {
            "request_id" => Self::RequestId,
            "new_token_ids" => Self::NewTokenIds,
            "new_logprobs" => Self::NewLogprobs,
            "new_prompt_logprobs_tensors" => Self::NewPromptLogprobs,
            "finish_reason" => Self::FinishReason,
            "stop_reason" => Self::StopReason,
            "num_cached_tokens" => Self::NumCachedTokens,
            "prefill_stats" => Self::PrefillStats,
            _ => Self::Other,
        }
    }
}

/// An element of `EngineCoreOutputs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchField {
    EngineIndex,
    Outputs,
    SchedulerStats,
    UtilityOutput,
    FinishedRequests,
    WaveComplete,
    StartWave,
    /// Not used here.
    Other,
}

impl BatchField {
    fn named(name: &str) -> Self {
        match name {
            "engine_index" => Self::EngineIndex,
            "outputs" => Self::Outputs,
            "scheduler_stats" => Self::SchedulerStats,
            "utility_output" => Self::UtilityOutput,
            "finished_requests" => Self::FinishedRequests,
            "wave_complete" => Self::WaveComplete,
            "start_wave" => Self::StartWave,
            _ => Self::Other,
        }
    }
}

/// The positional structs of one version.
#[derive(Debug)]
pub struct Layout {
    version: Version,
    pub(super) request: Vec<Field<RequestField>>,
    pub(super) output: Vec<Field<OutputField>>,
    pub(super) batch: Vec<Field<BatchField>>,
}

/// Versions may share a wire.
impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        (&self.request, &self.output, &self.batch) == (&other.request, &other.output, &other.batch)
    }
}

impl Eq for Layout {}

/// The layout for a version of vLLM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The layout.
    pub layout: &'static Layout,
    /// What there is to say to an operator: the version is newer than all that are known.
    pub warning: Option<String>,
}

impl Layout {
    fn new(known: &Known) -> Self {
        let &Known((major, minor, patch), request, output, batch) = known;
        Self {
            version: Version { major, minor, patch },
            request: fields(request, RequestField::named),
            output: fields(output, OutputField::named),
            batch: fields(batch, BatchField::named),
        }
    }

    /// All that are known, the oldest first.
    pub fn all() -> &'static [Self] {
        &LAYOUTS
    }

    /// The layout for a version as vLLM states it, such as `0.32.0`, `0.32.0+cpu` or `0.33.1rc1.dev5`.
    ///
    /// Patch releases share the wire of their minor release. A minor release in between has the wire of the nearest
    /// lower one that is known, one after all of them that of the newest, with a warning.
    ///
    /// # Errors
    /// Not a version, or one before the oldest that is known.
    pub fn select(version: &str) -> Result<Selection, UnknownVersion> {
        let Some(asked) = Version::parse(version) else {
            return Err(UnknownVersion { version: version.to_owned(), is_older: false });
        };
        let Some(layout) = LAYOUTS.iter().rev().find(|layout| layout.version.release() <= asked.release()) else {
            return Err(UnknownVersion { version: version.to_owned(), is_older: true });
        };
        let is_newest = LAYOUTS.last().is_some_and(|newest| newest.version == layout.version);
        let warning = (is_newest && asked.release() > layout.version.release()).then(|| {
            let newest = layout.version;
            format!("vLLM {version} is newer than {newest}, the newest whose wire is known; it is spoken to as if it were that")
        });
        Ok(Selection { layout, warning })
    }

    /// The version whose wire this is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The elements of `EngineCoreRequest`.
    pub fn request_fields(&self) -> impl Iterator<Item = &'static str> {
        self.request.iter().map(|field| field.name)
    }

    /// The elements of `EngineCoreOutput`, a row.
    pub fn output_fields(&self) -> impl Iterator<Item = &'static str> {
        self.output.iter().map(|field| field.name)
    }

    /// The elements of `EngineCoreOutputs`, a message.
    pub fn batch_fields(&self) -> impl Iterator<Item = &'static str> {
        self.batch.iter().map(|field| field.name)
    }
}

fn fields<K>(names: &'static str, kind: impl Fn(&str) -> K) -> Vec<Field<K>> {
    names.split_ascii_whitespace().map(|name| Field { name, kind: kind(name) }).collect()
}

/// A release of vLLM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Reads `major.minor`, and a patch number if there is one. What follows makes no difference to the wire.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (major, rest) = number(text.strip_prefix('v').unwrap_or(text))?;
        let (minor, rest) = number(rest.strip_prefix('.')?)?;
        let patch = rest.strip_prefix('.').and_then(number).map_or(0, |(patch, _)| patch);
        Some(Self { major, minor, patch })
    }

    fn release(self) -> (u32, u32) {
        (self.major, self.minor)
    }
}

/// The number a text begins with, and what follows it.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A version whose wire is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownVersion {
    version: String,
    is_older: bool,
}

impl fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, is_older } = self;
        match LAYOUTS.first() {
            Some(oldest) if *is_older => {
                write!(f, "vLLM {version} is older than {}, the oldest whose wire is known", oldest.version)
            }
            _ => write!(f, "{version:?} is not a version of vLLM, such as 0.32.0"),
        }
    }
}

impl std::error::Error for UnknownVersion {}
