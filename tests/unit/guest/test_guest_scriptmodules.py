"""Scripts run from the lock's text, whatever lies in any file."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING

if not COLLECTING:
    from sealtrain.guest.script import run_as_main

pytestmark = pytest.mark.claim("C121")

Run = Callable[[dict[str, str]], list[Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs scripts by path; what they append to ``sys.told`` comes back."""

    def ran(texts: dict[str, str]) -> list[Any]:
        told: list[Any] = []
        sys.told = told  # type: ignore[attr-defined]
        try:
            run_as_main(texts, tuple(texts), tmp_path)
        finally:
            del sys.told  # type: ignore[attr-defined]
        return told

    return ran


def test_the_text_runs_and_not_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("train.py", "notions.py", "inner/data.py"):
        (tmp_path / name).write_text("raise SystemExit('the file ran')")
    text = (
        "import sys, notions, inner.data\nfrom inner import data\n"
        "sys.told += [notions.NAME, inner.data.NAME, data is inner.data]\n"
        "sys.told += [__name__, __file__, sys.argv]"
    )
    told = run(
        {"train.py": text, "notions.py": "NAME = 'approved'", "inner/data.py": "NAME = 'too'"}
    )
    file = str(tmp_path / "train.py")
    assert told == ["approved", "too", True, "__main__", file, [file]]
    assert not {"notions", "inner", "inner.data"} & sys.modules.keys()


def test_modules_lie_below_the_folder_of_the_first(run: Run) -> None:
    told = run(
        {
            "code/train.py": "import sys\nfrom inner import a, VALUE\nsys.told += [VALUE, a.VALUE]",
            "code/inner/__init__.py": "VALUE = 1",
            "code/inner/a.py": "from . import VALUE as before\nVALUE = before + 1",
        }
    )
    assert told == [1, 2]


@pytest.mark.parametrize("name", ["unlisted", "inner.unlisted", "train"])
def test_other_files_are_no_modules(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "inner").mkdir()
    for file in ("unlisted.py", "inner/unlisted.py"):
        (tmp_path / file).write_text("")
    with pytest.raises(ModuleNotFoundError):
        run({"train.py": f"import inner.data, {name}", "inner/data.py": ""})


def test_a_module_stands_before_no_other(run: Run) -> None:
    told = run({"train.py": "import sys, json\nsys.told.append(json.loads('1'))", "json.py": ""})
    assert told == [1]


def test_its_lines_are_known(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("something else\n" * 20)
    source = "def f():\n    return 1\n"
    asked = "\n\nsys.told.append(inspect.getsource(f))"
    assert run({"train.py": f"import inspect, sys\n\n\n{source}{asked}"}) == [source]
    with pytest.raises(ZeroDivisionError) as raised:
        run({"train.py": "import notions\n", "notions.py": "\n1 / 0  # here"})
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(tmp_path / "notions.py"), 2)
    assert last.line == "1 / 0  # here"


def test_what_it_left_is_taken_back(run: Run) -> None:
    before = list(sys.meta_path), sys.argv, sys.modules["__main__"]
    with pytest.raises(SystemExit):
        run({"train.py": "import sys\nsys.argv.append('x')\nsys.exit(0)"})
    assert (list(sys.meta_path), sys.argv, sys.modules["__main__"]) == before


def test_what_a_plain_loop_needs_loads_no_library_of_trainers() -> None:
    program = """
import sys
import sealtrain
sealtrain.SealedLoop, sealtrain.unwrap_dataset, sealtrain.sign_manifest
print(*sorted({"accelerate", "peft", "transformers", "trl"} & set(sys.modules)))
sealtrain.SealedRun
print("transformers" in sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stdout.splitlines() == ["", "True"]
