"""What llama.cpp itself makes of requests: one JSON object per line of standard input, one per line of output.

``python own_llamacpp.py MODEL``. A request with ``tokenize`` is for its tokenizer, any other for its completions. It is
a process of its own because llama.cpp takes the signals of the one it is loaded into.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import xllamacpp


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.n_ctx = 1024
    parameters.cpuparams.n_threads = 2
    parameters.verbosity = 0
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "tokenize" in request:
            answer = tokenize(server.listening_address, request["tokenize"])
        else:
            answer = server.handle_completions({"n_probs": 1, "cache_prompt": False, **request})
        print(json.dumps(answer), flush=True)


def tokenize(address: str, text: str) -> Any:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    with urllib.request.urlopen(f"{address}/tokenize", body) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
