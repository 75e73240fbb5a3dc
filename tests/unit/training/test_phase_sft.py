"""Phase ``sft``: which tokens are learned, packing without leakage, templates, evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from language_world import ADAPTERS, TEMPLATE, write_base
from training_world import (
    checkpoint_store,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.models.base import build_model, byte_tokenizer

pytestmark = pytest.mark.long

MESSAGES = {"columns": {"messages": "messages"}, "model": {"path": "base"}}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base")
    return folder


class _Seen:
    """Batches that a trainer was given, and what the layers made of them, whichever loss it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import LlamaModel
        from trl.trainer.sft_trainer import SFTTrainer

        self.batches: list[dict[str, Any]] = []
        self.hidden: list[Any] = []
        forward, step = LlamaModel.forward, SFTTrainer.training_step

        def noted(model: Any, *args: Any, **inputs: Any) -> Any:
            outputs = forward(model, *args, **inputs)
            if model.training:
                self.hidden.append(outputs.last_hidden_state.detach())
            return outputs

        def stepped(trainer: Any, model: Any, inputs: dict[str, Any], *others: Any) -> Any:
            self.batches.append(dict(inputs))
            return step(trainer, model, inputs, *others)

        monkeypatch.setattr(LlamaModel, "forward", noted)
        monkeypatch.setattr(SFTTrainer, "training_step", stepped)

    def learned(self) -> list[str]:
        """Texts under the labels of the first batch, a piece for each stretch."""
        tokenizer = byte_tokenizer()
        pieces = []
        for labels in self.batches[0]["labels"].tolist():
            stretch: list[int] = []
            for label in [*labels, -100]:
                if label == -100 and stretch:
                    pieces.append(tokenizer.decode(stretch, skip_special_tokens=True))
                    stretch = []
                elif label != -100:
                    stretch.append(label)
        return pieces


def seen(
    monkeypatch: pytest.MonkeyPatch, sealed: dict[str, Any], tmp_path: Path, **changed: Any
) -> _Seen:
    watching = _Seen(monkeypatch)
    base_dir = changed.pop("base_dir", Path())
    trainer = {"max_steps": 1} | changed.pop("trainer", {})
    recipe = sft(trainer=trainer, **changed)
    run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    return watching


def test_of_a_prompt_and_completion_the_completion_is_learned(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = seen(monkeypatch, sealed, tmp_path).learned()
    assert set(pieces) <= {" benign", " malignant"}
    assert len(pieces) == 4


def test_without_completion_only_loss_the_prompt_is_learned_too(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"completion_only_loss": False, "max_length": 128}
    pieces = seen(monkeypatch, sealed, tmp_path, trainer=settings).learned()
    assert len(pieces) == 4
    assert all("hospital" in piece and "?" in piece for piece in pieces)


@pytest.mark.parametrize("packing", [False, True])
def test_of_a_conversation_the_assistants_part_is_learned(
    packing: bool,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"assistant_only_loss": True, "packing": packing, "max_length": 256}
    pieces = seen(
        monkeypatch, sealed, tmp_path, trainer=settings, base_dir=base_dir, **MESSAGES
    ).learned()
    assert {piece.strip() for piece in pieces} <= {"benign", "malignant"}
    assert len(pieces) >= 4


def test_without_assistant_only_loss_the_question_is_learned_too(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_length": 256}
    pieces = seen(
        monkeypatch, sealed, tmp_path, trainer=settings, base_dir=base_dir, **MESSAGES
    ).learned()
    assert all("user: hospital" in piece or piece.startswith("ser: ") for piece in pieces)


def test_packed_documents_do_not_see_each_other(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    settings = {"packing": True, "max_length": 256}
    watching = seen(monkeypatch, sealed, tmp_path, trainer=settings, columns={"text": "text"})
    together = watching.hidden[0]  # of the first step: the weights are still those of the seed
    ids = watching.batches[0]["input_ids"].to(together.device)
    positions = watching.batches[0]["position_ids"]
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    assert len(starts) >= 3
    assert ids.shape[0] == 1
    whole: Any = build_model(sft(), Path(), "AutoModelForCausalLM").eval()
    layers = whole.to(together.device).model
    for start, stop in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
        with torch.no_grad():
            alone = layers(input_ids=ids[:, start:stop], use_cache=False).last_hidden_state
        assert float((alone - together[:, start:stop]).abs().max()) < 1e-5


def test_a_template_that_is_missing_or_unmarked_is_refused(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sealtrain.training.phases.sft as phase

    tokenizer = byte_tokenizer()
    monkeypatch.setattr(phase, "build_tokenizer", lambda *_: tokenizer)
    for template, settings, problem in (
        (None, {}, "tokenizer"),
        (
            TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", ""),
            {"assistant_only_loss": True},
            "generation",
        ),
    ):
        tokenizer.chat_template = template
        recipe = sft(trainer=settings, **MESSAGES)
        with pytest.raises(ModelInvalid, match=problem):
            run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)


@pytest.mark.claim("C267")
def test_prompts_that_fill_max_length_end_the_training(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft(trainer={"max_length": 8})
    with pytest.raises(DataInvalid):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))


def test_a_template_may_lie_in_a_file_of_the_tokenizers_folder(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    write_base(tmp_path / "base")
    settings = tmp_path / "base" / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    del values["chat_template"]
    settings.write_text(json.dumps(values))
    (tmp_path / "base" / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    pieces = seen(
        monkeypatch,
        sealed,
        tmp_path / "store",
        trainer={"assistant_only_loss": True, "max_length": 256},
        base_dir=tmp_path,
        **MESSAGES,
    ).learned()
    assert {piece.strip() for piece in pieces} <= {"benign", "malignant"}


@pytest.mark.parametrize("packing", variants([False, True], each_time=[False]))
def test_text_and_conversations_are_evaluated_as_they_are_learned(
    packing: bool, sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    found = {}
    for name, changed in {
        "text": {"columns": {"text": "text"}},
        "assistant": MESSAGES,
    }.items():
        policy = sft().release_policy.to_dict() | {"metrics": ["loss", "eval_loss"]}
        settings = {"packing": packing, "max_length": 256, "max_steps": 25, "learning_rate": 0.03}
        settings |= {"assistant_only_loss": name == "assistant", "save_steps": 100}
        recipe = sft(trainer=settings, release_policy=policy, **changed)
        store = checkpoint_store(tmp_path / name)
        ran = run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir)
        found[name] = ran.trained.metrics["eval_loss"]
    # One of two words against words and numbers: the part that is learned is the easy one.
    assert 0 < found["assistant"] < found["text"] < 5.6


@pytest.mark.parametrize("name", ["p-tuning", "prefix"])
def test_accuracy_looks_where_the_completion_is(
    name: str, sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    """A learned prompt shifts the logits by as many places as it has tokens."""
    policy = sft().release_policy.to_dict() | {"metrics": ["eval_loss"]}
    changed = {"model": {"path": "base"}, "release_policy": policy}
    losses = {}
    for peft in (None, ADAPTERS[name]):
        settings = {"max_steps": 1, "learning_rate": 1e-9}
        recipe = sft(trainer=settings, peft=peft, **changed)
        store = checkpoint_store(tmp_path / str(peft is None))
        ran = run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir)
        losses[peft is None] = ran.trained.metrics["eval_loss"]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
