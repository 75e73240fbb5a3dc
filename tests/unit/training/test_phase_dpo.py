"""Preference training against a second opinion on what it measured, and records it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from preference_world import (
    LABELLED,
    METRICS,
    kto,
    preferences,
    preferring,
    write_preferences,
)
from training_world import CANARY, LORA, OWNERS, Ran, checkpoint_store, run, sources_of
from training_world import seal_records as seal
from variants import variants

from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.recipe.errors import ModelInvalid, ValidationFailed
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of one library about another
]

MESSAGES = {"prompt": "asked", "chosen": "right", "rejected": "wrong"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("preferences")
    return dict(seal(write_preferences(folder), folder))


def trained(recipe: Any, sealed: dict[str, Any], folder: Path, **settings: Any) -> Ran:
    return run(recipe, sources_of(recipe, sealed), checkpoint_store(folder / "kept"), **settings)


def loaded(ran: Ran, recipe: Any, folder: Path) -> tuple[Any, Any]:
    """The trained model as Transformers and PEFT read it, and the one before training."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from sealtrain.training.models.base import build_model

    for name, data in ran.trained.files.items():
        (folder / name).write_bytes(data)
    before = build_model(recipe, folder, "AutoModelForCausalLM").eval()
    if recipe.peft is None:
        return AutoModelForCausalLM.from_pretrained(folder).eval(), before
    base = build_model(recipe, folder, "AutoModelForCausalLM")
    return PeftModel.from_pretrained(base, folder).eval(), before


def log_probability(model: Any, prompt: str, answer: str) -> tuple[float, int]:
    """Sum over the answer and its end, one record at a time, without padding; tokens of it."""
    import torch

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    before = tokenizer(prompt)["input_ids"]
    ids = torch.tensor([[*before, *tokenizer(answer)["input_ids"], tokenizer.eos_token_id]])
    with torch.no_grad():
        each = model(ids).logits.log_softmax(-1)
    places = range(len(before), ids.shape[1])
    return sum(float(each[0, at - 1, ids[0, at]]) for at in places), len(places)


def rewards(model: Any, before: Any, rows: list[dict[str, Any]], answer: str) -> list[float]:
    return [
        0.1
        * (
            log_probability(model, row["prompt"], row[answer])[0]
            - log_probability(before, row["prompt"], row[answer])[0]
        )
        for row in rows
    ]


TEST_ROWS = preferences(20, f"{OWNERS[0]}.held-out")


@pytest.mark.parametrize(
    "peft",
    [pytest.param(None, id="full", marks=pytest.mark.nightly), pytest.param(LORA, id="lora")],
)
def test_rewards_of_pairs_are_log_ratios_to_the_base(
    peft: Any, sealed: dict[str, Any], tmp_path: Path
) -> None:
    import torch

    recipe = preferring("dpo", peft=peft, trainer={"per_device_eval_batch_size": 6})
    ran = trained(recipe, sealed, tmp_path)
    model, before = loaded(ran, recipe, tmp_path)
    chosen, rejected = (
        torch.tensor(rewards(model, before, TEST_ROWS, name)) for name in ("chosen", "rejected")
    )
    metrics = ran.trained.metrics
    assert metrics["reward_margin"] == pytest.approx(float((chosen - rejected).mean()), abs=1e-5)
    assert metrics["reward_accuracy"] == pytest.approx(float((chosen > rejected).float().mean()))
    loss = torch.nn.functional.softplus(rejected - chosen).mean()
    assert metrics["eval_loss"] == pytest.approx(float(loss), abs=1e-5)
    assert metrics["reward_margin"] != 0


def test_kto_is_judged_by_all_pairs_of_good_and_bad(sealed: dict[str, Any], tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    recipe = kto(trainer={"per_device_eval_batch_size": 7})
    ran = trained(recipe, sealed, tmp_path)
    model, before = loaded(ran, recipe, tmp_path)
    found = rewards(model, before, TEST_ROWS, "completion")
    labels = [row["label"] for row in TEST_ROWS]
    assert ran.trained.metrics["reward_accuracy"] == pytest.approx(roc_auc_score(labels, found))


def test_orpo_is_judged_by_mean_log_probability(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = preferring("dpo", trainer={"loss_type": "orpo"})
    ran = trained(recipe, sealed, tmp_path)
    model, _ = loaded(ran, recipe, tmp_path)
    margins = []
    for row in TEST_ROWS:
        (chosen, long), (rejected, short) = (
            log_probability(model, f"<bos>{row['prompt']}", row[name])
            for name in ("chosen", "rejected")
        )
        margins.append(0.1 * (chosen / long - rejected / short))
    assert ran.trained.metrics["reward_margin"] == pytest.approx(
        sum(margins) / len(margins), abs=1e-5
    )
    right = sum(margin > 0 for margin in margins) / len(margins)
    assert ran.trained.metrics["reward_accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("loss", variants(["sigmoid", "orpo", "kto"], each_time=["sigmoid"]))
def test_evaluating_in_between_changes_no_weight(
    loss: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    make = kto if loss == "kto" else lambda **named: preferring("dpo", **named)
    settings = {"loss_type": loss, "max_steps": 4, "logging_steps": 1}
    plain = trained(make(trainer=settings, peft=LORA), sealed, tmp_path / "a")
    watched = trained(make(trainer=settings | {"eval_steps": 1}, peft=LORA), sealed, tmp_path / "b")
    assert watched.weights == plain.weights
    assert [
        {name: value for name, value in values.items() if "eval" not in name}
        for _, values in plain.history
    ] == [
        {name: values[name] for name in ("loss", "rewards_margins")}
        for _, values in watched.history
    ]
    assert all("reward_accuracy" in values for _, values in watched.history)


@pytest.mark.parametrize("method", variants(["sigmoid", "orpo", "reward"], each_time=["orpo"]))
def test_accumulated_batches_weigh_what_one_does(
    method: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    losses = []
    for batch, accumulated in ((8, 1), (2, 4)):
        settings = {
            "max_steps": 3,
            "logging_steps": 1,
            "warmup_steps": 0,
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulated,
        }
        phase, named = ("reward", {}) if method == "reward" else ("dpo", {"loss_type": method})
        ran = trained(preferring(phase, trainer=settings | named), sealed, tmp_path / str(batch))
        losses.append([values["loss"] for _, values in ran.history])
    # ORPO takes a mean over a batch's tokens, so that how records share batches shows a little.
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_several_losses_add_up(sealed: dict[str, Any], tmp_path: Path) -> None:
    losses = {}
    for weights in ([1.0, 0.0], [0.0, 1.0], [1.0, 2.0]):
        settings = {"loss_type": ["sigmoid", "sft"], "loss_weights": weights, "max_steps": 1}
        ran = trained(preferring("dpo", trainer=settings), sealed, tmp_path / str(weights))
        losses[tuple(weights)] = ran.history[0][1]["loss"]
    assert losses[1.0, 2.0] == pytest.approx(losses[1.0, 0.0] + 2 * losses[0.0, 1.0], rel=1e-5)


def test_the_settings_reach_the_trainer(sealed: dict[str, Any], tmp_path: Path) -> None:
    first = []
    for changed in ({}, {"beta": 0.5}, {"loss_type": "hinge"}, {"max_length": 30}):
        recipe = preferring("dpo", trainer={"max_steps": 3} | changed)
        first.append(trained(recipe, sealed, tmp_path / str(len(first))).weights)
    for changed in ({}, {"desirable_weight": 2.0}, {"loss_type": "apo_zero_unpaired"}):
        recipe = kto(trainer={"max_steps": 3} | changed)
        first.append(trained(recipe, sealed, tmp_path / str(len(first))).weights)
    assert len(set(first)) == len(first)


def test_defaults_are_trl_s() -> None:
    from sealtrain.training.silence import silence

    silence()  # TRL warns when this part of it is imported
    from trl.experimental.orpo import ORPOConfig
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.kto_config import KTOConfig
    from trl.trainer.reward_config import RewardConfig

    from sealtrain.recipe.schema import parse_recipe
    from sealtrain.training.inputs.preferences import own_arguments

    for wanted, config in (
        (preferring("dpo"), DPOConfig),
        (kto(), KTOConfig),
        (preferring("dpo", trainer={"loss_type": "orpo"}), ORPOConfig),
        (preferring("reward"), RewardConfig),
    ):
        written = {"max_steps": 1, "loss_type": getattr(wanted.trainer, "loss_type", None)}
        trainer = {name: value for name, value in written.items() if value is not None}
        ours = parse_recipe(wanted.to_dict() | {"trainer": trainer}).trainer
        theirs = config(use_cpu=True, bf16=False, report_to="none")
        for name, value in own_arguments(ours).items():
            if name != "loss_type":
                assert getattr(theirs, name) == value, name
        assert ours.learning_rate == theirs.learning_rate


def base_with_template(folder: Path) -> None:
    from sealtrain.training.model_files import model_files
    from sealtrain.training.models.base import build_model, byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    (folder / "base").mkdir()
    model = build_model(preferring("dpo"), folder, "AutoModelForCausalLM")
    for name, data in model_files(model, tokenizer).items():
        (folder / "base" / name).write_bytes(data)


@pytest.mark.parametrize("loss", ["sigmoid", "orpo"])
def test_conversations_train_with_a_chat_template(
    loss: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    base_with_template(tmp_path)
    recipe = preferring(
        "dpo",
        model={"path": "base"},
        columns=MESSAGES,
        trainer={"loss_type": loss, "max_length": 96},
    )
    ran = trained(recipe, sealed, tmp_path, base_dir=tmp_path)
    assert ran.trained.metrics["reward_accuracy"] is not None
    assert b"chat_template" in ran.trained.files["tokenizer_config.json"]
    with pytest.raises(ModelInvalid, check=carries(check="tokenizer")):
        trained(preferring("dpo", columns=MESSAGES), sealed, tmp_path / "without")


def test_pairs_may_share_their_prompt_unwritten(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = preferring("dpo", columns={"chosen": "whole_chosen", "rejected": "whole_rejected"})
    ran = trained(recipe, sealed, tmp_path)
    assert set(ran.trained.metrics) == set(METRICS)


def altered(folder: Path, **changed: Any) -> dict[str, Any]:
    paths = {}
    for key in (f"{OWNERS[0]}.records", f"{OWNERS[1]}.records", f"{OWNERS[0]}.held-out"):
        rows = [row | changed for row in preferences(6, key)]
        paths[key] = folder / f"{key}.jsonl"
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return dict(seal(paths, folder))


UNPAIRED = {"loss_type": "apo_zero_unpaired"}
REFUSED: list[tuple[Any, dict[str, Any], type[SealtrainError], str]] = [
    (preferring("dpo"), {"chosen": 3}, SchemaMismatch, "chosen"),
    (preferring("dpo"), {"chosen": ["a"]}, SchemaMismatch, "chosen"),
    (preferring("dpo"), {"chosen": [{"role": "a"}]}, SchemaMismatch, "chosen"),
    (
        preferring("reward"),
        {"chosen": [{"role": "assistant", "content": CANARY}]},
        SchemaMismatch,
        "columns",
    ),
    (kto(), {"label": 1}, SchemaMismatch, "label"),
    (kto(), {"label": CANARY}, SchemaMismatch, "label"),
    (kto(), {"completion": ""}, RecordInvalid, "completion"),
    (kto(), {"label": True}, ValidationFailed, "one kind"),
    (kto(trainer=UNPAIRED), {"label": False}, ValidationFailed, "one kind"),
    (preferring("dpo"), {"rejected": ""}, RecordInvalid, "rejected"),
    (preferring("reward"), {"chosen": None}, SchemaMismatch, "chosen"),
    (
        preferring("dpo", columns=LABELLED | {"label": "absent"}, trainer={"loss_type": "kto"}),
        {},
        SchemaMismatch,
        "absent",
    ),
]


@pytest.mark.parametrize(("recipe", "changed", "error", "told"), REFUSED)
def test_records_a_trainer_would_stumble_over_are_refused_unquoted(
    recipe: Any,
    changed: dict[str, Any],
    error: type[SealtrainError],
    told: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error) as refusal:
        trained(recipe, altered(tmp_path, **changed), tmp_path)
    assert told in str(refusal.value)
    assert CANARY not in str(refusal.value.to_dict())


@pytest.mark.claim("C267")
@pytest.mark.parametrize("loss_type", ["sigmoid", "kto", "orpo"])
def test_records_of_which_max_length_leaves_no_answer_end_the_training(
    sealed: dict[str, Any], tmp_path: Path, loss_type: str
) -> None:
    short = {"max_length": 8, "loss_type": loss_type}
    recipe = kto(trainer=short) if loss_type == "kto" else preferring("dpo", trainer=short)
    with pytest.raises(DataInvalid):
        trained(recipe, sealed, tmp_path)


def test_an_empty_conversation_is_refused(tmp_path: Path) -> None:
    base_with_template(tmp_path)
    recipe = preferring("dpo", model={"path": "base"}, columns=MESSAGES)
    rows = [row | {"right": []} if number == 3 else row for number, row in enumerate(TEST_ROWS)]
    paths = {}
    for key in (f"{OWNERS[0]}.records", f"{OWNERS[1]}.records", f"{OWNERS[0]}.held-out"):
        paths[key] = tmp_path / f"{key}.jsonl"
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(RecordInvalid, match="chosen"):
        trained(recipe, dict(seal(paths, tmp_path)), tmp_path, base_dir=tmp_path)
