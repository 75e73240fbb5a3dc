"""Sealed training equals training in the clear, and a resumed run equals an uninterrupted one.

Equal means the same bits: digests of the weights, every logged loss, every metric.
"""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from training_world import (
    LORA,
    RUN_ID,
    TRAINER,
    Interrupted,
    PlainDataset,
    checkpoint_store,
    classify,
    measured,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)
from variants import variants

from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.sealing.errors import CheckpointRefused, SealRefused
from sealtrain.training.checkpoints.checkpoint import newest

pytestmark = pytest.mark.long

TEXT_CLASSIFIER: dict[str, Any] = {
    "model": sft().to_dict()["model"],
    "columns": {"text": "text", "label": "finding"},
    "peft": LORA,
}
RECIPES = {
    "sft-full": functools.partial(sft),
    "sft-lora": functools.partial(sft, peft=LORA),
    "sft-accumulated": functools.partial(sft, trainer={"gradient_accumulation_steps": 3}),
    # Some prompts fill 40 tokens, so the trainer drops their records.
    "sft-dropping": functools.partial(sft, trainer={"max_length": 44}),
    # Of shorter pieces a batch has prompts alone, and so no loss.
    "sft-packed": functools.partial(sft, trainer={"packing": True, "max_length": 128}),
    "sft-text": functools.partial(sft, columns={"text": "text"}),
    "classify-tabular": functools.partial(classify, trainer={"gradient_accumulation_steps": 2}),
    "classify-text": functools.partial(classify, **TEXT_CLASSIFIER),
}
EACH_TIME = ("sft-lora", "classify-tabular")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def sealed(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


@pytest.mark.claim("C23")
@pytest.mark.parametrize("name", variants(RECIPES, each_time=EACH_TIME))
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    sources = sources_of(recipe, sealed)
    whole = run(recipe, sources, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    first = run(recipe, sources, store, stop_at=3)
    assert first.trained is None
    second = run(recipe, sources, store, resume=newest(store, None))
    assert measured(second) == measured(whole)
    assert first.history + second.history == whole.history
    assert [ref.step for ref in first.checkpoints + second.checkpoints] == [3, 6, 8]
    assert [ref.counter for ref in second.checkpoints] == [2, 3]


def test_rows_that_the_trainer_drops_count_as_read(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = RECIPES["sft-dropping"]()
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    assert ran.trained.samples_seen > ran.trained.steps * 4


def test_resuming_twice_changes_nothing(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = RECIPES["sft-lora"]()
    sources = sources_of(recipe, sealed)
    whole = run(recipe, sources, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    for stop_at in (3, 6, None):
        last = run(recipe, sources, store, stop_at=stop_at, resume=newest(store, None))
    assert measured(last) == measured(whole)


def test_a_finished_run_gives_its_result_again_without_a_step(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("sft-full", "classify-tabular", "classify-text"):
        recipe = RECIPES[name]()
        sources = sources_of(recipe, sealed)
        store = checkpoint_store(tmp_path / name)
        whole = run(recipe, sources, store)
        again = run(recipe, sources, store, resume=newest(store, None))
        assert measured(again) == measured(whole)
        assert again.trained.files == whole.trained.files
        assert again.history == []
        assert again.checkpoints == []


def test_two_checkpoints_are_kept(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = sft(trainer={"save_steps": 2})
    store = checkpoint_store(tmp_path)
    ran = run(recipe, sources_of(recipe, sealed), store)
    assert [ref.step for ref in ran.checkpoints] == [2, 4, 6, 8]
    assert list(store.names()) == [ref.name for ref in ran.checkpoints[-2:]]


@pytest.mark.claim("C24")
@pytest.mark.parametrize("name", ["sft-full", "classify-tabular"])
def test_sealed_training_is_training_in_the_clear(
    name: str, sealed: dict[str, Any], paths: dict[str, Path], tmp_path: Path
) -> None:
    recipe = RECIPES[name]()
    clear = {
        key: PlainDataset([pa.RecordBatch.from_pylist(lines(path))]) for key, path in paths.items()
    }
    over_sealed = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "a"))
    over_clear = run(recipe, sources_of(recipe, clear), checkpoint_store(tmp_path / "b"))
    assert measured(over_sealed) == measured(over_clear)
    assert over_sealed.history == over_clear.history
    assert len(over_clear.history) >= 4


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_conversations_train_with_a_chat_template(sealed: dict[str, Any], tmp_path: Path) -> None:
    from sealtrain.training.model_files import model_files
    from sealtrain.training.models.base import build_model, byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    )
    base = tmp_path / "base"
    base.mkdir()
    model = build_model(sft(), tmp_path, "AutoModelForCausalLM")
    for name, data in model_files(model, tokenizer).items():
        (base / name).write_bytes(data)
    recipe = sft(model={"path": "base"}, columns={"messages": "messages"})
    ran = run(
        recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "c"), base_dir=tmp_path
    )
    assert ran.history[-1][1]["loss"] < ran.history[0][1]["loss"]
    assert b"chat_template" in ran.trained.files["tokenizer_config.json"]


def users_own(
    sealed: dict[str, Any], folder: Path, *, resume: Any = None, stop_at: int | None = None
) -> tuple[Any, list[dict[str, float]]]:
    """A script with TRL's own trainer class and nothing of ours but data and callback."""
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from sealtrain.training.checkpoints.callback import RunCallback
    from sealtrain.training.checkpoints.run_context import RunContext
    from sealtrain.training.data.hugging import Positioned, as_iterable_dataset
    from sealtrain.training.data.stream import RecordStream
    from sealtrain.training.models.base import build_model, byte_tokenizer
    from sealtrain.training.telemetry.metric_gate import MetricGate

    recipe = sft()
    store = checkpoint_store(folder / "checkpoints")

    def checkpointed(ref: Any) -> None:
        if stop_at is not None and ref.step >= stop_at:
            raise Interrupted

    train = [source for source in sources_of(recipe, sealed) if source.role == "train"]
    rows = Positioned(RecordStream(train, ["prompt", "completion"], seed=7))
    callback = RunCallback(
        RunContext(
            run_id=RUN_ID,
            store=store,
            gate=MetricGate(recipe.release_policy, lambda step, values: None),
            on_checkpoint=checkpointed,
            resume=newest(store, None) if resume else None,
        )
    )
    trainer = SFTTrainer(
        model=build_model(recipe, folder, "AutoModelForCausalLM"),
        args=SFTConfig(
            output_dir=str(folder / "trainer"),
            save_strategy="steps",  # the callback overrules it
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            disable_tqdm=True,
            logging_first_step=True,
            **{**TRAINER, "max_length": 64},
        ),
        train_dataset=as_iterable_dataset(rows),
        processing_class=byte_tokenizer(),
        callbacks=[callback],
    )
    with contextlib.suppress(Interrupted):
        trainer.train()
    assert not any(path.is_file() for path in (folder / "trainer").rglob("*"))
    kept = ("step", "loss", "epoch", "num_tokens", "mean_token_accuracy", "learning_rate")
    history = [
        {name: entry[name] for name in kept}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    return trainer.model.state_dict(), history


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_users_own_trainer_resumes_exactly_with_the_callback_alone(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    import torch

    whole, history = users_own(sealed, tmp_path / "whole")
    users_own(sealed, tmp_path / "parts", stop_at=3)
    resumed, joined = users_own(sealed, tmp_path / "parts", resume=True)
    assert joined == history
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    # The loss that stands in for TRL's slower one on a CPU has its value.
    recipe = sft()
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "c"))
    ours = [values["loss"] for _, values in ran.history]
    assert ours == pytest.approx([entry["loss"] for entry in history], rel=1e-5)


def test_another_seed_gives_other_weights(sealed: dict[str, Any], tmp_path: Path) -> None:
    digests = set()
    for seed in (7, 8):
        recipe = sft(trainer={"seed": seed, "max_steps": 3})
        ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / str(seed)))
        digests.add(ran.weights)
    assert len(digests) == 2


@pytest.mark.claim("C22")
@pytest.mark.parametrize("other", [sft(peft=LORA), classify()], ids=["lora", "classifier"])
def test_a_checkpoint_of_another_model_is_refused(
    other: PhaseRecipe, sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = sft()
    store = checkpoint_store(tmp_path)
    run(recipe, sources_of(recipe, sealed), store, stop_at=3)
    with pytest.raises(CheckpointRefused, check=carries(check="weights")):
        run(other, sources_of(other, sealed), store, resume=newest(store, None))


@pytest.mark.claim("C22")
def test_a_damaged_checkpoint_is_refused(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = sft()
    store = checkpoint_store(tmp_path)
    run(recipe, sources_of(recipe, sealed), store, stop_at=3)
    ref = newest(store, None)
    assert ref is not None
    path = store.path(ref.name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SealRefused):
        run(recipe, sources_of(recipe, sealed), store, resume=ref)
