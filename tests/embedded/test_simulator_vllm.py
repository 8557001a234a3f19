"""The simulator as a vLLM engine, seen by a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from smg_fast.commands import simulate
from smg_fast.embedded.simulator import logprob_rows
from smg_fast.embedded.wire.vllm import VERSIONS
from smg_fast.embedded.wire.vllm.layouts import layout_of
from tests.embedded.gateway_side import ENGINE_DEAD, PATIENCE, Gateway, Simulator, pair
from tests.embedded.vllm_side import EOS, TOKENIZER, VLLM, Client

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", VERSIONS)
def test_it_echoes_in_every_version(tmp_path: Path, version: str) -> None:
    arguments = ("--vllm-version", version, "--index", 3, "--tokens-per-tick", 2, "--cached-tokens", 1)
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, *VLLM, *arguments, "--tick-ms", 0) as simulator:
        identity, hello = gateway.hello()
        assert (identity, hello) == (b"\3\0", {"status": "HELLO", "local": True, "headless": True})
        gateway.send_init(identity)
        assert gateway.hello() == (identity, {**hello, "status": "READY"})
        identity, registration = gateway.registration()
        assert identity == b"\3\0"
        assert tuple(registration) == layout_of(version).registration
        assert registration.get("vllm_version", version) == version

        client = Client(gateway, version)
        client.add("a", [1, 30, 3], logprobs=2, prompt_logprobs=1, identity=identity)
        output = client.output("a")
        assert (output.token_ids.tolist(), output.finish_reason, output.stop_reason) == ([1, 30, 3, EOS], "stop", None)
        assert output.logprobs is not None
        assert output.logprobs.tolist() == [values[0] for values in logprob_rows([1, 30, 3, EOS], 0, 2).values]
        assert output.top_logprobs is not None
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == 3
        # The prompt's logprobs need the whole prompt, another request's prompt comes from the cache.
        assert output.cached_tokens == 0
        client.add("b", [1, 30, 3], identity=identity)
        assert client.output("b").cached_tokens == 1
        client.add("c", [1], prompt_logprobs=2, identity=identity)
        assert client.output("c").prompt_logprobs == [None]
        counters = simulator.stop()
        assert (counters.finished, counters.violations, counters.malformed) == (3, 0, 0)


def test_it_stops_at_nothing_but_what_it_is_told(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM) as (gateway, simulator):
        client = Client(gateway)
        client.add("without", [1, 2], eos=None, max_tokens=7)
        client.add("stop", [1, 2, 3], stop_token_ids=[2])
        client.add("both", [1, 2], stop_token_ids=[EOS])
        client.add("ignored", [1, 2], eos=None, ignore_eos=True, max_tokens=5)
        client.add("least", [1, 2], min_tokens=4)
        without, stop, both = client.output("without"), client.output("stop"), client.output("both")
        assert (without.token_ids.tolist(), without.finish_reason) == ([1, 2, EOS, 1, 2, EOS, 1], "length")
        assert (stop.token_ids.tolist(), stop.finish_reason, stop.stop_reason) == ([1, 2], "stop", 2)
        assert (both.finish_reason, both.stop_reason) == ("stop", None)
        assert client.output("ignored").token_ids.tolist() == [1, 2, 1, 2, 1]
        assert client.output("least").token_ids.tolist() == [1, 2, 1, 2, EOS]
        assert simulator.stop().violations == 0


def test_a_broken_rule_is_counted_and_told(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM, "--max-model-len", 10, "--vocab-size", 100, log=True) as (gateway, simulator):
        client = Client(gateway)
        broken: dict[str, tuple[list[int], dict[str, Any]]] = {
            "a prompt of 0 tokens where 1 to 9 fit": ([], {}),
            "a prompt of 10 tokens where 1 to 9 fit": ([1] * 10, {}),
            "max_tokens = 16 where 10 is the most": ([1], {"max_tokens": 16}),
            "prompt: token id 100 where 0 to 99 exist": ([100], {}),
            "regex: no _backend": ([1], {"regex": "a"}),
        }
        for rid, (prompt, sampling) in broken.items():
            client.add(rid, prompt, **{"max_tokens": 5, **sampling})
            assert isinstance(client.result(rid), str)
        client.add("good", [1, 2], max_tokens=5)
        assert client.output("good").token_ids.tolist() == [1, 2, EOS]
        counters = simulator.stop()
        assert (counters.adds, counters.refused, counters.violations) == (6, 5, 5)
        assert simulator.process.stderr is not None
        log = simulator.process.stderr.read().decode()
        for rule in broken:
            assert f"refused: {rule}" in log


def test_without_rules_it_takes_what_other_gateways_send(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM, "--no-rules") as (gateway, simulator):
        client = Client(gateway)
        client.add("constrained", [1, 2], max_tokens=5, regex="a")
        assert client.output("constrained").token_ids.tolist() == [1, 2, EOS]
        assert simulator.stop().violations == 0


def test_a_request_id_in_use_breaks_a_rule(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM, "--tick-ms", 5) as (gateway, simulator):
        Client(gateway).add("a", [1], eos=None, ignore_eos=True, max_tokens=8000)
        simulator.until(live=1)
        Client(gateway).add("a", [1])
        simulator.until(violations=1)


def test_the_command_knows_its_models_vocabulary(tmp_path: Path) -> None:
    command = ("smg_fast", "simulate", "--runtime", "vllm", "--tick-ms", 0)
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, program=command) as simulator:
        gateway.accept()
        client = Client(gateway)
        client.add("last", [TOKENIZER.vocab_size - 1], max_tokens=1)
        client.add("beyond", [TOKENIZER.vocab_size])
        assert client.output("last").token_ids.tolist() == [TOKENIZER.vocab_size - 1]
        assert isinstance(client.result("beyond"), str)
        assert simulator.stop().violations == 1


def test_the_options_say_which_engine_it_passes_for() -> None:
    assert simulate.runtime([]) == "tokenspeed"
    assert simulate.runtime(["--tick-ms", "2", "--runtime", "vllm"]) == "vllm"


@pytest.mark.parametrize("finish", ["error", "abort", "repetition"])
def test_a_generation_fails_after_so_many_ticks(tmp_path: Path, finish: str) -> None:
    with pair(tmp_path, *VLLM, "--fail-after", 2, "--fail-as", finish, "--tokens-per-tick", 2) as (gateway, simulator):
        client = Client(gateway)
        client.add("long", [1, 2, 3, 4, 5])
        result = client.result("long")
        assert simulator.counters().ticks == 3  # two good ones, and the end in one of its own
        if finish == "error":
            assert isinstance(result, str)
        else:
            assert not isinstance(result, str)
            assert (result.token_ids.tolist(), result.finish_reason) == ([1, 2, 3, 4], finish)
            assert result.stop_reason == ("repetition_detected" if finish == "repetition" else None)
        client.add("short", [1, 2, 3])
        assert client.output("short").token_ids.tolist() == [1, 2, 3, EOS]
        assert simulator.stop().finished == 2


def test_other_faults_are_the_same_on_this_wire(tmp_path: Path) -> None:
    forever: dict[str, Any] = {"eos": None, "ignore_eos": True, "max_tokens": 8000}
    with pair(tmp_path, *VLLM, "--ragged-after", 1, "--malformed-after", 2) as (gateway, _):
        client = Client(gateway)
        client.add("a", [1], **forever)
        assert client.step() is None
        refused = client.step()
        assert refused is not None
        assert "2 elements or more" in refused
        assert client.step() is not None
        assert client.step() is None
    with pair(tmp_path, *VLLM, "--dead-frame-after", 1) as (gateway, simulator):
        client = Client(gateway)
        client.add("a", [1], **forever)
        assert client.step() is None
        assert gateway.message() == ENGINE_DEAD
        assert simulator.process.wait(PATIENCE) == 1


def test_an_abort_ends_a_generation(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM, "--tick-ms", 2) as (gateway, simulator):
        client = Client(gateway)
        client.add("a", [1], eos=None, ignore_eos=True, max_tokens=8000)
        client.step()
        gateway.abort("a")
        simulator.until(aborted=1, live=0)


def test_calls_are_answered(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM) as (gateway, _):
        for call_id, method in ((7, "is_sleeping"), (8, "launch_missiles")):
            gateway.send([b"\3", msgpack.packb([0, call_id, method, []])])
        answers = [msgpack.unpackb(gateway.message())[4] for _ in range(2)]
        assert answers[0] == [7, None, [None, False]]
        assert answers[1][0] == 8
        assert "launch_missiles" in answers[1][1]


def test_waves_are_told(tmp_path: Path) -> None:
    with pair(tmp_path, *VLLM, "--data-parallel-size", 2) as (gateway, simulator):
        client = Client(gateway)
        client.add("a", [1, 2])
        client.output("a")
        while not client.waves:
            client.step()
        # A request that was meant for the wave that has just ended: the engine asks for the next.
        client.add("b", [1, 2])
        client.output("b")
        while len(client.waves) < 3:
            client.step()
        gateway.send([b"\2", msgpack.packb([5, 1])])
        while len(client.waves) < 4:
            client.step()
        assert [(wave.start, wave.complete) for wave in client.waves] == [(None, 0), (1, None), (None, 1), (None, 5)]
        assert simulator.stop().waves == 3
