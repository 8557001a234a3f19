"""Configuration: every option with its meaning, default and limits, in one place. The command line is made from it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

LogLevel = Literal["debug", "info", "warning", "error"]


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side."""

    host: Annotated[str, Meta(title="HOST", description="Address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(title="PORT", description="Port to listen on; 0 takes a free one", ge=0, le=65535)] = 8080
    max_body_size: Annotated[
        int, Meta(title="MIB", description="Largest request body, in MiB; a larger one is answered with 413", ge=1)
    ] = 16
    shutdown_timeout: Annotated[
        float,
        Meta(
            title="SECONDS",
            description="How long requests in flight may still take at SIGINT or SIGTERM; a second one exits at once",
            ge=0,
        ),
    ] = 30.0
    log_level: Annotated[LogLevel, Meta(description="Least severe messages to log, on standard error")] = "info"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One worker and the model it serves."""

    worker: Annotated[
        str,
        Meta(
            title="ipc://PATH",
            description="The engine's ZeroMQ address: sockets are bound at PATH-in.sock and PATH-out.sock",
        ),
    ]
    runtime: Annotated[str, Meta(title="NAME", description="The engine's family: tokenspeed")]
    model: Annotated[
        str,
        Meta(
            title="PATH",
            description="The model's directory, with tokenizer, chat template and configuration, or its GGUF file",
        ),
    ]
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(title="NAME", description="Names clients may call the model by [default: the name of its directory]"),
    ] = ()
    handshake_address: Annotated[
        str | None,
        Meta(
            title="tcp://HOST:PORT",
            description="Where the engine dials in [default: 127.0.0.1, on a port that follows from PATH]",
        ),
    ] = None
    request_form: Annotated[
        Literal["tagged", "tuple"],
        Meta(description="Revision of TokenSpeed's wire that requests are written in: tuple is the first one"),
    ] = "tagged"
    chat_template: Annotated[
        str | None, Meta(title="FILE", description="Jinja2 chat template to use instead of the model's own")
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


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that this command starts itself, beside the gateway."""

    backend: Annotated[
        Literal["llamacpp", "simulator"],
        Meta(description="The engine to start: llamacpp runs a GGUF file; the simulator, without a model, echoes"),
    ]
    model: Annotated[
        str | None,
        Meta(
            title="PATH",
            description="The model: a GGUF file for llamacpp, a directory for the simulator [default: a small one]",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Meta(
            title="DIR",
            description="Directory with the model's tokenizer and chat template [default: the model's own]",
        ),
    ] = None
    served_model_name: Annotated[
        tuple[str, ...], Meta(title="NAME", description="Names clients may call the model by [default: the model's]")
    ] = ()
