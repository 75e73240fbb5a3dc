"""Optimizers of bitsandbytes on a CPU: their states survive a resume, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_world import (
    LLAMA,
    RUN_ID,
    checkpoint_store,
    measured,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.recipe.engines import BITSANDBYTES_OPTIMIZERS
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.slow
# bitsandbytes keeps 32 bits for tensors of fewer than 4096 numbers.
WIDE: dict[str, Any] = {
    "config": {**LLAMA, "hidden_size": 64, "intermediate_size": 64},
    "init_seed": 7,
    "tokenizer": {"kind": "bytes"},
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bitsandbytes")
    (folder / "owner").mkdir()
    (folder / "sealed").mkdir()
    return seal_records(write_records(folder / "owner"), folder / "sealed")


def types_of_states(store: Any) -> set[str]:
    """Types of the optimizer's states in the newest checkpoint that belong to a layer's weights."""
    kept: dict[str, Any] = checkpoint.load(store, RUN_ID, newest(store, None))["optimizer"]["state"]
    packed = [state["__bnb_optimizer_quant_state__"] for state in kept.values()]
    return {
        str(state[name].dtype)
        for state in packed
        for name in ("state1", "state2")
        if state[name].numel() == WIDE["config"]["hidden_size"] ** 2
    }


@pytest.mark.claim("C23")
@pytest.mark.parametrize(
    "optim",
    [
        "adamw_bnb_8bit",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in BITSANDBYTES_OPTIMIZERS
            if name != "adamw_bnb_8bit"
        ),
    ],
)
def test_a_resumed_run_ends_as_the_uninterrupted_one(
    optim: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer={"optim": optim}, model=WIDE, peft=None)
    sources = sources_of(recipe, sealed)
    once, again = checkpoint_store(tmp_path / "once"), checkpoint_store(tmp_path / "again")
    whole = run(recipe, sources, once)
    first = run(recipe, sources, again, stop_at=3)
    second = run(recipe, sources, again, resume=newest(again, None))
    eight = {"torch.uint8"} if optim.endswith("8bit") else {"torch.float32"}
    assert types_of_states(once) == eight
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history


def test_attention_is_computed_as_the_recipe_says(sealed: dict[str, Any], tmp_path: Path) -> None:
    losses = []
    for name in ("eager", "sdpa"):
        recipe = sft(trainer={"max_steps": 2, "save_steps": 2})
        model = recipe.model.model_copy(update={"attn_implementation": name})
        recipe = recipe.model_copy(update={"model": model})
        ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / name))
        losses.append(ran.history[0][1]["loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
