"""Chat templates: a conversation becomes the text of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import jinja2
import msgspec

from .environment import TemplateEnvironment, TimeLimit
from .errors import ModelDirectoryError, PromptError, TemplateError
from .messages import Message, template_messages
from .model_directory import ModelDirectory, TemplateSource, read_template
from .template_traits import TemplateTraits, template_traits

ContentFormat = Literal["auto", "string", "openai"]

# What the request says in parameters of its own, and what transformers takes for an argument of apply_chat_template.
_RESERVED = frozenset(
    (
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "tokenize",
        "tools",
    )
)

# Templates are run on what clients send; what they do wrong with it shows as any of these.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A model's chat template, compiled once; safe to render from several threads.

    Parameters
    ----------
    source
        Jinja source and where it is from.
    tool_use
        Source used in its place for requests with tools.
    special_tokens
        Variables such as ``bos_token`` and ``eos_token``.
    content_format
        What the template is given as content: ``"string"`` (text parts are joined by a newline), ``"openai"`` (a list
        of parts always), or ``"auto"``: whichever the template reads; as sent, if it reads both.
    time_limit
        Seconds a rendering may take.
    now
        The clock of ``strftime_now``.

    Raises
    ------
    ModelDirectoryError
        The source is not a template; the message names file and line.
    """

    def __init__(
        self,
        source: TemplateSource,
        *,
        tool_use: TemplateSource | None = None,
        special_tokens: Mapping[str, str] | None = None,
        content_format: ContentFormat = "auto",
        time_limit: float = 2.0,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = TemplateEnvironment(now)
        tokens = dict(special_tokens or {})
        self._default = _Compiled(environment, source, content_format, tokens)
        self._tool_use = _Compiled(environment, tool_use, content_format, tokens) if tool_use else self._default
        self._time_limit = time_limit

    @classmethod
    def from_model(
        cls,
        model: ModelDirectory,
        override: Path | None = None,
        *,
        content_format: ContentFormat = "auto",
    ) -> ChatTemplate | None:
        """The template of a model, or the one in the file ``override``; ``None`` if there is neither.

        Raises ``ModelDirectoryError`` for a file that cannot be read or is no template.
        """
        if override is not None:
            source, tool_use = read_template(override), None
        elif (default := model.chat_templates.get("default")) is not None:
            source, tool_use = default, model.chat_templates.get("tool_use")
        elif model.chat_templates:
            names = ", ".join(sorted(model.chat_templates))
            raise ModelDirectoryError(f"{model.path}: none of the chat templates ({names}) is named 'default'")
        else:
            return None
        return cls(
            source,
            tool_use=tool_use,
            special_tokens=model.special_tokens,
            content_format=content_format,
        )

    @property
    def takes_documents(self) -> bool:
        """Whether documents make a difference to its prompts."""
        return self._default.traits.documents

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Text of the prompt.

        With ``continue_final_message`` it ends where the last message's text does, for the model to go on with it.
        ``tools`` and ``documents`` are the request's own JSON; ``template_kwargs`` are further variables, which win
        over the special tokens.

        Raises
        ------
        TemplateError
            In the template's own words (``raise_exception``), or saying where it failed.
        PromptError
            For messages that no template could be given, and a last message that cannot be continued.
        """
        if not messages:
            raise PromptError("there must be at least one message", "messages")
        if template_kwargs and (reserved := _RESERVED.intersection(template_kwargs)):
            param = f"chat_template_kwargs.{min(reserved)}"
            raise PromptError(f"{param}: not one of the chat template's own variables", param)
        compiled = self._tool_use if tools is not None else self._default
        with TimeLimit(self._time_limit):
            given = template_messages(messages, compiled.traits, compiled.gives_role)
            ending = _Ending(given) if continue_final_message else None
            variables = {
                "messages": given,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
                **(template_kwargs or {}),
            }
            text = compiled.render(variables)
        return text if ending is None else ending.cut(text)


class _Ending:
    """Finds where the text of the last message ends in a prompt, by a mark behind it.

    The space at the mark's end tells whether the template strips content: then what it would have stripped goes too.
    """

    _MARK = "\ufdd0\ufdd1\ufdd0"

    def __init__(self, messages: Sequence[dict[str, Any]]) -> None:
        """``messages`` are as the template is to be given them; the mark is put into the last one."""
        self._param = f"messages[{len(messages) - 1}].content"
        container, key = messages[-1], "content"
        if isinstance(container[key], list):
            if not container[key]:
                raise self._error("there is no text in it")
            container, key = container[key][-1], "text"
        self._text: str = container[key] or ""
        container[key] = f"{self._text}{self._MARK} "

    def cut(self, prompt: str) -> str:
        end = prompt.rfind(self._MARK)
        if end < 0 or self._text.strip() not in prompt:
            raise self._error("the model's chat template leaves out some of it")
        kept = prompt[:end]
        return kept if prompt.startswith(" ", end + len(self._MARK)) else kept.rstrip()

    def _error(self, why: str) -> PromptError:
        return PromptError(f"continue_final_message: the last message cannot be continued: {why}", self._param)


#: A text that no template has of its own.
_PROBE = "\ufdd0probe\ufdd0"
#: Roles of which is remembered whether a template gives them. Clients make them up.
_MAX_ROLES = 64


class _Compiled:
    def __init__(
        self,
        environment: TemplateEnvironment,
        source: TemplateSource,
        content_format: ContentFormat,
        special_tokens: Mapping[str, str],
    ) -> None:
        self._origin = source.origin
        self._constants = {**environment.globals, **special_tokens}
        self._roles: dict[str, bool] = {}
        try:
            tree = environment.parse(source.text, filename=source.origin)
            self.traits = _with_format(template_traits(tree), content_format)
            self._template = environment.compile_template(tree, source.origin)
        except jinja2.TemplateSyntaxError as error:
            raise ModelDirectoryError(
                f"{source.origin}, line {error.lineno}: not a chat template: {error.message}"
            ) from None
        except (SyntaxError, RecursionError) as error:  # of the Python that it becomes
            raise ModelDirectoryError(f"{source.origin}: a chat template that is nested too deeply: {error}") from None

    def gives_role(self, role: str) -> bool:
        """Whether messages of a role reach the prompt; a template that refuses them says so itself, and better."""
        given = self._roles.get(role)
        if given is None:
            given = self._try_role(role)
            if len(self._roles) < _MAX_ROLES:
                self._roles[role] = given
        return given

    def _try_role(self, role: str) -> bool:
        content = _PROBE if self.traits.content_strings else [{"type": "text", "text": _PROBE}]
        messages = [{"role": "user", "content": content}, {"role": role, "content": content}]
        try:
            return self.render({"messages": messages, "add_generation_prompt": True}).count(_PROBE) > 1
        except TemplateError:
            return True

    def render(self, variables: Mapping[str, Any]) -> str:
        template, environment = self._template, self._template.environment
        try:
            context = environment.context_class(
                environment, {**self._constants, **variables}, template.name, template.blocks
            )
            try:
                return "".join(template.root_render_func(context))
            except _TEMPLATE_FAILURES:
                environment.handle_exception()
        except TemplateError:
            raise
        except _TEMPLATE_FAILURES as error:
            line = _line_in(self._origin, error.__traceback__)
            raise TemplateError(f"the chat template failed on these messages (line {line}): {error}") from error


def _with_format(traits: TemplateTraits, content_format: ContentFormat) -> TemplateTraits:
    if content_format == "auto":
        return traits
    parts = content_format == "openai"
    return msgspec.structs.replace(traits, content_strings=not parts, content_parts=parts)


def _line_in(filename: str, traceback: TracebackType | None) -> int | None:
    """Innermost line of the template: Jinja rewrites tracebacks to template lines."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
