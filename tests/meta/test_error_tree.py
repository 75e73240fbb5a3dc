"""The error tree is drawn, exported, documented and exits as promised: all of it, always."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sealtrain import errors
from sealtrain.errors import SealtrainError


def tree(kind: type[SealtrainError] = SealtrainError) -> list[type[SealtrainError]]:
    """Every class of the module, parents first."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [kind, *(below for child in children for below in tree(child))]


CLASSES = tree()


def drawn() -> dict[str, tuple[str, str]]:
    """Class → (parent, code or exit) as the module docstring draws it."""
    found: dict[str, tuple[str, str]] = {}
    path: list[str] = ["SealtrainError"]
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│ ├└─]*)(\w+) +(.*\S)", line)
        if match and "─" in match[1]:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            found[match[2]] = (path[depth - 1], match[3])
    return found


def test_the_drawing_shows_every_class_below_its_parent() -> None:
    shown = {name: parent for name, (parent, _) in drawn().items()}
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES[1:]}
    assert shown == real


def test_the_drawing_gives_leaves_their_code_and_branches_their_exit_code() -> None:
    drawing = drawn()
    for kind in CLASSES[1:]:
        text = drawing[kind.__name__][1]
        if not kind.__subclasses__():
            assert text == kind.code
        elif kind.__bases__ == (SealtrainError,):
            assert text.startswith(f"exit {kind.exit_code} ")


def test_all_is_sorted_and_complete() -> None:
    names = {kind.__name__ for kind in CLASSES} | {"error_by_code"}
    assert set(errors.__all__) == names
    assert errors.__all__ == sorted(errors.__all__)


def test_codes_are_unique_and_say_what_the_class_says() -> None:
    codes = [kind.code for kind in CLASSES]
    assert len(set(codes)) == len(codes)
    for kind in CLASSES:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.code), kind
        assert "code" in vars(kind), f"{kind.__name__} inherits its code"
        if not kind.__subclasses__():
            words = kind.__name__.removesuffix("Error")
            assert kind.code == re.sub(r"(?<!^)(?=[A-Z])", "-", words).lower()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_has_one_parent_and_a_docstring_that_is_a_sentence(
    kind: type[SealtrainError],
) -> None:
    assert len(kind.__bases__) == 1
    summary = (vars(kind).get("__doc__") or "").partition("\n\n")[0]
    assert summary.endswith(".")


def test_only_the_branches_choose_an_exit_code() -> None:
    choosing = {kind.__name__: kind.exit_code for kind in CLASSES if "exit_code" in vars(kind)}
    assert choosing == {
        "SealtrainError": 1,
        "ConfigError": 2,
        "Refused": 3,
        "Unreachable": 4,
        "DataInvalid": 5,
    }


def test_a_service_answers_each_class_with_a_status_of_an_error() -> None:
    for kind in CLASSES:
        assert 400 <= kind.http_status <= 599, kind
        assert kind.retry in ("never", "again", "later"), kind
    branches = {kind.code: kind.http_status for kind in CLASSES if "http_status" in vars(kind)}
    assert branches == {
        "error": 500,
        "config": 400,
        "refused": 403,
        "token-refused": 401,
        "unreachable": 503,
        "request-late": 408,
        "too-many-requests": 429,
        "data-invalid": 400,
        "entry-unknown": 404,
        "head-too-large": 431,
        "request-too-large": 413,
    }


def test_every_exit_code_stands_in_the_table(repository: Path) -> None:
    page = (repository / "docs/reference/exit-codes.md").read_text()
    shown = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert shown >= {0, *(kind.exit_code for kind in CLASSES)}


def test_the_reference_page_has_every_code_and_is_fresh(repository: Path) -> None:
    result = subprocess.run(
        [sys.executable, "tools/error_reference.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    page = (repository / "docs/reference/errors.md").read_text()
    headings = re.findall(r"^#{2,3} (\S+)$", page, re.MULTILINE)
    assert headings == [kind.code for kind in CLASSES]


def test_no_error_is_defined_outside_the_tree() -> None:
    """A class hidden in a module would have neither page nor place in the drawing."""
    source = Path(errors.__file__).parent
    hidden = [
        f"{path.relative_to(source)}: {name}"
        for path in source.rglob("*.py")
        if path.name != "errors.py"
        for name in re.findall(
            r"^class (\w+)\((?:" + "|".join(kind.__name__ for kind in CLASSES) + r")\)",
            path.read_text(),
            re.MULTILINE,
        )
    ]
    assert hidden == []
