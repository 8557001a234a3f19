"""The simulator as a process, seen by a gateway."""

from __future__ import annotations

import base64
import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from smg_fast.embedded.simulator import token_logprobs
from tests.embedded.gateway_side import PATIENCE, ROOT, Gateway, Simulator, pair

EOS = 7
SAY_SO = ("--eos-token-id", EOS)


def test_it_dials_as_tokenspeed_does(tmp_path: Path) -> None:
    fixture = json.loads((ROOT / "tests" / "data" / "tokenspeed" / "wire-0.1.1.json").read_text(encoding="utf-8"))
    recorded = {name: msgpack.unpackb(base64.b64decode(text)) for name, text in fixture["handshake"].items()}
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, "--index", 258, "--max-running", 12):
        identity, hello = gateway.hello()
        assert (identity, hello) == (b"\x02\x01", recorded["hello"])
        gateway.send_init(identity)
        assert gateway.hello() == (identity, recorded["ready"])
        identity, registration = gateway.registration()
        assert identity == b"\x02\x01"
        assert registration.keys() == recorded["registration"].keys()
        assert (registration["max_model_len"], registration["max_num_seqs"]) == (8192, 12)
        assert registration["data_parallel_rank"] == 258


def test_it_may_claim_to_be_remote(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway, Simulator(gateway.address, "--remote"):
        assert gateway.hello()[1]["local"] is False
        gateway.send_init(b"\0\0")
        assert gateway.hello()[1]["local"] is False


@pytest.mark.parametrize(
    ("revision", "trailer"),
    [
        ("untagged8", []),
        ("tagged9", []),
        ("tagged10", [3]),
        ("tagged14", [3, 0, 0, 0, 32768]),
        ("future", [3, 0, 0, 0, 32768, {"new": 1}]),
    ],
)
@pytest.mark.parametrize("form", ["tagged", "tuple"])
def test_it_echoes_in_every_revision(tmp_path: Path, revision: str, trailer: list[object], form: str) -> None:
    with pair(tmp_path, *SAY_SO, "--index", 3, "--revision", revision, "--tokens-per-tick", 8) as (gateway, _):
        gateway.add("a", [1, 70000, 3], form=form, logprobs=True, identity=b"\3\0")
        tick = gateway.tick()
        (row,) = tick.rows
        assert row[:6] == ("a", [1, 70000, 3, EOS], "stop", 3, 4, 0)
        assert row.logprob_ids == row.ids
        assert row.logprobs == token_logprobs(row.ids, 0)
        assert tick.trailer == trailer


def test_several_engines_share_the_sockets(tmp_path: Path) -> None:
    with (
        Gateway(tmp_path) as gateway,
        Simulator(gateway.address, *SAY_SO),
        Simulator(gateway.address, *SAY_SO, "--index", 1),
    ):
        for identity, hello in (gateway.hello() for _ in range(4)):
            if hello["status"] == "HELLO":
                gateway.send_init(identity)
        assert {gateway.registration()[0] for _ in range(2)} == {b"\0\0", b"\1\0"}
        gateway.add("a", [1, 2])
        gateway.add("b", [3, 4], identity=b"\1\0")
        first, second = gateway.answers("a", "b")
        assert (first.ids, second.ids) == ([1, 2, EOS], [3, 4, EOS])


def test_logprobs_come_where_asked_for(tmp_path: Path) -> None:
    with pair(tmp_path, "--tokens-per-tick", 3, "--tick-ms", 5) as (gateway, _):
        gateway.add("with", [5, 6], logprobs=True, ignore_eos=True, max_new_tokens=8)
        gateway.add("without", [5, 6], ignore_eos=True, max_new_tokens=8)
        with_, without = gateway.answers("with", "without")
        assert with_.ids == without.ids == [5, 6] * 4
        assert [len(row.ids) for row in with_.rows] == [3, 3, 2]
        assert with_.logprobs == token_logprobs([5, 6] * 4, 0)
        assert without.logprobs == []
        assert all(row.logprob_ids == row.ids for row in with_.rows)


def test_it_says_a_text_or_the_last_turn(tmp_path: Path) -> None:
    start, end, newline = 100, 101, 10
    prompt = [start, 1, newline, 8, 9, end, newline, start, 2, newline]
    markers = ("--turn-start-id", start, "--turn-end-id", end, "--role-separator-ids", newline, 11)
    with pair(tmp_path, "--eos-token-id", end, *markers) as (gateway, _):
        gateway.add("a", prompt)
        assert gateway.answer("a").ids == [8, 9, end]
    with pair(tmp_path, *SAY_SO, "--token-ids", 40, 41, 42) as (gateway, _):
        gateway.add("a", prompt)
        assert gateway.answer("a").ids == [40, 41, 42, EOS]


def test_the_context_is_a_limit(tmp_path: Path) -> None:
    with pair(tmp_path, "--max-model-len", 10) as (gateway, simulator):
        gateway.add("cut", [1, 2, 3], max_new_tokens=None, ignore_eos=True)
        assert gateway.answer("cut")[:2] == ([1, 2, 3, 1, 2, 3, 1], "length")
        gateway.add("fits", [1] * 9)
        assert gateway.answer("fits")[:2] == ([1], "length")
        gateway.add("long", [1] * 10)
        assert gateway.answer("long")[:2] == ([], "abort")
        gateway.add("empty", [])
        assert gateway.answer("empty")[:2] == ([], "abort")
        assert simulator.stop().refused == 2


@pytest.mark.parametrize("sampling", [{"n": 2}, {"top_k": 128}, {"top_k": (1 << 30) + 1}])
def test_it_refuses_what_tokenspeed_refuses(tmp_path: Path, sampling: dict[str, Any]) -> None:
    with pair(tmp_path, *SAY_SO) as (gateway, simulator):
        gateway.add("bad", [1, 2], **sampling)
        gateway.add("good", [1, 2], top_k=127)
        bad, good = gateway.answers("bad", "good")
        assert (bad.ids, bad.finish) == ([], "abort")
        assert (good.ids, good.finish) == ([1, 2, EOS], "stop")
        counters = simulator.stop()
        assert (counters.adds, counters.refused, counters.finished) == (2, 1, 1)


def test_a_message_that_cannot_be_read_harms_no_other(tmp_path: Path) -> None:
    with pair(tmp_path, *SAY_SO) as (gateway, simulator):
        gateway.send([b"\0", b"\x92\x01"])
        gateway.send([b"\x09", b"\x90"])
        gateway.add("good", [1, 2])
        assert gateway.answer("good").ids == [1, 2, EOS]
        assert simulator.stop().malformed == 2


def test_ticks_keep_their_pace(tmp_path: Path) -> None:
    with pair(tmp_path, "--tick-ms", 7.5) as (gateway, _):
        gateway.add("a", [1], ignore_eos=True, max_new_tokens=41)
        rows = gateway.rows()
        next(rows)
        begin = time.monotonic()
        assert [next(rows).completion_tokens for _ in range(40)] == list(range(2, 42))
        elapsed = time.monotonic() - begin
    # 300 ms, give or take what a busy machine does to either end.
    assert 0.2 < elapsed < 2


def test_an_abort_ends_a_generation_at_once(tmp_path: Path) -> None:
    with pair(tmp_path, "--tick-ms", 2) as (gateway, simulator):
        for rid in ("a", "b"):
            gateway.add(rid, [1], ignore_eos=True, max_new_tokens=8000)
        rows = gateway.rows()
        assert {next(rows).rid, next(rows).rid} == {"a", "b"}
        gateway.abort("a", "unknown")
        counters = simulator.until(aborts=2)
        assert (counters.aborted, counters.live) == (1, 1)
        gateway.abort("b")
        simulator.until(live=0)
        # The last tick has no row and says that the engine is idle.
        tick = gateway.tick()
        while tick.rows:
            tick = gateway.tick()
        assert tick.trailer == [0, 0, 0, 0, 32768]
        counters = simulator.stop()
        assert (counters.adds, counters.aborted, counters.finished) == (2, 2, 0)


def test_an_abort_may_be_answered_with_a_row(tmp_path: Path) -> None:
    with pair(tmp_path, "--tick-ms", 2, "--abort-rows") as (gateway, _):
        gateway.add("a", [1], ignore_eos=True, max_new_tokens=8000)
        rows = gateway.rows()
        said = len(next(rows).ids)
        gateway.abort("a")
        while not (row := next(rows)).finish:
            said += len(row.ids)
        assert row[:5] == ("a", [], "abort", 1, said)


def test_slots_are_filled_in_order_and_the_load_says_so(tmp_path: Path) -> None:
    rids = [f"r{i}" for i in range(5)]
    arguments = ("--tick-ms", 4, "--max-running", 2, "--page-size", 16, "--max-model-len", 320, "--cached-tokens", 4)
    with pair(tmp_path, *arguments) as (gateway, _):
        for rid in rids:
            gateway.add(rid, [1] * 15, ignore_eos=True, max_new_tokens=50)
        seen: list[str] = []
        waiting: list[int] = []
        finished = 0
        while finished < len(rids):
            tick = gateway.tick()
            ended = sum(row.finish != "" for row in tick.rows)
            finished += ended
            assert 1 <= len(tick.rows) <= 2
            running = [row for row in tick.rows if not row.finish]
            pages = sum(-(-(15 + row.completion_tokens) // 16) for row in running)
            assert tick.trailer == [0, len(running), tick.trailer[2], pages, 40]
            assert all(row.cached_tokens == 4 for row in tick.rows)
            waiting.append(tick.trailer[2])
            seen += [row.rid for row in tick.rows if row.rid not in seen]
        assert seen == rids
        assert max(waiting) == 3
        assert waiting[-1] == 0


def test_a_slow_gateway_loses_no_tick_and_is_still_heard(tmp_path: Path) -> None:
    rids = [f"{i:064}" for i in range(64)]
    with Gateway(tmp_path, backlog=1) as gateway, Simulator(gateway.address, "--tick-ms", 0) as simulator:
        gateway.accept()
        for rid in rids:
            gateway.add(rid, [1, 2, 3], ignore_eos=True, max_new_tokens=3000, logprobs=True)
        simulator.until(adds=64)
        same, ticks = 0, -1
        while same < 50:  # the sockets are full once no tick gets away any more
            counters = simulator.counters()
            same = same + 1 if counters.ticks == ticks else 0
            ticks = counters.ticks
        assert counters.live == 64
        gateway.abort(rids[0])
        simulator.until(aborted=1)
        assert all(answer.ids == [1, 2, 3] * 1000 for answer in gateway.answers(*rids[1:]))
        assert simulator.stop().finished == 63


def test_it_waits_for_a_gateway_and_returns_to_one_that_restarts(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        port = gateway.port
    with Simulator(f"tcp://127.0.0.1:{port}", *SAY_SO, "--tick-ms", 2, log=True) as simulator:
        with Gateway(tmp_path, port) as gateway:
            gateway.accept()
            gateway.add("lost", [1], ignore_eos=True, max_new_tokens=8000)
            gateway.tick()
        other = tmp_path / "other"
        other.mkdir()
        for directory in (tmp_path, other):
            with Gateway(directory, port) as gateway:
                gateway.accept()
                gateway.add("a", [1, 2])
                assert gateway.answer("a").ids == [1, 2, EOS]
        counters = simulator.stop()
        assert (counters.adds, counters.finished, counters.lost) == (3, 2, 1)


def test_it_dials_again_when_the_gateway_goes_while_it_loads(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        simulator = Simulator(gateway.address, *SAY_SO, "--slow-load", 0.5)
        identity, _ = gateway.hello()
        gateway.send_init(identity)
    with simulator, Gateway(tmp_path, gateway.port) as gateway:
        gateway.accept()
        gateway.add("a", [1, 2])
        assert gateway.answer("a").ids == [1, 2, EOS]


def test_it_may_leave_returning_to_zeromq(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        simulator = Simulator(gateway.address, *SAY_SO, "--no-redial")
        gateway.accept()
    with simulator, Gateway(tmp_path, gateway.port) as gateway:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if gateway.reachable():
                break
        gateway.add("a", [1, 2])
        assert gateway.answer("a").ids == [1, 2, EOS]
        assert gateway.quiet_handshake()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_it_dials(number: int) -> None:
    with Simulator("tcp://127.0.0.1:9", log=True) as simulator:
        assert simulator.stop(number).adds == 0


def test_it_ends_with_its_parent() -> None:
    parent = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'smg_fast.embedded.simulator', '--handshake', 'tcp://127.0.0.1:9']\n"
        "child = subprocess.Popen([*command, '--exit-with-parent', str(os.getpid())])\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"dials" in process.stderr.readline()
        process.kill()
        # The pipe ends when its last writer, the simulator, has ended; before that it prints its counters.
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        assert ready
        assert json.loads(process.stdout.read())["adds"] == 0


def test_it_does_not_outlive_a_parent_that_has_gone() -> None:
    arguments = ("--handshake", "tcp://127.0.0.1:9", "--exit-with-parent", "1")
    done = subprocess.run(
        [sys.executable, "-m", "smg_fast.embedded.simulator", *arguments],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert b"process 1" in done.stderr
