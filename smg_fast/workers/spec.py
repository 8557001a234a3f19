"""What the operator says about a worker."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..engines import ConstraintBackend, RequestForm


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: engines on one set of sockets that serve one model.

    Attributes
    ----------
    url : str
        ``ipc://PATH``; see ``transport.addresses``.
    runtime : str, optional
        Name of the engine family; unset means vLLM.
    model : Path
        The model's directory, or a GGUF file.
    served_model_names : tuple of str
        Names clients may call the model by; empty: the name of its directory or file.
    handshake_address : str, optional
        ``tcp://HOST:PORT`` instead of the one that follows from the URL.
    request_form, vllm_version, structured_outputs_backend, max_logprobs
        What the engine family has to know; see ``engines.family``.
    engine_count : int
        Engines (data-parallel ranks) on the sockets.
    silence_timeout : float
        Seconds; see ``EngineClient``.
    """

    url: str
    model: Path
    runtime: str | None = None
    served_model_names: tuple[str, ...] = ()
    handshake_address: str | None = None
    request_form: RequestForm | None = None
    vllm_version: str | None = None
    structured_outputs_backend: ConstraintBackend | None = None
    max_logprobs: int | None = None
    engine_count: int = 1
    silence_timeout: float = 300.0

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the model; the first is its own."""
        return self.served_model_names or (self.model.resolve().name.removesuffix(".gguf"),)
