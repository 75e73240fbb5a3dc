"""The reward model that training leaves, as Transformers loads it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from preference_world import preferences, preferring, write_preferences
from training_world import LORA, OWNERS, Ran, checkpoint_store, run, sources_of
from training_world import seal_records as seal

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of one library about another
]

TEST_ROWS = preferences(20, f"{OWNERS[0]}.held-out")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("preferences")
    return dict(seal(write_preferences(folder), folder))


def trained(recipe: Any, sealed: dict[str, Any], folder: Path) -> Ran:
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(folder / "kept"))
    for name, data in ran.trained.files.items():
        (folder / name).write_bytes(data)
    return ran


def score(model: Any, row: dict[str, Any], answer: str) -> float:
    """One text at a time, without padding."""
    import torch

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    ids = tokenizer(row["prompt"] + row[answer])["input_ids"]
    with torch.no_grad():
        return float(model(torch.tensor([[*ids, tokenizer.eos_token_id]])).logits[0, 0])


def assert_scores_are(ran: Ran, model: Any) -> None:
    margins = [score(model, row, "chosen") - score(model, row, "rejected") for row in TEST_ROWS]
    metrics = ran.trained.metrics
    assert metrics["reward_margin"] == pytest.approx(sum(margins) / len(margins), abs=1e-5)
    right = sum(margin > 0 for margin in margins) / len(margins)
    assert metrics["reward_accuracy"] == pytest.approx(right)
    assert metrics["reward_margin"] != 0


def test_it_loads_as_a_classifier_with_one_output(sealed: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    recipe = preferring("reward", trainer={"per_device_eval_batch_size": 6})
    ran = trained(recipe, sealed, tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert model.config.num_labels == 1
    assert model.config.pad_token_id == AutoTokenizer.from_pretrained(tmp_path).pad_token_id
    assert_scores_are(ran, model)


def test_an_adapter_loads_on_its_base_and_merged(sealed: dict[str, Any], tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    from sealtrain.training.models.base import build_model

    recipe = preferring("reward", peft=LORA)
    ran = trained(recipe, sealed, tmp_path)
    base = build_model(recipe, tmp_path, "AutoModelForSequenceClassification", num_labels=1)
    adapted = PeftModel.from_pretrained(base, tmp_path).eval()
    assert_scores_are(ran, adapted)
    (tmp_path / "merged").mkdir()
    trained(preferring("reward", peft=LORA | {"merge": True}), sealed, tmp_path / "merged")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    assert merged.config.num_labels == 1
    assert_scores_are(ran, merged)


def bert(folder: Path) -> None:
    """An encoder whose tokenizer has no end token."""
    from transformers import BertConfig, BertForSequenceClassification

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            num_labels=1,
        )
    ).save_pretrained(folder)


def test_an_encoder_ends_texts_with_the_token_the_recipe_names(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    bert(tmp_path / "encoder")
    (tmp_path / "out").mkdir()

    def attempt(token: str | None) -> Ran:
        settings = {"max_steps": 2, "eos_token": token}
        recipe = preferring("reward", model={"path": "encoder"}, trainer=settings)
        return run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / "kept"),
            base_dir=tmp_path,
        )

    with pytest.raises(ModelInvalid, check=carries(check="tokenizer")):
        attempt(None)
    with pytest.raises(ModelInvalid, check=carries(check="trainer.eos_token", got="[END]")):
        attempt("[END]")
    assert attempt("<eos>").trained.metrics["reward_margin"] != 0


@pytest.mark.claim("C267")
def test_texts_longer_than_max_length_end_the_training(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(DataInvalid):
        trained(preferring("reward", trainer={"max_length": 8}), sealed, tmp_path)


def test_a_prompt_is_what_both_texts_begin_with(sealed: dict[str, Any], tmp_path: Path) -> None:
    whole = {"chosen": "whole_chosen", "rejected": "whole_rejected"}
    apart, together = preferring("reward"), preferring("reward", columns=whole)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (
        trained(apart, sealed, tmp_path / "a"),
        trained(together, sealed, tmp_path / "b"),
    )
    assert first.weights == second.weights


def test_rewards_are_pulled_towards_zero(sealed: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for coefficient in (None, 10.0):
        folder = tmp_path / str(coefficient)
        folder.mkdir()
        settings = {"center_rewards_coefficient": coefficient, "max_steps": 3}
        found.append(trained(preferring("reward", trainer=settings), sealed, folder))
    assert found[0].weights != found[1].weights
    assert found[1].history[0][1]["loss"] > found[0].history[0][1]["loss"]
