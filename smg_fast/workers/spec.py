"""What the operator says about a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ..engines import ConstraintBackend, RequestForm
from ..transport import Share

ConnectionMode = Literal["zmq"]


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: engines on one set of sockets that serve one model.

    Attributes
    ----------
    url : str
        ``ipc://PATH``; see ``transport.addresses``.
    runtime : str, optional
        Name of the engine family; unset means vLLM.
    connection_mode : str, optional
        Unset: as the URL says.
    model : Path, optional
        The model's directory, or a GGUF file; unset: what the engine was started with.
    served_model_names : tuple of str
        Names clients may call the model by; empty: the name of its directory or file.
    chat_template : Path, optional
        Instead of the model's own.
    generation_config : str
        Whether the model's ``generation_config.json`` counts: ``auto`` or ``none``.
    handshake_address : str, optional
        ``tcp://HOST:PORT`` instead of the one that follows from the URL.
    request_form, vllm_version, structured_outputs_backend, max_logprobs
        What the engine family has to know; see ``engines.family``.
    engine_count : int
        Engines (data-parallel ranks) on the sockets.
    silence_timeout : float
        Seconds; see ``EngineClient``.
    labels : dict of str
        The operator's own; they mean nothing here.
    priority : int
        Workers with a higher one get all requests while any of them is ready.
    share : Share, optional
        Which engines serve this gateway process, if there are others; unset: all do.
    """

    url: str
    model: Path | None = None
    runtime: str | None = None
    connection_mode: ConnectionMode | None = None
    served_model_names: tuple[str, ...] = ()
    chat_template: Path | None = None
    generation_config: Literal["auto", "none"] = "auto"
    handshake_address: str | None = None
    request_form: RequestForm | None = None
    vllm_version: str | None = None
    structured_outputs_backend: ConstraintBackend | None = None
    max_logprobs: int | None = None
    engine_count: int = 1
    silence_timeout: float = 300.0
    labels: dict[str, str] = {}
    priority: int = 0
    share: Share | None = None
