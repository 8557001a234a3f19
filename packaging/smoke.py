"""Does an installed wheel work? Run by the interpreter that it is installed for, in an environment with nothing else.

    python -I smoke.py [--codec-only] RECORDED_TICKS

Says what machine it ran on, decodes ticks recorded from a TokenSpeed engine, and streams a chat through the installed
command's gateway and simulator.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import platform
import re
import signal
import subprocess
import sys
import sysconfig
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import smg_fast
from smg_fast import _codec
from smg_fast._codec import Dispatcher, Prompt, Protocol, ResponseFormat, TextOptions, TokenIds, Tokenizer

COMMAND = str(Path(sysconfig.get_path("scripts")) / "smg-fast")
PATIENCE = 120.0  # seconds; an emulated processor is slow


def main() -> None:
    *options, recorded = sys.argv[1:]
    print(f"{platform.machine()}: {platform.python_implementation()} {platform.python_version()}", flush=True)
    ticks = decode(json.loads(Path(recorded).read_text())["outputs"])
    print(f"{platform.machine()}: decoded {ticks} recorded ticks", flush=True)
    if options == ["--codec-only"]:
        return
    version = subprocess.run([COMMAND, "--version"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    installed = importlib.metadata.version("smg-fast")
    assert installed == _codec.__version__ == version.split()[1], (installed, _codec.__version__, version)
    print(f"{platform.machine()}: {version}", flush=True)
    text = "Grüße, 世界! This comes back 🙂"
    events = chat(text)
    print(f"{platform.machine()}: streamed a chat through gateway and simulator: {events} events say {text!r}")


def decode(cases: list[dict[str, Any]]) -> int:
    """Every recording of every case gives the tokens and log-probabilities that went in. Returns their number."""
    model = Path(smg_fast.__file__).parent / "embedded" / "model"
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    messages = 0
    for case in cases:
        names = ("rids", "output_ids", "finished_reasons", "output_token_logprobs_val")
        rows = list(zip(*(case["fields"][name] for name in names), strict=True))
        for payload in case["payloads"].values():
            dispatcher = Dispatcher()
            for rid, _, _, logprobs in rows:
                options = TextOptions(logprobs=0 if logprobs else None)
                prompts = [Prompt(TokenIds([1]))]
                dispatcher.open(rid, ResponseFormat.outputs(), tokenizer, options, [rid], prompts)
            outcome = dispatcher.feed(Protocol.tokenspeed(), [[base64.b64decode(payload)]])
            assert outcome.refused is None, outcome.refused
            ended = {sink: outputs for sink, outputs, error in outcome.ended if error is None}
            expected = [row for row in rows if row[2] not in ("", "abort")]
            assert ended.keys() == {rid for rid, _, _, _ in expected}, (case["name"], ended.keys())
            for rid, ids, reason, logprobs in expected:
                outputs = ended[rid]
                assert isinstance(outputs, list), case["name"]
                (output,) = outputs
                assert output.token_ids.tolist() == ids, case["name"]
                assert (output.logprobs.tolist() if output.logprobs else []) == logprobs, case["name"]
                assert output.finish_reason == reason, case["name"]
            messages += 1
    assert messages
    return messages


def chat(text: str) -> int:
    """The simulator says ``text`` again. Returns the number of events."""
    command = [COMMAND, "serve", "--backend", "simulator", "--port", "0", "--tick-ms", "1"]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            address = re.search(r"http://([\d.]+):(\d+)/v1", ready)
            assert address, f"smg-fast serve did not become ready; it said {ready!r}"
            events = stream(address[1], int(address[2]), text)
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE) == 0, server.returncode
        finally:
            server.kill()
    assert events[-1] == "[DONE]", events[-1]
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == text, choices
    assert choices[-1]["finish_reason"] == "stop", choices[-1]
    return len(events)


def stream(host: str, port: int, text: str) -> list[str]:
    """The data of the events that answer a chat of one message."""
    body = {"model": "simulator", "stream": True, "messages": [{"role": "user", "content": text}]}
    connection = HTTPConnection(host, port, timeout=PATIENCE)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    assert response.status == 200, content
    return [event.removeprefix("data: ") for event in content.split("\n\n") if event]


if __name__ == "__main__":
    main()
