"""Recordings of a live vLLM replayed: what comes out is what the recorded bytes say, read here by other means."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smg_fast._codec import Dispatcher, Output, Prompt, Protocol, ResponseFormat, TextOptions, TokenIds, Tokenizer
from tests.codec.client import Client
from tests.codec.test_detokenizer import MODELS

DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0"
RECORDINGS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
GENERATED = [name for name, recording in RECORDINGS.items() if recording.get("finish")]
V0_32 = Protocol.vllm("0.32.0")

Columns = list[list[tuple[int, float]]]


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    """The tokenizer of the recorded model."""
    path = MODELS / "smollm2-135m-instruct" / "tokenizer.json"
    if not path.exists():
        pytest.skip("the recorded model's tokenizer is not here (it lies beside the repository, in shared/models)")
    return Tokenizer.from_file(str(path))


def unpacked(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def messages(name: str) -> list[list[bytes]]:
    return [[base64.b64decode(frame) for frame in frames] for frames in RECORDINGS[name]["outputs"]]


def sampling(request: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a recorded request."""
    params = unpacked(base64.b64decode(request["frames"][1]))[3]
    assert isinstance(params, dict)
    return params


def array(value: list[Any], frames: list[bytes]) -> np.ndarray:
    dtype, shape, data = value
    flat = np.frombuffer(frames[data] if isinstance(data, int) else data.data, dtype)
    shaped: np.ndarray = flat.reshape(shape)
    return shaped


class Recorded:
    """What the bytes of a recording say of one request."""

    def __init__(self, name: str, rid: str) -> None:
        self.ids: list[int] = []
        self.columns: Columns = []
        self.prompt: Columns = []
        self.prompt_ranks: list[int] = []
        for frames in messages(name):
            for row in unpacked(frames[0])[1]:
                if row[0] != rid:
                    continue
                self.ids += row[1]
                if row[2] is not None:
                    self.columns += self.read(row[2], frames)
                if row[3] is not None:
                    self.prompt += self.read(row[3], frames)
                    self.prompt_ranks += array(row[3][2], frames).tolist()

    @staticmethod
    def read(arrays: list[Any], frames: list[bytes]) -> Columns:
        ids, logprobs = (array(value, frames) for value in arrays[:2])
        rows = zip(ids.tolist(), logprobs.astype(np.float64).tolist(), strict=True)
        return [list(zip(*row, strict=True)) for row in rows]


def once(position: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A position's candidates by id, as a dictionary has them: the repeated one where it came first."""
    return list(dict(position).items())


def replay(name: str, tokenizer: Tokenizer, groups: Sequence[Sequence[list[bytes]]]) -> dict[str, Output | str]:
    """The output or the error of each request; the messages are fed a group a call."""
    dispatcher = Dispatcher()
    for request in RECORDINGS[name]["requests"]:
        rid, params = request["request_id"], sampling(request)
        options = TextOptions(
            logprobs=params.get("logprobs"),
            prompt_logprobs=params.get("prompt_logprobs"),
            stop_token_ids=params["stop_token_ids"],
            eos_token_ids=params.get("_all_stop_token_ids", ()),
        )
        prompt = Prompt(TokenIds(request["prompt_token_ids"]))
        dispatcher.open(rid, ResponseFormat.outputs(), tokenizer, options, [rid], [prompt])
    ended: dict[str, Output | str] = {}
    for group in groups:
        outcome = dispatcher.feed(V0_32, group)
        assert outcome.refused is None
        assert {load.engine_index for load in outcome.loads} <= {0}
        assert all(0.0 <= load.kv_usage <= 1.0 for load in outcome.loads)
        for rid, result, error in outcome.ended:
            assert isinstance(rid, str)
            assert rid not in ended
            if isinstance(result, list):
                (ended[rid],) = result
            else:
                assert error is not None
                ended[rid] = error
    return ended


@pytest.mark.parametrize("name", GENERATED)
def test_a_recording_ends_as_it_did(smollm2: Tokenizer, name: str) -> None:
    recording = RECORDINGS[name]
    ended = replay(name, smollm2, [messages(name)])
    assert ended.keys() == recording["finish"].keys()
    for request in recording["requests"]:
        rid = request["request_id"]
        if rid not in ended:
            continue  # aborted: an engine says no more of it
        output = ended[rid]
        reason, stop_reason = recording["finish"][rid]
        if reason == "error":
            assert output == "the engine failed the request"
            continue
        assert isinstance(output, Output)
        assert output.token_ids.tolist() == recording["token_ids"][rid]
        assert (output.finish_reason, output.stop_reason) == (reason, stop_reason)
        text = recording["text"][rid]
        if stop_reason is not None:
            text = text.removesuffix(smollm2.decode([stop_reason]))
        assert output.text == text


@pytest.mark.parametrize("name", GENERATED)
def test_the_logprobs_of_a_recording_are_its_own_to_the_last_bit(tokenizer: Tokenizer, name: str) -> None:
    ended = replay(name, tokenizer, [messages(name)])
    for request in RECORDINGS[name]["requests"]:
        output, params = ended.get(request["request_id"]), sampling(request)
        if not isinstance(output, Output):
            continue
        recorded = Recorded(name, request["request_id"])
        assert output.token_ids.tolist() == recorded.ids
        if params.get("logprobs") is None:
            assert (output.logprobs, output.top_logprobs) == (None, None)
        else:
            assert output.logprobs is not None
            assert output.logprobs.tolist() == [position[0][1] for position in recorded.columns]
            assert [position[0][0] for position in recorded.columns] == recorded.ids
            tops = [once(position) for position in recorded.columns]
            assert output.top_logprobs == (tops if params["logprobs"] else None)
        if params.get("prompt_logprobs") is None:
            assert output.prompt_logprobs is None
            continue
        assert output.prompt_logprobs is not None
        first, *rest = output.prompt_logprobs
        assert first is None
        assert all(rest)
        assert [[(id, logprob) for id, logprob, _ in position] for position in rest if position] == [
            once(position) for position in recorded.prompt
        ]
        assert [position[0][0] for position in recorded.prompt] == request["prompt_token_ids"][1:]
        for position, columns, rank in zip(rest, recorded.prompt, recorded.prompt_ranks, strict=True):
            assert position is not None
            expected = {id: rank for rank, (id, _) in enumerate(columns) if rank}
            assert [(id, rank) for id, _, rank in position] == [(id, expected.get(id, rank)) for id, _ in once(columns)]


def test_what_is_replayed_is_there_at_all() -> None:
    """The comparisons above would hold for recordings without logprobs too."""
    assert all(len(position) == 4 for position in Recorded("logprobs3", "lp-1").columns)
    assert all(len(position) == 21 for position in Recorded("logprobs20_aux_frames", "lpx-0").columns)
    assert len(Recorded("prompt_logprobs2", "plp-1").prompt) == 36
    assert max(len(frames) for frames in messages("prompt_logprobs2")) == 3


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_it_does_not_matter_how_messages_are_drained(tokenizer: Tokenizer, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(GENERATED))
    whole = messages(name)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)))))
    groups = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    def seen(ended: dict[str, Output | str]) -> dict[str, object]:
        return {
            rid: output
            if isinstance(output, str)
            else (output.text, output.token_ids, output.top_logprobs, output.finish_reason, output.stop_reason)
            for rid, output in ended.items()
        }

    assert seen(replay(name, tokenizer, groups)) == seen(replay(name, tokenizer, [whole]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["logprobs0", "logprobs3", "logprobs20_aux_frames"])
def test_a_chat_over_a_recording_shows_its_logprobs(smollm2: Tokenizer, name: str, stream: bool) -> None:
    request = RECORDINGS[name]["requests"][0]
    rid, count = request["request_id"], sampling(request)["logprobs"]
    client = Client(smollm2, V0_32)
    format = ResponseFormat.chat(id="c", model="m", created=0, stream=stream)
    client.open(format, [rid], Prompt(TokenIds(request["prompt_token_ids"])), logprobs=count, eos_token_ids=[2])
    client.feed(*messages(name))
    assert isinstance(client.end, bytes), client.error
    choices = [event["choices"][0] for event in client.events] if stream else client.body["choices"]
    content = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["logprob"] for entry in content] == [at[0][1] for at in Recorded(name, rid).columns]
    assert [[top["logprob"] for top in entry["top_logprobs"]] for entry in content] == [
        [logprob for _, logprob in once(position)][:count] for position in Recorded(name, rid).columns
    ]
    for entry in content:
        for shown in (entry, *entry["top_logprobs"]):
            assert bytes(shown["bytes"]).decode() == shown["token"]
