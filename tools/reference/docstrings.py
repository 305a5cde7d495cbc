"""The docstrings that Python does not keep: those below the fields of a class."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib import import_module
from itertools import pairwise


@cache
def _module_tree(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(name)))


@cache
def own_fields(owner: type) -> dict[str, str]:
    """The fields that a class itself declares, each with its docstring, empty if it has none."""
    [tree] = [
        node
        for node in _module_tree(owner.__module__).body
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    ]
    return {
        node.target.id: _text(following)
        for node, following in pairwise([*tree.body, ast.Pass()])
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def field_docstring(owner: type, name: str) -> str:
    """The docstring of a field, of the class or of the nearest of its bases that has one."""
    for each in owner.__mro__:
        if name in getattr(each, "__annotations__", {}) and (text := own_fields(each).get(name)):
            return text
    return ""


def class_docstring(owner: type) -> str:
    """The docstring of a class in one paragraph."""
    return " ".join((inspect.getdoc(owner) or "").split())


def as_phrase(text: str) -> str:
    """A sentence as a part of a longer one: without its full stop, and begun in lower case."""
    phrase = " ".join(text.split()).removesuffix(".")
    return phrase[:1].lower() + phrase[1:] if phrase[1:2].islower() else phrase


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return inspect.cleandoc(str(node.value.value))
    return ""
