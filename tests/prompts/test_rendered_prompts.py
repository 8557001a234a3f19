"""Rendered prompts equal those of ``transformers``: as recorded, and by the installed one where the models are."""

from __future__ import annotations

from functools import cache

import pytest

from smg_fast.prompts.chat_template import ChatTemplate
from smg_fast.prompts.model_directory import ModelDirectory

from .conversations import CONVERSATIONS, Conversation, conversations
from .templates import MODELS, NOW, hugging_face, read_vectors, render, template_source

CASES = [(template, name) for template in MODELS for name in conversations(template)]


@cache
def recorded_template(name: str) -> ChatTemplate:
    return ChatTemplate(template_source(name), special_tokens=read_vectors(name).special_tokens, now=lambda: NOW)


@pytest.mark.parametrize("template", MODELS)
def test_every_template_has_at_least_ten_recorded_conversations(template: str) -> None:
    assert read_vectors(template).prompts.keys() == conversations(template).keys()
    assert len(read_vectors(template).prompts) >= 10


@pytest.mark.parametrize(("template", "name"), CASES)
def test_prompt_equals_the_recorded_one(template: str, name: str) -> None:
    assert render(recorded_template(template), CONVERSATIONS[name]) == read_vectors(template).prompts[name]


@pytest.mark.parametrize(("template", "name"), CASES)
def test_prompt_equals_that_of_the_installed_transformers(template: str, name: str) -> None:
    expected = hugging_face(template).render(CONVERSATIONS[name])
    assert render(recorded_template(template), CONVERSATIONS[name]) == expected


@pytest.mark.parametrize("template", MODELS)
def test_the_model_directory_has_what_was_recorded(template: str) -> None:
    if not MODELS[template].is_dir():
        pytest.skip(f"{MODELS[template]} is not there")
    model = ModelDirectory.load(MODELS[template])
    assert model.special_tokens == read_vectors(template).special_tokens
    if template != "gpt-oss":  # whose directory came without its template
        assert model.chat_templates["default"].text == template_source(template).text


@pytest.mark.parametrize("template", MODELS)
def test_content_parts_render_as_their_text_joined_by_newlines(template: str) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": " <that>?"}]
    sent = Conversation(messages=[{"role": "user", "content": parts}])
    meant = Conversation(messages=[{"role": "user", "content": "What is\n <that>?"}])
    assert render(recorded_template(template), sent) == hugging_face(template).render(meant)
