"""The templates under test, ours and as ``transformers`` has them."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.messages import Message
from smg_fast.prompts.model_directory import ModelDirectory, TemplateSource, read_template

from .conversations import Conversation

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/templates"
SHARED_MODELS = ROOT.parent / "shared/models"
PACKAGE_MODEL = ROOT / "smg_fast/embedded/model"

# Where the tokenizer of each template is; transformers cannot do without one.
MODELS = {
    "qwen3": SHARED_MODELS / "qwen3",
    "gpt-oss": SHARED_MODELS / "gpt-oss",
    "smollm2": SHARED_MODELS / "smollm2-135m-instruct",
    "chatml": PACKAGE_MODEL,
}
# Neither day nor month can be taken for the other.
NOW = datetime(2025, 3, 14, 15, 9, 26)  # noqa: DTZ001 (strftime_now tells local time)


class Vectors(msgspec.Struct):
    transformers: str
    special_tokens: dict[str, str]
    prompts: dict[str, str]


def read_vectors(template: str) -> Vectors:
    return msgspec.json.decode((DATA / template / "vectors.json").read_bytes(), type=Vectors)


def template_source(template: str) -> TemplateSource:
    if template == "chatml":
        return ModelDirectory.load(PACKAGE_MODEL).chat_templates["default"]
    return read_template(DATA / template / "chat_template.jinja")


def render(template: ChatTemplate, conversation: Conversation) -> str:
    return template.render(
        msgspec.convert(conversation.messages, list[Message]),
        add_generation_prompt=conversation.add_generation_prompt,
        tools=conversation.tools,
        documents=conversation.documents,
        template_kwargs=conversation.template_kwargs,
    )


class HuggingFace:
    """``transformers``' own rendering, from a local directory and at the time ``NOW``."""

    def __init__(self, template: str) -> None:
        import transformers

        self.version: str = transformers.__version__
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(MODELS[template], local_files_only=True)
        if self._tokenizer.chat_template is None:
            self._tokenizer.chat_template = template_source(template).text

    @property
    def special_tokens(self) -> dict[str, str]:
        return dict(self._tokenizer.special_tokens_map)

    def render(self, conversation: Conversation) -> str:
        return str(self._apply(conversation, tokenize=False))

    def encode(self, conversation: Conversation) -> list[int]:
        return list(self._apply(conversation, tokenize=True, return_dict=False))

    def _apply(self, conversation: Conversation, **how: Any) -> Any:
        with mock.patch("transformers.utils.chat_template_utils.datetime", _Frozen):
            return self._tokenizer.apply_chat_template(
                conversation.messages,
                tools=conversation.tools,
                documents=conversation.documents,
                add_generation_prompt=conversation.add_generation_prompt,
                **conversation.template_kwargs,
                **how,
            )


@cache
def hugging_face(template: str) -> HuggingFace:
    """Skips the test if the model is not there."""
    if not MODELS[template].is_dir():
        pytest.skip(f"{MODELS[template]} is not there")
    return HuggingFace(template)


class _Frozen(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return NOW
