"""A command for one run begins anew in a Python that starts nothing by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sealtrain
from sealtrain.cli.run_process import BEGIN

pytestmark = pytest.mark.claim("C120")

SHOWN = """
import json, sys
places, prefix, exec_prefix = json.loads(sys.argv[1])
print(json.dumps([places, prefix, sys.argv[2:], sys.flags.isolated, sys.flags.no_site,
    sorted(sys.modules.keys() & {"sitecustomize", "usercustomize", "site", "_distutils_hack"})]))
"""


def begun_anew(program: str, folder: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from sealtrain.cli.run_process import alone\nalone({program!r})",
            *words,
        ],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=folder,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A folder whose start-up code leaves a mark each time."""
    folder = tmp_path / "evil"
    folder.mkdir()
    mark = f"open({str(tmp_path / 'mark')!r}, 'a').write('x')\n"
    (folder / "sitecustomize.py").write_text(mark)
    return folder


def test_only_the_words_and_the_places_of_packages_go_along(tmp_path: Path, evil: Path) -> None:
    shown = begun_anew(SHOWN, tmp_path, "train", "a b", "--json", PYTHONPATH=str(evil))
    places, prefix, words, isolated, no_site, loaded = json.loads(shown)
    assert (tmp_path / "mark").read_text() == "x"  # once, before it began anew
    assert (words, isolated, no_site, loaded) == (["train", "a b", "--json"], 1, 1, [])
    assert prefix == sys.prefix
    assert str(Path(sealtrain.__file__).parents[1]) in places
    assert not {str(evil), str(tmp_path), ""} & set(places)
    assert all(Path(place).is_absolute() for place in places)


def test_the_command_runs_there(tmp_path: Path, evil: Path) -> None:
    told = begun_anew(BEGIN, tmp_path, "--version", PYTHONPATH=str(evil), PYTHONHASHSEED="1")
    assert told.splitlines()[0] == sealtrain.__version__
    assert (tmp_path / "mark").read_text() == "x"


@pytest.mark.parametrize("module", ["sealtrain.cli.train", "sealtrain.cli.runoptions"])
def test_a_process_that_begins_anew_loads_nothing_for_a_run(tmp_path: Path, module: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}\nprint(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in shown.stdout.split()}
    assert "typer" in loaded
    assert not loaded & {"cryptography", "httpx2", "numpy", "pyarrow", "pydantic", "torch"}
