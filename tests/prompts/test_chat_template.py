"""What a template may do, what it is given, and what becomes of its mistakes."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smg_fast.prompts.chat_template import ChatTemplate, ContentFormat
from smg_fast.prompts.errors import ModelDirectoryError, PromptError, TemplateError
from smg_fast.prompts.messages import Message
from smg_fast.prompts.model_directory import ModelDirectory, TemplateSource

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"b": "<é>", "a": 1}'}}


def template(text: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(TemplateSource(text, "test.jinja"), **options)


def rendered(text: str, messages: list[dict[str, Any]] | None = None, **how: Any) -> str:
    return template(text).render(msgspec.convert(HI if messages is None else messages, list[Message]), **how)


# --- The environment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ messages[0].content }}|{{ bos_token }}|{{ nothing }}", "Hi||"),
        ("{% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),  # trim_blocks, lstrip_blocks
        ("{% for i in 'abc' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "ac"),
        ("{% for i in 'abc' %}{{ i }}{% if i == 'b' %}{% break %}{% endif %}{% endfor %}", "ab"),
        ("a{% generation %}b{% for m in messages %}{{ m.role }}{% endfor %}{% endgeneration %}c", "abuserc"),
        ("{%- generation -%} b {%- endgeneration -%}", "b"),
        ("{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "4"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{{ '<b>&\"' }}{{ ['<', '&', \"'\"] | tojson }}", '<b>&"["<", "&", "\'"]'),
        ("{{ {'b': 'é🎉', 'a': [1, 2.0, none, true]} | tojson }}", '{"b": "é🎉", "a": [1, 2.0, null, true]}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, sort_keys=true) }}", '{"a": 1, "b": "\\u00e9"}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}", '{"a":[1,2]}'),
    ],
)
def test_templates_render_as_in_hugging_faces_environment(text: str, expected: str) -> None:
    assert rendered(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% for a in 'xy' %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ a }}{% endfor %}", "10Truex21Falsey"),
        ("{% for a in 'xyz' if a != 'x' %}{{ loop.index }}{{ a }}{% endfor %}", "1y2z"),
        ("{% for a in 'xy' %}{{ loop.index }}{{ loop.last }}{% endfor %}", "1False2True"),
        (
            "{% for a in 'xy' %}{{ loop.index }}{% for b in 'pq' %}{{ loop.index }}{{ b }}{% endfor %}{% endfor %}",
            "11p2q21p2q",
        ),
        ("{% for a in 'xy' %}{% for b in [loop.index] %}{{ loop.first }}{{ b }}{% endfor %}{% endfor %}", "True1True2"),
        ("{% for a in 'xy' recursive %}{{ loop.index }}{{ loop('p') if a == 'y' }}{% endfor %}", "121"),
        ("{% for a in [] %}{{ loop.first }}{% else %}none{% endfor %}", "none"),
        ("{% for a, b in {'k': 'v'}.items() %}{{ loop.index }}{{ a }}{{ b }}{% endfor %}", "1kv"),
        ("{% set turn = 7 %}{% for a in 'xy' %}{{ loop.index }}{{ turn }}{% endfor %}", "1727"),
        ("{% for a in 'xy' %}{% macro turn() %}m{% endmacro %}{{ loop.index }}{{ turn() }}{% endfor %}", "1m2m"),
        ("{% for a in 'xy' %}{% macro loop() %}m{% endmacro %}{{ loop.index }}{% endfor %}", ""),
    ],
)
def test_loops_count_their_turns(text: str, expected: str) -> None:
    assert rendered(text) == expected


def test_a_template_may_be_nested_as_deeply_as_python_allows() -> None:
    assert rendered("{% if false %}{{ messages[0]" + ".x" * 150 + " }}{% endif %}") == ""
    with pytest.raises(ModelDirectoryError, match=r"test\.jinja: a chat template that is nested too deeply"):
        template("{{ messages[0]" + ".x" * 300 + " }}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ {'keys': 1}.keys() | list }}{{ {'a': 1}.a }}{{ {'a': 1}.b is defined }}{{ 'x'.a }}", "['keys']1False"),
        ("{{ namespace(a=1) }}{{ namespace({'b': 2}, a=1).b }}{{ namespace(a=1).b }}", "<Namespace {'a': 1}>2"),
        ("{% macro m() %}<{% endmacro %}{% autoescape true %}{{ '<' }}{{ m() }}{% endautoescape %}{{ m() }}", "&lt;<<"),
    ],
)
def test_attributes_and_namespaces_are_as_in_jinja(text: str, expected: str) -> None:
    assert rendered(text) == expected


def test_variables_of_a_request() -> None:
    text = "{{ tools | tojson }}{{ (documents or [{}])[0].title }}{{ add_generation_prompt }}{{ level }}{{ eos_token }}"
    chat = template(text, special_tokens={"eos_token": "</s>"})
    messages = msgspec.convert(HI, list[Message])
    assert chat.render(messages) == "nullTrue</s>"
    assert (
        chat.render(
            messages,
            tools=[{"name": "<f>"}],
            documents=[{"title": "T"}],
            add_generation_prompt=False,
            template_kwargs={"level": 3, "eos_token": "!"},
        )
        == '[{"name": "<f>"}]TFalse3!'
    )


def test_strftime_now_tells_the_time_of_rendering() -> None:
    hours = iter((1, 2))
    chat = template("{{ strftime_now('%d %b %Y %H:%M') }}", now=lambda: datetime(2025, 3, 14, next(hours), 30))  # noqa: DTZ001
    messages = msgspec.convert(HI, list[Message])
    assert [chat.render(messages), chat.render(messages)] == ["14 Mar 2025 01:30", "14 Mar 2025 02:30"]


def test_the_template_for_tools_is_used_where_there_are_tools() -> None:
    chat = template("plain", tool_use=TemplateSource("with {{ tools | length }}", "tool_use.jinja"))
    messages = msgspec.convert(HI, list[Message])
    assert [chat.render(messages), chat.render(messages, tools=[{}])] == ["plain", "with 1"]


# --- What a template must not do


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment.globals }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ('{0.__cl' ~ 'ass__}').format_map({'0': 1}) }}",
        "{{ (messages|map(attribute='__class__')|first).__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% set x = namespace(__class__=1) %}",
        "{% set x = namespace({'__html__': 1}) %}",
        "{% set x = namespace() %}{% set x.__class__ = 1 %}",
        "{% include 'other.jinja' %}",
        "{% import '/etc/passwd' as x %}",
        "{{ lipsum(n=1) }}",
    ],
)
def test_the_sandbox_refuses(text: str) -> None:
    with pytest.raises(TemplateError):
        rendered(text)


@pytest.mark.parametrize("attribute", [".__class__", "['__class__']", "|attr('__class__')", ".__globals__", "._x"])
@pytest.mark.parametrize("holder", ["messages", "messages[0]", "''", "dict", "range", "raise_exception", "namespace()"])
def test_underscore_attributes_give_nothing_away(holder: str, attribute: str) -> None:
    with contextlib.suppress(TemplateError):
        assert rendered(f"{{{{ {holder}{attribute} }}}}") == ""


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(r) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}{% endmacro %}{{ f(range(99999)) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_that_would_never_end_is_stopped(text: str) -> None:
    with pytest.raises(TemplateError, match="takes too long"):
        template(text, time_limit=0.05).render(msgspec.convert(HI, list[Message]))


def test_a_range_has_a_limit() -> None:
    with pytest.raises(TemplateError, match="Range too big"):
        rendered("{{ range(10 ** 9) | length }}")


def test_the_time_limit_is_that_of_one_rendering() -> None:
    chat = template("{% for m in messages %}{{ m.content }}{% endfor %}", time_limit=1e-9)
    with pytest.raises(TemplateError, match="takes too long"):
        chat.render(msgspec.convert(HI, list[Message]))
    assert rendered("{% for m in messages %}{{ m.content }}{% endfor %}") == "Hi"


def test_the_time_limit_counts_what_comes_before_the_template() -> None:
    for message in HI * 2, [{"role": "assistant", "tool_calls": [CALL]}]:
        with pytest.raises(TemplateError, match="takes too long"):
            template("x", time_limit=-1).render(msgspec.convert(message, list[Message]))


# --- Its mistakes


def test_raise_exception_speaks_for_itself() -> None:
    with pytest.raises(TemplateError) as error:
        rendered(
            "{% if messages[0].role != 'system' %}{{ raise_exception('A <system> message comes first!') }}{% endif %}"
        )
    assert str(error.value) == "A <system> message comes first!"


@pytest.mark.parametrize(
    "expression",
    [
        "messages[0].content + 1",
        "messages[5].content",
        "messages[0].no_such_key.deeper",
        "1 // 0",
        "'%d' % 'x'",
        "''.index('x')",
        "messages | no_such_filter",
        "nothing | tojson",
        "nothing()",
    ],
)
def test_a_failing_template_names_its_line(expression: str) -> None:
    with pytest.raises(TemplateError, match="line 3"):
        rendered(f"{{% if messages %}}\n\n{{{{ {expression} }}}}{{% endif %}}")


def test_endless_recursion_is_a_template_error() -> None:
    with pytest.raises(TemplateError):
        rendered("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


@pytest.mark.parametrize(
    "text", ["a\nb\n{% if %}", "a\nb\n{{ 1 + }}", "a\n\n{% endfor %}", "\n\n{% nonsense %}", "\n\n{{ x | nope }}"]
)
def test_a_syntax_error_names_file_and_line(text: str) -> None:
    with pytest.raises(ModelDirectoryError, match=r"test\.jinja, line 3: "):
        template(text)


def test_reserved_variables_are_refused_by_name() -> None:
    for name in (
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "documents",
        "messages",
        "tokenize",
        "tools",
    ):
        with pytest.raises(PromptError) as error:
            rendered("x", template_kwargs={name: "y"})
        assert error.value.param == f"chat_template_kwargs.{name}"


def test_no_messages_make_no_prompt() -> None:
    with pytest.raises(PromptError) as error:
        rendered("x", [])
    assert error.value.param == "messages"


# --- Roles

ROLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


ONLY_USER = "{% for m in messages if m.role == 'user' or m.role == 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "wizard", ""])
def test_a_template_that_gives_any_role_is_given_any_role(role: str) -> None:
    assert rendered(ROLE, [{"role": role, "content": "x"}]) == f"<{role}>x"


@pytest.mark.parametrize("role", ["", "User", "bot", "function", "sys tem"])
def test_a_role_that_a_template_would_leave_out_is_refused_by_name(role: str) -> None:
    with pytest.raises(PromptError) as error:
        rendered(ONLY_USER, [*HI, HI[0] | {"role": role}])
    assert error.value.param == "messages[1].role"
    assert repr(role) in str(error.value)


KNOWS_DEVELOPER = "{% for m in messages %}<{{ 'dev' if m.role == 'developer' else m.role }}>{{ m.content }}{% endfor %}"


def test_developer_is_system_to_a_template_that_does_not_know_it() -> None:
    message = {"role": "developer", "content": "x"}
    assert rendered(ONLY_USER, [message]) == rendered(ROLE, [message]) == "<system>x"
    assert rendered(KNOWS_DEVELOPER, [message]) == "<dev>x"


def test_developer_messages_become_one_system_message_with_the_others() -> None:
    developer, system = {"role": "developer", "content": "x"}, {"role": "system", "content": ["y", "z"]}
    assert rendered(ROLE, [system, *HI, developer]) == "<system>y\nz\n\nx<user>" + HI[0]["content"]
    assert rendered(ROLE, [*HI, system]) == f"<user>{HI[0]['content']}<system>y\nz"


def test_a_template_that_refuses_a_role_says_so_itself() -> None:
    refusing = (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(TemplateError, match="only users"):
        rendered(refusing, [{"role": "bot", "content": "x"}])


# --- Going on with the last message


STRIPS = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
OPEN = [*HI, {"role": "assistant", "content": "The sum is "}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROLE + "!", "<user>Hi<assistant>The sum is "),
        (STRIPS, "<user>Hi</><assistant>The sum is"),
        ("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", "[Hi][The sum is "),
    ],
)
def test_a_prompt_ends_where_the_message_does_that_goes_on(text: str, expected: str) -> None:
    chat = template(text)
    messages = msgspec.convert(OPEN, list[Message])
    for _ in range(2):  # the messages are left as they were
        assert chat.render(messages, add_generation_prompt=False, continue_final_message=True) == expected


def test_parts_go_on_behind_the_last() -> None:
    messages = [{"role": "assistant", "content": ["a", {"type": "text", "text": "b "}]}]
    parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert rendered(parts, messages, continue_final_message=True) == "[a][b "
    assert rendered(ROLE, messages, continue_final_message=True) == "<assistant>a\nb "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
            {"role": "user", "content": []},
        ),
        ("{% for m in messages %}{{ m.content.split('|')[-1] }}{% endfor %}", {"role": "user", "content": "a|b"}),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", {"role": "user", "content": "a"}),
    ],
)
def test_a_message_that_cannot_go_on(text: str, message: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match="cannot be continued") as error:
        rendered(text, [*HI, message], continue_final_message=True)
    assert error.value.param == "messages[1].content"


def test_whether_a_template_takes_documents() -> None:
    assert template("{% for d in documents or [] %}{{ d.title }}{% endfor %}").takes_documents
    assert not template(ROLE).takes_documents
    assert not template("{% set documents = [] %}{{ documents }}").takes_documents


# --- Content: strings and parts

STRINGS = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
PARTS = "{% for m in messages %}{% for part in m.content %}({{ part.type }}:{{ part.text }}){% endfor %}{% endfor %}"
BOTH = (
    "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]{% else %}"
    "{% for part in m.content %}({{ part['text'] }}){% endfor %}{% endif %}{% endfor %}"
)
TWO = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


@pytest.mark.parametrize(
    ("text", "content_format", "string", "parts"),
    [
        (STRINGS, "auto", "[Hi]", "[a\nb]"),
        (PARTS, "auto", "(text:Hi)", "(text:a)(text:b)"),
        (BOTH, "auto", "[Hi]", "(a)(b)"),
        (BOTH, "string", "[Hi]", "[a\nb]"),
        (BOTH, "openai", "(Hi)", "(a)(b)"),
        (
            STRINGS,
            "openai",
            "[[{'type': 'text', 'text': 'Hi'}]]",
            "[[{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]]",
        ),
    ],
)
def test_content_is_given_as_the_template_reads_it(
    text: str, content_format: ContentFormat, string: str, parts: str
) -> None:
    chat = template(text, content_format=content_format)
    assert chat.render(msgspec.convert(HI, list[Message])) == string
    assert chat.render(msgspec.convert(TWO, list[Message])) == parts


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m.get('content') or [] %}{{ p.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}",
        "{% set c = messages[0].content %}{% set d = c %}{% for p in d %}{{ p.text }}{% endfor %}",
        "{% macro show(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{{ show(messages[0].content) }}",
        "{% macro f(x, c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{{ f(1, c=messages[0].content) }}",
        "{% for p in messages[0].content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}",
        "{{ messages[0].content | map(attribute='text') | join }}",
        "{{ messages[0].content[0].text }}{{ messages[0]['content'][1]['text'] }}",
        "{% for p in (messages[0].content if messages else []) %}{{ p.text }}{% endfor %}",
    ],
)
def test_a_template_that_looks_into_parts_is_given_parts(text: str) -> None:
    assert rendered(text, TWO) == "ab"


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content }}",
        "{% set c = messages[0].content | trim %}{{ c }}",
        "{{ messages[0].content.split('</think>')[-1] }}",
        "{% for line in messages[0].content.split('\\n') %}{{ line }}{{ '' if loop.last else '\\n' }}{% endfor %}",
        "{% for m in messages %}{% for t in tools or [] %}{{ t.type }}{% endfor %}{{ m.content }}{% endfor %}",
        "{% if messages[0].content[0] == 'x' %}x{% endif %}{{ messages[0]['content'] }}",
    ],
)
def test_a_template_that_reads_text_is_given_text(text: str) -> None:
    assert rendered(text, TWO) == "a\nb"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_content_that_is_not_text_is_refused_by_name(kind: str) -> None:
    messages = [
        *HI,
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:,"}}]},
    ]
    for text in (STRINGS, PARTS, BOTH):
        with pytest.raises(PromptError, match=kind) as error:
            rendered(text, messages)
        assert error.value.param == "messages[1].content[1]"


def test_a_text_part_without_text_is_refused() -> None:
    with pytest.raises(PromptError) as error:
        rendered(STRINGS, [{"role": "user", "content": [{"type": "text"}]}])
    assert error.value.param == "messages[0].content[0]"


def test_a_refusal_in_the_place_of_content_is_text() -> None:
    for content in (None, ""):
        assert rendered(STRINGS, [*HI, {"role": "assistant", "content": content, "refusal": "No."}]) == "[Hi][No.]"
        assert Message("assistant", content, refusal="No.").text == "No."
    assert rendered(STRINGS, [*HI, {"role": "assistant", "content": "Yes.", "refusal": ""}]) == "[Hi][Yes.]"


@pytest.mark.parametrize("name", ["audio", "function_call"])
def test_what_a_message_cannot_say_here_is_refused(name: str) -> None:
    with pytest.raises(PromptError) as error:
        rendered("x", [*HI, {"role": "assistant", name: {"name": "f"}}])
    assert error.value.param == f"messages[1].{name}"


def test_a_refusal_is_text() -> None:
    messages = [*HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]
    assert rendered(STRINGS, messages) == "[Hi][No.]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ messages[0].content + '.' }}", "."),
        ("{% if messages[0].content is none %}none{% endif %}", "none"),
        ("{% if messages[0]['content'] == none %}none{% endif %}", "none"),
        ("{% set c = messages[0].content %}{% if c is not none %}{{ c }}{% endif %}.", "."),
        ("{% for p in messages[0].content %}{{ p.text }}{% endfor %}.", "."),
    ],
)
def test_an_assistant_message_of_tool_calls_needs_no_content(text: str, expected: str) -> None:
    for content in ({"content": None}, {}):
        assert rendered(text, [{"role": "assistant", "tool_calls": [CALL], **content}]) == expected


@pytest.mark.parametrize("role", ["system", "user", "tool", "developer"])
def test_other_messages_need_content(role: str) -> None:
    with pytest.raises(PromptError) as error:
        rendered(STRINGS, [{"role": role, "content": None}])
    assert error.value.param == "messages[0].content"


# --- Tool calls, reasoning


@pytest.mark.parametrize("arguments", ['{"b": "<é>", "a": 1}', {"b": "<é>", "a": 1}])
@pytest.mark.parametrize(
    "text",
    [
        "{{ call.function.arguments | tojson }}",
        "{% set a = call.function.arguments %}{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}",
        "{{ call.function | tojson }}",
        "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }} {% endfor %}",
        "{% for name in call.function.arguments %}{{ name }}={{ call.function.arguments[name] }} {% endfor %}",
        "{{ '>' + call['function']['arguments'] }}",
        "{{ call.function.arguments }}",
    ],
)
def test_arguments_are_given_as_the_template_reads_them(text: str, arguments: str | dict[str, Any]) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    text = f"{{% set call = messages[0].tool_calls[0] %}}{text}"
    assert rendered(text, [{"role": "assistant", "tool_calls": [call]}]) in (
        '{"b": "<é>", "a": 1}',
        '{"name": "f", "arguments": {"b": "<é>", "a": 1}}',
        "b=<é> a=1 ",
        '>{"b": "<é>", "a": 1}',
    )


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "nope", "[" * 100_000, '{"a": "\\ud800"}'])
def test_arguments_that_are_no_json_object_are_refused(arguments: str) -> None:
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(PromptError) as error:
        rendered(
            "{{ messages[1].tool_calls[0].function.arguments | tojson }}",
            [*HI, {"role": "assistant", "tool_calls": [call]}],
        )
    assert error.value.param == "messages[1].tool_calls[0].function.arguments"


def test_a_function_without_arguments() -> None:
    call = CALL | {"function": {"name": "f", "arguments": ""}}
    text = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert rendered(text, [{"role": "assistant", "tool_calls": [call]}]) == "{}"


def test_only_what_was_sent_is_in_a_message() -> None:
    text = "{{ messages[0].keys() | sort | join(',') }}"
    assert rendered(text) == "content,role"
    assert (
        rendered(text, [{"role": "assistant", "content": "x", "tool_calls": [], "name": None, "unknown": 1}])
        == "content,role"
    )
    message = {"role": "tool", "content": "x", "tool_call_id": "call_1", "name": "f"}
    assert rendered(text, [message]) == "content,name,role,tool_call_id"
    whole = rendered("{{ messages[0].tool_calls | tojson }}", [{"role": "assistant", "tool_calls": [CALL]}])
    assert json.loads(whole) == [CALL | {"function": {"name": "f", "arguments": {"b": "<é>", "a": 1}}}]


@pytest.mark.parametrize("sent", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("read", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_found_under_each_of_its_names(sent: str, read: str) -> None:
    assert rendered(f"{{{{ messages[0].{read} }}}}", [{"role": "assistant", "content": "4", sent: "2+2"}]) == "2+2"


# --- From a file


def test_a_template_from_a_file_goes_before_the_models(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("model {{ eos_token }}")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    override = tmp_path / "own.jinja"
    override.write_text("own {{ eos_token }}\n", "utf-8")

    model = ModelDirectory.load(tmp_path)
    messages = msgspec.convert(HI, list[Message])
    own, models = ChatTemplate.from_model(model, override), ChatTemplate.from_model(model)
    assert own is not None
    assert models is not None
    assert own.render(messages) == "own </s>"
    assert models.render(messages) == "model </s>"
    with pytest.raises(ModelDirectoryError, match=r"missing\.jinja"):
        ChatTemplate.from_model(model, tmp_path / "missing.jinja")


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    assert ChatTemplate.from_model(ModelDirectory.load(tmp_path)) is None
