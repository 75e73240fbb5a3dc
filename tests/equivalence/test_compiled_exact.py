"""Compiled models train as written ones do, in each phase that takes them; torchao, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from language_world import BERT, cpt
from preference_world import preferring, write_preferences
from training_world import (
    LLAMA,
    LORA,
    checkpoint_store,
    classify,
    measured,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.recipe.engines import ENGINES, TORCHAO_OPTIMIZERS
from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C741")]
AHEAD = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
TEXT: dict[str, Any] = {
    "model": {"config": BERT, "init_seed": 3, "tokenizer": {"kind": "bytes"}},
    "columns": {"text": "text", "label": "finding"},
}
# Fewer than 4096 numbers of a tensor have states of 32 bits.
WIDE: dict[str, Any] = {
    "config": {**LLAMA, "hidden_size": 64, "intermediate_size": 64},
    "init_seed": 7,
    "tokenizer": {"kind": "bytes"},
}
RECIPES: dict[str, Any] = {
    "sft": sft,
    "sft-lora": lambda **given: sft(peft=LORA, **given),
    "classify": lambda **given: classify(**TEXT, **given),
    "cpt": cpt,
    "dpo": lambda **given: preferring("dpo", **given),
    "reward": lambda **given: preferring("reward", **given),
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compiled")
    found = {}
    for kind, write in (("rows", write_records), ("pairs", write_preferences)):
        (folder / kind / "sealed").mkdir(parents=True)
        found[kind] = seal_records(write(folder / kind), folder / kind / "sealed")
    return found


def test_each_phase_that_takes_it_is_tried() -> None:
    assert {name.partition("-")[0] for name in RECIPES} == {*ENGINES["torch_compile"].phases}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RECIPES)
def test_graphs_taken_ahead_train_as_the_model_is_written(
    name: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    make = RECIPES[name]
    datasets = sealed["pairs" if name.startswith(("dpo", "reward")) else "rows"]
    written, compiled = make(trainer={"max_steps": 4}), make(trainer={"max_steps": 4} | AHEAD)
    sources = sources_of(written, datasets)
    ran = [
        run(recipe, sources, checkpoint_store(tmp_path / str(at)))
        for at, recipe in enumerate((written, compiled))
    ]
    assert ran[1].trained.files.keys() == ran[0].trained.files.keys()
    assert ran[1].trained.steps == ran[0].trained.steps
    losses = [
        [values["loss"] for _, values in each.history if values.get("loss") is not None]
        for each in ran
    ]
    assert losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.claim("C23")
@pytest.mark.parametrize(
    "optim", [TORCHAO_OPTIMIZERS[0], pytest.param(TORCHAO_OPTIMIZERS[1], marks=pytest.mark.nightly)]
)
def test_a_resumed_run_has_the_optimizer_s_states_of_few_bits(
    optim: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("torchao")
    recipe = sft(trainer={"optim": optim}, model=WIDE, peft=None)
    sources = sources_of(recipe, sealed["rows"])
    once, again = checkpoint_store(tmp_path / "once"), checkpoint_store(tmp_path / "again")
    whole = run(recipe, sources, once)
    first = run(recipe, sources, again, stop_at=3)
    second = run(recipe, sources, again, resume=newest(again, None))
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history
    plain = run(sft(model=WIDE, peft=None), sources, checkpoint_store(tmp_path / "plain"))
    assert plain.weights != whole.weights  # it is another optimizer, and not the usual one
