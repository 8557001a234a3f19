"""Jinja as Hugging Face's ``apply_chat_template`` sets it up, in a sandbox and with a clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar, Token
from datetime import datetime
from functools import cached_property
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .errors import TemplateError
from .loops import count_turns

_limit: ContextVar[TimeLimit | None] = ContextVar("limit", default=None)

#: What a dictionary has attributes of itself for; by all other names a template means a key.
_DICT_ATTRIBUTES = frozenset(dir(dict))
#: Attributes that the sandbox, which asks a dozen questions at each access, always allows and gives as they are.
_SAFE_ATTRIBUTES: dict[type, frozenset[str]] = {
    dict: frozenset(("get", "items", "keys", "values")),
    str: frozenset(name for name in dir(str) if not name.startswith(("_", "format"))),
    LoopContext: frozenset(("depth", "depth0", "first", "index", "index0", "last", "length", "revindex", "revindex0")),
}
#: Types of values that are no way to anything else.
_PLAIN_VALUES = frozenset((bool, float, int, str))


class _Context(Context):
    """Jinja's, made in less time: nearly no template asks for the eval context."""

    def __init__(
        self,
        environment: jinja2.Environment,
        parent: dict[str, Any],
        name: str | None,
        blocks: dict[str, Callable[[Context], Iterator[str]]],
        globals: MutableMapping[str, Any] | None = None,
    ) -> None:
        self.environment = environment
        self.parent = parent
        self.name = name
        self.vars = {}
        self.exported_vars = set()
        self.blocks = {block: [render] for block, render in blocks.items()} if blocks else {}
        self.globals_keys = set(globals) if globals else set()

    @cached_property
    def eval_ctx(self) -> nodes.EvalContext:  # type: ignore[override]
        return nodes.EvalContext(self.environment, self.name)


class _CodeGenerator(CodeGenerator):
    """Jinja's, but for what templates do most: a key of a variable's dictionary is looked up without a call."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 (Jinja names it so)
        # Of variables alone: Python nests no more than 200 brackets.
        if node.attr in _DICT_ATTRIBUTES or not isinstance(node.node, nodes.Name):
            super().visit_Getattr(node, frame)
            return
        self.write(f"(held[{node.attr!r}] if type(held := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {node.attr!r} in held else environment.getattr(held, {node.attr!r}))")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates.

    Facts from ``transformers`` 5.24 (``utils/chat_template_utils.py``): block trimming, loop controls, the
    ``generation`` tag, a ``tojson`` without HTML escapes, ``raise_exception`` and ``strftime_now``.
    """

    context_class = _Context
    code_generator_class = _CodeGenerator

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals.update(dict=_dict, namespace=_CheckedNamespace, raise_exception=_raise_exception)
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        # Text of any length for the asking, and no chat has use for it.
        del self.globals["lipsum"]

    def compile_template(self, tree: nodes.Template, filename: str) -> jinja2.Template:
        """``tree`` as a template that can be bounded by `TimeLimit`; the tree is changed.

        Globals are for the caller to put among the variables: so they need not be copied twice for each rendering.
        Raises ``jinja2.TemplateSyntaxError``.
        """
        count_turns(tree)
        repeatable: tuple[type[nodes.For | nodes.Macro], ...] = (nodes.For, nodes.Macro)
        for node in tree.find_all(repeatable):
            node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("step"), lineno=node.lineno))
        return jinja2.Template.from_code(self, self.compile(tree, filename=filename), {})

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As in the sandbox, of which this is the short way to what messages and loops are made of."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in _SAFE_ATTRIBUTES.get(kind, ()):
            return getattr(obj, attribute)
        if kind is _CheckedNamespace and attribute[:1] != "_":
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN_VALUES:
                return value
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As in the sandbox, of which this is the short way to namespaces and to strings' and dictionaries' methods."""
        if obj is _CheckedNamespace or (type(obj) is BuiltinMethodType and type(obj.__self__) in (str, dict)):
            # Jinja's own, for functions that look at the template's variables.
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    @property
    def step(self) -> None:
        """Read by compiled templates on each turn of a loop. A property: the sandbox makes calls cost."""
        check_time()


def check_time() -> None:
    """Raises ``TemplateError`` once the time is up."""
    limit = _limit.get()
    if limit is not None and time.monotonic() > limit.deadline and limit.is_up():
        raise TemplateError("the chat template takes too long on these messages")


class TimeLimit:
    """Bounds ``check_time``, which templates rendered inside do as well. Entered once.

    On a busy machine a template waits for others, which is no fault of it: of the second half only the processor's time
    counts.
    """

    __slots__ = ("_before", "_half", "_latest", "deadline")

    def __init__(self, seconds: float) -> None:
        self._half = seconds / 2
        self._latest: float | None = None

    def __enter__(self) -> None:
        self.deadline = time.monotonic() + self._half
        self._before: Token[TimeLimit | None] = _limit.set(self)

    def __exit__(self, *error: object) -> None:
        _limit.reset(self._before)

    def is_up(self) -> bool:
        """Asked once ``deadline``, of ``time.monotonic``, has passed: it is a system call."""
        used = time.thread_time()
        if self._latest is None:
            self._latest = used + self._half
        return used > self._latest


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
    """A namespace holds any attribute: with a dunder it could pass for another type. They are the object's own, which
    Python finds sooner than Jinja's.
    """

    __getattribute__ = object.__getattribute__

    def __init__(self, /, *values: Any, **kwargs: Any) -> None:
        attributes: dict[Any, Any] = dict(*values, **kwargs)
        for name in attributes:
            _refuse_private(name)
        self.__dict__ = attributes

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name[:1] == "_":
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
