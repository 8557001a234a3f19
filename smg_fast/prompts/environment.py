"""Jinja as Hugging Face's ``apply_chat_template`` sets it up, in a sandbox and with a clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .errors import TemplateError

_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates.

    Facts from ``transformers`` 5.24 (``utils/chat_template_utils.py``): block trimming, loop controls, the
    ``generation`` tag, a ``tojson`` without HTML escapes, ``raise_exception`` and ``strftime_now``.
    """

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals.update(dict=_dict, namespace=_CheckedNamespace, raise_exception=_raise_exception)
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        # Text of any length for the asking, and no chat has use for it.
        del self.globals["lipsum"]

    def compile_template(self, tree: nodes.Template, filename: str) -> jinja2.Template:
        """``tree`` as a template that can be bounded by `time_limit`; the tree is changed.

        Raises ``jinja2.TemplateSyntaxError``.
        """
        repeatable: tuple[type[nodes.For | nodes.Macro], ...] = (nodes.For, nodes.Macro)
        for node in tree.find_all(repeatable):
            node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("step"), lineno=node.lineno))
        return jinja2.Template.from_code(self, self.compile(tree, filename=filename), self.make_globals(None))

    @property
    def step(self) -> None:
        """Read by compiled templates on each turn of a loop. A property: the sandbox makes calls cost."""
        check_time()


def check_time() -> None:
    """Raises ``TemplateError`` once the time is up."""
    if time.monotonic() > _deadline.get():
        raise TemplateError("the chat template takes too long on these messages")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Bounds ``check_time``, which templates rendered inside do as well."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class GenerationTag(Extension):
    """``{% generation %}`` marks what a training loss is taken over; here its body is all there is to it."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """In place of the class, whose methods would change what the sandbox holds immutable."""
    return dict(*args, **kwargs)


class _CheckedNamespace(Namespace):
    """A namespace answers any attribute name it holds: with a dunder it could pass for another type."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        namespace, *values = args
        attributes: dict[Any, Any] = dict(*values, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(namespace, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: it begins with an underscore")


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
