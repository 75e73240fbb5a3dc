"""The pages of the Python face say what the code is: every name, member and signature of it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

import sealtrain

pytestmark = pytest.mark.long

SITE = Path(__file__).resolve().parents[2] / "tools/site"


def loaded() -> ModuleType:
    """The generator, which finds what lies beside it."""
    sys.path.insert(0, str(SITE))
    try:
        spec = importlib.util.spec_from_file_location("site_objects", SITE / "objects.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["site_objects"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SITE))
    return module


OBJECTS = loaded()
DESCRIBED = OBJECTS.describe_objects()
PUBLIC = sorted(set(sealtrain.__all__) - {"errors"})


def parameters(signature: str) -> list[tuple[str, bool]]:
    """Names of a signature on a page, and whether they go by name only."""
    text = signature.removeprefix("classmethod ").removeprefix("async def ")
    definition = ast.parse(f"def {text}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    found = [(argument.arg, False) for argument in (*given.posonlyargs, *given.args)]
    found += [(given.vararg.arg, False)] if given.vararg else []
    found += [(argument.arg, True) for argument in given.kwonlyargs]
    return found + ([(given.kwarg.arg, True)] if given.kwarg else [])


def really(function: Any) -> list[tuple[str, bool]]:
    """The same of an object."""
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    found = [
        (name, parameter.kind in by_name)
        for name, parameter in inspect.signature(function).parameters.items()
    ]
    return [pair for pair in found if pair[0] not in ("self", "cls")]


def own_members(cls: type) -> set[str]:
    """Public names that sealtrain's own classes define on a class, fields included."""
    found: set[str] = set()
    for owner in cls.__mro__:
        if owner.__module__.startswith("sealtrain"):
            fields = {
                name
                for name, said in inspect.get_annotations(owner).items()
                if not str(said).startswith(("ClassVar", "InitVar"))
            }
            defined = {
                name
                for name, value in owner.__dict__.items()
                if isinstance(value, property | cached_property | classmethod | staticmethod)
                or inspect.isfunction(value)
            }
            found |= fields | defined
    return {name for name in found if not name.startswith("_")}


def test_every_public_name_has_a_page_and_each_page_its_index() -> None:
    assert set(PUBLIC) <= set(DESCRIBED)
    pages = OBJECTS.object_pages()
    assert {f"python/{name}.md" for name in DESCRIBED} == set(pages) - {"python/index.md"}
    index = pages["python/index.md"]
    assert all(f"]({name}.md)" in index for name in DESCRIBED)
    for name in PUBLIC:
        assert DESCRIBED[name].text


@pytest.mark.parametrize("name", PUBLIC)
def test_a_page_says_what_the_object_is(name: str) -> None:
    said, real = DESCRIBED[name], getattr(sealtrain, name)
    assert (said.place.module, said.place.name) == (real.__module__, real.__name__)
    assert said.text == inspect.cleandoc(real.__doc__ or "")
    assert said.kind == ("class" if isinstance(real, type) else "function")
    if not isinstance(real, type):
        assert parameters(said.signature) == really(real)
        return
    if issubclass(real, BaseModel):
        shown = {member.name for member in said.members if member.kind == "attribute"}
        assert set(real.model_fields) <= shown
    elif is_dataclass(real) or "__init__" in real.__dict__:
        assert parameters(said.signature) == really(real)
    members = {member.name: member for member in said.members}
    assert own_members(real) - set(members) <= hooks(real)
    for member in said.members:
        if member.kind == "method":
            assert parameters(member.signature) == really(getattr(real, member.name)), member.name
        if member.kind != "attribute":
            assert member.name in dir(real)


def hooks(cls: type) -> set[str]:
    """Validators of pydantic, which are no part of the face."""
    marks = getattr(cls, "__pydantic_decorators__", None)
    return set() if marks is None else {*marks.field_validators, *marks.model_validators}


def test_a_name_that_is_written_otherwise_is_shown_as_text() -> None:
    text = "\n".join(OBJECTS.object_pages().values())
    assert "<script" not in text
