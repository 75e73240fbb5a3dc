"""A training whose numbers are not finite ends with a typed error, and seals no such weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from language_world import cpt, embed, write_base, write_files
from preference_world import rlhf, write_questions, write_scorer
from ranks_world import evaluation, write_judge
from training_world import (
    LLAMA,
    LORA,
    OWNERS,
    RUN_ID,
    SECRET,
    checkpoint_store,
    classify,
    private_sft,
    releasing,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.guest.sandbox.events import run_telling
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.monitoring import Alert, Monitoring
from sealtrain.training.errors import TrainingDiverged
from sealtrain.training.finite import (
    first_not_finite,
    refuse_not_finite,
    require_finite_weights,
)
from sealtrain.training.models.merging import merge_folder
from sealtrain.training.saved_model import BaseFolder, save_files
from sealtrain.training.telemetry.metric_gate import MetricGate
from sealtrain.training.telemetry.monitor import ALERTS_FILE, METRICS_FILE, Monitor
from sealtrain_together.travelling.program import ProgramSettings, TravellingModel

if not COLLECTING:
    import torch
    from sharing_world import Held
    from travel_world import PROGRAM

    from sealtrain.training.checkpoints.callback import RunCallback
    from sealtrain.training.checkpoints.loop import RunLoop
    from sealtrain.training.checkpoints.run_context import RunContext
    from sealtrain.training.data.stream import RecordStream

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C500"),
    # PEFT reads an attribute of models that Transformers renames.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]

BASE = {"path": "base"}
EMBEDDINGS = "model.embed_tokens.weight"
EVERY_STEP = {"logging_steps": 1, "save_steps": 2, "max_steps": 6}
# A byte of every record.
COMMON = "e"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base", LLAMA | {"tie_word_embeddings": False})
    return folder


def damaged(base_dir: Path, folder: Path, row: str = COMMON) -> Path:
    """A copy of the base in which the embedding of one token is NaN."""
    from safetensors.torch import load_file, save

    from sealtrain.training.models.base import byte_tokenizer

    base = base_dir / "base"
    files = {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()}
    weights = load_file(base / "model.safetensors")
    [token] = byte_tokenizer().encode(row, add_special_tokens=False)
    weights[EMBEDDINGS][token] = float("nan")
    files["model.safetensors"] = save(weights, metadata={"format": "pt"})
    write_files(folder / "base", files)
    return folder


class DiesAt:
    """Layers whose answer is not finite from a training step on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, value: float) -> None:
        from transformers import LlamaModel

        forward, self.passes = LlamaModel.forward, 0

        def answered(model: Any, *args: Any, **inputs: Any) -> Any:
            outputs = forward(model, *args, **inputs)
            if model.training:
                self.passes += 1
            if self.passes >= step:
                outputs.last_hidden_state = outputs.last_hidden_state * value
            return outputs

        monkeypatch.setattr(LlamaModel, "forward", answered)


@pytest.mark.parametrize("phase", [sft, cpt])
def test_a_base_with_one_row_of_nan_ends_the_training(
    phase: Callable[..., Any], sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    folder = damaged(base_dir, tmp_path / "models")
    recipe = phase(trainer=EVERY_STEP, model=BASE, peft=LORA, release_policy=releasing("loss"))
    store = checkpoint_store(tmp_path / "checkpoints")
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), store, base_dir=folder)
    assert (raised.value.check, raised.value.got) == ("loss", "nan at step 1")
    assert not store.names()


def test_full_weights_with_nan_are_refused_before_the_first_step(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    folder = damaged(base_dir, tmp_path / "models", row="\x7f")
    recipe = sft(trainer=EVERY_STEP, model=BASE)
    store = checkpoint_store(tmp_path / "checkpoints")
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), store, base_dir=folder)
    assert (raised.value.check, raised.value.got) == ("weights", EMBEDDINGS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_last_checkpoint_before_it_stays_and_the_alert_fires(
    value: float,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = sft(trainer=EVERY_STEP, model=BASE, release_policy=releasing("loss"))
    passes = recipe.trainer.gradient_accumulation_steps
    DiesAt(monkeypatch, 3 * passes + 1, value)
    monitor = Monitor(
        Monitoring(alerts=(Alert(when="loss-not-finite"),), alert_to="file"), folder=tmp_path
    )
    store = checkpoint_store(tmp_path / "checkpoints")
    kept: list[int] = []
    with monitor:
        monitor.watch()
        with pytest.raises(TrainingDiverged) as raised:
            run(
                recipe,
                sources_of(recipe, sealed),
                store,
                base_dir=base_dir,
                on_checkpoint=lambda ref: kept.append(ref.step),
                monitor=monitor,
            )
    assert (raised.value.check, raised.value.got) == ("loss", "nan at step 4")
    assert kept == [2]
    assert len(store.names()) == 1
    fired = json.loads((tmp_path / ALERTS_FILE).read_text("utf-8"))
    assert (fired["alert"], fired["step"]) == ("loss-not-finite", 4)
    lines = (tmp_path / METRICS_FILE).read_text("utf-8").splitlines()
    assert [json.loads(line)["values"]["loss"] is None for line in lines] == [False] * 3 + [True]


class Diverges:
    """Gradients, or weights after an optimizer step, that are not finite from a step on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str, step: int) -> None:
        before, self.steps = torch.optim.AdamW.step, 0

        def stepped(optimizer: Any, *args: Any, **settings: Any) -> Any:
            done = before(optimizer, *args, **settings)
            self.steps += 1
            if self.steps >= step:
                with torch.no_grad():
                    weight = optimizer.param_groups[0]["params"][0]
                    weight.view(-1)[0] = float(what)
            return done

        monkeypatch.setattr(torch.optim.AdamW, "step", stepped)


@pytest.mark.parametrize("what", ["nan", "inf"])
def test_a_checkpoint_with_such_weights_is_not_sealed(
    what: str,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Diverges(monkeypatch, what, step=4)  # whose loss and gradients are finite
    recipe = sft(trainer=EVERY_STEP, model=BASE, peft=LORA)
    store, kept = checkpoint_store(tmp_path / "checkpoints"), []
    with pytest.raises(TrainingDiverged) as raised:
        run(
            recipe,
            sources_of(recipe, sealed),
            store,
            base_dir=base_dir,
            on_checkpoint=lambda ref: kept.append(ref.step),
        )
    assert raised.value.check == "weights"
    assert "lora_A" in str(raised.value.got)
    assert kept == [2]


def test_without_checkpoints_the_model_is_not_sealed_either(
    sealed: dict[str, Any], base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Diverges(monkeypatch, "nan", step=6)
    only = {"owner": OWNERS[0], "name": "records", "role": "train"}  # nothing evaluates
    recipe = sft(trainer=EVERY_STEP, model=BASE, peft=LORA, datasets=[only])
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), None, base_dir=base_dir)
    assert raised.value.check == "weights"


def test_an_evaluation_that_is_not_finite_ends_the_training(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaModel

    forward = LlamaModel.forward

    def answered(model: Any, *args: Any, **inputs: Any) -> Any:
        outputs = forward(model, *args, **inputs)
        if not model.training:
            outputs.last_hidden_state = outputs.last_hidden_state * float("nan")
        return outputs

    monkeypatch.setattr(LlamaModel, "forward", answered)
    recipe = sft(trainer=EVERY_STEP | {"eval_steps": 2}, model=BASE, peft=LORA)
    store = checkpoint_store(tmp_path / "checkpoints")
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir)
    assert (raised.value.check, raised.value.got) == ("eval_loss", "nan at step 2")
    assert not store.names()


@pytest.mark.parametrize(("value", "kept"), [("nan", [3]), ("1.0", [3, 6, 9])])
def test_a_loop_of_a_script_ends_too(
    value: str, kept: list[int], sealed: dict[str, Any], tmp_path: Path
) -> None:
    recipe = classify(trainer={"max_steps": 9})
    found: list[int] = []
    context = RunContext(
        run_id=RUN_ID,
        store=checkpoint_store(tmp_path),
        gate=MetricGate(recipe.release_policy),
        on_checkpoint=lambda ref: found.append(ref.step),
        resume=None,
    )
    model = torch.nn.Linear(2, 2)
    train = [source for source in sources_of(recipe, sealed) if source.role == "train"]
    loop = RunLoop(
        context,
        RecordStream(train, ["size", "spread"], seed=7),
        recipe.trainer,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )

    def use_up() -> None:
        for _ in loop:
            loop.log(loss=float(value) if loop.steps == 4 else 1.0)

    try:
        if value == "nan":
            with pytest.raises(TrainingDiverged) as raised:
                use_up()
            assert (raised.value.check, raised.value.got) == ("loss", "nan at step 6")
        else:
            use_up()
    finally:
        context.close()
    assert found == kept


def test_neither_an_adapter_nor_a_base_that_is_not_finite_is_merged(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    recipe = sft(trainer=EVERY_STEP, model=BASE, peft=LORA)
    ran = run(recipe, sources_of(recipe, sealed), None, base_dir=base_dir)
    adapter = write_files(tmp_path / "adapter", ran.trained.files)
    assert "model.safetensors" in merge_folder(adapter, base_dir / "base")
    bad = damaged(base_dir, tmp_path / "models", row="\x7f") / "base"
    with pytest.raises(ModelInvalid) as raised:
        merge_folder(adapter, bad)
    assert raised.value.check == "weights"
    assert EMBEDDINGS in str(raised.value.got)


def test_an_adapter_beside_an_unused_row_of_nan_is_sealed_and_its_merge_is_not(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    folder = damaged(base_dir, tmp_path / "models", row="\x7f")
    recipe = sft(trainer=EVERY_STEP, model=BASE, peft=LORA)
    sound = run(recipe, sources_of(recipe, sealed), None, base_dir=base_dir)
    beside = run(recipe, sources_of(recipe, sealed), None, base_dir=folder)
    assert beside.weights == sound.weights
    merging = sft(trainer=EVERY_STEP, model=BASE, peft=LORA | {"merge": True})
    with pytest.raises(TrainingDiverged) as raised:
        run(merging, sources_of(merging, sealed), None, base_dir=folder)
    assert raised.value.check == "weights"
    assert EMBEDDINGS in str(raised.value.got)


def test_private_training_of_a_damaged_base_is_refused_before_a_step(
    sealed: dict[str, Any], base_dir: Path, tmp_path: Path
) -> None:
    folder = damaged(base_dir, tmp_path / "models")
    recipe = private_sft(model=BASE)
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), None, base_dir=folder, secret=SECRET)
    assert raised.value.check == "weights"
    assert EMBEDDINGS.removesuffix(".weight") in str(raised.value.got)


def net(number: float, *, in_mask: bool = False) -> Any:
    """A script's own module, with a number in a weight or in a mask."""
    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.zeros(2))
    with torch.no_grad():
        (module.get_buffer("mask") if in_mask else module.weight).view(-1)[0] = number
    return module


@pytest.mark.parametrize(
    ("number", "in_mask"),
    [(float("nan"), False), (float("inf"), False), (-float("inf"), False), (float("nan"), True)],
)
def test_a_model_of_a_script_is_not_saved(number: float, in_mask: bool, tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged) as raised:
        save_files(net(number, in_mask=in_mask), None, base=BaseFolder(path=None), memory=tmp_path)
    assert (raised.value.check, raised.value.got) == ("weights", "mask" if in_mask else "weight")
    assert not list(tmp_path.iterdir())


def test_a_mask_may_hold_infinities(tmp_path: Path) -> None:
    module = net(-float("inf"), in_mask=True)
    files = save_files(module, None, base=BaseFolder(path=None), memory=tmp_path)
    assert set(files) == {"model.safetensors"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_weights_of_every_type_are_read(dtype: str) -> None:
    kind = getattr(torch, dtype)
    require_finite_weights({"a": torch.ones(3, 2).to(kind), "none": torch.ones(0).to(kind)})
    require_finite_weights({"counts": torch.ones(3, dtype=torch.int64)})
    with pytest.raises(TrainingDiverged) as raised:
        require_finite_weights({"a": torch.ones(2), "b": torch.full((2, 2), float("nan")).to(kind)})
    assert raised.value.got == "b"


def test_a_scaler_may_leave_out_a_step() -> None:
    assert first_not_finite({"loss": 1.0, "grad_norm": float("inf")}) == "grad_norm"
    assert first_not_finite({"loss": 1.0, "grad_norm": float("inf")}, scaled=True) is None
    assert first_not_finite({"policy_loss": float("nan")}, scaled=True) == "policy_loss"
    assert first_not_finite({"auroc": float("nan"), "loss": 0.0}) is None


@pytest.mark.parametrize(
    ("logs", "scripts", "left"),
    [
        ("none", {}, (None, None)),
        ("error-summary", {}, ("loss", "nan at step 4")),
        ("structured", {}, ("loss", "nan at step 4")),
        ("error-summary", {"train.py": "train.py"}, (None, None)),
    ],
)
def test_value_and_step_leave_as_the_policy_says(
    logs: Any, scripts: dict[str, str], left: tuple[str | None, str | None]
) -> None:
    with pytest.raises(TrainingDiverged) as raised:
        run_telling(
            lambda: refuse_not_finite(4, {"loss": float("nan")}), logs, dict, scripts=scripts
        )
    assert (raised.value.check, raised.value.got) == left


def test_a_chunk_of_a_travelling_training_that_ends_in_nan_ends_the_training() -> None:
    free = TravellingModel(ProgramSettings(**PROGRAM.model_dump()))
    with torch.no_grad():
        next(free.model.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingDiverged) as raised:
        free.train(memoryview(Held(1, 32).data))
    assert raised.value.check == "loss"


def test_a_trainer_that_a_script_made_filters_nothing(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    context = RunContext(
        run_id=RUN_ID,
        store=None,
        gate=MetricGate(sft().release_policy),
        on_checkpoint=lambda ref: None,
        resume=None,
    )
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert arguments.logging_nan_inf_filter
    trainer = Trainer(model=net(1.0), args=arguments, callbacks=[RunCallback(context)])
    assert not trainer.args.logging_nan_inf_filter


def die_in_evaluation(monkeypatch: pytest.MonkeyPatch, layers: Any, value: float) -> None:
    """Let layers answer with numbers while they train, and with none when they are measured."""
    forward = layers.forward

    def answered(model: Any, *args: Any, **inputs: Any) -> Any:
        outputs = forward(model, *args, **inputs)
        if not model.training:
            for name in ("last_hidden_state", "pooler_output", "logits"):
                if getattr(outputs, name, None) is not None:
                    outputs[name] = outputs[name] * value
        return outputs

    monkeypatch.setattr(layers, "forward", answered)


@pytest.mark.claim("C701")
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_an_encoder_is_not_measured_by_what_is_no_number(
    value: str, sealed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import transformers

    die_in_evaluation(monkeypatch, transformers.BertModel, float(value))
    recipe = embed(trainer={"max_steps": 1, "per_device_train_batch_size": 2})
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "kept"))
    assert (raised.value.check, raised.value.got) == ("answers", "embeddings")


@pytest.mark.claim("C701")
@pytest.mark.parametrize("phase", ["classify", "evaluate"])
def test_a_classifier_is_not_measured_by_what_is_no_number(
    phase: str, sealed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import transformers

    from sealtrain.training.models.tabular import TabularClassifier

    layers: Any = TabularClassifier
    recipe = classify(trainer={"max_steps": 1})
    if phase == "evaluate":
        layers, recipe = transformers.BertModel, evaluation(trainer={})
        write_judge(tmp_path)
    die_in_evaluation(monkeypatch, layers, float("nan"))
    with pytest.raises(TrainingDiverged) as raised:
        run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(tmp_path / "kept"),
            base_dir=tmp_path,
        )
    assert (raised.value.check, raised.value.got) == ("answers", "logits")


@pytest.mark.claim("C701")
def test_no_exposure_is_found_in_losses_that_are_no_numbers(
    sealed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import transformers

    die_in_evaluation(monkeypatch, transformers.LlamaForCausalLM, float("nan"))
    training = [{"owner": owner, "name": "records", "role": "train"} for owner in OWNERS]
    recipe = sft(
        trainer={"max_steps": 1},
        datasets=training,
        audit={"canaries": 2, "repetitions": 1},
        release_policy=releasing("loss", "canary_exposure"),
    )
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), secret=SECRET)
    assert (raised.value.check, raised.value.got) == ("answers", "losses")


@pytest.mark.claim("C701")
def test_a_policy_that_finds_no_token_likely_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import transformers

    die_in_evaluation(monkeypatch, transformers.LlamaModel, float("nan"))
    recipe = rlhf("ppo", trainer={"max_steps": 1})
    write_scorer(tmp_path)
    asked = dict(seal_records(write_questions(tmp_path), tmp_path))
    with pytest.raises(TrainingDiverged) as raised:
        run(
            recipe,
            sources_of(recipe, asked),
            checkpoint_store(tmp_path / "kept"),
            base_dir=tmp_path,
        )
    assert (raised.value.check, raised.value.got) == ("answers", "logits")


@pytest.mark.claim("C701")
@pytest.mark.parametrize(("steps", "stopped"), [(3, 3), (40, 31)])
def test_a_scaler_that_leaves_out_every_step_ends_the_training(
    steps: int,
    stopped: int,
    sealed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from transformers import LlamaModel

    forward = LlamaModel.forward

    def answered(model: Any, *args: Any, **inputs: Any) -> Any:
        outputs = forward(model, *args, **inputs)
        if model.training:
            outputs.last_hidden_state.register_hook(lambda gradient: gradient * float("nan"))
        return outputs

    monkeypatch.setattr(LlamaModel, "forward", answered)
    recipe = sft(trainer={"fp16": True, "max_steps": steps, "save_steps": 100})
    with pytest.raises(TrainingDiverged) as raised:
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "kept"))
    assert raised.value.check == "grad_norm"
    assert str(raised.value.got).endswith(f"at step {stopped}")
