"""An engine with a real model on any machine: llama.cpp, by the package ``xllamacpp``, behind TokenSpeed's wire.

``engine.run`` is the engine; it needs the packages of ``smg-fast[llamacpp]``, which its options do not.
"""

from __future__ import annotations

from smg_fast.embedded.llamacpp.options import LlamaOptions, add_arguments, options_from

__all__ = ["LlamaOptions", "add_arguments", "options_from"]
