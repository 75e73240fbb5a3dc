"""The record that the desk shows is the one that the phase's trainer learns from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from language_world import TEMPLATE, cpt, write_base
from preference_world import PAIRS, kto, merging_tokenizer, preferences, preferring
from training_world import (
    LLAMA,
    checkpoint_store,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.conversations import field_names
from sealtrain.training.data.rendered_record import Rendered, explain_unrendered, render_record
from sealtrain.training.models.base import build_tokenizer

pytestmark = [pytest.mark.long, pytest.mark.claim("C580")]

SPOKEN = {"prompt": "asked", "chosen": "right", "rejected": "wrong"}
WHOLE = {"chosen": "whole_chosen", "rejected": "whole_rejected"}
TALK = {"messages": "talk"}


def rows_of(count: int, label: str) -> list[dict[str, Any]]:
    return [row | {"talk": row["asked"] + row["right"]} for row in preferences(count, label)]


def trained(phase: str, **changed: Any) -> Any:
    trainer = {"max_steps": 1, "disable_dropout": False} | changed.pop("trainer", {})
    if phase == "sft":
        del trainer["disable_dropout"]
        return sft(trainer=trainer, model={"path": "base"}, **changed)
    if phase == "cpt":
        return cpt(trainer={"max_steps": 1}, model={"path": "base"}, **changed)
    if phase == "kto":
        return kto(trainer=trainer, model={"path": "base"}, **changed)
    return preferring(phase, trainer=trainer, model={"path": "base"}, **changed)


def both(loss: str | None = None) -> dict[str, Any]:
    return {"trainer": {} if loss is None else {"loss_type": loss}}


RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "sft text": ("sft", {"columns": {"text": "prompt"}}),
    "sft completion": ("sft", {"columns": {"prompt": "prompt", "completion": "completion"}}),
    "sft whole": (
        "sft",
        {
            "columns": {"prompt": "prompt", "completion": "completion"},
            "trainer": {"completion_only_loss": False},
        },
    ),
    "sft cut": ("sft", {"columns": {"text": "prompt"}, "trainer": {"max_length": 9}}),
    "sft cut at its begin": (
        "sft",
        {
            "columns": {"prompt": "prompt", "completion": "completion"},
            "trainer": {"max_length": 9, "truncation_mode": "keep_end"},
        },
    ),
    "sft messages": ("sft", {"columns": TALK}),
    "sft assistant": ("sft", {"columns": TALK, "trainer": {"assistant_only_loss": True}}),
    "dpo": ("dpo", {"columns": PAIRS}),
    "dpo cut": ("dpo", {"columns": PAIRS, "trainer": {"max_length": 36}}),
    "dpo messages": ("dpo", {"columns": SPOKEN, "trainer": {"max_length": 200}}),
    "dpo without prompt": ("dpo", {"columns": WHOLE}),
    "kto": ("kto", {}),
    "orpo": ("dpo", {"columns": PAIRS} | both("orpo")),
    "orpo messages": ("dpo", {"columns": SPOKEN} | both("orpo")),
    "reward": ("reward", {"columns": PAIRS}),
    "reward too long": ("reward", {"columns": PAIRS, "trainer": {"max_length": 36}}),
    "reward messages": ("reward", {"columns": SPOKEN, "trainer": {"max_length": 200}}),
}


@pytest.fixture(
    scope="module", params=["merging", pytest.param("bytes", marks=pytest.mark.nightly)]
)
def base_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base whose tokenizer has a token for each byte, and one that joins prompt and answer."""
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base", LLAMA | {"max_position_embeddings": 1024})
    if request.param == "merging":
        merging_tokenizer(folder / "base")
    settings = folder / "base" / "tokenizer_config.json"
    values = json.loads(settings.read_bytes()) | {"chat_template": TEMPLATE}
    settings.write_text(json.dumps(values))
    (folder / "base" / "chat_template.jinja").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_records(tmp_path_factory.mktemp("rows"), 6, made=rows_of)


def sequences(trainer: Any, count: int) -> Iterator[tuple[tuple[int, bool], ...]]:
    """Each sequence of the trainer's first rows: ids, and whether a token carries a loss."""
    for row in islice(iter(trainer.train_dataset), count):
        batch = trainer.data_collator([row])
        if "chosen_labels" in batch:
            for side in ("chosen", "rejected"):
                ids, labels = batch[f"{side}_input_ids"][0], batch[f"{side}_labels"][0]
                seen = batch[f"{side}_attention_mask"][0]
                yield pairs(ids, labels != -100, seen)
            continue
        if "labels" in batch:
            marks = batch["labels"] != -100
        else:
            marks = batch.get("completion_mask", batch["attention_mask"])
        for ids, mark, seen in zip(batch["input_ids"], marks, seen_of(batch), strict=True):
            yield pairs(ids, mark, seen)


def seen_of(batch: Any) -> Any:
    import torch

    return batch.get("attention_mask", torch.ones_like(batch["input_ids"]))


def pairs(ids: Any, marks: Any, seen: Any) -> tuple[tuple[int, bool], ...]:
    triples = zip(ids.tolist(), marks.tolist(), seen.tolist(), strict=True)
    return tuple((token, bool(mark)) for token, mark, is_seen in triples if is_seen)


class _Seen(Exception):
    pass


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_shown_is_what_the_trainer_learns(
    name: str,
    base_dir: Path,
    paths: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phase, changed = RECIPES[name]
    recipe = trained(phase, **changed)
    learned: set[tuple[tuple[int, bool], ...]] = set()

    def looked_at(work: Any, trainer: Any, evaluation: Any) -> Any:
        learned.update(sequences(trainer, 24))
        raise _Seen

    monkeypatch.setattr(f"sealtrain.training.phases.{recipe.phase}.train_and_measure", looked_at)
    sealed = dict(seal_records(paths, tmp_path))
    with pytest.raises(_Seen):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    tokenizer = build_tokenizer(recipe, base_dir)
    fields = field_names(recipe.columns)
    shown: set[tuple[tuple[int, bool], ...]] = set()
    trains = [
        f"{dataset.owner}.{dataset.name}" for dataset in recipe.datasets if dataset.role == "train"
    ]
    for key in trains:
        for line in paths[key].read_text().splitlines():
            row = json.loads(line)
            record = {field: row[column] for column, field in fields.items()}
            for item in render_record(recipe, tokenizer, record):
                marks = [use in ("learned", "scored") for use in item.uses]
                shown.add(tuple(zip(item.ids, marks, strict=True)))
    kept = {text for text in shown if any(mark for _, mark in text)}
    assert learned
    assert learned - shown == set()
    assert kept - learned == set()


def test_a_document_is_shown_as_blocks_are_packed_of_it(
    base_dir: Path, paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = trained("cpt", columns={"text": "prompt"})
    packed: list[int] = []

    def looked_at(work: Any, trainer: Any, evaluation: Any) -> Any:
        for block in islice(iter(trainer.train_dataset), 60):
            packed.extend(int(token) for token in block["input_ids"])
        raise _Seen

    monkeypatch.setattr("sealtrain.training.phases.cpt.train_and_measure", looked_at)
    sealed = dict(seal_records(paths, tmp_path))
    with pytest.raises(_Seen):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    tokenizer = build_tokenizer(recipe, base_dir)
    text = " " + " ".join(map(str, packed)) + " "
    for line in paths["hospital-a.records"].read_text().splitlines():
        (one,) = render_record(recipe, tokenizer, {"text": json.loads(line)["prompt"]})
        assert one.ids[-1] == tokenizer.eos_token_id
        assert one.learned == len(one.ids)
        assert " " + " ".join(map(str, one.ids)) + " " in text


def test_conversations_need_no_end_token_and_answers_do(base_dir: Path) -> None:
    recipe = trained("sft", columns=TALK)
    tokenizer = build_tokenizer(recipe, base_dir)
    tokenizer.eos_token = None
    talk = {"messages": [{"role": "user", "content": "a"}]}
    (one,) = render_record(recipe, tokenizer, talk)
    assert one.learned == len(one.ids)
    asked = trained("sft", columns={"text": "prompt"})
    with pytest.raises(ModelInvalid):
        render_record(asked, tokenizer, {"text": "a"})


def test_spans_are_the_whole_text(base_dir: Path, paths: dict[str, Path]) -> None:
    recipe = trained("sft", columns={"prompt": "prompt", "completion": "completion"})
    tokenizer = build_tokenizer(recipe, base_dir)
    row = json.loads(next(iter(paths.values())).read_text().splitlines()[0])
    record = {"prompt": row["prompt"], "completion": row["completion"]}
    (one,) = render_record(recipe, tokenizer, record)
    spans = list(one.spans(tokenizer))
    assert [use for use, _ in spans] == ["masked", "learned"]
    text = "".join(part for _, part in spans)
    assert text == row["prompt"] + row["completion"] + str(tokenizer.eos_token)
    assert one.learned == sum(use == "learned" for use in one.uses)
    assert one.cut == 0


def test_a_template_that_refuses_a_record_is_named_without_the_record(
    base_dir: Path, tmp_path: Path
) -> None:
    recipe = trained("sft", columns=TALK)
    tokenizer = build_tokenizer(recipe, base_dir)
    tokenizer.chat_template = "{{ raise_exception('no ' + messages[0]['content']) }}"
    with pytest.raises(RecordInvalid) as refused:
        render_record(recipe, tokenizer, {"messages": [{"role": "user", "content": "canary"}]})
    assert "canary" not in str(refused.value.to_dict())
    tokenizer.chat_template = None
    with pytest.raises(ModelInvalid):
        render_record(recipe, tokenizer, {"messages": [{"role": "user", "content": "a"}]})


def test_a_cut_is_counted(base_dir: Path) -> None:
    recipe = trained("sft", columns={"text": "prompt"}, trainer={"max_length": 4})
    (one,) = render_record(recipe, build_tokenizer(recipe, base_dir), {"text": "abcdefgh"})
    assert isinstance(one, Rendered)
    assert (len(one.ids), one.cut) == (4, 5)


def test_tokens_of_a_script_are_not_shown() -> None:
    assert explain_unrendered(trained("sft", columns={"text": "prompt"})) is None
    assert explain_unrendered(cpt(columns={"tokens": "tokens"})) is not None


@pytest.mark.claim("C618")
@pytest.mark.parametrize("phase", ["dpo", "reward"])
def test_a_pair_without_a_difference_is_shown_as_left_out(phase: str, base_dir: Path) -> None:
    recipe = preferring(phase, trainer={"max_length": 60})
    tokenizer = build_tokenizer(recipe, base_dir)
    for chosen, use in (("yes", "left-out"), ("no", None)):
        pair = {"prompt": "a?", "chosen": chosen, "rejected": "yes"}
        shown = render_record(recipe, tokenizer, pair)
        assert all(({*part.uses} == {"left-out"}) == (use is not None) for part in shown)
