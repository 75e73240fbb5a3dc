"""A sealed model meets sealed records: as if it lay open, and without a path it could lie at."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from sealing_world import SealedFolder, sealed_folder
from training_world import (
    LLAMA,
    LORA,
    OWNERS,
    checkpoint_store,
    classify,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.recipe.phases.evaluate import EvaluateRecipe
from sealtrain.recipe.schema import PhaseRecipe, parse_recipe
from sealtrain.sealing.errors import RootMismatch
from sealtrain.sealing.opened_dataset import SealedDataset

pytestmark = pytest.mark.long

TEXT = {
    "model": {
        "config": LLAMA | {"hidden_size": 8},
        "init_seed": 3,
        "tokenizer": {"kind": "bytes"},
    },
    "columns": {"text": "prompt", "label": "finding"},
    "trainer": {"max_steps": 2, "max_length": 48},
}
MODEL = {"owner": OWNERS[1], "name": "risk", "role": "model"}
METRICS = ["accuracy", "majority", "f1", "auroc", "brier"]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    paths = write_records(tmp_path_factory.mktemp("records"), count=80)
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


@pytest.fixture(scope="module", params=["features", "text"])
def trained(
    request: pytest.FixtureRequest,
    sealed: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:
    """A model folder as a recipient opens it, and the recipe that made it."""
    changed: dict[str, Any] = TEXT if request.param == "text" else {"trainer": {"max_steps": 30}}
    recipe = classify(**changed)
    folder = tmp_path_factory.mktemp(request.param)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(folder / "store"))
    (folder / "open").mkdir()
    for name, data in ran.trained.files.items():
        (folder / "open" / name).write_bytes(data)
    return folder, recipe.to_dict()


def evaluation(made_by: dict[str, Any], named: dict[str, Any], **changed: Any) -> PhaseRecipe:
    """The recipe that measures a model, sealed or open."""
    known = set(EvaluateRecipe.model_fields) - {"trainer", "peft"}
    sealed = [MODEL] if "sealed" in named else []
    return parse_recipe(
        {name: value for name, value in made_by.items() if name in known}
        | {
            "phase": "evaluate",
            "model": named,
            "datasets": [{"owner": OWNERS[0], "name": "held-out", "role": "test"}, *sealed],
            "release_policy": made_by["release_policy"] | {"metrics": METRICS},
            "trainer": {"max_length": 48},
            "min_records": 2,
        }
        | changed
    )


def model_of(made_by: dict[str, Any]) -> dict[str, Any]:
    """The sealed model as the recipe names it: its own tokenizer where it reads text."""
    return {"sealed": "risk"} | ({} if "text" in made_by["columns"] else {"tokenizer": None})


def measured(
    recipe: PhaseRecipe, sealed: dict[str, Any], folder: Path, model: SealedDataset | None
) -> dict[str, float | None]:
    sources = sources_of(recipe, sealed)
    store = checkpoint_store(folder / "store")
    metrics: dict[str, float | None] = run(
        recipe, sources, store, base_dir=folder, model=model
    ).trained.metrics
    return metrics


OPENED: list[str] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    written = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if written and isinstance(arguments[0], (str, bytes)):
        OPENED.append(os.fsdecode(arguments[0]))


@pytest.mark.claim("C37")
def test_it_measures_what_the_open_model_measures_and_writes_nothing(
    sealed: dict[str, Any], trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, made_by = trained
    tokenizer = {} if "text" in made_by["columns"] else {"tokenizer": None}
    known = measured(evaluation(made_by, {"path": "open"} | tokenizer), sealed, folder, None)
    shut = sealed_folder(folder / "open", tmp_path / "risk.sealed", name="risk")
    recipe = evaluation(made_by, model_of(made_by))
    with shut.open() as model:
        sys.addaudithook(_watch)
        OPENED.clear()
        assert measured(recipe, sealed, tmp_path, model) == known
    assert set(known) >= {"accuracy", "majority", "f1"}
    assert OPENED == []


@pytest.fixture
def altered(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> Callable[[Callable[[Path], object]], SealedFolder]:
    """Seals the model after a change to its folder."""

    def change(how: Callable[[Path], object]) -> SealedFolder:
        place = tmp_path / "changed"
        place.mkdir()
        for path in (trained[0] / "open").iterdir():
            (place / path.name).write_bytes(path.read_bytes())
        how(place)
        return sealed_folder(place, tmp_path / "risk.sealed", name="risk", layout="raw")

    return change


def _settings(**changed: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return change


def _half_the_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = dict(list(weights.items())[: len(weights) // 2])
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _twice(folder: Path) -> None:
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\x80\x04."),
            r"model\.safetensors",
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter"),
        (lambda folder: (folder / "config.json").write_text("[]"), "JSON"),
        (_settings(auto_map={"AutoModel": "theirs.Model"}), "auto_map"),
        (_settings(model_type="nothing-like-it"), "ValueError"),
        (_half_the_weights, r"\d missing"),
        (_twice, r"more\.safetensors"),
    ],
)
def test_what_is_no_whole_model_is_refused(
    how: Callable[[Path], object],
    why: str,
    sealed: dict[str, Any],
    trained: tuple[Path, dict[str, Any]],
    altered: Callable[[Callable[[Path], object]], SealedFolder],
    tmp_path: Path,
) -> None:
    recipe = evaluation(trained[1], model_of(trained[1]))
    with altered(how).open() as model, pytest.raises(ModelInvalid, match=why):
        measured(recipe, sealed, tmp_path, model)


def test_another_sealing_is_not_the_approved_one(
    trained: tuple[Path, dict[str, Any]],
    altered: Callable[[Callable[[Path], object]], SealedFolder],
    tmp_path: Path,
) -> None:
    approved = sealed_folder(trained[0] / "open", tmp_path / "first.sealed", name="risk")
    other = altered(_settings(id2label={"0": "malignant", "1": "benign"}))
    assert other.key.reveal() == approved.key.reveal()
    with pytest.raises(RootMismatch):
        SealedDataset.open(other.folder, approved.key, root=approved.description.root)


def test_a_sealed_model_has_to_be_opened(
    sealed: dict[str, Any], trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    recipe = evaluation(trained[1], model_of(trained[1]))
    with pytest.raises(UsageError, check=carries(code="usage")):
        measured(recipe, sealed, tmp_path, None)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"datasets": [{"owner": OWNERS[0], "name": "held-out", "role": "test"}]},
            r"model\.sealed",
        ),
        ({"model": {"sealed": "another", "tokenizer": None}}, r"model\.sealed"),
        ({"model": {"path": "open", "tokenizer": None}}, r"model\.sealed"),
        ({"datasets": [MODEL]}, "role test"),
        (
            {"datasets": [{"owner": "a", "name": "x", "role": "test"}, MODEL | {"weight": 2}]},
            "weight",
        ),
        (
            {
                "datasets": [
                    {"owner": "a", "name": "x", "role": "test"},
                    MODEL | {"columns": {"a": "b"}},
                ]
            },
            "columns",
        ),
    ],
)
def test_what_names_no_sealed_model_rightly_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeInvalid, match=why):
        evaluation(classify().to_dict(), {"sealed": "risk", "tokenizer": None}, **changed)


def training_from(phase: str, named: dict[str, Any]) -> PhaseRecipe:
    """A recipe that trains further from a language model or a classifier of texts."""
    model = [MODEL] if "sealed" in named else []
    train = {"owner": OWNERS[0], "name": "records", "role": "train"}
    changed = {"model": named, "datasets": [train, *model], "peft": LORA | {"merge": True}}
    if phase == "sft":
        return sft(**changed)
    columns = {"columns": TEXT["columns"], "trainer": {"max_length": 48}}
    return classify(**columns | changed)


@pytest.mark.claim("C37")
@pytest.mark.parametrize("phase", variants(["sft", "classify"], each_time=["classify"]))
def test_training_from_it_is_training_from_the_open_model_and_resumes(
    phase: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    first = {"config": LLAMA | {"hidden_size": 8}, "init_seed": 3, "tokenizer": {"kind": "bytes"}}
    made = sft(model=first) if phase == "sft" else classify(**TEXT)
    ran = run(made, sources_of(made, sealed), checkpoint_store(tmp_path / "made"))
    (tmp_path / "open").mkdir()
    for name, data in ran.trained.files.items():
        (tmp_path / "open" / name).write_bytes(data)
    shut = sealed_folder(tmp_path / "open", tmp_path / "risk.sealed", name="risk")
    known = training_from(phase, {"path": "open"})
    plain = run(known, sources_of(known, sealed), checkpoint_store(tmp_path / "plain"),
                base_dir=tmp_path)  # fmt: skip
    recipe = training_from(phase, {"sealed": "risk"})
    with shut.open() as model:
        sources = sources_of(recipe, sealed)
        whole = run(recipe, sources, checkpoint_store(tmp_path / "whole"), model=model)
        store = checkpoint_store(tmp_path / "broken")
        broken = run(recipe, sources, store, model=model, stop_at=3)
        last = broken.checkpoints[-1]
        resumed = run(recipe, sources, store, model=model, resume=last)
    assert "adapter_config.json" not in whole.trained.files
    weights = plain.trained.files["model.safetensors"]
    assert whole.trained.files["model.safetensors"] == weights
    assert resumed.trained.files["model.safetensors"] == weights
    assert whole.trained.metrics == plain.trained.metrics


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"sealed": "risk", "tokenizer": None}},
        {"model": {"sealed": "risk"}, "backend": {"name": "unsloth"}},
        {"model": {"sealed": "risk"}, "scripts": ["train.py"]},
        {"model": {"sealed": "risk"}, "peft": LORA | {"quantization": {}}},
    ],
    ids=["no tokenizer", "backend", "script", "quantized"],
)
def test_what_does_not_train_from_a_sealed_model_is_refused(changed: dict[str, Any]) -> None:
    datasets = [{"owner": OWNERS[0], "name": "records", "role": "train"}, MODEL]
    sft(model={"sealed": "risk"}, datasets=datasets)
    with pytest.raises(RecipeInvalid):
        sft(**{"datasets": datasets} | changed)


def test_numbers_are_not_trained_on_from_a_sealed_model() -> None:
    datasets = [{"owner": OWNERS[0], "name": "records", "role": "train"}, MODEL]
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        classify(model={"sealed": "risk", "tokenizer": None}, datasets=datasets)
