"""A lock pins what a run of its recipe loads (``examples/every_phase/imported.py`` plays all)."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import sealtrain.errors

pytestmark = [pytest.mark.slow, pytest.mark.claim("C124")]
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "every_phase"


@pytest.fixture(scope="module")
def imported() -> ModuleType:
    """The example as a module; it imports its neighbours as if it were started."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("imported", FOLDER / "imported.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def test_modules_are_told_apart_by_all_installed_records(imported: ModuleType) -> None:
    modules = {"json": json, "sealtrain.errors": sealtrain.errors, "yaml": yaml, "pytest": pytest}
    files = {name: str(one.__file__) for name, one in modules.items()}
    found = imported.owners_of(files | {"stray": "/somewhere/stray.py"})
    assert found == {
        "yaml": "pyyaml",
        "pytest": "pytest",
        "stray": "no package: /somewhere/stray.py",
    }


def test_four_bits_and_personal_data_load_what_the_lock_pins(
    imported: ModuleType, tmp_path: Path
) -> None:
    path, data, seal_as = imported.prepare("sft-qlora", tmp_path)
    recipe = yaml.safe_load(path.read_text())
    recipe["trainer"] |= {"max_steps": 2}
    column = next(iter(recipe["columns"].values()))
    recipe["validation"] = {"personal": {"columns": [column], "max_share": 1.0}}
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    found = imported.play(path, data, seal_as, tmp_path / "rehearsal", guarded=True)
    assert found["unpinned"] == []
    lock = json.loads((tmp_path / "rehearsal" / "engineer" / "recipe.lock.json").read_text())
    packages = lock["environment"]["packages"]
    assert {"bitsandbytes", "phonenumbers", "python-stdnum", "boto3", "torch"} <= packages.keys()
    loaded = json.loads((tmp_path / "rehearsal" / "run" / "loaded.json").read_text())
    assert {"bitsandbytes", "phonenumbers", "stdnum", "torch", "trl"} <= loaded.keys()
