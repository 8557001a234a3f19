"""``smg-fast workers``: the workers of a gateway that runs, over its API (docs/workers.md)."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..names import check_label
from ..settings import WorkerSettings
from .options import add_options, checked, read_options, refuse

if TYPE_CHECKING:
    from .api import Api, Worker

HELP = "list, add and remove workers of a gateway that runs"
DESCRIPTION = (
    "List, add and remove the workers of a gateway that runs. A worker that is added may wait for its engines."
)

_GATEWAY = "http://127.0.0.1:8080"
#: What the API calls settings that have another name here.
_FIELDS = {"worker": "url", "runtime": "runtime_type", "handshake_address": "zmq_handshake_address"}
#: Settings that are paths of this process's, and not of the gateway's.
_PATHS = frozenset({"model", "chat_template"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show the workers", allow_abbrev=False)
    adding = actions.add_parser("add", help="register a worker", allow_abbrev=False)
    removing = actions.add_parser("remove", help="drain a worker and remove it", allow_abbrev=False)
    for action in (listing, adding, removing):
        action.add_argument(
            "--url", metavar="URL", default=_GATEWAY, help="the gateway's address [default: %(default)s]"
        )
        action.add_argument("--json", action="store_true", help="print what the gateway answers, in JSON")
    adding.add_argument("worker", metavar="ipc://PATH", help="where the gateway binds the engine's sockets")
    adding.add_argument("--label", metavar="NAME=TEXT", action="append", type=_label, help="may be repeated")
    add_options(adding, WorkerSettings, "worker and model", leave_out=("worker",))
    removing.add_argument("worker", metavar="WORKER", help="its id, or its ipc://PATH")
    removing.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        help="how long its requests may still take [default: the gateway's --shutdown-timeout]",
    )


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, others: list[str]) -> int:
    """Returns the exit code."""
    refuse(parser, others)
    from .api import Api, CommandError

    try:
        answer = _ask(parser, arguments, Api(arguments.url))
        print(msgspec.json.format(answer).decode() if arguments.json else _text(arguments.action, answer))
    except CommandError as error:
        print(f"smg-fast workers: {error}", file=sys.stderr)
        return 1
    return 0


def _ask(parser: argparse.ArgumentParser, arguments: argparse.Namespace, api: Api) -> bytes:
    """The gateway's answer, in JSON. Raises ``CommandError``."""
    if arguments.action == "add":
        return api.add(_body(read_options(parser, arguments, WorkerSettings), arguments.label))
    if arguments.action == "remove":
        return api.remove(arguments.worker, arguments.timeout)
    return api.list()


def _text(action: str, answer: bytes) -> str:
    """An answer for people. Raises ``CommandError`` if it is none."""
    from .api import Worker, WorkerList, decode

    if action == "list":
        return _table(decode(answer, WorkerList).workers, now=time.time())
    worker = decode(answer, Worker)
    return f"worker {worker.id} at {worker.url} is {worker.state}"


def _body(settings: WorkerSettings, labels: Sequence[tuple[str, str]] | None) -> dict[str, Any]:
    """What ``POST /workers`` takes, with what was given."""
    body: dict[str, Any] = {"labels": dict(labels)} if labels else {}
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            body[_FIELDS.get(field.name, field.name)] = str(Path(value).absolute()) if field.name in _PATHS else value
    return body


def _table(workers: Sequence[Worker], now: float) -> str:
    several = any(worker.process is not None for worker in workers)
    rows: list[tuple[str, ...]] = [
        ("ID", "STATE", "SINCE", "READY", "IN FLIGHT", "PRIORITY", "RUNTIME", "MODEL", "URL", "")
    ]
    rows += [
        (
            worker.id,
            worker.state,
            _age(now - worker.since),
            f"{sum(engine.state == 'ready' for engine in worker.engines)}/{worker.engine_count}",
            str(worker.load.in_flight),
            str(worker.priority),
            worker.runtime_type or "-",
            ",".join(worker.served_model_names) or "-",
            worker.url,
            "" if worker.state == "ready" else worker.reason or "",
        )
        for worker in workers
    ]
    if several:
        accounts = ("PROCESS", *(str(worker.process) for worker in workers))
        rows = [(id, account, *cells) for (id, *cells), account in zip(rows, accounts, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _age(seconds: float) -> str:
    """As ``5s``, ``12m``, ``3h``, ``9d``: in the largest unit of which it has one."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(int(seconds), 0)}s"


_label_text = checked(check_label)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TEXT")
    return _label_text(name), _label_text(value)
