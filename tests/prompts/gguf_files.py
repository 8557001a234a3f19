"""GGUF files for tests, written by the package ``gguf``: llama.cpp's own code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf

from smg_fast.prompts.gguf.tokenizer import TokenType


def write(
    path: Path,
    *,
    kind: str | None,
    tokens: Sequence[str],
    types: Sequence[int] | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    pre: str | None = None,
    special: dict[str, int] | None = None,
    flags: dict[str, bool] | None = None,
    templates: Sequence[dict[str, str]] = (),
    context: int | None = 64,
) -> Path:
    """A file without tensors. ``special`` and ``flags`` are by the middle of their keys: ``eos``, ``add_bos``."""
    writer = gguf.GGUFWriter(path, "llama")
    if context is not None:
        writer.add_context_length(context)
    if kind is not None:
        writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    if types is not None:
        writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for role, id in (special or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", id)
    for name, value in (flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    if templates:
        writer.add_chat_template(templates)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_byte_level(path: Path, tokenizer_json: Path, pre: str, **more: Any) -> Path:
    """What conversion makes of a ByteLevel BPE model's ``tokenizer.json``."""
    model: dict[str, Any] = json.loads(tokenizer_json.read_text("utf-8"))
    ids: dict[str, int] = dict(model["model"]["vocab"])
    types = dict.fromkeys(ids.values(), int(TokenType.NORMAL))
    for added in model["added_tokens"]:
        ids[added["content"]] = added["id"]
        types[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    names = {id: token for token, id in ids.items()}
    size = max(names) + 1
    return write(
        path,
        kind="gpt2",
        pre=pre,
        tokens=[names.get(id, f"[PAD{id}]") for id in range(size)],
        types=[types.get(id, TokenType.UNUSED) for id in range(size)],
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in model["model"]["merges"]],
        **more,
    )
