from __future__ import annotations

from pathlib import Path

import pytest

import smg_fast
from smg_fast._codec import Tokenizer
from tests.codec.client import Client


@pytest.fixture(scope="session")
def model() -> Path:
    """The model directory in the package: a tokenizer, no weights."""
    return Path(smg_fast.__file__).parent / "embedded" / "model"


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture
def client(tokenizer: Tokenizer) -> Client:
    return Client(tokenizer)
