"""What several nodes refuse of what one guest takes: the table in the guide, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from training_world import SGD

from sealtrain.recipe.collaborations.nodes import REFUSED
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C743")
NODES = {"kind": "nodes", "nodes": 2, "policy": "policy.json"}
SCHEDULE = {
    "when": "cron", "cron": "0 3 * * *", "continue": "base", "runs": 3,
    "starts_at": "2026-01-01T00:00:00Z", "ends_at": "2026-02-01T00:00:00Z",
}  # fmt: skip


def trained_by(recipe: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    return {"trainer": recipe["trainer"] | trainer}


def changes(recipe: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """For each row of the table, what asks for it; one guest takes each but the first."""
    series = [{"owner": "hospital-a", "series": "visits", "role": "train"}, *recipe["datasets"][1:]]
    quiet = recipe["release_policy"] | {"metrics": []}
    released = recipe["release_policy"] | {
        "model": {"handed_on": {"deployment": "next/app-compose.json"}}
    }
    return {
        "phase: evaluate": [{"phase": "evaluate", "trainer": {}, "peft": None}],
        "backend: unsloth or axolotl": [
            {"model": {"path": "base"}, "peft": None, "backend": {"name": name}}
            for name in ("unsloth", "axolotl")
        ],
        "backend.resume_ranks": [
            {"backend": {"name": "trl", "ranks": 2, "resume_ranks": [1]}}
        ],
        "scripts": [{"scripts": ["train.py"]}],
        "privacy.dp: sgd or metrics": [{"privacy": SGD, "release_policy": quiet}],
        "audit.canaries": [{"audit": {"canaries": 2}}],
        "datasets.series": [{"datasets": series}],
        "schedule": [{"schedule": SCHEDULE}],
        "release_policy.model.handed_on": [
            {"peft": None, "release_policy": released}
        ],
        "trainer.packing and trainer.padding_free": [
            trained_by(recipe, packing=True),
            trained_by(recipe, padding_free=True, max_length=None),
        ],
        "trainer.torch_compile and trainer.use_liger_kernel": [
            trained_by(recipe, torch_compile=True), trained_by(recipe, use_liger_kernel=True),
        ],
    }  # fmt: skip


def test_the_guide_has_the_table(repository: Path) -> None:
    guide = (repository / "docs" / "guides" / "nodes.md").read_text("utf-8")
    section = guide.partition("nodes refuse:")[2].partition("\n\nTensors")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))
    assert rows == REFUSED


@pytest.mark.parametrize("row", REFUSED)
def test_what_the_table_names_is_refused_and_one_guest_takes_it(
    sft: dict[str, Any], row: str
) -> None:
    for change in changes(sft)[row]:
        with pytest.raises(RecipeInvalid):
            parse_recipe(sft | change | {"collaboration": NODES})
        if row != "phase: evaluate":
            parse_recipe(sft | change)


TAKEN: dict[str, Any] = {
    "sealed base": {
        "model": {"sealed": "base"},
        "datasets": [
            {"owner": "hospital-a", "name": "biopsies", "role": "train"},
            {"owner": "hospital-b", "name": "base", "role": "model"},
        ],
    },
    "backend": {"backend": {"name": "fsdp", "ranks": 4}},
    "validation": {"validation": {"min_records": 20}},
    "handed a template": {
        "model": {"path": "base", "chat_template": ["{{ messages }}"]},
        "columns": {"messages": "messages"},
    },
    "weights": {},
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_one_guest_takes_nodes_take(sft: dict[str, Any], name: str) -> None:
    assert parse_recipe(sft | TAKEN[name] | {"collaboration": NODES}).collaboration is not None


@pytest.mark.parametrize(
    "trainer",
    [{"fp16": True}, {"optim": "adamw_bnb_8bit"}, {"optim": "adamw_torch_4bit"},
     {"activation_checkpointing": True}, {"neftune_noise_alpha": 5.0}],
)  # fmt: skip
def test_nodes_take_the_settings_of_ranks(sft: dict[str, Any], trainer: dict[str, Any]) -> None:
    parse_recipe(sft | trained_by(sft, **trainer) | {"collaboration": NODES})
