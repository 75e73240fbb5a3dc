"""Phase ``embed``: what it measures, an output that loads, and no text in any file it makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from language_world import embed, minilm, write_files
from training_world import (
    CANARY,
    checkpoint_store,
    records,
    run,
    seal_records,
    sources_of,
    write_records,
)

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.errors import SchemaMismatch

# The library renames what it imports; our own run keeps such words to itself.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def ran(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    recipe = embed(columns={"anchor": "prompt", "positive": "text", "negative": "completion"})
    store = checkpoint_store(tmp_path_factory.mktemp("store"))
    return run(recipe, sources_of(recipe, sealed), store)


def loaded(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def test_what_is_measured_is_what_the_loaded_output_finds(ran: Any, tmp_path: Path) -> None:
    import numpy as np

    encoder = loaded(write_files(tmp_path / "out", ran.trained.files))
    rows = records(20, "hospital-a.held-out")
    candidates = list(dict.fromkeys([r["text"] for r in rows] + [r["completion"] for r in rows]))
    anchors = encoder.encode([row["prompt"] for row in rows])
    corpus = encoder.encode(candidates)
    assert np.allclose(np.linalg.norm(anchors, axis=1), 1, atol=1e-5)
    near = anchors @ corpus.T
    own = np.array([candidates.index(row["text"]) for row in rows])
    mine = near[np.arange(20), own]
    ranks = (near > mine[:, None]).sum(1) + 1
    near[np.arange(20), own] = -2
    metrics = ran.trained.metrics
    assert metrics["recall_at_1"] == pytest.approx((ranks == 1).mean())
    assert metrics["mrr_at_10"] == pytest.approx(np.where(ranks <= 10, 1 / ranks, 0).mean())
    assert metrics["cosine_margin"] == pytest.approx((mine - near.max(1)).mean(), abs=1e-5)


def test_the_output_says_what_it_is_and_nothing_of_the_data(ran: Any) -> None:
    files = ran.trained.files
    assert set(files) == {
        "1_Pooling/config.json",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not any(CANARY.encode() in data for data in files.values())
    assert json.loads(files["sentence_bert_config.json"])["max_seq_length"] == 64


def test_the_library_would_have_told_texts_and_is_not_asked(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the library's own trainer the model card holds training texts."""
    import sentence_transformers.sentence_transformer.model_card as card
    from sentence_transformers.base import trainer

    asked: list[str] = []
    for owner, name in (
        (card.SentenceTransformerModelCardData, "extract_dataset_metadata"),
        (card.SentenceTransformerModelCardData, "set_widget_examples"),
        (card.SentenceTransformerModelCardCallback, "on_init_end"),
        (trainer.BaseTrainer, "create_model_card"),
        (trainer.BaseTrainer, "_save"),
    ):
        assert hasattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: asked.append(name))
    recipe = embed(trainer={"max_steps": 3, "save_steps": 1})
    run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    assert asked == []


def test_a_pretrained_encoder_keeps_its_ways(sealed: dict[str, Any], tmp_path: Path) -> None:
    import numpy as np

    shutil.copytree(minilm(), tmp_path / "encoder")
    recipe = embed(
        model={"path": "encoder"},
        trainer={"max_steps": 1, "learning_rate": 1e-12, "max_length": 16},
    )
    store = checkpoint_store(tmp_path / "store")
    done = run(recipe, sources_of(recipe, sealed), store, base_dir=tmp_path).trained
    texts = ["a heart attack", "myocardial infarction", "a bicycle"]
    before, after = (
        loaded(folder).encode(texts)
        for folder in (tmp_path / "encoder", write_files(tmp_path / "out", done.files))
    )
    assert np.abs(before - after).max() < 1e-5
    near = after @ after.T
    assert near[0, 1] > near[0, 2] + 0.2


@pytest.mark.parametrize("pooling", ["cls", "max", "lasttoken"])
def test_the_recipe_may_pool_in_another_way(
    pooling: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = embed(trainer={"max_steps": 1}, pooling=pooling, normalize=False)
    done = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "store")).trained
    assert json.loads(done.files["1_Pooling/config.json"])["pooling_mode"] == pooling
    assert len(json.loads(done.files["modules.json"])) == 2
    vectors = loaded(write_files(tmp_path / "out", done.files)).encode(["one", "two"])
    assert abs((vectors**2).sum(1) - 1).max() > 1e-3


@pytest.mark.parametrize(
    "kind", ["sentence_transformers.models.Dense", "os.path.Pooling", "foreign_Pooling"]
)
def test_modules_that_are_not_known_are_refused(
    kind: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(minilm(), tmp_path / "encoder")
    path = tmp_path / "encoder" / "modules.json"
    modules = json.loads(path.read_text())
    modules[1]["type"] = kind
    path.write_text(json.dumps(modules))
    recipe = embed(model={"path": "encoder"})
    with pytest.raises(
        ModelInvalid,
        check=carries(check="modules.json", expected="Transformer, Pooling, Normalize"),
    ):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "s"), base_dir=tmp_path)


def test_a_column_without_text_is_refused(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = embed(columns={"anchor": "prompt", "positive": "size"})
    with pytest.raises(SchemaMismatch, check=carries(check="columns", got="double")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))


def test_the_cached_loss_is_the_whole_one(sealed: dict[str, Any], tmp_path: Path) -> None:
    losses = []
    for size in (None, 2):
        recipe = embed(trainer={"mini_batch_size": size, "max_steps": 3, "logging_steps": 1})
        done = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / str(size)))
        losses.append(done.history[0][1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.2)  # dropout draws differ
