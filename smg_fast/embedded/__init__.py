"""The engine side of the wire, for machines without a GPU.

Engines here are processes of their own, which dial a gateway like any other engine. Nothing in this package imports the
rest of ``smg_fast``: it encodes with the ``msgpack`` package, a second, independent implementation of the wire.
"""

from __future__ import annotations

from pathlib import Path

MODEL_DIRECTORY = Path(__file__).parent / "model"
"""A model without weights: a small ByteLevel BPE tokenizer and a ChatML template, by ``train_tokenizer.py``."""
