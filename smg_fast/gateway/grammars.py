"""The program that tells whether constraints compile: ``python -m smg_fast.gateway.grammars``.

It is a process of its own because compiling what strangers write cannot be bounded from inside. The library recurses as
deeply as a constraint is (its process ends where the stack is full), and may take minutes and gigabytes for some 1,000
bytes. Here a kernel's limits hold, and whoever started it can kill it: ``compiler`` does.

On standard input come frames with a ``Task`` each, on standard output go frames with why it does not compile, or
nothing; the first, ``READY``, says that it has started. It ends with its input. It imports next to nothing, so as to be
there again in 0.1 s.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import llguidance
import msgspec
from llguidance import LLMatcher, LLTokenizer, StructTag

#: Bytes of address space.
MAX_MEMORY = 1 << 30
#: Bytes of stack, half of what an engine's threads have as a rule: what passes here has a margin there.
MAX_STACK = 4 << 20
#: Seconds after which the kernel ends a process whose parent is not there to do it.
ORPHAN_TIMEOUT = 10

#: Bytes of a frame, which follow.
FRAME_SIZE = struct.Struct(">I")
READY = b"ready"

#: A vocabulary of all bytes.
_BYTES = LLTokenizer("byte")

#: Characters of an answer: the library shows what it was given.
_MAX_REASON = 500


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A constraint, as ``engines.Constraint`` has it; the texts of a choice in JSON.

    ``guidance``: for an engine that compiles with the same library, which has to compile it as a whole. The others have
    their own ideas of what they support: what is refused for them is what the language itself does not allow.
    """

    kind: str
    value: str
    guidance: bool


def why_not(task: Task) -> str | None:
    """Why a constraint does not compile, if it does not."""
    try:
        error = _guidance_error(task.kind, task.value) if task.guidance else _language_error(task.kind, task.value)
    except (KeyError, TypeError, ValueError, RecursionError) as raised:
        error = str(raised)
    if error is None:
        return None
    # Behind the reason the library shows the grammar, which the client did not write.
    reason = error.partition("\n   1 | ")[0]
    return " ".join(reason.split())[:_MAX_REASON]


# -- The guidance backend -------------------------------------------------------------------------------------------


def _guidance_error(kind: str, value: str) -> str | None:
    """As vLLM's backend of that name does it (facts from 0.32, ``serialize_guidance_grammar``)."""
    if kind == "json_schema":
        return _compile(LLMatcher.grammar_from_json_schema(value))
    if kind == "structural_tag":
        return _compile(_tags_grammar(msgspec.json.decode(value)))
    if kind == "choice":
        return _compile(llguidance.grammar_from("choice", value))
    return _compile(llguidance.grammar_from("regex" if kind == "regex" else "grammar", value))


def _compile(grammar: str) -> str | None:
    error: str = LLMatcher.validate_grammar(grammar)
    if error and not error.startswith("WARNING"):
        return error
    # What an engine goes on to make of it takes time and memory, too, and both show without its vocabulary.
    LLMatcher(_BYTES, grammar).compute_bitmask()
    return None


def _tags_grammar(tag: dict[str, Any]) -> str:
    if "structures" not in tag:
        raise ValueError("the engine knows structures and triggers only, no format")
    grammar: str = StructTag.to_grammar(
        [
            StructTag(
                trigger=trigger,
                begin=structure["begin"],
                grammar=LLMatcher.grammar_from_json_schema(structure["schema"]),
                end=structure["end"],
            )
            for trigger, structure in _triggered(tag)
        ]
    )
    return grammar


def _triggered(tag: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each structure, after what triggers it. Raises ``ValueError`` where there is none of either."""
    if not tag["structures"]:
        raise ValueError("it has no structures")
    for structure in tag["structures"]:
        begin = structure["begin"]
        trigger = next((trigger for trigger in tag["triggers"] if begin.startswith(trigger)), None)
        if not trigger:
            raise ValueError(f"no trigger begins {begin!r}")
        yield trigger, structure


# -- All others -----------------------------------------------------------------------------------------------------

#: What the library says of a schema that is none, rather than one of those that it does not support.
_NO_SCHEMA = re.compile(
    r"Invalid type: |Pointer '.*' does not exist|[$\w]+ must be |Expected [\w ]+ for '|"
    r"regex parse error:.*error: (unclosed|repetition operator missing|invalid repetition count range)",
    re.DOTALL,
)
#: What it says of escapes that some others read. Look-around and references back are beyond them too.
_OTHER_ESCAPE = "unrecognized escape sequence"


def _language_error(kind: str, value: str) -> str | None:
    if kind == "json_schema":
        return _schema_error(value)
    if kind == "regex":
        error = _compile(llguidance.grammar_from("regex", value))
        return None if error is None or _OTHER_ESCAPE in error else error
    if kind == "grammar":
        return _ebnf_error(value)
    if kind == "structural_tag":
        tag = msgspec.json.decode(value)
        if "structures" in tag:
            errors = (_schema_error(structure["schema"]) for _, structure in _triggered(tag))
            return next(filter(None, errors), None)
    return None


def _schema_error(schema: str | dict[str, Any]) -> str | None:
    error = _compile(LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": True, "coerce_one_of": True}))
    return error if error is not None and _NO_SCHEMA.match(error) else None


#: EBNF as xgrammar has it, which GBNF is a part of. What begins with ``mark`` has no end; a macro's arguments may have
#: names that are none of rules.
_EBNF = re.compile(
    r"""
    (?: \s | \#[^\n]* )+
    | "(?: [^"\\\n] | \\. )*"
    | \[(?: [^\]\\\n] | \\. )+\]
    | (?P<rule> [\w.-]+ ) \s* ::=
    | (?P<macro> [A-Za-z_][\w.-]*\( )
    | (?P<name> [A-Za-z_][\w.-]* )
    | (?P<mark> ["\[] )
    | (?P<open> \( )
    | (?P<close> \) )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_ROOT = "root"


def _ebnf_error(grammar: str) -> str | None:
    found: dict[str, dict[str, None]] = {}
    depth = 0
    for token in _EBNF.finditer(grammar):
        kind = token.lastgroup
        if kind is None:
            continue
        depth += (kind in ("macro", "open")) - (kind == "close")
        if kind == "mark" or depth < 0:
            line = grammar.count("\n", 0, token.start()) + 1
            return f"line {line}: a {token[kind]} without its counterpart"
        found.setdefault(kind, {})[token[kind]] = None
    rules, names = found.get("rule", {}), found.get("name", {})
    if not rules:
        return "it must be in EBNF with this engine: rule ::= ..."
    if depth:
        return "a ( without its counterpart"
    if _ROOT not in rules:
        return f"there is no rule {_ROOT}"
    unknown = [] if "macro" in found else [name for name in names if name not in rules]
    return f"there is no rule {unknown[0]}" if unknown else None


# -- The program ----------------------------------------------------------------------------------------------------


def main() -> None:
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Its last words are about what clients wrote, and belong into nobody's log.
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(silence, stream.fileno())
    for limit, value in (
        (resource.RLIMIT_AS, MAX_MEMORY),
        (resource.RLIMIT_STACK, MAX_STACK),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    _write(answers, READY)
    decoder = msgspec.msgpack.Decoder(Task)
    while (frame := _read(tasks)) is not None:
        signal.alarm(ORPHAN_TIMEOUT)
        answer = why_not(decoder.decode(frame))
        signal.alarm(0)
        _write(answers, msgspec.msgpack.encode(answer))


def _read(stream: BinaryIO) -> bytes | None:
    size = stream.read(FRAME_SIZE.size)
    return stream.read(*FRAME_SIZE.unpack(size)) if len(size) == FRAME_SIZE.size else None


def _write(stream: BinaryIO, frame: bytes) -> None:
    stream.write(FRAME_SIZE.pack(len(frame)) + frame)
    stream.flush()


if __name__ == "__main__":
    main()
