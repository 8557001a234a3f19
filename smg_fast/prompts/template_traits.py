"""What a chat template expects of a message, read from what it does with it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from jinja2 import meta, nodes

# Filters through which a list of parts is still a list of parts.
_LIST_FILTERS = frozenset(("list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "sort"))


class TemplateTraits(msgspec.Struct, frozen=True):
    content_strings: bool
    """Content may be a string."""
    content_parts: bool
    """Content may be a list of ``{"type": "text", "text": ...}``."""
    content_null: bool = False
    """Missing content (``None``) is told from an empty string."""
    argument_text: bool = False
    """A tool call's arguments are to be JSON text, not the object."""
    documents: bool = False
    """The template reads the variable of that name."""
    developer: bool = False
    """The template knows the role of that name."""


def template_traits(tree: nodes.Template) -> TemplateTraits:
    """Traits of a template.

    A template that loops over a message's content, or looks into an element of it, reads parts; if it asks whether
    content is a string as well, it reads both. One that does neither reads strings. One that reads the arguments
    of a tool call, but only to write them out as they are, wants text.
    """
    content = _Uses(tree, "content")
    arguments = _Uses(tree, "arguments")
    parts = content.iterated or content.elements
    return TemplateTraits(
        content_strings="string" in content.tests or not parts,
        content_parts=parts,
        content_null="none" in content.tests,
        argument_text=arguments.read
        and not (arguments.iterated or arguments.inspected or arguments.filters or arguments.tests),
        developer=any(node.value == "developer" for node in tree.find_all(nodes.Const)),
        documents="documents" in meta.find_undeclared_variables(tree),
    )


class _Uses:
    """What a template does with ``x.key`` or ``x['key']``, whatever x is, and with the names that this is bound to.

    Names are followed without regard to scope: a name bound to the value anywhere counts everywhere.
    """

    def __init__(self, tree: nodes.Template, key: str) -> None:
        self._key = key
        self._names: set[str] = set()
        while not self._names.issuperset(found := set(self._bound_names(tree))):
            self._names |= found

        self.read = any(map(self._is_value, tree.find_all(nodes.Expr)))
        loops = [loop.iter for loop in tree.find_all(nodes.For)]
        filters = [node for node in tree.find_all(nodes.Filter) if self._is_value(node.node)]
        self.filters = {node.name for node in filters}
        self.iterated = any(map(self._is_list, loops)) or not self.filters.isdisjoint(_LIST_FILTERS)
        self.tests = {node.name for node in tree.find_all(nodes.Test) if self._is_value(node.node)} | {
            "none" for node in tree.find_all(nodes.Compare) if self._is_compared_to_none(node)
        }
        lookups = [node.node for node in tree.find_all(nodes.Getattr)]
        lookups += [node.node for node in tree.find_all(nodes.Getitem)]
        self.inspected = any(map(self._is_value, lookups))
        self.elements = any(map(self._is_element, lookups))

    def _bound_names(self, tree: nodes.Template) -> Iterable[str]:
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and self._is_value(assign.node):
                yield assign.target.name
        macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and (macro := macros.get(call.node.name)):
                for parameter, argument in zip(macro.args, call.args, strict=False):
                    if self._is_value(argument):
                        yield parameter.name
                for keyword in call.kwargs:
                    if self._is_value(keyword.value):
                        yield keyword.key

    def _is_value(self, node: nodes.Node | None) -> bool:
        if isinstance(node, nodes.Name):
            return node.name in self._names
        if isinstance(node, nodes.Getattr):
            return node.attr == self._key
        if isinstance(node, nodes.Getitem):
            if isinstance(node.arg, nodes.Slice):
                return self._is_value(node.node)
            return isinstance(node.arg, nodes.Const) and node.arg.value == self._key
        if isinstance(node, nodes.Call):
            return (
                isinstance(node.node, nodes.Getattr)
                and node.node.attr == "get"
                and bool(node.args)
                and isinstance(node.args[0], nodes.Const)
                and node.args[0].value == self._key
            )
        if isinstance(node, nodes.Filter):
            return node.name in ("default", "d") and self._is_value(node.node)
        if isinstance(node, (nodes.Or, nodes.And)):
            return self._is_value(node.left) or self._is_value(node.right)
        if isinstance(node, nodes.CondExpr):
            return self._is_value(node.expr1) or self._is_value(node.expr2)
        return False

    def _is_list(self, node: nodes.Node | None) -> bool:
        while isinstance(node, nodes.Filter) and node.name in _LIST_FILTERS:
            node = node.node
        return self._is_value(node)

    def _is_element(self, node: nodes.Node) -> bool:
        """``content[0]``, of which something is looked up."""
        return (
            isinstance(node, nodes.Getitem)
            and isinstance(node.arg, nodes.Const)
            and isinstance(node.arg.value, int)
            and self._is_value(node.node)
        )

    def _is_compared_to_none(self, node: nodes.Compare) -> bool:
        return self._is_value(node.expr) and any(
            isinstance(operand.expr, nodes.Const) and operand.expr.value is None for operand in node.ops
        )
