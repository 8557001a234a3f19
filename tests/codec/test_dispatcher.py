"""What a response becomes, from an engine's messages to bytes."""

from __future__ import annotations

import pytest

from smg_fast._codec import Prompt, ResponseFormat, TextOptions, TokenIds
from tests.codec.client import Client
from tests.codec.ticks import Row, tick

CHAT = ResponseFormat.chat(id="chatcmpl-1", model='a "model"', created=7, stream=True)
CHAT_USAGE = ResponseFormat.chat(id="chatcmpl-1", model="m", created=7, stream=True, include_usage=True)
CHAT_BODY = ResponseFormat.chat(id="chatcmpl-1", model="m", created=7, stream=False)
COMPLETION = ResponseFormat.completion(id="cmpl-1", model="m", created=7, stream=True)
COMPLETION_BODY = ResponseFormat.completion(id="cmpl-1", model="m", created=7, stream=False)


def ids(client: Client, text: str) -> list[int]:
    return client.tokenizer.encode(text).tolist()


def feed_text(client: Client, text: str, rid: str = "r", finish: str = "stop") -> None:
    """One token a tick, the finish with the last."""
    tokens = ids(client, text)
    for position, token in enumerate(tokens, 1):
        client.feed(tick(Row(rid, [token], finish if position == len(tokens) else "")))


def test_chat_events_are_role_content_finish_done(client: Client) -> None:
    client.open(CHAT, ["r"])
    feed_text(client, "Hello, world", finish="length")
    events = client.events
    assert events[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert client.text() == "Hello, world"
    assert events[-1]["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert {event["id"] for event in events} == {"chatcmpl-1"}
    assert {event["model"] for event in events} == {'a "model"'}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert {event["created"] for event in events} == {7}
    assert client.raw.endswith(b"data: [DONE]\n\n")
    assert client.finished == ["r"]
    assert len(client.dispatcher) == 0


def test_the_finishing_tick_carries_its_tokens(client: Client) -> None:
    client.open(CHAT, ["r"])
    client.feed(tick(Row("r", ids(client, "all of it at once"), "stop")))
    assert client.text() == "all of it at once"


def test_usage_comes_last_and_is_null_before(client: Client) -> None:
    client.open(CHAT_USAGE, ["r"], prompt=Prompt(TokenIds(range(11))))
    client.feed(tick(Row("r", ids(client, "one two three"), "stop", cached_tokens=4)))
    *before, last = client.events
    assert all(event["usage"] is None for event in before)
    count = len(ids(client, "one two three"))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": count,
        "total_tokens": 11 + count,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_a_body_has_every_choice_and_counts_the_prompt_once(client: Client) -> None:
    client.open(CHAT_BODY, ["a", "b"], prompt=Prompt(TokenIds(range(11))))
    client.feed(tick(Row("a", ids(client, "first"), "stop", cached_tokens=3), Row("b", ids(client, "se"))))
    assert client.end is None
    client.feed(tick(Row("b", ids(client, "cond"), "length", cached_tokens=3)))
    body = client.body
    assert [choice["message"]["content"] for choice in body["choices"]] == ["first", "second"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == 11
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert body["usage"]["completion_tokens"] == sum(len(ids(client, text)) for text in ("first", "se", "cond"))
    assert client.finished == ["a", "b"]


def test_choices_stream_interleaved_and_each_ends_once(client: Client) -> None:
    client.open(CHAT, ["a", "b", "c"])
    client.feed(tick(Row("b", ids(client, "bee"))))
    client.feed(tick(Row("a", ids(client, "ay"), "stop"), Row("c", ids(client, "sea"))))
    client.feed(tick(Row("c", [], "length"), Row("b", ids(client, "!"), "stop")))
    assert [client.text(index) for index in range(3)] == ["ay", "bee!", "sea"]
    for index in range(3):
        mine = [c for event in client.events for c in event["choices"] if c["index"] == index]
        assert [c["delta"].get("role") for c in mine].count("assistant") == 1
        assert mine[0]["delta"].get("role") == "assistant"
        assert [c["finish_reason"] is not None for c in mine] == [False] * (len(mine) - 1) + [True]
    assert client.raw.count(b"[DONE]") == 1


@pytest.mark.parametrize("format", [CHAT, CHAT_BODY, COMPLETION, COMPLETION_BODY, ResponseFormat.outputs()])
def test_a_client_is_spared_a_character_that_is_not_all_there(client: Client, format: ResponseFormat) -> None:
    """As with vLLM. Outputs, for callers in this process, are what all tokens decode to at once."""
    *tokens, last = cut = [*ids(client, "so 🎉"), *ids(client, "🎉")[:-1]]
    assert client.tokenizer.decode(cut) == "so 🎉\ufffd"
    client.open(format, ["r"])
    client.feed(tick(Row("r", tokens)))
    client.feed(tick(Row("r", [last], "length")))
    if isinstance(client.end, list):
        assert client.end[0].text == "so 🎉\ufffd"
    else:
        assert client.text() == "so 🎉"


def test_what_is_no_character_shows_inside_a_text(client: Client) -> None:
    client.open(CHAT, ["r"])
    client.feed(tick(Row("r", [*ids(client, "🎉")[:-1], *ids(client, "!")], "length")))
    assert client.text() == "\ufffd!"


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_may_be_somebody_elses(client: Client, stream: bool) -> None:
    format = ResponseFormat.chat(id="chatcmpl-1", model="m", created=7, stream=stream, role='the "user"')
    client.open(format, ["r"])
    feed_text(client, "hello")
    message = client.events[0]["choices"][0]["delta"] if stream else client.body["choices"][0]["message"]
    assert message["role"] == 'the "user"'


def test_several_ticks_in_one_call_share_a_chunk_as_separate_events(client: Client) -> None:
    client.open(COMPLETION, ["r"])
    outcome = client.feed(*(tick(Row("r", ids(client, word))) for word in ("a", "b", "c")))
    assert len(outcome.chunks) == 1
    assert [event["choices"][0]["text"] for event in client.events] == ["a", "b", "c"]


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_text_and_tells_the_engine_once(client: Client, include: bool) -> None:
    client.open(CHAT_BODY, ["r"], stop=["never", "ND OF"], include_stop_str=include)
    words = ["the", " END", " OF", " it"]
    for word in words:
        client.feed(tick(Row("r", ids(client, word))))
    choice = client.body["choices"][0]
    assert choice["message"]["content"] == ("the END OF" if include else "the E")
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "ND OF"
    assert client.aborts == ["r"]
    assert client.body["usage"]["completion_tokens"] == sum(len(ids(client, word)) for word in words[:3])


def test_tokens_behind_a_stop_string_in_the_same_tick_are_not_counted(client: Client) -> None:
    client.open(ResponseFormat.outputs(), ["r"], stop=["b"])
    client.feed(tick(Row("r", [*ids(client, "a"), *ids(client, "b"), *ids(client, "c")], "length")))
    assert isinstance(client.end, list)
    (output,) = client.end
    assert (output.text, output.finish_reason, output.stop_reason) == ("a", "stop", "b")
    assert output.token_ids.tolist() == [*ids(client, "a"), *ids(client, "b")]
    assert client.aborts == [], "the engine has ended it itself"


def test_streamed_text_never_shows_part_of_a_stop_string(client: Client) -> None:
    client.open(CHAT, ["r"], stop=["<end>"])
    for piece in ("say <", "en", "d", ">", "more"):
        client.feed(tick(Row("r", ids(client, piece))))
    assert client.text() == "say "
    assert client.events[-1]["choices"][0]["stop_reason"] == "<end>"


def test_text_held_for_a_stop_string_is_released_by_the_end(client: Client) -> None:
    client.open(CHAT, ["r"], stop=["<end>"])
    feed_text(client, "say <en", finish="length")
    assert client.text() == "say <en"


def test_min_tokens_passes_over_early_matches(client: Client) -> None:
    client.open(CHAT_BODY, ["r"], stop=["a"], min_tokens=3)
    for _ in range(6):
        client.feed(tick(Row("r", ids(client, "a"))))
    assert client.body["choices"][0]["message"]["content"] == "aaa"
    assert client.body["usage"]["completion_tokens"] == 4


def test_a_stop_token_has_no_text_and_is_the_stop_reason(client: Client) -> None:
    (token,) = ids(client, "a")
    client.open(CHAT_BODY, ["r"], stop_token_ids=[token])
    client.feed(tick(Row("r", [*ids(client, "b"), token], "stop")))
    choice = client.body["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("b", token)


def test_an_eos_token_has_no_text_and_no_stop_reason(client: Client) -> None:
    eos = client.tokenizer.token_to_id("<|im_end|>")
    assert eos is not None
    client.open(CHAT_BODY, ["r"], eos_token_ids=[eos], skip_special_tokens=False)
    client.feed(tick(Row("r", [*ids(client, "b"), eos], "stop")))
    choice = client.body["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("b", None)


def test_chat_logprobs_show_every_token_with_its_bytes(client: Client) -> None:
    client.open(CHAT_BODY, ["r"], logprobs=0)
    tokens = ids(client, "é日")
    logprobs = [-0.1 * position for position in range(1, len(tokens) + 1)]
    client.feed(tick(Row("r", tokens, "length", logprobs)))
    content = client.body["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == logprobs
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "é日"
    assert all(entry["top_logprobs"] == [] for entry in content)


@pytest.mark.parametrize("format", [CHAT, COMPLETION])
def test_streamed_logprobs_are_neither_lost_nor_doubled_while_text_is_held(
    client: Client, format: ResponseFormat
) -> None:
    client.open(format, ["r"], logprobs=0, stop=["zzz"])
    tokens = ids(client, "日本 zz 🎉 z")
    for position, token in enumerate(tokens):
        client.feed(tick(Row("r", [token], "length" if position == len(tokens) - 1 else "", [-float(position)])))
    seen: list[float] = []
    for event in client.events:
        logprobs = event["choices"][0]["logprobs"]
        if logprobs:
            seen += logprobs.get("token_logprobs") or [entry["logprob"] for entry in logprobs["content"]]
    assert seen == [-float(position) for position in range(len(tokens))]


def test_completion_text_offsets_count_characters_across_events(client: Client) -> None:
    client.open(COMPLETION, ["r"], logprobs=0)
    words = ["né", " 日", " x"]
    for word in words:
        tokens = ids(client, word)
        client.feed(tick(Row("r", tokens, "stop" if word == " x" else "", [-1.0] * len(tokens))))
    offsets = [offset for event in client.events for offset in event["choices"][0]["logprobs"]["text_offset"]]
    text = "".join(words)
    starts = {offset: text[offset:] for offset in offsets}
    assert starts[0] == text
    assert starts[2] == " 日 x"
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text) - 1


def test_missing_logprobs_fail_the_request_instead_of_vanishing(client: Client) -> None:
    client.open(CHAT_BODY, ["r"], logprobs=0)
    client.feed(tick(Row("r", ids(client, "a"))))
    assert client.error is not None
    assert "logprobs" in client.error
    assert client.aborts == ["r"]


def test_an_engine_error_fails_the_response_and_stops_its_siblings(client: Client) -> None:
    client.open(CHAT, ["a", "b"])
    client.feed(tick(Row("a", ids(client, "x")), Row("b", ids(client, "y"))))
    client.feed(tick(Row("a", ids(client, "x")), Row("b", [], "error")))
    assert client.error is not None
    assert client.aborts == ["a"]
    assert sorted(client.finished) == ["a", "b"]
    assert client.text(0) == "xx", "what was rendered before the error is not lost"
    assert len(client.dispatcher) == 0


@pytest.mark.parametrize(("finish", "cause"), [("error: no such thing", ": no such thing"), ("error", ""), ("odd", "")])
def test_an_engine_error_says_why_where_the_engine_does(client: Client, finish: str, cause: str) -> None:
    client.open(CHAT, ["a"])
    client.feed(tick(Row("a", [], finish)))
    assert client.error == f"the engine failed the request{cause}"


def test_an_abort_without_a_token_is_an_error_not_an_empty_answer(client: Client) -> None:
    client.open(CHAT_BODY, ["r"])
    client.feed(tick(Row("r", [], "abort")))
    assert client.error is not None


def test_a_refused_message_changes_nothing(client: Client) -> None:
    client.open(CHAT, ["r"])
    good = tick(Row("r", ids(client, "a")))
    for bad in ([good[0][:-1]], [b"\xc1"], []):
        outcome = client.feed(bad)
        assert outcome.refused
        assert outcome.chunks == []
    client.feed(good, tick(Row("r", [], "stop")))
    assert client.text() == "a"


def test_nothing_behind_a_refused_message_is_applied_before_its_loss_is_settled(client: Client) -> None:
    client.open(CHAT, ["r"])
    outcome = client.feed(
        tick(Row("r", ids(client, "a"))), [b"\xc1"], tick(Row("r", ids(client, "c"), "stop")), [b"\xc1"]
    )
    assert (outcome.consumed, client.text(), client.end) == (2, "a", None)


def test_a_dead_engine_says_so(client: Client) -> None:
    assert client.feed([b"ENGINE_CORE_DEAD"]).engine_dead


def test_failing_requests_ends_them_once(client: Client) -> None:
    client.open(CHAT, ["a", "b"])
    client.take(client.dispatcher.fail(["a", "b", "unknown"], "the engine is gone"))
    assert client.error == "the engine is gone"
    assert sorted(client.finished) == ["a", "b"]
    assert client.take(client.dispatcher.fail(["a"], "again")).ended == []


def test_a_cancelled_response_is_forgotten_and_late_rows_are_silent(client: Client) -> None:
    key = client.open(CHAT, ["a", "b"])
    client.feed(tick(Row("a", [], "stop")))
    assert client.dispatcher.cancel(key) == ["b"]
    assert client.dispatcher.cancel(key) == []
    outcome = client.feed(tick(Row("b", ids(client, "late"))))
    assert (outcome.chunks, outcome.aborts, outcome.ended) == ([], [], [])
    assert len(client.dispatcher) == 0


def test_an_orphan_is_aborted_once(client: Client) -> None:
    assert client.feed(tick(Row("stranger", [1]), Row("done", [1], "stop"))).aborts == ["stranger"]
    assert client.feed(tick(Row("stranger", [1]))).aborts == []


def test_a_paused_response_accumulates_and_resumes_with_everything(client: Client) -> None:
    key = client.open(CHAT, ["r"], logprobs=0)
    client.dispatcher.pause(key)
    words = ("one", " two", " three")
    for word in words:
        assert client.feed(tick(Row("r", ids(client, word), "", [-1.0] * len(ids(client, word))))).chunks == []
    chunk = client.dispatcher.resume(key)
    assert chunk is not None
    client.raw += chunk
    assert client.text() == "one two three"
    assert client.dispatcher.resume(key) is None
    client.feed(tick(Row("r", ids(client, "!"), "stop", [-1.0])))
    assert client.text() == "one two three!"


def test_a_response_that_ends_while_paused_ends_whole(client: Client) -> None:
    key = client.open(CHAT, ["a", "b"])
    client.feed(tick(Row("a", ids(client, "x"))))
    client.dispatcher.pause(key)
    client.feed(tick(Row("a", ids(client, "y"), "stop"), Row("b", ids(client, "z"))))
    client.feed(tick(Row("b", ids(client, "!"), "stop")))
    assert (client.text(0), client.text(1)) == ("xy", "z!")
    finishes = [c["finish_reason"] for event in client.events for c in event["choices"] if c["finish_reason"]]
    assert finishes == ["stop", "stop"]


def test_a_slow_reader_has_its_backlog_before_the_error(client: Client) -> None:
    key = client.open(CHAT, ["r"])
    client.dispatcher.pause(key)
    client.feed(tick(Row("r", ids(client, "all that came"))))
    client.take(client.dispatcher.fail(["r"], "the engine is gone"))
    assert client.text() == "all that came"
    assert client.error == "the engine is gone"


@pytest.mark.parametrize("rids", [[], ["a", "a"], ["taken"]])
def test_impossible_request_ids_are_refused_and_leave_nothing(client: Client, rids: list[str]) -> None:
    client.open(CHAT, ["taken"])
    with pytest.raises(ValueError, match="request id"):
        client.open(CHAT, rids)
    assert len(client.dispatcher) == 1


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextOptions(stop=["a", ""])


def test_an_unknown_protocol_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="Protocol"):
        client.dispatcher.feed("telegraph", [])  # type: ignore[arg-type]


def test_loads_are_reported(client: Client) -> None:
    (load,) = client.feed(tick(Row("r", [], "stop"))).loads
    assert (load.engine_index, load.running, load.waiting) == (0, 1, 0)
    assert load.kv_usage == 0.1
