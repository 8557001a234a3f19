"""The table of parameters in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from smg_fast.gateway.parameters import MEANINGS, document
from smg_fast.gateway.refusals import ASKS_NOTHING, NOT_HONOURED
from smg_fast.gateway.requests import ChatCompletionRequest, CompletionRequest

PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == document(), "python -m smg_fast.gateway.parameters > docs/parameters.md"


@pytest.mark.parametrize("request_type", [ChatCompletionRequest, CompletionRequest])
def test_every_parameter_is_on_it_once(request_type: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(request_type):
        assert len(re.findall(rf"^\| `{field.name}` \| (?:both|chats|completions) \|", document(), re.MULTILINE)) == 1
        assert (field.name in MEANINGS) != (field.name in NOT_HONOURED[request_type])


def test_nothing_is_accepted_in_vain_that_is_honoured() -> None:
    refused = {name for names in NOT_HONOURED.values() for name in names}
    assert ASKS_NOTHING.keys() <= refused
