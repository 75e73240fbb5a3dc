"""Whole runs whose script looks for what no owner approved: packages, files, columns.

The scripts assert; a run whose script fails has no manifest. What they look for is really there:
packages of this environment, modules on every path that Python searches, columns in the data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import DEADLINE_SECONDS, OWNERS, RECIPE, Stage, stage

from sealtrain.errors import SealtrainError

pytestmark = pytest.mark.long

TRAINER = RECIPE["trainer"] | {"max_steps": 2, "per_device_train_batch_size": 4}
POLICY = RECIPE["release_policy"] | {"logs": "structured"}
"""A failed assertion tells its line."""

LOOP = """
import torch

import sealtrain

model = torch.nn.Linear(1, 1)
loop = sealtrain.SealedLoop(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in loop.batches():
    assert sorted(batch) == COLUMNS
    loop.log(loss=0.0)
sealtrain.sign_manifest(loop)
"""

LOOKING = (
    """
import importlib
import importlib.metadata
import importlib.util
import os
import sys

import helper

COLUMNS = ["completion", "prompt"]
EVIL = [{folder!r}, {folder!r} + "/evil.zip", os.getcwd(), ""]
GONE = ["pytest", "flwr", "moto", "web3", "_pytest.runner", "evil", "evil_zip", "evil_space.inner",
        "sitecustomize", "usercustomize", "evil_pth", "unmeasured", "sealtrain_evil"]


def absent(name):
    assert name not in sys.modules, name
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name in (name, name.split(".")[0])
    else:
        raise AssertionError(name)
    top = name.split(".")[0]
    assert importlib.util.find_spec(top) is None, name


def look():
    for name in GONE:
        absent(name)
    for name in ("pytest", "flwr", "moto", "web3"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise AssertionError(name)
    known = {{found.metadata["Name"].lower() for found in importlib.metadata.distributions()}}
    assert "torch" in known and "pytest" not in known
    plugins = {{plugin.name for plugin in importlib.metadata.entry_points(group="pytest11")}}
    assert not plugins & {{"xdist", "timeout", "hypothesispytest"}}


look()
sys.path[:0] = EVIL
sys.path_importer_cache.clear()
importlib.invalidate_caches()
look()
child = os.fork()
if child == 0:
    try:
        look()
    except BaseException:
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert helper.NAME == "approved"
assert importlib.import_module("six.moves.urllib.parse")
assert not sys.modules["six"].__file__.startswith({folder!r})
assert importlib.metadata.version("torch")
"""
    + LOOP
)

COLUMNED = """
import sealtrain
from sealtrain.errors import UsageError

COLUMNS = ["answer", "question"]
given = sealtrain.unwrap_dataset()
assert sorted(next(iter(given))) == sorted(given.features) == COLUMNS
for name in ("clinic-a.notes.sealed", "clinic-b.notes.sealed", "clinic-a.check.sealed"):
    assert sorted(next(iter(sealtrain.unwrap_dataset(name)))) == COLUMNS
    assert sealtrain.unwrap_dataset(name, map_style=True).column_names == ["question", "answer"]
for path in (None, "clinic-c.notes.sealed"):  # of the last one the recipe gives a part each epoch
    try:
        sealtrain.unwrap_dataset(path, map_style=True)
    except UsageError:
        continue
    raise AssertionError(path)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


def evil_folder(folder: Path) -> None:
    """Modules as Python finds them on any path: a file, an archive, a package, a start-up file."""
    folder.mkdir()
    marking = "import pathlib, sys\nfor name in sys.argv: pass\n"
    for name in ("evil.py", "evil_space/inner.py", "pytest/__init__.py", "sealtrain_evil.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(marking)
    for name in ("sitecustomize.py", "usercustomize.py"):
        (folder / name).write_text("import evil\n")
    (folder / "evil_pth.py").write_text(marking)
    with zipfile.ZipFile(folder / "evil.zip", "w") as archive:
        archive.writestr("evil_zip.py", marking)
    # A package that the lock pins, with the record of the real one and other code.
    (folder / "six.py").write_text("import evil\n")
    record = distribution("six").read_text("RECORD")
    metadata = distribution("six").read_text("METADATA")
    assert record is not None
    assert metadata is not None
    info = folder / f"six-{distribution('six').version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(record)
    (info / "METADATA").write_text(metadata)


@pytest.mark.claim("C120")
def test_a_run_finds_nothing_that_the_lock_does_not_pin(world: Stage, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil_folder(evil)
    recipe = RECIPE | {
        "name": "looking",
        "scripts": ["train.py", "helper.py"],
        "trainer": TRAINER,
        "release_policy": POLICY,
    }
    files = {
        "train.py": LOOKING.format(folder=str(evil)),
        "helper.py": "NAME = 'approved'\n",
    }
    (world.folder / "unmeasured.py").write_text("")  # where the command is typed
    folder = world.propose("looking", recipe, files)
    world.approve(folder, *OWNERS)
    done = subprocess.run(
        [*world.command(*world.train_words(folder, "looked")), "--json"],
        capture_output=True,
        text=True,
        env=world.environment() | {"PYTHONPATH": str(evil), "PYTHONSTARTUP": str(evil / "evil.py")},
        cwd=world.folder,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["steps"] == 2


@pytest.mark.claim("C120")
def test_a_process_that_loaded_something_else_gets_no_keys(world: Stage, tmp_path: Path) -> None:
    """Begun by hand, so that ``cli.alone`` does not begin anew: the guard looks back once."""
    evil = tmp_path / "evil"
    evil_folder(evil)
    folder = world.propose("before", RECIPE | {"name": "before"})
    world.approve(folder, *OWNERS)
    places = [folder for folder in sys.path if Path(folder).is_dir()]
    begin = f"import sys; sys.path += {[*places, str(evil)]!r}; import evil\n"
    begin += "from sealtrain.cli import main; main()"
    words = [str(word) for word in world.train_words(folder, "loaded")]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", begin, *words, "--json"],
        capture_output=True,
        text=True,
        env=world.environment(),
        cwd=world.folder,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["got"]) == ("import-refused", "evil")
    assert not (world.folder / "loaded").exists()


@pytest.mark.nightly
@pytest.mark.claim("C123")
def test_an_import_that_fails_says_no_name_of_it(world: Stage) -> None:
    """A module's name can be text of a record: what leaves is the code, and where it happened."""
    script = "import sealtrain\n__import__('secret' + '_of_a_record')\n"
    recipe = RECIPE | {"name": "naming", "scripts": ["train.py"], "release_policy": POLICY}
    folder = world.propose("naming", recipe, {"train.py": script})
    world.approve(folder, *OWNERS)
    answer = world.try_run(*world.train_words(folder, "named"))
    assert (answer.code, answer.error) == (3, "import-refused")
    assert answer.data["error"]["check"] == "ModuleNotFoundError, train.py line 2"
    assert "secret_of_a_record" not in answer.stdout + answer.stderr


@pytest.mark.nightly
@pytest.mark.claim("C122")
def test_a_script_gets_the_columns_that_owners_approved(world: Stage) -> None:
    columns = {"prompt": "question", "completion": "answer"}
    datasets: list[dict[str, Any]] = [
        dataset | {"columns": dict(columns)} for dataset in RECIPE["datasets"]
    ]
    datasets[2] |= {"max_records": 8}
    recipe = RECIPE | {
        "name": "columned",
        "scripts": ["train.py"],
        "datasets": datasets,
        "columns": {"prompt": "question", "completion": "answer"},
        "trainer": TRAINER,
        "release_policy": POLICY,
    }
    sources = {}
    for dataset in datasets:
        key = f"{dataset['owner']}.{dataset['name']}"
        sources[key] = world.folder / f"columned-{key}.jsonl"
        rows = (
            {"patient": f"p{number}", "prompt": f"q{number}", "completion": " a", "diagnosis": "x"}
            for number in range(40)
        )
        sources[key].write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = world.propose("columned", recipe, {"train.py": COLUMNED + LOOP}, sources)
    world.approve(folder, *OWNERS)
    answer = world.try_run(*world.train_words(folder, "columns"))
    assert answer.code == 0, answer.stdout + answer.stderr


@pytest.mark.claim("C123")
def test_owners_read_the_script_before_they_sign(world: Stage, tmp_path: Path) -> None:
    recipe = RECIPE | {"name": "shown", "scripts": ["train.py"]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "train.py").write_text("print('a line of it')\n")
    world.run("lock", tmp_path / "recipe.yaml", "--broker", world.broker, "--out", tmp_path)
    shown = subprocess.run(
        world.command(
            "approve", "--deployment", tmp_path / "app-compose.json", "--identity",
            world.identity("clinic-a"),
            "--broker", world.broker, "--unpinned",
        ),
        input="no\n",
        capture_output=True,
        text=True,
        env=world.environment(),
        cwd=world.folder,
    )  # fmt: skip
    assert shown.returncode == SealtrainError.exit_code + 1
    assert "+print('a line of it')" in shown.stderr
    assert os.fspath(tmp_path) not in (tmp_path / "recipe.lock.json").read_text()
