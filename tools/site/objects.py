"""A page for each object of the Python face, out of the source: signatures and docstrings.

Nothing is imported but ``sealtrain`` itself, whose table says where each name lies. The pages are
those of ``sealtrain.__all__`` and of the public classes of sealtrain that these objects return or
take. A member that a class inherits from a class of sealtrain is on its page too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from alone import ALONE

import sealtrain
from sealtrain.base.distributions import REHEARSAL

_OURS = ("sealtrain.", "sealtrain_")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
_ENTRY = re.compile(r"^    (\S[^:]*): ?(.*)$")
_TITLES = {"Args": "Arguments", "Raises": "Raises", "Attributes": "Attributes"}
_ROLE = re.compile(r"``([^`]+)``")
_ERRORS = "../errors/index.md"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is defined."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMember:
    """A public attribute, property or method of a class.

    Attributes:
        name: Its name.
        kind: ``attribute``, ``property`` or ``method``.
        signature: As the source has it, in one line.
        text: Its docstring.
        owner: The class that defines it.
    """

    name: str
    kind: str
    signature: str
    text: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedObject:
    """An object.

    Attributes:
        place: Where it is defined.
        kind: ``class`` or ``function``.
        signature: Of the function, or of what makes an object of the class.
        text: Its docstring.
        members: Of a class, in the order of the source.
        mentioned: Classes that its signatures name.
    """

    place: Place
    kind: str
    signature: str
    text: str
    members: tuple[ObjectMember, ...] = ()
    mentioned: tuple[Place, ...] = field(default=())


def public_places() -> dict[str, Place | None]:
    """Where each name of ``sealtrain.__all__`` is defined; ``None`` of a module."""
    places = {**sealtrain._PLACES, "rehearsal": f"{REHEARSAL}.simulation:rehearsal"}
    found: dict[str, Place | None] = {}
    for name in sealtrain.__all__:
        module, _, attribute = places[name].partition(":")
        found[name] = _follow(Place(module, attribute)) if attribute else None
    return found


def describe_objects() -> dict[str, DescribedObject]:
    """Every object that has a page, by its name: the public ones, and what these name."""
    found: dict[str, DescribedObject] = {}
    todo = [(name, place) for name, place in public_places().items() if place is not None]
    while todo:
        name, place = todo.pop(0)
        if name in found:
            continue
        found[name] = describe(place)
        if name in sealtrain.__all__:  # one step, or half of the package would follow
            todo += [(seen.name, seen) for seen in found[name].mentioned]
    return found


def object_pages() -> dict[str, str]:
    """Pages by their name on the site."""
    objects = describe_objects()
    pages = {f"python/{name}.md": _page(name, said, objects) for name, said in objects.items()}
    row = "| [`{0}`]({0}.md) | {1} |".format
    rows = {name: row(name, _first(said.text)) for name, said in sorted(objects.items())}
    public = [rows[name] for name in rows if name in sealtrain.__all__]
    others = [rows[name] for name in rows if name not in sealtrain.__all__]
    pages["python/index.md"] = "\n".join(
        [
            "# Python, by object",
            "",
            "Each page is written from the source. How they go together is in",
            "[From Python](../docs/guides/python.md); what they raise is in `sealtrain.errors`",
            f"([error codes]({_ERRORS})).",
            "",
            "## Names of `sealtrain`",
            "",
            "| name | what it is |",
            "|---|---|",
            *public,
            f"| [`errors`]({_ERRORS}) | Every error, a class for each code. |",
            "",
            "## What they return and take",
            "",
            "| name | what it is |",
            "|---|---|",
            *others,
            "",
        ]
    )
    return pages


def describe(place: Place) -> DescribedObject:
    """An object of the source."""
    node = _definition(place)
    if isinstance(node, ast.ClassDef):
        members = tuple(_members(place))
        return DescribedObject(
            place=place,
            kind="class",
            signature=_describe_making(place, members),
            text=ast.get_docstring(node) or "",
            members=members,
            mentioned=tuple(_find_mentioned(place)),
        )
    if isinstance(node, Function):
        return DescribedObject(
            place=place,
            kind="function",
            signature=_signature(node),
            text=ast.get_docstring(node) or "",
            mentioned=tuple(_find_named(node, place.module)),
        )
    raise TypeError(f"{place} is neither a class nor a function")


def _page(name: str, said: DescribedObject, objects: dict[str, DescribedObject]) -> str:
    lines = [f"{ALONE}# {name}", "", "```python", said.signature, "```", "", *_prose(said.text)]
    linked = [
        seen.name
        for seen in said.mentioned
        if seen.name != name and seen.name in objects and objects[seen.name].place == seen
    ]
    if linked:
        told = ", ".join(f"[`{other}`]({other}.md)" for other in dict.fromkeys(linked))
        lines += ["", f"See {told}.", ""]
    for kind, title in (
        ("attribute", "Attributes"),
        ("property", "Properties"),
        ("method", "Methods"),
    ):
        shown = [member for member in said.members if member.kind == kind]
        if not shown:
            continue
        lines += ["", f"## {title}", ""]
        for member in shown:
            lines += [f"### {member.name}", "", "```python", member.signature, "```", ""]
            lines += _prose(member.text)
            lines.append("")
    lines += ["", f"Defined in `{said.place.module}`.", ""]
    return "\n".join(lines)


def _prose(text: str) -> list[str]:
    """A docstring of Google's style as Markdown."""
    lines: list[str] = []
    section = None
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found[1]
            lines += ["", f"**{_TITLES.get(section, section)}**", ""]
        elif section and line and not line.startswith("    "):
            section = None
            lines += ["", _plain(line)]
        elif section and (entry := _ENTRY.match(line)) and section not in ("Returns", "Yields"):
            lines.append(f"- `{entry[1]}`: {_plain(entry[2])}")
        elif section:
            lines.append(
                f"  {_plain(line.strip())}" if lines[-1].startswith("-") else _plain(line.strip())
            )
        else:
            lines.append(_plain(line))
    return lines


def _plain(line: str) -> str:
    kept = _ROLE.sub(r"`\1`", line)
    return "".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        for number, part in enumerate(re.split(r"(`[^`]*`)", kept))
    )


def _first(text: str) -> str:
    """The first sentence of a docstring, for a table."""
    line = " ".join(text.partition("\n\n")[0].split())
    return _plain(line.partition(". ")[0].removesuffix(".") + ".").replace("|", "\\|")


def _signature(node: Function, name: str | None = None, *, bound: bool = False) -> str:
    """A function as the source defines it, in one line; without ``self`` where it is bound."""
    arguments = ast.unparse(node.args)
    if bound:
        arguments = re.sub(r"^(?:self|cls)(?:, )?(?:/, )?", "", arguments)
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    word = "async def " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{word}{name or node.name}({arguments}){returned}"


def _describe_making(place: Place, members: tuple[ObjectMember, ...]) -> str:
    """How an object of a class is made: its ``__init__``, or its fields."""
    for owner in _lineage(place):
        for node in _class(owner).body:
            if isinstance(node, Function) and node.name == "__init__":
                return _signature(node, place.name, bound=True).removesuffix(" -> None")
    mark = next(
        (
            ast.unparse(mark)
            for owner in _lineage(place)
            for mark in _class(owner).decorator_list
            if "dataclass" in ast.unparse(mark)
        ),
        None,
    )
    unset = {
        node.target.id
        for owner in _lineage(place)
        for node in _class(owner).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.value is not None
        and "init=False" in ast.unparse(node.value)
    }
    signatures = {member.name: member.signature for member in members if member.kind == "attribute"}
    ordered = {  # as dataclasses order them: those of the furthest base first
        node.target.id: None
        for owner in reversed(list(_lineage(place)))
        for node in _class(owner).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    fields = [signatures[name] for name in ordered if name in signatures and name not in unset]
    named = ["*"] if fields and (mark is None or "kw_only=True" in mark) else []
    return f"{place.name}({', '.join([*named, *fields])})"


def _members(place: Place) -> Iterator[ObjectMember]:
    """Public members, those of the class first, each once."""
    seen: set[str] = set()
    for owner in _lineage(place):
        body = _class(owner).body
        for number, node in enumerate(body):
            name, kind, signature, text = _member(node, body[number + 1 : number + 2])
            if name and not name.startswith("_") and name not in seen:
                yield ObjectMember(
                    name=name, kind=kind, signature=signature, text=text, owner=owner.name
                )
            seen.add(name)


def _member(node: ast.stmt, after: list[ast.stmt]) -> tuple[str, str, str, str]:
    """Name, kind, signature and text of a statement in a class; no name where there is nothing."""
    if isinstance(node, Function):
        marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
        text = ast.get_docstring(node) or ""
        if marks & {"property", "cached_property"}:
            returned = "" if node.returns is None else f": {ast.unparse(node.returns)}"
            return node.name, "property", f"{node.name}{returned}", text
        if marks & {"setter", "field_validator", "model_validator", "overload"} or any(
            "validator(" in ast.unparse(mark) for mark in node.decorator_list
        ):
            return "", "", "", ""
        signature = _signature(node, bound="staticmethod" not in marks)
        word = "classmethod " if "classmethod" in marks else ""
        return node.name, "method", f"{word}{signature}", text
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        said = ast.unparse(node.annotation)
        if said.startswith(("ClassVar", "InitVar")):
            return "", "", "", ""
        text = ""
        if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
            text = str(after[0].value.value)
        usual = "" if node.value is None else f" = {_default(node.value)}"
        return node.target.id, "attribute", f"{node.target.id}: {said}{usual}", text
    return "", "", "", ""


def _default(value: ast.expr) -> str:
    """A default, or dots where the source makes it by a call."""
    return "..." if isinstance(value, ast.Call) else ast.unparse(value)


def _lineage(place: Place) -> Iterator[Place]:
    """A class and the classes of sealtrain that it inherits from, nearest first."""
    yield place
    for base in _class(place).bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        found = None
        if isinstance(named, ast.Name):
            found = _resolve(place.module, named.id)
        elif isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name):
            module = _module_called(place.module, named.value.id)
            found = None if module is None else _resolve(module, named.attr)
        if found is not None and isinstance(_definition(found), ast.ClassDef):
            yield from _lineage(found)


def _find_mentioned(place: Place) -> Iterator[Place]:
    for owner in _lineage(place):
        for node in _class(owner).body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield from _find_named(node, owner.module)
            if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
                yield from _classes_in(node.annotation, owner.module)


def _find_named(node: Function, module: str) -> Iterator[Place]:
    """Classes that a function's signature names."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for said in (node.returns, *(argument.annotation for argument in every)):
        if said is not None:
            yield from _classes_in(said, module)


def _classes_in(said: ast.expr, module: str) -> Iterator[Place]:
    for node in ast.walk(said):
        if isinstance(node, ast.Name) and not node.id.startswith("_"):
            found = _resolve(module, node.id)
            if found is not None and isinstance(_definition(found), ast.ClassDef):
                yield found


def _resolve(module: str, name: str) -> Place | None:
    """The class or function of sealtrain that a name means in a module; ``None`` for any other."""
    tree = _tree(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return Place(module, name)
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(_OURS):
            for alias in statement.names:
                if (alias.asname or alias.name) == name and statement.module:
                    return _follow(Place(statement.module, alias.name))
    return None


def _module_called(module: str, name: str) -> str | None:
    """The module of sealtrain that a name means in a module; ``None`` for anything else."""
    for statement in ast.walk(_tree(module)):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(_OURS):
            for alias in statement.names:
                whole = f"{statement.module}.{alias.name}"
                if (alias.asname or alias.name) == name and _file(whole).is_file():
                    return whole
    return None


def _follow(place: Place) -> Place | None:
    """The place where an object is defined, of one where it may be imported only."""
    if not _file(place.module).is_file():
        return None
    found = _resolve(place.module, place.name)
    return found if found is None or found == place else _follow(found)


def _definition(place: Place) -> ast.stmt | None:
    for node in _tree(place.module).body:
        if isinstance(node, ast.ClassDef | Function) and node.name == place.name:
            return node
    return None


def _class(place: Place) -> ast.ClassDef:
    found = _definition(place)
    if not isinstance(found, ast.ClassDef):
        raise TypeError(f"{place} is no class")
    return found


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text("utf-8"))


@cache
def _file(module: str) -> Path:
    """The file of a module, found without importing it."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    (folder,) = [] if spec is None else list(spec.submodule_search_locations or ())[:1]
    path = Path(folder).joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
