"""An owner's records are held against the recipe: columns, types, missing values, labels."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import SealtrainError, UsageError
from sealtrain.recipe.errors import DatasetUnknown, ValidationFailed
from sealtrain.recipe.records import RecordCheck, dataset_of
from sealtrain.recipe.schema import parse_recipe
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

CANARY = "740261"

LLAMA = {"config": {"model_type": "llama"}, "init_seed": 1, "tokenizer": {"kind": "bytes"}}
PLAIN = {"config": {"model_type": "llama"}, "init_seed": 1}
STEPS = {"max_steps": 1}
CLASSES = {"phase": "classify", "labels": ["a", "b"]}
WAYS: dict[str, dict[str, Any]] = {
    "sft text": {"columns": {"text": "t"}},
    "sft messages": {"columns": {"messages": "m"}},
    "cpt tokens": {"phase": "cpt", "columns": {"tokens": "ids"}, "model": PLAIN, "peft": None},
    "classify names": CLASSES | {"columns": {"text": "t", "label": "l"}},
    "classify numbers": {
        "phase": "classify",
        "num_labels": 2,
        "columns": {"text": "t", "label": "l"},
    },
    "classify images": (
        CLASSES
        | {"columns": {"image": "i", "label": "l"}, "model": PLAIN, "preparation": {"size": 8}}
    ),
    "classify table": (
        CLASSES | {"columns": {"features": ["x", "y"], "label": "l"}, "model": PLAIN, "peft": None}
    ),
    "dpo": {"phase": "dpo", "columns": {"chosen": "c", "rejected": "r"}},
    "kto": {
        "phase": "dpo",
        "columns": {"prompt": "p", "completion": "c", "label": "l"},
        "trainer": STEPS | {"loss_type": "kto"},
    },
}
"""What a recipe says of each way to train."""

if not COLLECTING:  # an array of Arrow loads pandas
    TEXTS = pa.array(["a", "b"])
    NUMBERS = pa.array([0, 1])
    TURNS = pa.array([[{"role": "user", "content": "a"}]] * 2)
    TOKENS = pa.array([[1, 2], [3]])
    IMAGES = pa.array([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
    FLAGS = pa.array([True, False])
    HALVES = pa.array([0.5, 1.5])
    RECORDS: dict[str, dict[str, pa.Array]] = {
        "sft text": {"t": TEXTS},
        "sft messages": {"m": TURNS},
        "cpt tokens": {"ids": TOKENS},
        "classify names": {"t": TEXTS, "l": TEXTS},
        "classify numbers": {"t": TEXTS, "l": NUMBERS},
        "classify images": {"i": IMAGES, "l": TEXTS},
        "classify table": {"x": HALVES, "y": NUMBERS, "l": TEXTS},
        "dpo": {"c": TURNS, "r": TURNS},
        "kto": {"p": TEXTS, "c": TEXTS, "l": FLAGS},
    }
    """Two records that fit each way."""
    EVERY = {
        "text": TEXTS, "number": NUMBERS, "turns": TURNS, "tokens": TOKENS, "image": IMAGES,
        "flag": FLAGS, "half": HALVES,
    }  # fmt: skip

ALSO = {("number", "flag"), ("half", "number"), ("half", "flag"), ("turns", "text")}
"""What is read in a column of the first kind besides."""


def recipe_of(sft: dict[str, Any], way: str, **more: Any) -> Any:
    base = {"model": LLAMA, "trainer": STEPS, "peft": None}
    data = [{"owner": "hospital-a", "name": "notes", "role": "train"} | more]
    return parse_recipe(sft | base | {"datasets": data} | WAYS[way])


def checked(recipe: Any, columns: dict[str, pa.Array]) -> list[pa.RecordBatch]:
    batch = pa.record_batch(columns)
    check = RecordCheck(recipe, recipe.datasets[0])
    _, batches = check((batch.schema, iter([batch, batch])))
    return list(batches)


@pytest.mark.parametrize("way", WAYS)
def test_records_of_every_phase_pass_unchanged(sft: dict[str, Any], way: str) -> None:
    recipe, columns = recipe_of(sft, way), RECORDS[way]
    batch = pa.record_batch(columns | {"further": TEXTS})
    passed = checked(recipe, columns | {"further": TEXTS})
    assert all(item.equals(batch) for item in passed)
    assert len(passed) == 2


@pytest.mark.parametrize("way", WAYS)
def test_each_column_has_the_type_that_its_phase_reads(sft: dict[str, Any], way: str) -> None:
    recipe, columns = recipe_of(sft, way), RECORDS[way]
    for name, values in columns.items():
        fits = next(kind for kind, value in EVERY.items() if value is values)
        for kind, other in EVERY.items():
            if kind == fits or (fits, kind) in ALSO or (kind, fits) in ALSO:
                continue
            named = name == "l" and "labels" in WAYS[way] and kind in ("number", "flag", "half")
            refused = RecordInvalid if named else SchemaMismatch  # no label is called 0 or true
            with pytest.raises(refused, check=carries(check="columns", owner="hospital-a")):
                checked(recipe, columns | {name: other})


@pytest.mark.parametrize("way", WAYS)
def test_no_column_and_no_value_is_missing(sft: dict[str, Any], way: str) -> None:
    recipe, columns = recipe_of(sft, way), RECORDS[way]
    for name, values in columns.items():
        less = {other: column for other, column in columns.items() if other != name}
        with pytest.raises(SchemaMismatch, check=carries(expected=name)):
            checked(recipe, less | {"further": TEXTS})
        holes = pa.array([values[0].as_py(), None], type=values.type)
        where = carries(owner="hospital-a", dataset="notes", column=name, got="record 2")
        with pytest.raises(RecordInvalid, check=where):
            checked(recipe, columns | {name: holes})


@pytest.mark.parametrize(
    ("way", "labels"),
    [
        ("classify names", ["a", CANARY]),
        ("classify numbers", [0, int(CANARY)]),
    ],
)
def test_a_label_is_one_that_the_recipe_lists(
    sft: dict[str, Any], way: str, labels: list[Any]
) -> None:
    where = carries(dataset="notes", column="l", got="record 2", expected="one of 2 labels")
    with pytest.raises(RecordInvalid, check=where) as caught:
        checked(recipe_of(sft, way), RECORDS[way] | {"l": pa.array(labels)})
    assert CANARY not in str(caught.value.to_dict())


@pytest.mark.claim("C621")
@pytest.mark.parametrize(
    ("labels", "found", "named"),
    [
        (["0", "1"], [1, 0], ["1", "0"]),
        (["0", "1"], [1.0, 0.0], ["1", "0"]),
        (["0", "1"], ["1.0", "0"], ["1", "0"]),
        (["0.0", "1.0"], [1, 0], ["1.0", "0.0"]),
        (["true", "false"], [True, False], ["true", "false"]),
        (["True", "False"], [True, False], ["True", "False"]),
        (["TRUE", "FALSE"], ["true", "False"], ["TRUE", "FALSE"]),
        (["1", "1.0"], [1, 1], ["1", "1"]),
        (["soon", "1"], ["soon", "1"], ["soon", "1"]),
        (
            ["9007199254740992", "9007199254740993"],
            ["9007199254740993.0"] * 2,
            ["9007199254740993"] * 2,
        ),
    ],
)
def test_a_label_that_is_a_number_or_a_boolean_is_the_listed_one(
    sft: dict[str, Any], labels: list[str], found: list[Any], named: list[str]
) -> None:
    changed = recipe_of(sft, "classify names").to_dict() | {"labels": labels}
    check = checked(parse_recipe(changed), {"t": TEXTS, "l": pa.array(found)})
    assert check[0].column("l").to_pylist() == named


@pytest.mark.parametrize(
    "found",
    [
        [1.5, 0],
        ["Urgent", "0"],
        ["", "0"],
        ["01 ", "0"],
        ["nan", "0"],
        ["1e9999999999999999999", "0"],
    ],
)
def test_a_label_that_means_no_listed_one_is_refused(sft: dict[str, Any], found: list[Any]) -> None:
    changed = recipe_of(sft, "classify names").to_dict() | {"labels": ["0", "urgent"]}
    with pytest.raises(RecordInvalid, check=carries(column="l", got="record 1")):
        checked(parse_recipe(changed), {"t": TEXTS, "l": pa.array(found)})


@pytest.mark.claim("C621")
def test_images_of_hugging_face_datasets_are_read_as_their_bytes(sft: dict[str, Any]) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    first, second = (b"\x89PNG\r\n\x1a\n" + rest for rest in (b"a", b"b"))
    images = pa.array([{"bytes": first, "path": "a.png"}, {"bytes": second, "path": None}], kind)
    recipe = recipe_of(sft, "classify images")
    [batch, _] = checked(recipe, {"i": images, "l": TEXTS})
    assert batch.column("i").to_pylist() == [first, second]
    assert batch.schema.field("i").type == pa.binary()
    elsewhere = pa.array([{"bytes": None, "path": "a.png"}] * 2, kind)
    with pytest.raises(RecordInvalid, check=carries(column="i", got="record 1")):
        checked(recipe, {"i": elsewhere, "l": TEXTS})


@pytest.mark.claim("C622")
def test_columns_that_the_recipe_does_not_read_are_told_or_left_out(sft: dict[str, Any]) -> None:
    rules = {"personal": {"columns": ["note"], "max_share": 0.5}, "columns": {"age": {}}}
    recipe = parse_recipe(recipe_of(sft, "sft text").to_dict() | {"validation": rules})
    batch = pa.record_batch({"name": TEXTS, "t": TEXTS, "age": NUMBERS, "note": TEXTS})
    told: list[list[str]] = []
    for columns, names in (("all", batch.schema.names), ("read", ["t", "age", "note"])):
        check = RecordCheck(recipe, recipe.datasets[0], columns=columns, on_unread=told.append)
        schema, batches = check((batch.schema, iter([batch])))
        assert schema.names == names
        assert [batch.schema.names for batch in batches] == [names]
    assert told == [["name"]]


@pytest.mark.parametrize("way", ["sft text", "classify names"])
def test_columns_are_chosen_by_word_and_not_from_a_script(sft: dict[str, Any], way: str) -> None:
    recipe = recipe_of(sft, way)
    with pytest.raises(UsageError, check=carries(check="--columns")):
        RecordCheck(recipe, recipe.datasets[0], columns="some")
    scripted = parse_recipe(recipe.to_dict() | {"scripts": ["mine.py"]})
    with pytest.raises(UsageError, check=carries(check="--columns", expected="all")):
        RecordCheck(scripted, scripted.datasets[0], columns="read")


def test_columns_are_found_under_the_owners_names(sft: dict[str, Any]) -> None:
    recipe = recipe_of(sft, "sft text", columns={"Notiz": "t"})
    assert checked(recipe, {"Notiz": TEXTS})
    with pytest.raises(SchemaMismatch, check=carries(expected="Notiz (in the recipe t)")):
        checked(recipe, {"t": TEXTS})


def test_a_script_reads_other_types_but_no_other_columns(sft: dict[str, Any]) -> None:
    recipe = parse_recipe(recipe_of(sft, "classify names").to_dict() | {"scripts": ["mine.py"]})
    assert checked(recipe, {"t": NUMBERS, "l": HALVES})
    with pytest.raises(SchemaMismatch):
        checked(recipe, {"t": NUMBERS})


@pytest.mark.parametrize(("owner", "name"), [("hospital-a", "other"), ("stranger", "notes")])
def test_only_datasets_of_the_recipe_are_sealed(sft: dict[str, Any], owner: str, name: str) -> None:
    recipe = recipe_of(sft, "sft text")
    assert dataset_of(recipe, "hospital-a", "notes").role == "train"
    with pytest.raises(DatasetUnknown, check=carries(expected="hospital-a/notes")) as caught:
        dataset_of(recipe, owner, name)
    assert isinstance(caught.value, SealtrainError)


def test_data_without_a_record_are_refused_as_that(sft: dict[str, Any]) -> None:
    recipe = recipe_of(sft, "sft text")
    with pytest.raises(RecordInvalid, check=carries(check="records", got="0 records")):
        RecordCheck(recipe, recipe.datasets[0])((pa.schema([]), iter(())))


@pytest.mark.parametrize("flag", [True, False])
def test_unpaired_answers_of_one_kind_are_refused_where_no_other_data_has_the_other_kind(
    sft: dict[str, Any], flag: bool
) -> None:
    same = RECORDS["kto"] | {"l": pa.array([flag, flag])}
    with pytest.raises(ValidationFailed, check=carries(check="columns", owner="hospital-a")):
        checked(recipe_of(sft, "kto"), same)
    two = [
        {"owner": "hospital-a", "name": "notes", "role": "train"},
        {"owner": "hospital-a", "name": "others", "role": "train"},
    ]
    wide = sft | {"model": LLAMA, "trainer": STEPS, "peft": None, "datasets": two} | WAYS["kto"]
    assert len(checked(parse_recipe(wide), same)) == 2
