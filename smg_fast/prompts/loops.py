"""Loops of a template that count their turns, in place of Jinja's loop object, which takes much longer."""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

#: Attributes of ``loop`` that are told by the number of the turn.
_FROM_NUMBER: dict[str, Callable[[nodes.Expr], nodes.Expr]] = {
    "index0": lambda number: number,
    "index": lambda number: nodes.Add(number, nodes.Const(1)),
    "first": lambda number: nodes.Compare(number, [nodes.Operand("eq", nodes.Const(0))]),
}


def count_turns(tree: nodes.Template) -> None:
    """Change the loops of which ``loop`` is asked for no more than the number of the turn."""
    taken = {value for node in tree.find_all(nodes.Node) for _, value in node.iter_fields() if isinstance(value, str)}
    name = "turn"
    while name in taken:
        name += "_"
    for loop in list(tree.find_all(nodes.For)):
        if _needs_number_only(loop):
            loop.body = [_Numbering(name).visit(node) for node in loop.body]
            loop.target = nodes.Tuple([nodes.Name(name, "store"), loop.target], "store")
            loop.iter = nodes.Call(nodes.ImportedName("builtins.enumerate"), [loop.iter], [], None, None)


def _needs_number_only(loop: nodes.For) -> bool:
    # A loop with a test counts the turns that pass it.
    if loop.recursive or loop.test is not None:
        return False
    body = nodes.Scope(loop.body)
    # Inside of these ``loop`` is another one's, or may be.
    scopes: tuple[type[nodes.Node], ...] = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
    if any(map(_loops, body.find_all(scopes))):
        return False
    numbers = [node for node in body.find_all(nodes.Getattr) if _is_number(node)]
    return 0 < len(numbers) == _loops(body)


def _loops(node: nodes.Node) -> int:
    named: tuple[type[nodes.Name | nodes.Macro], ...] = (nodes.Name, nodes.Macro)
    return sum(found.name == "loop" for found in node.find_all(named))


def _is_number(node: nodes.Getattr) -> bool:
    return isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in _FROM_NUMBER


class _Numbering(NodeTransformer):
    """``loop.index``, in terms of the number of the turn, a variable."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802 (Jinja names it so)
        if _is_number(node):
            return _FROM_NUMBER[node.attr](nodes.Name(self._name, "load"))
        return self.generic_visit(node)
