"""The error tree is documented and exits as promised: all of it, always."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sealtrain import errors
from sealtrain.error_homes import HOMES
from sealtrain.errors import SealtrainError, every_error


def tree(kind: type[SealtrainError] = SealtrainError) -> list[type[SealtrainError]]:
    """Every class, parents first, as the page has them."""
    children = [child for child in kind.__subclasses__() if child in KNOWN]
    children.sort(key=lambda child: "" if child.__module__ == errors.__name__ else child.code)
    return [kind, *(below for child in children for below in tree(child))]


KNOWN = set(every_error())
CLASSES = tree()


def test_the_table_names_each_class_at_its_place() -> None:
    assert {f"{kind.__module__}:{kind.__name__}" for kind in CLASSES} == set(HOMES.values())
    assert {kind.code for kind in CLASSES} == HOMES.keys()


def test_a_code_loads_the_module_of_its_class_and_no_other() -> None:
    """A process that reads one error of a peer pays for no package that it does not use."""
    [home] = {home for code, home in HOMES.items() if code == "wrong-key"}
    words = (
        "import sys; from sealtrain.errors import error_by_code; kind = error_by_code('wrong-key');"
        "print(kind.__module__, *(name for name in sys.modules if name.endswith('.errors')"
        " and name.startswith('sealtrain')))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    module = home.partition(":")[0]
    assert set(done.stdout.split()) == {module, errors.__name__}


def test_codes_are_unique_and_written_in_one_form() -> None:
    codes = [kind.code for kind in CLASSES]
    assert len(set(codes)) == len(codes)
    for code in codes:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code), code


def test_a_class_has_one_parent_and_says_what_it_means() -> None:
    parents = {kind.__name__: len(kind.__bases__) for kind in CLASSES}
    assert {name: count for name, count in parents.items() if count != 1} == {}
    assert [kind.__name__ for kind in CLASSES if not vars(kind).get("__doc__")] == []


def test_only_the_branches_choose_an_exit_code() -> None:
    choosing = {kind.__name__: kind.exit_code for kind in CLASSES if "exit_code" in vars(kind)}
    assert choosing == {
        "SealtrainError": 1,
        "ConfigError": 2,
        "Refused": 3,
        "Unreachable": 4,
        "DataInvalid": 5,
        "RunStopped": 143,
        "WaitOver": 124,
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
        "page-unknown": 404,
        "submission-unknown": 404,
        "wait-over": 503,
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
    """A class hidden in a module would have no section on the page."""
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
