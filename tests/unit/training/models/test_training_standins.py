"""What stands in for a model's layers is there while it trains and is measured, and only then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import (
    LORA,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.training.checkpoints.checkpoint import newest

if not COLLECTING:
    import torch
    from pads_world import Watched
    from safetensors.torch import load

    from sealtrain_together.pads.protect import list_protected, protect, quantise, restore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]
SHORT = {"max_steps": 4, "save_steps": 2, "logging_steps": 1, "per_device_eval_batch_size": 8}


class StandsIn:
    """Changes a model as it is told, and remembers what it met."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change
        self.before: list[str] = []
        self.after = 0

    def put_in(self, model: Any) -> None:
        self.before = [name for name, weight in model.named_parameters() if weight.requires_grad]
        self.change(model)

    def take_out(self, model: Any) -> None:
        self.after = len(list_protected(model))
        restore(model)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("standins")
    return seal_records(write_records(folder), folder)


def text_classifier(**changed: Any) -> Any:
    bert = {
        "model_type": "bert",
        "vocab_size": 259,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    adapter = {"method": "lora", "r": 2, "lora_dropout": 0.1, "target_modules": ["query", "value"]}
    return classify(
        model={"config": bert, "init_seed": 3, "tokenizer": {"kind": "bytes"}},
        columns={"text": "text", "label": "finding"},
        trainer=SHORT | {"max_length": 48},
        peft=adapter,
        **changed,
    )


@pytest.mark.parametrize("phase", variants(["sft", "classify"], each_time=["sft"]))
def test_phases_put_them_in_with_the_adapter_on_and_take_them_out_before_export(
    phase: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer=SHORT, peft=LORA) if phase == "sft" else text_classifier()
    inside, outside = StandsIn(quantise), StandsIn(lambda model: protect(model, Watched()))
    ran = [
        run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / str(n)),
            standins=process,
        )
        for n, process in enumerate((inside, outside))
    ]
    assert any("lora" in name for name in inside.before)
    assert outside.after > 0
    # The same bits under pads, in what is reported and in what leaves.
    assert ran[0].history == ran[1].history
    assert ran[0].trained.metrics == ran[1].trained.metrics
    assert ran[0].weights == ran[1].weights
    names = load(ran[0].trained.files["adapter_model.safetensors"])
    assert names
    assert all("lora" in name or "classifier" in name for name in names)


def test_what_is_merged_is_the_int8_model_with_the_adapter(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer=SHORT, peft=LORA | {"merge": True})
    ran = run(
        recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), standins=StandsIn(quantise)
    )
    weights = load(ran.trained.files["model.safetensors"])
    assert "adapter_config.json" not in ran.trained.files
    assert json.loads(ran.trained.files["config.json"])["model_type"] == "llama"
    name = "model.layers.0.mlp.down_proj.weight"  # no adapter: int8 times a scale in each row
    scaled = weights[name] / weights[name].abs().amax(dim=1, keepdim=True) * 127
    assert float((scaled - scaled.round()).abs().max()) < 1e-3
    assert torch.unique(scaled.round()).numel() > 10


def test_a_resumed_run_goes_on_under_other_pads_to_the_same_weights(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer=SHORT, peft=LORA)
    seen = [Watched(), Watched(), Watched()]

    def under_pads(number: int) -> StandsIn:
        return StandsIn(lambda model: protect(model, seen[number]))

    whole = run(
        recipe,
        sources_of(recipe, sealed),
        checkpoint_store(tmp_path / "a"),
        standins=under_pads(0),
    )
    store = checkpoint_store(tmp_path / "b")
    first = run(recipe, sources_of(recipe, sealed), store, stop_at=2, standins=under_pads(1))
    assert first.trained is None
    ref = newest(store, None)
    assert ref is not None
    second = run(recipe, sources_of(recipe, sealed), store, resume=ref, standins=under_pads(2))
    assert second.weights == whole.weights
    assert first.history + second.history == whole.history
    for sample in seen[2].seen:  # nothing that travelled before travels again
        assert not any(
            sample.shape == event.shape and sample.equal(event) for event in seen[1].seen
        )
