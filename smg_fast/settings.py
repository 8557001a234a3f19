"""Configuration: every option with its meaning, default and limits, in one place. The command line is made from it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .engines import MOST_LOGPROBS, ConstraintBackend, RequestForm
from .names import check_model_name

LogLevel = Literal["debug", "info", "warning", "error"]


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side."""

    host: Annotated[str, Meta(title="HOST", description="Address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(title="PORT", description="Port to listen on; 0 takes a free one", ge=0, le=65535)] = 8080
    gateway_processes: Annotated[
        int,
        Meta(
            title="N",
            description="Processes that share the port and the engines, for what takes more than one core",
            ge=1,
            le=64,
        ),
    ] = 1
    max_body_size: Annotated[
        int, Meta(title="MIB", description="Largest request body, in MiB; a larger one is answered with 413", ge=1)
    ] = 16
    strict: Annotated[bool, Meta(description="Refuse requests with unknown fields; without it they are ignored")] = (
        False
    )
    shutdown_timeout: Annotated[
        float,
        Meta(
            title="SECONDS",
            description="How long requests in flight may still take at SIGINT or SIGTERM; a second one ends them",
            ge=0,
        ),
    ] = 30.0
    log_level: Annotated[LogLevel, Meta(description="Least severe messages to log, on standard error")] = "info"


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is served, whoever starts its engine."""

    served_model_name: Annotated[
        tuple[str, ...],
        Meta(
            title="NAME",
            description="Names clients may call the model by [default: the name of its directory]",
            extra={"check": check_model_name},
        ),
    ] = ()
    chat_template: Annotated[
        str | None, Meta(title="FILE", description="Jinja2 chat template to use instead of the model's own")
    ] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Meta(description="Take defaults of sampling from the model's generation_config.json: auto does, none does not"),
    ] = "auto"
    vllm_version: Annotated[
        str | None,
        Meta(
            title="VERSION",
            description="Version of vLLM, for engines that report none (those before 0.24) or no release (built from "
            "source)",
        ),
    ] = None
    structured_outputs_backend: Annotated[
        ConstraintBackend | None, Meta(description="What vLLM enforces constraints with [default: guidance]")
    ] = None
    max_logprobs: Annotated[
        Annotated[int, Meta(ge=-1, le=MOST_LOGPROBS)] | None,
        Meta(
            title="N",
            description="Alternatives to a token that vLLM gives logprobs of: its own --max-logprobs; -1, which is no "
            f"limit there, is {MOST_LOGPROBS} here [default: 20]",
        ),
    ] = None


class WorkerSettings(ModelSettings, frozen=True, kw_only=True):
    """One worker and the model it serves."""

    worker: Annotated[
        str,
        Meta(
            title="ipc://PATH",
            description="The engine's ZeroMQ address: sockets are bound at PATH-in.sock and PATH-out.sock",
        ),
    ]
    model: Annotated[
        str | None,
        Meta(
            title="PATH",
            description="The model's directory, with tokenizer, chat template and configuration, or its GGUF file "
            "[default: what the engine was started with]",
        ),
    ] = None
    runtime: Annotated[
        str | None, Meta(title="NAME", description="The engine's family: vllm or tokenspeed [default: vllm]")
    ] = None
    handshake_address: Annotated[
        str | None,
        Meta(
            title="tcp://HOST:PORT",
            description="Where the engine dials in [default: 127.0.0.1, on a port that follows from PATH]",
        ),
    ] = None
    request_form: Annotated[
        RequestForm | None,
        Meta(
            description="Revision of TokenSpeed's wire that requests are written in: tuple is the first one [default: "
            "tagged]"
        ),
    ] = None
    engine_count: Annotated[
        int, Meta(title="N", description="Engines that share the sockets: data-parallel ranks, numbered from 0", ge=1)
    ] = 1
    silence_timeout: Annotated[
        float,
        Meta(
            title="SECONDS",
            description="Fail the requests of an engine that says nothing for this long while it has some; 0: never",
            ge=0,
        ),
    ] = 300.0
    priority: Annotated[
        int,
        Meta(
            title="N",
            description="Requests go to the model's ready workers of the highest priority",
            ge=-1000,
            le=1000,
        ),
    ] = 0


class ServeSettings(ModelSettings, frozen=True, kw_only=True):
    """Engines that this command starts itself, beside the gateway."""

    backend: Annotated[
        Literal["vllm", "tokenspeed", "llamacpp", "simulator"],
        Meta(
            description="The engine to start: vllm and tokenspeed serve a model's directory, llamacpp runs a GGUF "
            "file; the simulator, without a model, echoes"
        ),
    ]
    model: Annotated[
        str | None,
        Meta(
            title="PATH",
            description="The model: a directory for vllm, tokenspeed and the simulator, a GGUF file for llamacpp "
            "[default: a small one; vllm and tokenspeed have none]",
        ),
    ] = None
    dp_size: Annotated[
        int,
        Meta(
            title="N",
            description="Engines to start, which share the requests: data-parallel ranks, each on GPUs of its own",
            ge=1,
            le=1024,
        ),
    ] = 1
    tokenizer: Annotated[
        str | None,
        Meta(
            title="DIR",
            description="Directory with the model's tokenizer and chat template [default: the model's own]",
        ),
    ] = None
    vllm_python: Annotated[
        str | None,
        Meta(
            title="FILE",
            description="Python interpreter that has vLLM [default: SMG_FAST_VLLM_PYTHON; else the vllm on the PATH, "
            "or this interpreter]",
        ),
    ] = None
    tokenspeed_python: Annotated[
        str | None,
        Meta(
            title="FILE",
            description="Python interpreter that has TokenSpeed [default: SMG_FAST_TOKENSPEED_PYTHON; else the "
            "tokenspeed on the PATH, or this interpreter]",
        ),
    ] = None
