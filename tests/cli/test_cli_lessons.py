"""What ``recipe check`` says of a base model and of what the first records leave to learn.

``JUDGED`` is a table of inputs that training cannot use; the guest refuses each in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from language_world import TEMPLATE, write_base
from training_world import LLAMA, TRAINER, releasing
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.cli.lessons import FirstLessons, judge_data
from sealtrain.client.fitting import read_data
from sealtrain.errors import DataInvalid
from sealtrain.recipe.recipe import Recipe
from sealtrain.recipe.schema import load_recipe
from sealtrain.sealing.sealer import SealOptions

pytestmark = pytest.mark.claim("C575")

Rows = list[dict[str, Any]]
PAIRED: Rows = [{"prompt": f"{at}?", "completion": " yes"} for at in range(6)]
TALKS: Rows = [
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
] * 4
UNANSWERED: Rows = [{"messages": [{"role": "user", "content": "x"}]}] * 4
LONG = {"prompt": "?" * 60, "completion": " yes"}
RAISES = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"


def desk(folder: Path, rows: Rows, **changed: Any) -> Path:
    """A recipe, its base model and records."""
    write_base(folder / "base", LLAMA)
    (folder / "base" / "chat_template.jinja").unlink(missing_ok=True)
    trainer = TRAINER | {"max_length": 48} | changed.pop("trainer", {})
    settings = folder / "base" / "tokenizer_config.json"
    values = json.loads(settings.read_bytes()) | changed.pop("tokenizer", {})
    settings.write_text(json.dumps(values))
    recipe = {
        "version": 1,
        "name": "tiny",
        "phase": "sft",
        "model": {"path": "base"},
        "datasets": [{"owner": "hospital-a", "name": "records", "role": "train"}],
        "columns": {"prompt": "prompt", "completion": "completion"},
        "peft": None,
        "privacy": {"dp": "none"},
        "release_policy": releasing("loss"),
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    } | changed
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"trainer": trainer}))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)
    return folder


def check(folder: Path) -> tuple[int, dict[str, Any]]:
    records = f"hospital-a.records={folder / 'rows.jsonl'}"
    words = ["recipe", "check", str(folder / "recipe.yaml"), "--records", records, "--json"]
    done = CliRunner().invoke(app, words)
    return done.exit_code, json.loads(done.stdout)


TALKING = {"columns": {"messages": "messages"}, "tokenizer": {"chat_template": TEMPLATE}}
JUDGED: dict[str, tuple[Callable[[Path], Path], int, str, str]] = {
    "no end token": (
        lambda folder: desk(folder, PAIRED, tokenizer={"eos_token": None}),
        2, "recipe-invalid", "model.tokenizer",
    ),
    "tokens beyond the embedding": (
        lambda folder: desk(folder, PAIRED, tokenizer={"additional_special_tokens": ["<new>"]}),
        2, "recipe-invalid", "model",
    ),
    "a metric without test records": (
        lambda folder: desk(folder, PAIRED, release_policy=releasing("loss", "accuracy")),
        2, "recipe-invalid", "release_policy.metrics",
    ),
    "conversations without a template": (
        lambda folder: desk(folder, TALKS, **TALKING | {"tokenizer": {"chat_template": None}}),
        2, "recipe-invalid", "columns.messages",
    ),
    "a template that raises": (
        lambda folder: desk(folder, TALKS, **TALKING | {"tokenizer": {"chat_template": RAISES}}),
        5, "record-invalid", "data hospital-a.records",
    ),
    "a template without marks": (
        lambda folder: desk(
            folder, TALKS, **TALKING | {"tokenizer": {"chat_template": "{{ messages }}"}},
            trainer={"assistant_only_loss": True},
        ),
        2, "recipe-invalid", "trainer.assistant_only_loss",
    ),
    "a length below every prompt": (
        lambda folder: desk(folder, [LONG] * 5),
        5, "data-invalid", "data hospital-a.records",
    ),
    "no answer to learn": (
        lambda folder: desk(folder, UNANSWERED, **TALKING, trainer={"assistant_only_loss": True}),
        5, "data-invalid", "data hospital-a.records",
    ),
    "texts of one token": (
        lambda folder: desk(folder, [{"text": ""}] * 3, columns={"text": "text"}),
        5, "data-invalid", "data hospital-a.records",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_what_no_training_can_use_is_refused_at_the_desk(name: str, tmp_path: Path) -> None:
    made, exit_code, code, about = JUDGED[name]
    ended, said = check(made(tmp_path))
    assert ended == exit_code
    assert [(wrong["code"], wrong["about"]) for wrong in said["wrong"]] == [(code, about)]
    assert not said["fits"]


def test_the_first_records_are_counted(tmp_path: Path) -> None:
    ended, said = check(desk(tmp_path, [*PAIRED, *[LONG] * 7]))
    assert (ended, said["fits"]) == (0, True)
    assert said["records"] == {
        "hospital-a.records": {
            "records": 13, "whole": 6, "truncated": 0, "filtered": 0, "empty": 7,
        }
    }  # fmt: skip


def test_of_many_records_the_first_are_counted_until_one_trains(tmp_path: Path) -> None:
    _, said = check(desk(tmp_path, [*PAIRED * 200, LONG]))
    assert said["records"]["hospital-a.records"]["records"] == 1000
    other = tmp_path / "late"
    other.mkdir()
    ended, late = check(desk(other, [*[LONG] * 1200, *PAIRED]))
    assert ended == 0
    assert late["records"]["hospital-a.records"]["whole"] == len(PAIRED)


def judged(folder: Path, **settings: Any) -> FirstLessons:
    lessons = FirstLessons(lessons_recipe(folder), folder, "hospital-a", "records", **settings)
    path = folder / "rows.jsonl"
    read_data(lessons_recipe(folder), "hospital-a", "records", path, SealOptions(), lessons.look)
    return lessons


def lessons_recipe(folder: Path) -> Recipe:
    return load_recipe(folder / "recipe.yaml")


@pytest.mark.claim("C579")
def test_what_teaches_nothing_is_refused_before_it_is_sealed(tmp_path: Path) -> None:
    recipe = lessons_recipe(desk(tmp_path, [LONG] * 4))
    path = tmp_path / "rows.jsonl"
    with pytest.raises(DataInvalid, check=carries(check="records")):
        judge_data(recipe, tmp_path, "hospital-a", "records", path, SealOptions())
    path.write_text(json.dumps(PAIRED[0]) + "\n")
    found = judge_data(recipe, tmp_path, "hospital-a", "records", path, SealOptions())
    assert found.lessons.tally.trained == len(found.first) == 1


def test_of_very_large_data_the_search_for_a_lesson_ends(tmp_path: Path) -> None:
    folder = desk(tmp_path, [LONG] * 400)
    some = judged(folder, patience=1000)
    assert some.gave_up
    assert some.tally.records < 400
    some.require("hospital-a", "records")  # a later record may train
    with pytest.raises(DataInvalid):
        judged(folder).require("hospital-a", "records")
