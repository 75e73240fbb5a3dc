"""Records that leave nothing to learn are counted, and no batch is made of them alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from language_world import TEMPLATE, cpt, embed, write_base
from preference_world import kto, preferring
from training_world import (
    CANARY,
    LLAMA,
    OWNERS,
    checkpoint_store,
    run,
    seal_records,
    sft,
    sources_of,
)
from variants import variants

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ValidationFailed
from sealtrain.recipe.schema import PhaseRecipe
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.census import census
from sealtrain.training.inputs.learnable import RecordTally, counts_records, judge_for, learns
from sealtrain.training.inputs.learnablerows import judge_rows
from sealtrain.training.models.base import build_tokenizer

pytestmark = [pytest.mark.long, pytest.mark.claim("C570")]

LENGTH = 24
WHOLE, CUT, NONE = 3, 2, 2


def texts(prompt: str, answer: str) -> dict[str, Any]:
    asked = [{"role": "user", "content": prompt}]
    said = [{"role": "assistant", "content": answer}]
    return {
        "prompt": prompt,
        "completion": answer,
        "text": prompt + answer,
        "messages": asked + said,
        "chosen": answer,
        "rejected": answer[::-1],
        "label": len(answer) % 2 == 0,
    }


def mixed(_count: int, label: str) -> list[dict[str, Any]]:
    """Prompts of a byte a token: some fit, some are cut, of some nothing is left."""
    rows = [texts(f"{at}?", f" yes{at}") for at in range(WHOLE)]
    rows += [texts(f"{at}?", f" no{at}" * 9) for at in range(CUT)]
    rows += [texts(f"{label} {CANARY} {at}?"[:LENGTH] + "?" * LENGTH, " no") for at in range(NONE)]
    return rows


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base", LLAMA)
    settings = folder / "base" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_bytes()) | {"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from training_world import write_records

    folder = tmp_path_factory.mktemp("mixed")
    return dict(seal_records(write_records(folder, made=mixed), folder))


def counted(recipe: PhaseRecipe, sealed: dict[str, Any], base_dir: Path) -> list[RecordTally]:
    sources = sources_of(recipe, sealed)
    found = census(recipe, sources, lambda: build_tokenizer(recipe, base_dir))
    return [tally for _, tally in found]


def trainer_of(**changed: Any) -> dict[str, Any]:
    return {"max_length": LENGTH, "max_steps": 6, "per_device_train_batch_size": 1} | changed


PAIRS = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
MIXED = RecordTally(whole=WHOLE, truncated=CUT, empty=NONE)
RECIPES: dict[str, tuple[Callable[[], PhaseRecipe], RecordTally]] = {
    "prompts": (lambda: sft(trainer=trainer_of()), MIXED),
    "packed": (lambda: sft(trainer=trainer_of(packing=True)), MIXED),
    "wrapped": (
        lambda: sft(trainer=trainer_of(packing=True, packing_strategy="wrapped")),
        RecordTally(whole=WHOLE + CUT + NONE),
    ),
    "text": (
        lambda: sft(columns={"text": "text"}, trainer=trainer_of()),
        RecordTally(whole=WHOLE, truncated=CUT + NONE),
    ),
    "dpo": (lambda: preferring("dpo", columns=PAIRS, trainer=trainer_of()), MIXED),
    "orpo": (
        lambda: preferring("dpo", columns=PAIRS, trainer=trainer_of(loss_type="orpo")),
        MIXED,
    ),
    "kto": (
        lambda: kto(
            trainer=trainer_of(per_device_train_batch_size=2),
        ),
        MIXED,
    ),
    "reward": (
        lambda: preferring("reward", columns=PAIRS, trainer=trainer_of()),
        RecordTally(whole=WHOLE, filtered=CUT + NONE),
    ),
    "embed": (
        lambda: embed(trainer=trainer_of(per_device_train_batch_size=2)),
        RecordTally(whole=WHOLE, truncated=CUT + NONE),
    ),
    "cpt": (lambda: cpt(), RecordTally(whole=WHOLE + CUT + NONE)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_each_phase_counts_what_its_length_leaves(
    name: str, sealed: dict[str, Any], base_dir: Path
) -> None:
    made, expected = RECIPES[name]
    assert counted(made(), sealed, base_dir) == [expected, expected]


@pytest.mark.parametrize("name", ["prompts", "dpo", "orpo", "kto", "reward"])
def test_as_many_records_train_as_are_counted(
    name: str,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, _ = RECIPES[name]
    recipe = made()
    trained = rows_trained(recipe, sealed, base_dir, tmp_path, monkeypatch)
    assert len(trained) == sum(tally.trained for tally in counted(recipe, sealed, base_dir))


def rows_trained(
    recipe: PhaseRecipe,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, Any]]:
    """Rows of one epoch that a phase's trainer gets."""
    from importlib import import_module

    from sealtrain.training.data.hugging import once

    rows: list[Any] = []
    phase = import_module(f"sealtrain.training.phases.{recipe.phase}")

    def looked_at(work: Any, trainer: Any, evaluation: Any) -> Any:
        once(work.context.stream)
        rows.extend(trainer.train_dataset)
        raise Looked

    monkeypatch.setattr(phase, "train_and_measure", looked_at)
    with pytest.raises(Looked):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    return rows


class Looked(Exception):
    """Raised once the rows were read."""


ONE_A_RECORD = {
    "prompts": {},
    "end": {"trainer": trainer_of(truncation_mode="keep_end")},
    "uncut": {"trainer": trainer_of(max_length=None)},
    "all tokens": {"trainer": trainer_of(completion_only_loss=False)},
    "text": {"columns": {"text": "text"}},
    "messages": {"columns": {"messages": "messages"}},
    "answers": {
        "columns": {"messages": "messages"},
        "trainer": trainer_of(assistant_only_loss=True),
    },
}


@pytest.mark.claim("C639")
@pytest.mark.parametrize("name", ONE_A_RECORD)
def test_rows_made_for_unsloth_are_those_that_trl_makes(
    name: str,
    sealed: dict[str, Any],
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from datasets import Dataset

    settings = {"trainer": trainer_of()} | ONE_A_RECORD[name]
    recipe = sft(model={"path": "base"}, **settings)
    by_trl = rows_trained(recipe, sealed, base_dir, tmp_path, monkeypatch)
    tokenizer = build_tokenizer(recipe, base_dir)
    fields = recipe.columns.names
    read = [
        {field: record[field] for field in fields}
        for owner in OWNERS
        for record in mixed(0, f"{owner}.records")
    ]
    made = list(judge_rows(Dataset.from_list(read), recipe, tokenizer))

    def rows(found: list[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
        return sorted((row["input_ids"], row["labels"]) for row in found)

    assert rows(made) == rows(by_trl)
    assert made


@pytest.mark.claim("C639")
def test_records_for_unsloth_are_counted_as_for_trl(sealed: dict[str, Any], base_dir: Path) -> None:
    recipe = sft(model={"path": "base"}, trainer=trainer_of(), backend={"name": "unsloth"})
    assert counts_records(recipe)
    assert counted(recipe, sealed, base_dir) == [MIXED, MIXED]


@pytest.mark.parametrize(
    "name", variants(["prompts", "packed", "wrapped"], each_time=["prompts", "wrapped"])
)
def test_a_batch_of_one_record_always_has_a_finite_loss(
    name: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    made, _ = RECIPES[name]
    recipe = made()
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    losses = [values["loss"] for _, values in ran.history if "loss" in values]
    assert losses
    assert all(loss is not None and math.isfinite(loss) for loss in losses)


def test_a_first_token_alone_is_no_lesson() -> None:
    assert not learns([5])
    assert not learns([5, -100])
    assert learns([-100, 5])
    assert not learns([5, -100, 6], [2, 1])
    assert learns([5, -100, 6], [1, 2])


def test_a_dataset_without_any_lesson_is_refused_by_name(
    sealed: dict[str, Any], base_dir: Path
) -> None:
    recipe = sft(trainer=trainer_of(max_length=2))
    with pytest.raises(DataInvalid) as refused:
        counted(recipe, sealed, base_dir)
    assert refused.value.check == "records"
    assert (refused.value.owner, refused.value.dataset) == (OWNERS[0], "records")


def test_blank_texts_teach_no_encoder(tmp_path: Path, base_dir: Path) -> None:
    from training_world import write_records

    paths = write_records(
        tmp_path,
        made=lambda _count, label: [texts("a", "b"), texts(" ", f"{label}"), texts("c", "d")],
    )
    recipe = embed(trainer=trainer_of(per_device_train_batch_size=2, max_steps=2))
    sealed = dict(seal_records(paths, tmp_path))
    assert counted(recipe, sealed, base_dir) == [RecordTally(whole=2, empty=1)] * 2
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    assert ran.trained.steps == 2


@pytest.mark.parametrize("name", variants(["prompts", "packed"], each_time=["prompts"]))
def test_a_resumed_run_leaves_out_the_same_records(
    name: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    made, _ = RECIPES[name]
    trainer = trainer_of(packing=name == "packed", save_steps=2, logging_steps=1)
    recipe = made().model_copy(update={"trainer": sft(trainer=trainer).trainer})
    sources = sources_of(recipe, sealed)
    whole = run(recipe, sources, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    first = run(recipe, sources, store, stop_at=2)
    second = run(recipe, sources, store, resume=first.checkpoints[-1])
    assert second.weights == whole.weights
    assert [*first.history, *second.history] == whole.history


def test_empty_texts_of_pretraining_are_counted_as_the_judge_does(tmp_path: Path) -> None:
    from training_world import write_records

    written = ["a b", "", " \u00a0\n", "x" * 9]
    paths = write_records(
        tmp_path, made=lambda _count, _label: [{"text": text} for text in written]
    )
    sealed = dict(seal_records(paths, tmp_path))
    recipe = cpt()
    expected = RecordTally(whole=2, empty=2)
    assert counted(recipe, sealed, tmp_path) == [expected, expected]
    tally = RecordTally()
    tally.add(judge_for(recipe, None)([{"text": text} for text in written]))
    assert tally == expected


@pytest.mark.claim("C618")
@pytest.mark.parametrize(
    ("phase", "trainer", "learned"),
    [
        pytest.param("dpo", {}, 2, id="dpo"),
        pytest.param("dpo", {"max_length": None}, 2, id="dpo of any length"),
        pytest.param("dpo", {"loss_type": ["sigmoid", "sft"]}, 4, id="also the chosen answer"),
        pytest.param("dpo", {"loss_type": "orpo"}, 4, id="odds"),
        pytest.param("reward", {}, 2, id="reward"),
        pytest.param("reward", {"center_rewards_coefficient": 0.1}, 4, id="centred reward"),
    ],
)
def test_pairs_of_equal_answers_are_left_out_where_only_their_difference_teaches(
    phase: str,
    trainer: dict[str, Any],
    learned: int,
    base_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from training_world import write_records

    def pairs(_count: int, label: str) -> list[dict[str, Any]]:
        equal = {"chosen": f" {label}", "rejected": f" {label}"}
        return [texts("a?", " yes") | equal, texts("b?", " no")] * 2

    sealed = dict(seal_records(write_records(tmp_path, made=pairs), tmp_path))
    recipe = preferring(phase, columns=PAIRS, trainer=trainer_of(**trainer))
    assert counted(recipe, sealed, base_dir) == [RecordTally(whole=learned, empty=4 - learned)] * 2
    trained = rows_trained(recipe, sealed, base_dir, tmp_path, monkeypatch)
    assert len(trained) == 2 * learned


@pytest.mark.claim("C618")
@pytest.mark.parametrize("spoken", [False, True])
def test_pairs_that_are_equal_once_they_are_cut_are_left_out(
    spoken: bool, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training_world import write_records

    def pair(chosen: str, rejected: str) -> dict[str, Any]:
        if not spoken:
            return {"prompt": "a?", "chosen": chosen, "rejected": rejected}
        said = {"chosen": chosen, "rejected": rejected}
        return {"prompt": [{"role": "user", "content": "a?"}]} | {
            name: [{"role": "assistant", "content": text}] for name, text in said.items()
        }

    same = " yes" * LENGTH
    made = [pair(same + "1", same + "2"), pair("1" + same, "2" + same), pair(" y", " n")]
    sealed = dict(seal_records(write_records(tmp_path, made=lambda *_: made), tmp_path))
    recipe = preferring(
        "dpo", columns=PAIRS, trainer=trainer_of(max_length=60), model={"path": "base"}
    )
    expected = RecordTally(whole=1, truncated=1, empty=1)
    assert counted(recipe, sealed, base_dir) == [expected] * 2
    assert len(rows_trained(recipe, sealed, base_dir, tmp_path, monkeypatch)) == 4


@pytest.mark.claim("C618")
@pytest.mark.parametrize("phase", ["dpo", "reward"])
def test_tools_count_towards_the_length_of_a_pair(
    phase: str, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training_world import write_records

    template = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}" + TEMPLATE
    write_base(tmp_path / "tooled", LLAMA)
    settings = tmp_path / "tooled" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_bytes()) | {"chat_template": template}))

    def pairs(_count: int, _label: str) -> list[dict[str, Any]]:
        def said(text: str) -> list[dict[str, str]]:
            return [{"role": "assistant", "content": text}]

        asked = {"prompt": [{"role": "user", "content": "a?"}]}
        row = asked | {"chosen": said("y"), "rejected": said("n")}
        long = [{"type": "function", "function": {"name": "n" * 90}}]
        return [row | {"tools": long}, row | {"tools": []}]

    sealed = dict(seal_records(write_records(tmp_path, made=pairs), tmp_path))
    recipe = preferring(
        phase,
        columns=PAIRS | {"tools": "tools"},
        trainer=trainer_of(max_length=60),
        model={"path": "tooled"},
    )
    out = {"filtered": 1} if phase == "reward" else {"empty": 1}
    assert counted(recipe, sealed, tmp_path) == [RecordTally(whole=1, **out)] * 2
    assert len(rows_trained(recipe, sealed, tmp_path, tmp_path, monkeypatch)) == 2


@pytest.mark.claim("C700")
@pytest.mark.parametrize("marked", ["question", "answer", "prompt", "chosen"])
def test_a_message_that_is_not_to_be_learned_is_not(
    marked: str, base_dir: Path, tmp_path: Path
) -> None:
    from training_world import write_records

    turns = {"question": {"role": "user", "content": "a?"}}
    turns["answer"] = {"role": "assistant", "content": "y"}
    if marked in turns:
        turns[marked] = turns[marked] | {"weight": 0}
        row: dict[str, Any] = {"messages": list(turns.values())}
    else:
        other = {"role": "assistant", "content": "n"}
        row = {"prompt": [turns["question"]], "chosen": [turns["answer"]], "rejected": [other]}
        row[marked] = [row[marked][0] | {"weight": 0}]
    sealed = dict(seal_records(write_records(tmp_path, made=lambda *_: [row] * 2), tmp_path))
    recipes = [preferring("dpo", columns=PAIRS, model={"path": "base"})]
    if marked in turns:
        recipes = [
            sft(
                columns={"messages": "messages"},
                trainer=trainer_of(max_length=None, assistant_only_loss=alone),
                model={"path": "base"},
            )
            for alone in (False, True)
        ]
    for recipe in recipes:
        alone = getattr(recipe.trainer, "assistant_only_loss", True)
        if marked == "prompt" or (marked == "question" and alone):
            assert counted(recipe, sealed, base_dir)
            continue
        with pytest.raises(RecordInvalid, check=carries(check="columns", got="weight")):
            counted(recipe, sealed, base_dir)


@pytest.mark.claim("C618")
@pytest.mark.parametrize("phase", ["dpo", "reward"])
def test_answers_that_are_rendered_as_one_text_are_equal(
    phase: str, base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training_world import write_records

    def pairs(_count: int, _label: str) -> list[dict[str, Any]]:
        def answered(text: str, key: str) -> list[dict[str, str]]:
            return [{"role": "assistant", "content": text, "id": key}]

        asked = {"prompt": [{"role": "user", "content": "a?"}]}
        same = asked | {"chosen": answered("y", "1"), "rejected": answered("y", "2")}
        return [same, asked | {"chosen": answered("y", "1"), "rejected": answered("n", "1")}]

    sealed = dict(seal_records(write_records(tmp_path, made=pairs), tmp_path))
    recipe = preferring(
        phase, columns=PAIRS, trainer=trainer_of(max_length=60), model={"path": "base"}
    )
    assert counted(recipe, sealed, base_dir) == [RecordTally(whole=1, empty=1)] * 2
    assert len(rows_trained(recipe, sealed, base_dir, tmp_path, monkeypatch)) == 2


@pytest.mark.parametrize("settings", [{}, {"truncation_mode": "keep_end"}, {"packing": True}])
@pytest.mark.parametrize("most", [1, 2, 5, 9, None])
def test_a_part_follows_from_the_labels_that_are_kept(
    settings: dict[str, Any], most: int | None, base_dir: Path
) -> None:
    recipe = sft(trainer=trainer_of(max_length=most, **settings))
    tokenizer = build_tokenizer(recipe, base_dir)
    records = [
        {"prompt": "q" * asked, "completion": "a" * said}
        for asked in range(6)
        for said in range(6)
    ]  # fmt: skip
    from_end = settings.get("truncation_mode") == "keep_end"

    def part(record: dict[str, str]) -> str:
        ids = tokenizer(record["prompt"] + record["completion"] + tokenizer.eos_token)["input_ids"]
        labels = [-100] * len(record["prompt"]) + ids[len(record["prompt"]) :]
        kept = labels if most is None else (labels[-most:] if from_end else labels[:most])
        return "empty" if not learns(kept) else "whole" if kept == labels else "truncated"

    assert judge_for(recipe, tokenizer)(records) == [part(record) for record in records]


def test_later_texts_are_counted_as_the_first_ones(base_dir: Path) -> None:
    recipe = sft(trainer=trainer_of())
    tokenizer = build_tokenizer(recipe, base_dir)
    judge = judge_for(recipe, tokenizer)
    records = mixed(0, "a")
    first = judge(records)
    assert judge(records) == first
    tokenizer("a" * 99, truncation=True, max_length=4)  # a setting that a tokenizer keeps
    assert judge(records) == first


@pytest.mark.claim("C618")
def test_unpaired_answers_that_train_are_of_both_kinds(base_dir: Path, tmp_path: Path) -> None:
    from training_world import write_records

    def rated(_count: int, _label: str) -> list[dict[str, Any]]:
        good = [texts("a?", " yes") | {"label": True}] * 2
        return [*good, texts("b?" * LENGTH, " no") | {"label": False}]

    sealed = dict(seal_records(write_records(tmp_path, made=rated), tmp_path))
    recipe = kto(trainer=trainer_of(per_device_train_batch_size=2))
    with pytest.raises(ValidationFailed, check=carries(check="columns")):
        counted(recipe, sealed, base_dir)
    longer = kto(trainer=trainer_of(per_device_train_batch_size=2, max_length=200))
    assert counted(longer, sealed, base_dir) == [RecordTally(whole=3)] * 2


@pytest.mark.claim("C618")
@pytest.mark.parametrize("both", [True, False])
def test_two_owners_may_have_one_kind_of_unpaired_answers_each(
    base_dir: Path, tmp_path: Path, both: bool
) -> None:
    from training_world import OWNERS, write_records

    def rated(_count: int, label: str) -> list[dict[str, Any]]:
        good = label.startswith(OWNERS[0]) or not both
        return [texts("a?", " yes") | {"label": good}] * 2

    sealed = dict(seal_records(write_records(tmp_path, made=rated), tmp_path))
    recipe = kto(trainer=trainer_of(per_device_train_batch_size=2))
    if both:
        assert counted(recipe, sealed, base_dir) == [RecordTally(whole=2)] * 2
        return
    with pytest.raises(ValidationFailed, check=carries(check="columns", owner=None)):
        counted(recipe, sealed, base_dir)
