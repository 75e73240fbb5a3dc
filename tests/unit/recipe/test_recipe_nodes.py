"""What several nodes refuse of what one guest takes: the table in the guide, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from training_world import SGD

from sealtrain.recipe.backends import Division, divide_among, processes_of, worlds_of
from sealtrain.recipe.collaborations.nodes import MAX_PROCESSES, REFUSED
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.claim("C743", "C762")
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
        "privacy.dp: sgd or metrics": [{"privacy": SGD, "release_policy": quiet}],
        "datasets.series": [{"datasets": series}],
        "schedule": [{"schedule": SCHEDULE}],
        "release_policy.model.handed_on": [
            {"peft": None, "release_policy": released}
        ],
        "trainer.packing and trainer.padding_free": [
            trained_by(recipe, packing=True),
            trained_by(recipe, padding_free=True, max_length=None),
        ],
        "trainer.torch_compile": [trained_by(recipe, torch_compile=True)],
        "trainer.use_liger_kernel": [trained_by(recipe, use_liger_kernel=True)],
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
    "resume_ranks": {"backend": {"name": "trl", "ranks": 2, "resume_ranks": [1]}},
    "script": {"scripts": ["train.py"], "backend": {"name": "trl", "ranks": 2}},
    "validation": {"validation": {"min_records": 20}},
    "canaries": {"audit": {"canaries": 2}},
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


def resumable(
    sft: dict[str, Any],
    *,
    accumulated: int = 6,
    nodes: tuple[int, ...] = (3,),
    ranks: tuple[int, ...] = (1, 4),
    **changed: Any,
) -> dict[str, Any]:
    """Two nodes of two ranks that may go on as ``nodes`` of ``ranks``."""
    backend = {"name": "fsdp", "ranks": 2} | ({"resume_ranks": list(ranks)} if ranks else {})
    together = NODES | ({"resume_nodes": list(nodes)} if nodes else {})
    recipe = sft | {"model": sft["model"] | {"dtype": "float32"}}
    return (
        recipe
        | trained_by(recipe, gradient_accumulation_steps=accumulated)
        | {"backend": backend, "collaboration": together}
        | changed
    )


def test_a_run_goes_on_with_the_named_numbers_of_nodes_and_ranks(sft: dict[str, Any]) -> None:
    recipe = parse_recipe(resumable(sft))
    assert worlds_of(recipe) == {2, 3, 4, 6, 8, 12}
    for ranks, nodes in ((1, 2), (1, 3), (2, 3), (4, 2), (4, 3)):
        divided = divide_among(recipe, Division(ranks=ranks, nodes=nodes))
        assert (divided.backend.ranks, divided.collaboration.guests) == (ranks, nodes)
        parts = divided.trainer.gradient_accumulation_steps * processes_of(divided)
        assert parts == 6 * 4
    for division, check in (
        (Division(ranks=3), "backend.resume_ranks"),
        (Division(nodes=4), "collaboration.resume_nodes"),
        (Division(nodes=1), "collaboration.resume_nodes"),
    ):
        with pytest.raises(RecipeInvalid, check=carries(check=check)):
            divide_among(recipe, division)


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": (2,)},  # its own
        {"nodes": (1,)},  # alone
        {"nodes": (4, 3)},
        {"nodes": (3, 3)},
        {"nodes": (257,)},
        {"nodes": tuple(range(3, 12))},
        {"nodes": (5,)},  # does not divide a step
        {"accumulated": 1},
        {"accumulated": 4 * 256, "nodes": (256,), "ranks": (32,)},  # past MAX_PROCESSES
        {"backend": {"name": "deepspeed", "zero_stage": 1, "ranks": 2}},
        {"ranks": (), "scripts": ["train.py"], "backend": {"name": "trl", "ranks": 2}},
    ],
)
def test_numbers_with_which_no_run_can_go_on_are_refused(
    sft: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert MAX_PROCESSES < 256 * 32
    with pytest.raises(RecipeInvalid):
        parse_recipe(resumable(sft, **changed))


def test_numbers_that_may_go_on_are_in_the_lock_only_where_they_are_named(
    sft: dict[str, Any],
) -> None:
    for nodes in ((), (3,)):
        written = parse_recipe(resumable(sft, nodes=nodes)).to_dict()["collaboration"]
        assert written.get("resume_nodes", []) == list(nodes)
        assert ("resume_nodes" in written) is bool(nodes)
