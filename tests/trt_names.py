"""What a module of ours uses of TensorRT, found by walking its syntax tree. Knows no release; asks a surface for types.

As much of a type checker as it takes: parameters and attributes by their annotations, locals by what they are assigned,
calls by what the surface says that they give. Where it cannot tell what a thing is, it says so: ``class_name`` None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trt_surface import Member

Api = dict[str, dict[str, Member]]
_MODULE = "trt"
_PASSES_ON = "_made"
"""A function of ours that gives back its second argument."""


@dataclass(frozen=True)
class Use:
    class_name: str | None
    """``None``: of a thing whose class the walk could not tell."""
    member: str | None
    """``None``: the class itself."""
    line: int
    arguments: tuple[int, frozenset[str]] | None = None
    """Of a call: how many by place, and which by name."""


@dataclass(frozen=True)
class Override:
    """A method of a class of ours that TensorRT calls."""

    class_name: str
    member: str
    parameters: tuple[str, ...]
    line: int


@dataclass
class _Walk:
    api: Api
    given: dict[str, str]
    """Function of ours -> the class that it gives."""
    uses: list[Use] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    """Of ``self``, in the class at hand."""

    def body(self, node: ast.AST, known: dict[str, str]) -> None:
        for child in ast.iter_child_nodes(node):
            self.visit(child, known)

    def visit(self, node: ast.AST, known: dict[str, str]) -> None:
        if isinstance(node, ast.ClassDef):
            self._class(node, known)
        elif isinstance(node, ast.FunctionDef):
            self._function(node, known)
        elif isinstance(node, ast.arg | ast.Constant):
            pass
        else:
            if isinstance(node, ast.AnnAssign | ast.Assign):
                self._assigned(node, known)
            if isinstance(node, ast.Attribute):
                self._used(node, known, None)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names = frozenset(one.arg for one in node.keywords if one.arg)
                self._used(node.func, known, (len(node.args), names))
                self.visit(node.func.value, known)
                for part in (*node.args, *node.keywords):
                    self.visit(part, known)
                return
            self.body(node, known)

    def _class(self, node: ast.ClassDef, known: dict[str, str]) -> None:
        bases = [self.kind(base, known) for base in node.bases]
        base = next((one.removeprefix("type ") for one in bases if one and one.startswith("type ")), None)
        outer, self.attributes = self.attributes, _attributes(self, node, known)
        for child in node.body:
            if base is not None and isinstance(child, ast.FunctionDef) and child.name != "__init__":
                names = tuple(one.arg for one in child.args.args[1:])
                self.overrides.append(Override(base, child.name, names, child.lineno))
            self.visit(child, known)
        for base_node in node.bases:
            self.visit(base_node, known)
        self.attributes = outer

    def _function(self, node: ast.FunctionDef, known: dict[str, str]) -> None:
        inner = dict(known)
        for one in (*node.args.args, *node.args.kwonlyargs):
            inner.pop(one.arg, None)
            if (kind := annotated(one.annotation)) is not None:
                inner[one.arg] = kind
        for child in node.body:
            self.visit(child, inner)

    def _assigned(self, node: ast.Assign | ast.AnnAssign, known: dict[str, str]) -> None:
        for target, value in pairs_of(node):
            kind = annotated(node.annotation) if isinstance(node, ast.AnnAssign) else None
            kind = kind or self.kind(value, known)
            if isinstance(target, ast.Name):
                known.pop(target.id, None)
                if kind is not None:
                    known[target.id] = kind

    def _used(self, node: ast.Attribute, known: dict[str, str], call: tuple[int, frozenset[str]] | None) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == _MODULE:
            self.uses.append(Use(node.attr, None, node.lineno))
            return
        kind = self.kind(node.value, known)
        if kind is not None and (name := kind.removeprefix("type ")) in self.api:
            if call is not None and kind != name:
                call = (call[0] - 1, call[1])  # through its class: the first argument is the thing itself
            self.uses.append(Use(name, node.attr, node.lineno, call))
        elif kind is None and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            self.uses.append(Use(None, node.attr, node.lineno))

    def kind(self, node: ast.expr, known: dict[str, str]) -> str | None:
        """``"Builder"`` for one of them, ``"type Builder"`` for the class."""
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == _MODULE:
                return f"type {node.attr}" if node.attr in self.api else None
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return self.attributes.get(node.attr)
            return self._gives(node, known)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                if node.func.id == _PASSES_ON:
                    return self.kind(node.args[1], known)
                return self.given.get(node.func.id)
            kind = self.kind(node.func, known)
            return kind.removeprefix("type ") if kind is not None and kind.startswith("type ") else kind
        return None

    def _gives(self, node: ast.Attribute, known: dict[str, str]) -> str | None:
        owner = self.kind(node.value, known)
        if owner is None:
            return None
        name = owner.removeprefix("type ")
        member = self.api.get(name, {}).get(node.attr)
        if member is None:
            return None
        if member.kind == "value":
            return name
        gives = member.ways[0].gives if member.ways else member.gives
        gives = {"nvonnxparser::IParserError": "ParserError"}.get(gives, gives)
        return gives if gives in self.api else "something else"


def annotated(node: ast.expr | None) -> str | None:
    """The class of TensorRT that an annotation names, if it is one."""
    if node is None:
        return None
    found = re.findall(rf"\b{_MODULE}\.(\w+)", ast.unparse(node))
    return found[0] if len(found) == 1 and "[" not in ast.unparse(node) else None


def pairs_of(node: ast.Assign | ast.AnnAssign) -> list[tuple[ast.expr, ast.expr]]:
    """(target, value), those of ``a, b = c, d`` one by one."""
    if node.value is None:
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if isinstance(targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(targets[0].elts, node.value.elts, strict=True))
    return [(target, node.value) for target in targets]


def _attributes(walk: _Walk, node: ast.ClassDef, known: dict[str, str]) -> dict[str, str]:
    """What ``self`` holds, by the assignments of all methods, in order."""
    walk.attributes = {}
    for method in (one for one in node.body if isinstance(one, ast.FunctionDef)):
        inner = dict(known) | {
            one.arg: kind for one in method.args.args if (kind := annotated(one.annotation)) is not None
        }
        for part in ast.walk(method):
            if not isinstance(part, ast.Assign | ast.AnnAssign):
                continue
            for target, value in pairs_of(part):
                kind = annotated(part.annotation) if isinstance(part, ast.AnnAssign) else None
                kind = kind or walk.kind(value, inner)
                if kind is not None and isinstance(target, ast.Name):
                    inner[target.id] = kind
                if kind is not None and isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    walk.attributes.setdefault(target.attr, kind)
    return walk.attributes


def given_by(sources: Iterator[str] | list[str]) -> dict[str, str]:
    """Functions of ours -> the class that their annotation says they give."""
    found = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (kind := annotated(node.returns)) is not None:
                found[node.name] = kind
    return found


def uses_of(source: str, api: Api, given: dict[str, str]) -> tuple[list[Use], list[Override]]:
    walk = _Walk(api, given)
    walk.body(ast.parse(source), {})
    return walk.uses, walk.overrides
