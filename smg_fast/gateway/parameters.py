"""The table of parameters by engine, for the documentation: ``python -m smg_fast.gateway.parameters``.

What an engine family honours comes from its capabilities; which parameters there are, from the request models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import get_args

import msgspec

from ..engines import Capabilities, ConstraintKind, OptionalParameter, family
from .compiler import DEADLINE
from .constraints import MAX_CONSTRAINT_SIZE, MAX_SCHEMA_DEPTH, MAX_TAG_DEPTH
from .limits import (
    COMPLETION_TOKENS,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_BIASED_TOKENS,
    MAX_CACHE_SALT_LENGTH,
    MAX_GENERATIONS,
    MAX_N,
    MAX_PROMPT_LOGPROBS,
    MAX_REPEATED_BYTES,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from .refusals import ASKS_NOTHING, NOT_HONOURED
from .requests import ChatCompletionRequest, CompletionRequest, StructuredOutputs

#: By title of their column.
_ENGINES = {"vLLM": family("vllm").capabilities, "TokenSpeed": family("tokenspeed").capabilities}

_YES, _NO = "yes", "no"

_LABEL = "A label of the client's own, without effect"

#: What each parameter means, and what values it may have.
MEANINGS: dict[str, str] = {
    "model": "A name that the model is served by. It may be left out where there is one model only",
    "messages": (
        "Text; images, audio, files and `function_call` are refused. Roles: `system`, `developer`, `user`, "
        "`assistant`, `tool`, and others that the chat template writes out"
    ),
    "prompt": "A text, token ids, or a list of either",
    "stream": "Server-sent events",
    "stream_options": (
        "For streams: `include_usage`, and with it `continuous_usage_stats`; `include_obfuscation` is refused"
    ),
    "n": f"1 to {MAX_N} choices, each with a seed of its own; 1 with temperature 0",
    "best_of": "The same number as `n`",
    "max_tokens": (
        "From 1 to the model's context, and never more than the prompt leaves of it. Unset: all of that; completions: "
        f"{COMPLETION_TOKENS}. A completion with `echo` may have 0"
    ),
    "max_completion_tokens": "The newer name of `max_tokens`; it counts where both are given",
    "min_tokens": "Up to `max_tokens`",
    "temperature": "0 to 2; 0 is greedy",
    "top_p": "Above 0, to 1",
    "top_k": "0 or -1: all",
    "min_p": "0 to 1",
    "frequency_penalty": "-2 to 2",
    "presence_penalty": "-2 to 2",
    "repetition_penalty": "Above 0: a normal float of 32 bits",
    "logit_bias": (
        f"By token id, without leading zeros, up to {MAX_BIASED_TOKENS:,}; "
        f"what is beyond -{MAX_BIAS:g} or {MAX_BIAS:g} counts as that"
    ),
    "allowed_token_ids": f"1 to {MAX_ALLOWED_TOKENS:,} ids: no other token is sampled",
    "bad_words": f"Up to {MAX_BAD_WORDS} words of {MAX_BAD_WORD_LENGTH:,} characters",
    "seed": "64 bits; -1: none",
    "stop": f"Up to {MAX_STOP_STRINGS} strings of {MAX_STOP_LENGTH:,} characters, matched across token borders",
    "stop_token_ids": f"Up to {MAX_STOP_TOKEN_IDS}",
    "include_stop_str_in_output": "The answer ends behind the stop string, not before it",
    "ignore_eos": "Go on after the end of the sequence",
    "skip_special_tokens": "Special tokens are left out of the text, unless false",
    "logprobs": "Chats: true, with `top_logprobs`. Completions: the number of alternatives to each token",
    "top_logprobs": "The number of alternatives to each token",
    "prompt_logprobs": (
        "The number of alternatives to each token of the prompt. With them, of all prompts and choices together, at "
        f"most {MAX_PROMPT_LOGPROBS:,} logprobs, those for `echo` too. In streams 0 only, and none are shown"
    ),
    "echo": (
        "The prompt's text before the answer; completions with `logprobs`: those of its tokens too, if the engine "
        "honours `prompt_logprobs`. Chats: the last message's text, if it is the assistant's, or "
        "with `add_generation_prompt` false"
    ),
    "add_generation_prompt": "The prompt ends with the beginning of an answer, unless false",
    "continue_final_message": "The answer goes on with the last message; with `add_generation_prompt` false",
    "add_special_tokens": "The tokenizer's own, around the prompt: for completions unless false, for chats if true",
    "documents": "If the chat template takes them",
    "chat_template_kwargs": (
        "Variables of the chat template's own; not those that the request sets: `tools`, `documents`, "
        "`add_generation_prompt`, ..."
    ),
    "priority": "64 bits. Lower goes first, if the engine schedules by priority",
    "data_parallel_rank": (
        "The engine that takes the request: from 0, below their number; also as header `X-data-parallel-rank`"
    ),
    "cache_salt": (
        f"1 to {MAX_CACHE_SALT_LENGTH} characters without `@`, `/`, `\\` and NUL: only prompts of the same salt share "
        "the cache"
    ),
    "response_format": "`text`, `json_object`, `json_schema`, `structural_tag`",
    "structured_outputs": "vLLM's: one of `json`, `json_object`, `regex`, `choice`, `grammar`, `structural_tag`",
    "guided_json": "vLLM's older name of `structured_outputs.json`",
    "guided_regex": "Of `structured_outputs.regex`",
    "guided_choice": "Of `structured_outputs.choice`",
    "guided_grammar": "Of `structured_outputs.grammar`",
    "json_schema": "SGLang's name of `structured_outputs.json`",
    "regex": "Of `structured_outputs.regex`",
    "ebnf": "Of `structured_outputs.grammar`",
    "structural_tag": "Of `structured_outputs.structural_tag`",
    "user": _LABEL,
    "metadata": _LABEL,
    "request_id": _LABEL,
    "safety_identifier": _LABEL,
    "prompt_cache_key": _LABEL,
}

_CONSTRAINTS: dict[ConstraintKind, str] = {
    "json_schema": "JSON by a schema",
    "json_object": "Any JSON object",
    "regex": "A match of a regular expression, as a whole",
    "choice": "One of some texts",
    "grammar": "A text of a grammar: EBNF as in llama.cpp; with the backend `guidance` also Lark",
    "structural_tag": "Free text, with JSON between tags; with the backend `guidance` of `structures` and `triggers`",
}


def _alternatives(least: int) -> Callable[[Capabilities], str]:
    def told(capabilities: Capabilities) -> str:
        most = max(least, capabilities.max_top_logprobs)
        return f"0 to {most}" if most else "0"

    return told


def _top_k(capabilities: Capabilities) -> str:
    return "from 1" if capabilities.max_top_k is None else f"1 to {capabilities.max_top_k}"


#: Parameters that an engine honours within limits.
_LIMITED: dict[str, Callable[[Capabilities], str]] = {
    "logprobs": _alternatives(1),
    "top_logprobs": _alternatives(0),
    "top_k": _top_k,
}


def document() -> str:
    """The page, in Markdown."""
    return "\n".join([*_page(), ""])


def _page() -> Iterator[str]:
    yield "# Parameters"
    yield ""
    yield "What requests may ask for, and which engines honour it. What is not honoured is refused, with a 400 that"
    yield "names the parameter, and so is a value out of its range. A null is the same as nothing. Names that are not"
    yield "on this page are ignored, or refused where the gateway runs with `--strict`."
    yield ""
    yield "Made by `python -m smg_fast.gateway.parameters` from what the engine families and the request models say."
    yield ""
    yield from _table(["Parameter", "Endpoint", "Meaning", *_ENGINES], _parameters())
    yield ""
    yield "An engine without alternatives answers a completion's `logprobs` 1 like 0: with the sampled tokens'. The"
    yield "most for vLLM is the gateway's `--max-logprobs`, 20 unless it is given; so it is for `prompt_logprobs`."
    yield ""
    yield "What a request leaves out is as the model's `generation_config.json` says: `temperature`, `top_p`, `top_k`,"
    yield "`min_p`, the three penalties, and `max_tokens` of chats, which is `max_new_tokens` there. Not with"
    yield "`--generation-config none`, nor what the engine cannot honour."
    yield ""
    yield f"All prompts together have at most {MAX_GENERATIONS:,} choices. The engine is told everything for each of"
    yield "them, of which the token ids (of the prompt, `stop_token_ids`, `allowed_token_ids`, `bad_words`: 4 bytes"
    yield f"each; of `logit_bias` 12) and the constraint must not be more than {MAX_REPEATED_BYTES >> 20} MiB in all."
    yield ""
    yield "## Constraints"
    yield ""
    yield f"An answer can have one at most, of up to {MAX_CONSTRAINT_SIZE >> 10} KiB, and one that compiles, within"
    yield f"{DEADLINE:g} s. In a schema objects and arrays are nested {MAX_SCHEMA_DEPTH} deep at most, in a structural"
    yield f"tag {MAX_TAG_DEPTH}."
    yield ""
    yield from _table(["Kind", "The answer is", *_ENGINES], _kinds())
    yield ""
    yield "## Refused"
    yield ""
    yield "These are known, and no engine honours them here. The values beside them ask for nothing, and are accepted."
    yield ""
    yield from _table(["Parameter", "Endpoint", "Accepted"], _refused())


def _parameters() -> Iterator[list[str]]:
    for name, endpoint in _endpoints():
        if name not in NOT_HONOURED[ChatCompletionRequest] + NOT_HONOURED[CompletionRequest]:
            yield [f"`{name}`", endpoint, MEANINGS[name], *(_honoured(name, engine) for engine in _ENGINES.values())]


def _kinds() -> Iterator[list[str]]:
    for kind in get_args(ConstraintKind):
        honoured = [_YES if kind in engine.constraints else _NO for engine in _ENGINES.values()]
        yield [f"`{kind}`", _CONSTRAINTS[kind], *honoured]


def _refused() -> Iterator[list[str]]:
    for name, endpoint in _endpoints():
        if name in NOT_HONOURED[ChatCompletionRequest] + NOT_HONOURED[CompletionRequest]:
            yield [f"`{name}`", endpoint, _accepted(name)]
    for name in NOT_HONOURED[StructuredOutputs]:
        yield [f"`structured_outputs.{name}`", "both", _accepted(name)]


def _accepted(name: str) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in ASKS_NOTHING.get(name, ()))


def _honoured(name: str, capabilities: Capabilities) -> str:
    if name in _LIMITED:
        return _LIMITED[name](capabilities)
    return _NO if name in get_args(OptionalParameter) and name not in capabilities.parameters else _YES


def _endpoints() -> Iterator[tuple[str, str]]:
    """Every parameter, in the order of the models, and who has it."""
    chat, completion = (
        [field.name for field in msgspec.structs.fields(request)]
        for request in (ChatCompletionRequest, CompletionRequest)
    )
    for name in dict.fromkeys(chat + completion):
        yield name, "both" if name in chat and name in completion else "chats" if name in chat else "completions"


def _table(titles: list[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(document(), end="")
