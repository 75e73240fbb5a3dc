"""Phase ``sft`` and an adapter from a checkpoint, on a travelling accelerator, all in guests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from language_world import LORA, write_base
from training_world import records

from sealtrain.manifest.checks.collaborations.travelling import check_trips, terms_of
from sealtrain.recipe.schema import parse_recipe

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.long,
    pytest.mark.claim("C257"),
    pytest.mark.timeout(600),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]


def test_an_adapter_is_trained_by_guests_and_changes_hands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "collaboration"))
    from travel_story import HOLDERS, RECIPE, Stage

    from sealtrain_rehearsal.rehearsal import run_log

    recipe: dict[str, Any] = RECIPE | {
        "phase": "sft",
        "model": {"path": "base", "tokenizer": {"path": "base"}},
        "columns": {"prompt": "prompt", "completion": "completion"},
        "trainer": {
            "max_steps": 40, "per_device_train_batch_size": 2, "max_length": 64,
            "learning_rate": 0.01, "warmup_steps": 4,
        },
        "peft": LORA,
        "collaboration": {
            "kind": "travelling", "program": "trainer", "policy": "policy.yaml",
            "buffer_bytes": 2048, "max_tokens": {HOLDERS[2]: 1280}, "seal_every": 2,
        },
    }  # fmt: skip
    with Stage(tmp_path / "played", lambda _line: None) as stage:
        write_base(stage.out / "base")
        data = {}
        for name in HOLDERS:
            rows = records(60, name)
            data[f"{name}.texts"] = path = stage.out / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = stage.play_recipe(recipe, data)
    came = check_trips(run_log(done), terms_of(parse_recipe(recipe)))
    assert came.takeovers == 1
    assert came.steps == done["trained"]["steps"] == 40
    assert came.tokens[HOLDERS[2]] == 1280
    assert not any(check["outcome"] == "failed" for check in done["verified"]["checks"])
    assert (Path(done["model"]) / "adapter_model.safetensors").is_file()
