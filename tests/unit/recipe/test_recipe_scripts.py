"""Scripts of a recipe: their names, their text in the lock, what they import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.cli.review import change_lines
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.lock import Installation, LockedRecipe, parse_lock
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.scripts import (
    MAX_SCRIPT_BYTES,
    ScriptProblem,
    modules_of,
    script_problem,
)

pytestmark = pytest.mark.claim("C123")

Document = dict[str, Any]
LockOf = Callable[..., LockedRecipe]


@pytest.mark.parametrize(
    "fields",
    [
        {"packages": ["lightning==2.5.0"]},
        {"scripts": ["train.sh"]},
        {"scripts": ["train.py", "train.py"]},
        {"scripts": ["code/train.py", "tools.py"]},
        {"scripts": ["train.py", "../tools.py"]},
        {"scripts": ["train.py", "my-tools.py"]},
        {"scripts": ["train.py", "lib/class.py"]},
        {"scripts": ["train.py", "__init__.py"]},
        {"scripts": ["train.py", "sealtrain/errors.py"]},
        {"scripts": ["train.py", "lib.py", "lib/__init__.py"]},
        {"scripts": ["train.py", "/etc/passwd"]},
        {"scripts": ["train.py", "../../x.py"]},
        {"scripts": [f"m{number}.py" for number in range(33)]},
        {"scripts": ["train.py"], "packages": ["lightning"]},
        {"scripts": ["train.py"], "packages": ["lightning>=2"]},
        {"scripts": ["train.py"], "packages": ["lightning==2.*"]},
        {"scripts": ["train.py"], "packages": ["lightning==2; python_version>'3'"]},
        {"scripts": ["train.py"], "packages": ["a @ https://example.org/a.whl"]},
        {"scripts": ["train.py"], "packages": ["my.pkg==1", "My-Pkg==2"]},
        {"script": "train.py"},
    ],
)
def test_names_that_cannot_be_pinned_are_refused(sft: Document, fields: Document) -> None:
    with pytest.raises(RecipeInvalid):
        parse_recipe(sft | fields)


def test_the_first_file_is_run_and_the_others_are_modules_of_its_folder(sft: Document) -> None:
    files = ["../code/train.py", "../code/tools.py", "../code/lib/__init__.py", "../code/lib/a.py"]
    fields = {"scripts": [*files, "../code/notes.txt"], "packages": ["lightning[extra]==2.5.0"]}
    recipe = parse_recipe(sft | fields)
    assert modules_of(recipe.scripts) == {
        "tools": files[1],
        "lib": files[2],
        "lib.a": files[3],
    }


def test_a_lock_holds_the_text_that_runs(sft: Document, lock_of: LockOf, tmp_path: Path) -> None:
    text = "import tools\n\nprint('äß')\n"
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "tools.py").write_text("")
    lock = lock_of(sft | {"scripts": ["train.py", "tools.py"]}).lock
    assert lock.scripts == {"train.py": text, "tools.py": ""}
    assert lock.script_digests == {
        "train.py": sha256_hex(text.encode()),
        "tools.py": sha256_hex(b""),
    }
    assert list(lock.script_digests) == ["train.py", "tools.py"]


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1\r\n",
        b"if x:\n\ty = 1\n",
        b"# \xe2\x80\xae hidden\n",
        b"# \xe2\x80\x8b\n",
        b"\xef\xbb\xbfx = 1\n",
        b"# \xff\n",
        b"x = '\x00'\n",
        b"x = 1\x0c\n",
        b"#" * (MAX_SCRIPT_BYTES + 1),
        b"def broken(:\n",
    ],
    ids=["CR", "tab", "bidi", "zero width", "BOM", "latin-1", "NUL", "form feed", "long", "syntax"],
)
def test_text_that_owners_cannot_see_is_not_locked(
    sft: Document, lock_of: LockOf, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "train.py").write_bytes(data)
    with pytest.raises(RecipeInvalid) as refusal:
        lock_of(sft | {"scripts": ["train.py"]})
    assert refusal.value.check == "scripts"


def test_files_that_are_too_long_together_are_not_locked(
    sft: Document, lock_of: LockOf, tmp_path: Path
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("#" * (MAX_SCRIPT_BYTES // 2 + 1))
    with pytest.raises(RecipeInvalid) as refusal:
        lock_of(sft | {"scripts": ["a.py", "b.py"]})
    assert refusal.value.check == "scripts"


def _relocked(document: Document, **changed: Any) -> None:
    parse_lock(canonical_json(document | changed))


@pytest.mark.parametrize(
    "scripts",
    [
        {},
        {"train.py": "pass\n"},
        {"train.py": "pass\n", "tools.py": "", "more.py": ""},
        {"train.py": "pass\n", "other.py": ""},
        {"train.py": "pass\r\n", "tools.py": ""},
        {"train.py": "00" * 32, "tools.py": None},
        {"train.py": "#" * MAX_SCRIPT_BYTES, "tools.py": "#"},
    ],
)
def test_a_lock_with_other_scripts_than_its_recipe_is_refused(
    sft: Document, lock_of: LockOf, tmp_path: Path, scripts: Any
) -> None:
    for name in ("train.py", "tools.py"):
        (tmp_path / name).write_text("pass\n")
    document = json.loads(lock_of(sft | {"scripts": ["train.py", "tools.py"]}).lock_bytes)
    _relocked(document)
    with pytest.raises(LockInvalid):
        _relocked(document, scripts=scripts)


GOOD = [
    "import json, os.path",
    "import torch",
    "from torch.nn import Linear",
    "import sealtrain",
    "import tools, lib.a\nfrom lib import a\nfrom lib.a import b",
    "try:\n    import wandb\nexcept ImportError:\n    wandb = None",
    "try:\n    import wandb\nexcept (KeyError, ModuleNotFoundError):\n    pass",
    "try:\n    import wandb\nexcept:\n    pass",
    "if TYPE_CHECKING:\n    import wandb",
    "import typing\nif typing.TYPE_CHECKING:\n    import wandb\nelse:\n    import json",
    "from . import anything",
    "__import__('wandb')",
]
BAD = [
    ("import json\nimport wandb", 2, "wandb"),
    ("import torch, wandb.sdk", 1, "wandb.sdk"),
    ("from wandb import init", 1, "wandb"),
    ("def f():\n    import wandb", 2, "wandb"),
    ("if not TYPE_CHECKING:\n    import wandb", 2, "wandb"),
    ("try:\n    import wandb\nexcept ValueError:\n    pass", 2, "wandb"),
    ("try:\n    pass\nexcept ImportError:\n    import wandb", 4, "wandb"),
    ("try:\n    pass\nexcept ImportError:\n    pass\nelse:\n    import wandb", 6, "wandb"),
    ("import lib.b", 1, "lib.b"),
    ("if x:\n    import zzz\nimport aaa", 2, "zzz"),
]
OTHERS = {"tools.py": "", "lib/a.py": "", "notes.txt": "import wandb"}


def problem(texts: dict[str, str]) -> ScriptProblem | None:
    return script_problem(texts, tuple(texts), {"torch"})


@pytest.mark.parametrize("text", GOOD)
def test_imports_of_what_is_pinned_are_fine(text: str) -> None:
    assert problem({"train.py": text} | OTHERS) is None


@pytest.mark.parametrize(("text", "line", "module"), BAD)
def test_the_first_import_that_is_not_pinned_is_found(text: str, line: int, module: str) -> None:
    found = problem({"train.py": text} | OTHERS)
    assert found is not None
    assert found.module == module
    assert (found.script, found.line) == ("train.py", line)


def test_modules_of_scripts_are_looked_at_too() -> None:
    found = problem({"train.py": "import lib.a"} | OTHERS | {"lib/a.py": "\nimport wandb"})
    assert found is not None
    assert found.module == "wandb"
    assert (found.script, found.line) == ("lib/a.py", 2)


def test_an_unpinned_import_is_not_locked(
    sft: Document, lock_of: LockOf, tmp_path: Path, installation: Installation
) -> None:
    (tmp_path / "train.py").write_text("import lightning\n")
    with pytest.raises(RecipeInvalid) as refusal:
        lock_of(sft | {"scripts": ["train.py"]})
    assert (refusal.value.check, refusal.value.got) == ("scripts", "lightning")


def test_a_module_stands_before_no_other(sft: Document, lock_of: LockOf, tmp_path: Path) -> None:
    for file, module in (("random.py", "random"), ("torch/nn.py", "torch.nn")):
        found = problem({"train.py": "", file: ""})
        assert found is not None
        assert found.module == module
    assert problem({"random.py": "", "tools.py": ""}) is None  # the first is run, not imported
    for name in ("train.py", "json.py"):
        (tmp_path / name).write_text("pass\n")
    with pytest.raises(RecipeInvalid) as refusal:
        lock_of(sft | {"scripts": ["train.py", "json.py"]})
    assert refusal.value.check == "scripts"


def test_owners_see_the_lines_of_a_script_that_changed(
    sft: Document, lock_of: LockOf, tmp_path: Path
) -> None:
    sft |= {"scripts": ["train.py"]}
    (tmp_path / "train.py").write_text("a = 1\nb = 2\n")
    before = lock_of(sft).lock
    (tmp_path / "train.py").write_text("a = 1\nb = 3\n")
    after = lock_of(sft).lock
    (change,) = diff(before, after)
    assert (change.path, change.kind) == ("scripts[train.py]", "changed")
    assert (change.area, change.severity) == ("code", "critical")
    assert (change.before, change.after) == ("a = 1\nb = 2\n", "a = 1\nb = 3\n")
    assert [line for line in change.text_lines if line[0] in "+-"] == ["-b = 2", "+b = 3"]
    assert "+b = 3" in change_lines([change])
    first = next(path for path in diff(None, after) if path.path == "scripts[train.py]")
    assert {"+a = 1", "+b = 3"} <= set(first.text_lines)
    assert not next(path for path in diff(None, after) if path.path == "recipe.name").text_lines


def test_a_line_feed_at_the_end_shows(sft: Document, lock_of: LockOf, tmp_path: Path) -> None:
    sft |= {"scripts": ["train.py"]}
    (tmp_path / "train.py").write_text("a = 1")
    before = lock_of(sft).lock
    (tmp_path / "train.py").write_text("a = 1\n")
    (change,) = diff(before, lock_of(sft).lock)
    assert [line for line in change.text_lines if line[0] in "+-"] == ["+"]
