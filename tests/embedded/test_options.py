"""The simulator's command line."""

from __future__ import annotations

import argparse

import pytest

from smg_fast.embedded.simulator import Faults, SimulatorOptions, TurnMarkers, add_arguments, options_from

ADDRESS = "tcp://127.0.0.1:30500"


def _parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--handshake", ADDRESS, *arguments])


def test_the_defaults_are_those_of_the_struct() -> None:
    assert options_from(_parse()) == SimulatorOptions(handshake=ADDRESS)


def test_every_option_arrives() -> None:
    line = (
        "--index 2 --runtime vllm --revision tagged10 --vllm-version 0.24.0 --data-parallel-size 2 --remote "
        "--no-redial --tick-ms 2.5 --tokens-per-tick 3 --max-running 4 --max-model-len 512 --vocab-size 99 "
        "--max-logprobs 6 --page-size 32 --cached-tokens 5 --token-ids 6 7 --answers a.json --eos-token-id 8 9 "
        "--turn-start-id 10 --turn-end-id 11 --role-separator-ids 12 13 --abort-rows --exit-with-parent 14 "
        "--die-after 15 --dead-frame-after 16 --silent-after 17 --malformed-after 18 --malformed-count 19 "
        "--ragged-after 20 --fail-after 21 --fail-as abort --slow-start 0.5 --slow-load 1"
    )
    assert options_from(_parse(*line.split())) == SimulatorOptions(
        handshake=ADDRESS,
        index=2,
        runtime="vllm",
        revision="tagged10",
        vllm_version="0.24.0",
        data_parallel_size=2,
        local=False,
        redial=False,
        tick_ms=2.5,
        tokens_per_tick=3,
        max_running=4,
        max_model_len=512,
        vocab_size=99,
        max_logprobs=6,
        answers="a.json",
        page_size=32,
        cached_tokens=5,
        token_ids=(6, 7),
        eos_token_ids=(8, 9),
        markers=TurnMarkers(10, 11, (12, 13)),
        abort_rows=True,
        exit_with_parent=14,
        faults=Faults(
            die_after=15,
            dead_frame_after=16,
            silent_after=17,
            malformed_after=18,
            malformed_count=19,
            ragged_after=20,
            fail_after=21,
            fail_as="abort",
            slow_start=0.5,
            slow_load=1.0,
        ),
    )


def test_the_command_line_goes_before_the_model() -> None:
    markers = TurnMarkers(4, 5, (6,))
    plain = options_from(_parse(), token_ids=(1,), eos_token_ids=(2, 3), markers=markers, max_model_len=4096)
    assert (plain.token_ids, plain.eos_token_ids, plain.markers, plain.max_model_len) == ((1,), (2, 3), markers, 4096)

    line = "--token-ids 7 --eos-token-id 8 --turn-start-id 9 --turn-end-id 10 --max-model-len 100"
    given = options_from(
        _parse(*line.split()), token_ids=(1,), eos_token_ids=(2, 3), markers=markers, max_model_len=4096
    )
    assert (given.token_ids, given.eos_token_ids, given.max_model_len) == ((7,), (8,), 100)
    assert given.markers == TurnMarkers(9, 10)


@pytest.mark.parametrize(
    ("arguments", "clue"),
    [
        (["--handshake", "127.0.0.1:1"], "not a tcp:// or ipc:// address"),
        (["--index", "65536"], "65536 is not in 0..65535"),
        (["--max-running", "0"], "0 is not at least 1"),
        (["--tick-ms", "-1"], "not a duration"),
        (["--tick-ms", "nan"], "not a duration"),
        (["--die-after", "soon"], "not an integer"),
        (["--revision", "tagged11"], "invalid choice"),
        (["--runtime", "sglang"], "invalid choice"),
        (["--vllm-version", "0.11.2"], "older than 0.12.0"),
        (["--vllm-version", "main"], "not a version"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: list[str], clue: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(*arguments)
    message = capsys.readouterr().err
    assert clue in message
    assert arguments[0] in message
