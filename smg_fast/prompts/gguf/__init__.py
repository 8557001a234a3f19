"""Tokenizer, chat template and configuration out of a GGUF file, which holds them beside its weights."""

from __future__ import annotations

from .directory import context_length, unpack

__all__ = ["context_length", "unpack"]
