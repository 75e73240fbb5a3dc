"""The audit tells a model that remembers from one that does not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import (
    SECRET,
    Ran,
    checkpoint_store,
    classify,
    private_sft,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.checkpoints.checkpoint import newest
from sealtrain.training.privacy.noise import NoiseSource

if not COLLECTING:
    from sealtrain.training.privacy.audit import CODES, canary_source

pytestmark = pytest.mark.long

NAMES = ["canary_exposure", "canary_exposure_max", "membership_auc"]
POLICY = {"metrics": NAMES, "round_to": 6, "model": {"recipients": ["hospital-a"]}}
FAST = {"learning_rate": 0.02, "lr_scheduler_type": "constant", "per_device_train_batch_size": 16}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    paths = write_records(tmp_path_factory.mktemp("records"), count=20)
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


def audited(recipe: PhaseRecipe, sealed: dict[str, Any], folder: Path, **settings: Any) -> Ran:
    store = checkpoint_store(folder)
    return run(recipe, sources_of(recipe, sealed), store, secret=SECRET, **settings)


@pytest.mark.slow
def test_a_model_that_learned_canaries_by_heart_is_exposed_and_a_fresh_one_is_not(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    wide = sft().to_dict()["model"]
    wide["config"] |= {"hidden_size": 64, "intermediate_size": 128}
    figures = {}
    for name, steps in (("fresh", 1), ("by heart", 80)):
        settings = {
            "max_steps": steps,
            "save_steps": 1000,
            "learning_rate": 0.01,
            "lr_scheduler_type": "linear",
            "warmup_steps": 10,
            "per_device_train_batch_size": 16,
        }
        wanted = {"canaries": 2, "repetitions": 200}
        recipe = sft(model=wide, trainer=settings, audit=wanted, release_policy=POLICY)
        figures[name] = audited(recipe, sealed, tmp_path / name).trained.metrics
    most = math.log2(CODES)
    assert figures["by heart"]["canary_exposure"] > most - 1
    assert figures["by heart"]["canary_exposure_max"] == pytest.approx(most)
    assert figures["fresh"]["canary_exposure"] < most / 2
    assert figures["by heart"]["membership_auc"] > 0.5


def test_private_training_exposes_no_canary(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = private_sft(
        audit={"canaries": 6},
        trainer=FAST | {"max_steps": 12, "save_steps": 1000, "per_device_train_batch_size": 4},
        release_policy=POLICY,
    )
    trained = audited(recipe, sealed, tmp_path).trained
    assert trained.metrics["canary_exposure"] < 4.0
    assert {dataset["owner"] for dataset in trained.privacy["datasets"]} == {
        "hospital-a",
        "hospital-b",
    }


def test_canaries_survive_a_resume(sealed: dict[str, Any], tmp_path: Path) -> None:
    settings = FAST | {"max_steps": 4, "save_steps": 2}
    recipe = sft(trainer=settings, audit={"canaries": 3, "repetitions": 5}, release_policy=POLICY)
    whole = audited(recipe, sealed, tmp_path / "whole")
    audited(recipe, sealed, tmp_path / "parts", stop_at=2)
    ref = newest(checkpoint_store(tmp_path / "parts"), None)
    second = audited(recipe, sealed, tmp_path / "parts", resume=ref)
    assert second.weights == whole.weights
    assert second.trained.metrics == whole.trained.metrics


def test_an_audit_changes_nothing_but_its_canaries(sealed: dict[str, Any], tmp_path: Path) -> None:
    settings = {"max_steps": 3, "save_steps": 1000}
    with_audit = classify(trainer=settings, audit={}, release_policy=POLICY)
    without = classify(trainer=settings)
    first = audited(with_audit, sealed, tmp_path / "a")
    assert first.weights == audited(without, sealed, tmp_path / "b").weights
    assert 0 <= first.trained.metrics["membership_auc"] <= 1


def test_canaries_come_from_the_secret() -> None:
    recipe = sft(audit={"canaries": 3})

    def rows(secret: DataKey) -> Any:
        source = canary_source(recipe, NoiseSource(secret))
        assert source is not None
        return source.dataset.batch(0).to_pylist()

    assert rows(SECRET) == rows(SECRET)
    other = rows(DataKey(b"\x01" * 32))
    assert not {row["completion"] for row in rows(SECRET)} & {row["completion"] for row in other}
    with pytest.raises(UsageError):
        canary_source(recipe, None)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"columns": {"messages": "messages"}}, "messages"),
        ({"trainer": {"packing": True}}, "packing"),
        ({"audit": {"canaries": 1001}}, "canaries"),
        ({"audit": {"epochs": 1}}, "epochs"),
    ],
)
def test_audits_that_cannot_be_done_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeInvalid, match=why):
        sft(**({"audit": {"canaries": 2}} | changed))
    with pytest.raises(RecipeInvalid, match="sft"):
        classify(audit={"canaries": 2})
