"""Every ready recipe in two ranks on CPU: it runs, or is refused by name before it is locked."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from phases_victim import stories

from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
CANNOT = {
    "classify-dp": "dp: sgd",
    "sft-axolotl": "backend.axolotl.ranks",
    "sft-dora": "trainer.packing",
    "sft-lora-dp": "dp: sgd",
    "sft-unsloth": "backend.unsloth.ranks",
}
"""Recipe → what its refusal names (spec/recipe.md §2.13)."""
FEW = {"max_steps": 2, "save_steps": 1, "logging_steps": 1, "warmup_steps": 0}


def in_two_ranks(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"backend": document.get("backend", {"name": "trl"}) | {"ranks": 2}}


def ready(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
    return document


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_recipe_takes_two_ranks_or_says_why_not(name: str) -> None:
    document = in_two_ranks(ready(RECIPES / f"{name}.yaml"))
    if name not in CANNOT:
        assert parse_recipe(document).backend.ranks == 2
        return
    with pytest.raises(RecipeInvalid) as refused:
        parse_recipe(document)
    assert CANNOT[name] in f"{refused.value} {refused.value.field}"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in CANNOT])
def test_a_ready_recipe_trains_in_two_ranks(name: str, tmp_path: Path) -> None:
    path, data, seal_as = stories().prepare(name, tmp_path)
    document = in_two_ranks(ready(path))
    if "max_steps" in document["trainer"]:
        often = {"eval_steps": 1} if "eval_steps" in document["trainer"] else {}
        document["trainer"] |= FEW | often
    path.write_text(yaml_text(document), "utf-8")
    words = [word for key, file in data.items() for word in ("--data", f"{key}={file}")]
    words += [word for key, text in seal_as.items() for word in ("--seal-as", f"{key}={text}")]
    words += ["--out", str(tmp_path / "rehearsal"), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "sealtrain", "rehearse", str(path), *words],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    envelope = json.loads(Path(json.loads(done.stdout)["trained"]["manifest"]).read_text())
    statement = json.loads(base64.b64decode(envelope["bundle"]["dsseEnvelope"]["payload"]))
    assert statement["predicate"]["run"]["environment"]["world_size"] == "2"
