"""What ``recipe check`` says of what the first records leave to learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bad_data import LONG, PAIRED, desk
from carrying import carries
from sealing_world import sealed_folder
from training_world import source_of
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.cli.learnable_records import FirstLessons, is_countable, judge_data
from sealtrain.errors import DataInvalid
from sealtrain.owner.data_fitness import read_data
from sealtrain.recipe.conversations import read_rows
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.schema import load_recipe
from sealtrain.sealing.sealer import SealOptions
from sealtrain.training.data.stream import read_all

pytestmark = pytest.mark.claim("C575")


def check(folder: Path) -> tuple[int, dict[str, Any]]:
    records = f"hospital-a.records={folder / 'rows.jsonl'}"
    words = ["recipe", "check", str(folder / "recipe.yaml"), "--records", records, "--json"]
    done = CliRunner().invoke(app, words)
    return done.exit_code, json.loads(done.stdout)


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


def lessons_recipe(folder: Path) -> PhaseRecipe:
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


def rated(prompt: str, *, good: bool) -> dict[str, Any]:
    return {"prompt": prompt, "completion": "b", "label": good}


RATED: dict[str, Any] = {
    "phase": "dpo",
    "columns": {"prompt": "prompt", "completion": "completion", "label": "label"},
    "trainer": {"loss_type": "kto", "per_device_train_batch_size": 2},
}


def check_two(
    folder: Path,
    first: list[dict[str, Any]],
    second: list[dict[str, Any]] | None,
    recipe: dict[str, Any] = RATED,
) -> Any:
    """Records of two hospitals, of the second only where they are given."""
    desk(
        folder,
        first,
        **recipe,
        datasets=[
            {"owner": owner, "name": "records", "role": "train"}
            for owner in ("hospital-a", "hospital-b")
        ],
    )
    words = ["recipe", "check", str(folder / "recipe.yaml"), "--json"]
    words += ["--records", f"hospital-a.records={folder / 'rows.jsonl'}"]
    if second is not None:
        path = folder / "others.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in second))
        words += ["--records", f"hospital-b.records={path}"]
    done = CliRunner().invoke(app, words)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.claim("C584")
def test_two_owners_may_have_one_kind_of_answer_each_and_not_one_together(tmp_path: Path) -> None:
    good, bad = [rated("a", good=True)] * 3, [rated("a", good=False)] * 3
    ended, said = check_two(tmp_path, good, bad)
    assert (ended, "answers of both kinds" in said["checked"]) == (0, True)
    ended, said = check_two(tmp_path, good, good)
    [wrong] = said["wrong"]
    assert (ended, wrong["code"], wrong["about"]) == (
        5,
        "validation-failed",
        "answers of both kinds",
    )
    # Those of the other kind are longer than what is learned.
    ended, said = check_two(tmp_path, good, [*good, rated("a" * 99, good=False)])
    assert [fault["about"] for fault in said["wrong"]] == ["answers of both kinds"]


@pytest.mark.claim("C584")
def test_whether_owners_have_both_kinds_together_one_of_them_cannot_tell(tmp_path: Path) -> None:
    ended, said = check_two(tmp_path, [rated("a", good=True)] * 3, None)
    assert ended == 0
    assert "answers of both kinds" not in said["checked"]
    assert any(line.startswith("answers of both kinds") for line in said["not_checked"])


@pytest.mark.claim("C521")
def test_tool_calls_of_two_owners_have_one_type_where_they_have_one_name(tmp_path: Path) -> None:
    def calls(**given: float) -> list[dict[str, Any]]:
        call = {"type": "function", "function": {"name": "dose", "arguments": given}}
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [{"messages": [{"role": "user", "content": "a"}, turn]}] * 2

    template = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    recipe = {
        "columns": {"messages": "messages"},
        "tokenizer": {"chat_template": template},
        "trainer": {"max_length": 64},
    }
    ended, said = check_two(tmp_path, calls(mg=1), calls(ml=0.5), recipe)
    assert (ended, said["wrong"]) == (0, [])
    ended, said = check_two(tmp_path, calls(mg=1), calls(mg=0.5), recipe)
    [wrong] = said["wrong"]
    assert (ended, wrong["code"], wrong["owner"]) == (5, "schema-mismatch", "hospital-a")


@pytest.mark.claim("C521")
@pytest.mark.parametrize("nothing", [None, [], "absent"])
@pytest.mark.parametrize("first", ["silent", "calling"])
def test_an_owner_without_calls_fits_one_with_calls_at_the_desk_and_in_the_guest(
    tmp_path: Path, nothing: Any, first: str
) -> None:
    def asks(**more: Any) -> list[dict[str, Any]]:
        turn = {"role": "assistant", "content": "b", **more}
        return [{"messages": [{"role": "user", "content": "a"}, turn]}] * 2

    call = {"type": "function", "function": {"name": "dose", "arguments": {}}}
    silent = asks() if nothing == "absent" else asks(tool_calls=nothing)
    pair = [silent, asks(tool_calls=[call])]
    recipe = {
        "columns": {"messages": "messages"},
        "tokenizer": {"chat_template": "{% for m in messages %}{{ m | tojson }}{% endfor %}"},
        "trainer": {"max_length": 64},
    }
    ended, said = check_two(tmp_path, *(pair if first == "silent" else pair[::-1]), recipe)
    assert (ended, said["wrong"]) == (0, [])
    read = []
    sources = []
    for name in ("rows", "others"):
        sealed = sealed_folder(tmp_path / f"{name}.jsonl", tmp_path / name).open()
        sources.append(source_of(sealed, owner=name))
    for batch in read_all(sources, ["messages"]):
        read += read_rows(batch)
    expected = [
        {key: value for key, value in row["messages"][1].items() if value is not None}
        for rows in (pair if first == "silent" else pair[::-1])
        for row in rows
    ]
    assert [row["messages"][1] for row in read] == expected


@pytest.mark.claim("C521")
def test_texts_of_one_owner_beside_conversations_of_another_are_said_at_the_desk(
    tmp_path: Path,
) -> None:
    texts = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2
    turns = [{name: [{"role": "user", "content": text}] for name, text in texts[0].items()}] * 2
    recipe = {
        "phase": "dpo",
        "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
        "tokenizer": {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        "trainer": {"max_length": 64},
    }
    ended, said = check_two(tmp_path, texts, turns, recipe)
    assert (ended, [wrong["code"] for wrong in said["wrong"]]) == (5, ["schema-mismatch"])


@pytest.mark.parametrize("at", [0, 3, 250])
def test_a_record_of_megabytes_ends_the_count_and_is_not_shown_as_tokens(
    tmp_path: Path, at: int
) -> None:
    """15 MB of text took minutes and gigabytes; what comes before it may teach nothing."""
    rows = [LONG] * at + [{"prompt": "x" * (3 << 20), "completion": " yes"}] + [LONG] * 9
    ended, said = check(desk(tmp_path, rows))
    assert (ended, said["fits"]) == (0, True)
    assert [left for left in said["not_checked"] if "hospital-a.records" in left]
    counted = said.get("records", {}).get("hospital-a.records", {"records": 0})
    assert counted["records"] <= at
    assert at > 5 or not said.get("shown")


def test_records_are_short_enough_for_a_desk_by_all_their_texts() -> None:
    assert is_countable({"prompt": "x" * 1000, "n": 1, "l": [None, 2.5, b"x"]})
    part = "x" * (1 << 20)
    for long in (
        {"a": part, "b": part},
        {"m": [{"content": part * 2}]},
        {"i": (part.encode(),) * 2},
    ):
        assert not is_countable(long)
