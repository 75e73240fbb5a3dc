"""A lock pins what a run of its recipe loads (``examples/every_phase/imported.py`` plays all)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import sealtrain.errors
from every_phase import program
from sealtrain.base.yamltext import yaml_text

pytestmark = [pytest.mark.slow, pytest.mark.claim("C124")]


IMPORTED = program("imported")


def test_modules_are_told_apart_by_all_installed_records() -> None:
    modules = {"json": json, "sealtrain.errors": sealtrain.errors, "yaml": yaml, "pytest": pytest}
    files = {name: str(module.__file__) for name, module in modules.items()}
    found = IMPORTED.owners_of(files | {"stray": "/somewhere/stray.py"})
    assert found == {
        "yaml": "pyyaml",
        "pytest": "pytest",
        "stray": "no package: /somewhere/stray.py",
    }


@pytest.mark.nightly
def test_four_bits_and_personal_data_load_what_the_lock_pins(tmp_path: Path) -> None:
    path, data, seal_as = IMPORTED.prepare("sft-qlora", tmp_path)
    recipe = yaml.safe_load(path.read_text())
    recipe["trainer"] |= {"max_steps": 2}
    column = next(iter(recipe["columns"].values()))
    recipe["validation"] = {"personal": {"columns": [column], "max_share": 1.0}}
    path.write_text(yaml_text(recipe))
    found = IMPORTED.play(path, data, seal_as, tmp_path / "rehearsal", guarded=True)
    assert found["unpinned"] == []
    lock = json.loads((tmp_path / "rehearsal" / "engineer" / "recipe.lock.json").read_text())
    packages = lock["environment"]["packages"]
    assert {"bitsandbytes", "phonenumbers", "python-stdnum", "boto3", "torch"} <= packages.keys()
    loaded = json.loads((tmp_path / "rehearsal" / "run" / "loaded.json").read_text())
    assert {"bitsandbytes", "phonenumbers", "stdnum", "torch", "trl"} <= loaded.keys()
