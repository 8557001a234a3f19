"""Answers with their prompt before them, and answers that are the prompt alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_fast._codec import Output, Prompt, Protocol, ResponseFormat, TokenIds, Tokenizer
from tests.codec.client import Client
from tests.codec.vllm_ticks import LENGTH, STOP, Columns, Row, message

FORMATS = {
    (api, stream): getattr(ResponseFormat, api)(id="i", model="m", created=0, stream=stream, include_usage=stream)
    for api in ("chat", "completion")
    for stream in (False, True)
}
COMPLETION, COMPLETION_STREAM = FORMATS["completion", False], FORMATS["completion", True]


@pytest.fixture
def vllm(tokenizer: Tokenizer) -> Client:
    return Client(tokenizer, Protocol.vllm("0.32.0"))


def alone(ids: list[int], logprob: float = -1.0) -> Columns:
    return [[(id, logprob), (0, -9.0)] for id in ids]


@pytest.mark.parametrize(("api", "stream"), FORMATS)
def test_an_echo_goes_before_every_choice_once(vllm: Client, api: str, stream: bool) -> None:
    prompts = [Prompt(TokenIds([1, 2]), echo='one "é" '), Prompt(TokenIds([3]), echo="two ")]
    vllm.open(FORMATS[api, stream], ["a", "b", "c", "d"], prompts)
    for position, word in enumerate(["x", "yy", "z"]):
        ids = vllm.tokenizer.encode(word).tolist()
        vllm.feed(message(*(Row(rid, ids, STOP if position == 2 else None) for rid in "abcd")))
    echoes = ['one "é" ', 'one "é" ', "two ", "two "]
    assert [vllm.text(index) for index in range(4)] == [echo + "xyyz" for echo in echoes]
    usage = (vllm.events[-1] if stream else vllm.body)["usage"]
    assert usage["prompt_tokens"] == 3


def test_a_chats_echo_is_an_event_of_its_own_behind_the_role(vllm: Client) -> None:
    vllm.open(FORMATS["chat", True], ["r"], Prompt(TokenIds([1]), echo="So far"))
    vllm.feed(message(Row("r", vllm.tokenizer.encode(", so").tolist())))
    deltas = [choice["delta"] for choice in vllm.choices()]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "So far"}, {"content": ", so"}]


def test_a_completions_first_event_has_the_echo(vllm: Client) -> None:
    vllm.open(COMPLETION_STREAM, ["r"], Prompt(TokenIds([1]), echo="So far"))
    vllm.feed(message(Row("r", vllm.tokenizer.encode(", so").tolist())), message(Row("r", [0], LENGTH)))
    assert [choice["text"] for choice in vllm.choices()] == ["So far, so", "!"]


def test_an_empty_echo_is_no_event(vllm: Client) -> None:
    vllm.open(FORMATS["chat", True], ["r"], Prompt(TokenIds([1]), echo=""))
    vllm.feed(message(Row("r", [0])))
    assert [choice["delta"].get("content") for choice in vllm.choices()] == ["", "!"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_has_those_of_the_prompt_first(vllm: Client, stream: bool) -> None:
    ids, answer = (vllm.tokenizer.encode(text).tolist() for text in ("The é of a", " a b"))
    prompt = Prompt(TokenIds(ids), echo="The é of a")
    vllm.open(FORMATS["completion", stream], ["r"], prompt, logprobs=1, prompt_logprobs=1)
    # The prompt's come first here, as they may: the event waits for the first token.
    vllm.feed(message(Row("r", [], prompt_logprobs=alone(ids[1:], -2.0))))
    assert vllm.raw == b""
    for position, id in enumerate(answer):
        finish = LENGTH if position == len(answer) - 1 else None
        vllm.feed(message(Row("r", [id], finish, logprobs=alone([id]))))
    assert vllm.text() == "The é of a a b"
    logprobs = vllm.completion_logprobs()
    assert "".join(logprobs["tokens"]) == "The é of a a b"
    count = len(ids) + len(answer)
    assert [len(values) for values in logprobs.values()] == [count] * 4
    assert logprobs["token_logprobs"] == [None, *[-2.0] * (len(ids) - 1), *[-1.0] * len(answer)]
    assert logprobs["top_logprobs"][0] is None
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    assert logprobs["top_logprobs"] == [None, *({token: value, "!": -9.0} for token, value in list(pairs)[1:])]
    starts = ["The é of a a b"[offset:] for offset in logprobs["text_offset"]]
    assert all(rest.startswith(token) for rest, token in zip(starts, logprobs["tokens"], strict=True))
    if not stream:
        assert len(vllm.choices()[0]["prompt_logprobs"]) == len(ids)


def test_an_echo_with_logprobs_of_the_answer_alone_counts_its_characters(vllm: Client) -> None:
    vllm.open(COMPLETION, ["r"], Prompt(TokenIds([1, 2]), echo="né "), logprobs=0)
    vllm.feed(message(Row("r", [64, 65], LENGTH, logprobs=[[(64, -1.0)], [(65, -2.0)]])))
    assert vllm.completion_logprobs() == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"a": -1.0}, {"b": -2.0}],
        "text_offset": [3, 4],
    }


@pytest.mark.parametrize("echo", ["<|im_start|>ab", "ab"])
def test_special_tokens_of_a_prompt_count_where_its_text_has_them(vllm: Client, echo: str) -> None:
    special = vllm.tokenizer.token_to_id("<|im_start|>")
    assert special is not None
    vllm.open(COMPLETION, ["r"], Prompt(TokenIds([special, 64, 65]), echo=echo), logprobs=0, prompt_logprobs=0)
    of_prompt = [[(64, -1.0)], [(65, -1.0)]]
    vllm.feed(message(Row("r", [66], LENGTH, logprobs=[[(66, -1.0)]], prompt_logprobs=of_prompt)))
    before = len(echo) - 2
    logprobs = vllm.completion_logprobs()
    assert logprobs["tokens"] == ["<|im_start|>", "a", "b", "c"]
    assert logprobs["text_offset"] == [0, before, before + 1, before + 2]


@pytest.mark.parametrize(("api", "stream"), FORMATS)
def test_hidden_output_leaves_the_echo_and_is_counted(vllm: Client, api: str, stream: bool) -> None:
    """``max_tokens: 0`` with ``echo``: the engine generates one token for nobody."""
    prompt = Prompt(TokenIds([64, 65]), echo="ab")
    vllm.open(FORMATS[api, stream], ["r"], prompt, logprobs=0, prompt_logprobs=0, hide_output=True)
    vllm.feed(message(Row("r", [66], LENGTH, logprobs=[[(66, -1.0)]], prompt_logprobs=[[(65, -2.0)]])))
    assert vllm.text() == "ab"
    assert vllm.choices()[-1]["finish_reason"] == "length"
    usage = (vllm.events[-1] if stream else vllm.body)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2, 1)
    if api == "chat":
        assert not any((choice["logprobs"] or {}).get("content") for choice in vllm.choices())
        return
    assert vllm.completion_logprobs() == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"b": -2.0}],
        "text_offset": [0, 1],
    }


def test_hidden_output_is_no_callers_either(vllm: Client) -> None:
    vllm.open(ResponseFormat.outputs(), ["r"], Prompt(TokenIds([64])), logprobs=1, hide_output=True)
    vllm.feed(message(Row("r", [66], LENGTH, logprobs=alone([66]))))
    assert isinstance(vllm.end, list)
    (output,) = vllm.end
    assert isinstance(output, Output)
    assert output.logprobs is not None
    assert (output.text, len(output.token_ids), len(output.logprobs), output.top_logprobs) == ("", 0, 0, [])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("api", ["chat", "completion"])
def test_continuous_usage_is_that_of_the_choice_so_far(vllm: Client, api: str, include: bool) -> None:
    format = getattr(ResponseFormat, api)(
        id="i", model="m", created=0, stream=True, include_usage=include, continuous_usage=True
    )
    prompts = [Prompt(TokenIds([1, 2, 3]), echo="x"), Prompt(TokenIds([4]))]
    vllm.open(format, ["a", "b"], prompts)
    vllm.feed(message(Row("a", [64, 65]), Row("b", [64])))
    vllm.feed(message(Row("a", [66], LENGTH), Row("b", [65])))
    vllm.feed(message(Row("b", [66, 67], STOP)))
    seen: dict[int, list[int]] = {0: [], 1: []}
    events = vllm.events
    if include:
        last = events.pop()
        assert (last["choices"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == ([], 4, 7)
    for event in events:
        (choice,) = event["choices"]
        usage = event["usage"]
        assert usage["prompt_tokens"] == (3, 1)[choice["index"]]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        seen[choice["index"]].append(usage["completion_tokens"])
    # A chat's role and its echo come before any token, its end behind the last.
    assert seen == ({0: [0, 0, 2, 3, 3], 1: [0, 1, 2, 4, 4]} if api == "chat" else {0: [2, 3], 1: [1, 2, 4]})


@pytest.mark.parametrize(("count", "prompts"), [(3, 2), (1, 2), (2, 0)])
def test_request_ids_are_shared_out_evenly_or_refused(vllm: Client, count: int, prompts: int) -> None:
    with pytest.raises(ValueError, match=f"{count} .*{prompts}"):
        vllm.open(COMPLETION, [str(number) for number in range(count)], [Prompt(TokenIds([1]))] * prompts)
    assert len(vllm.dispatcher) == 0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.text(min_size=1, max_size=12), st.data())
def test_offsets_are_places_in_the_text(tokenizer: Tokenizer, echo: str, answer: str, data: st.DataObject) -> None:
    """Whatever the text, and whole or streamed: each token begins where it says, or lies within a character."""
    prompt_ids, ids = tokenizer.encode("!" + echo).tolist(), tokenizer.encode(answer).tolist()
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=len(ids), max_size=len(ids)))
    seen = []
    for stream in (False, True):
        client = Client(tokenizer, Protocol.vllm("0.32.0"))
        prompt = Prompt(TokenIds(prompt_ids), echo="!" + echo)
        client.open(FORMATS["completion", stream], ["r"], prompt, logprobs=0, prompt_logprobs=0)
        rest, of_prompt = ids, alone(prompt_ids[1:])
        for size in sizes:
            now, rest = rest[:size], rest[size:]
            client.feed(
                message(Row("r", now, None if rest else LENGTH, logprobs=alone(now), prompt_logprobs=of_prompt))
            )
            if not rest:
                break
        assert client.error is None
        text = client.text()
        assert text == "!" + echo + tokenizer.decode(ids)
        logprobs = client.completion_logprobs()
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert text.startswith(token, offset)
        seen.append(logprobs)
    assert seen[0] == seen[1]
