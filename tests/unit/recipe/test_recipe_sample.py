"""A sample's columns propose a phase; what does not fit is refused by the names of its columns."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from carrying import carries

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.proposal import propose, similar_labels
from sealtrain.recipe.sample import read_sample
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.tabular.delimited import header, infer_schema


def jsonl(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "sample.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("records", "phase", "columns", "labels"),
    [
        ([{"prompt": "a", "completion": "b"}], "sft", {"prompt": "prompt",
          "completion": "completion"}, ()),
        ([{"Question": "a", "Answer": "b"}], "sft",
         {"prompt": "Question", "completion": "Answer"}, ()),
        ([{"messages": [{"role": "user", "content": "x"}]}], "sft", {"messages": "messages"}, ()),
        (
            [{"prompt": "a", "chosen": "b", "rejected": "c"}],
            "dpo",
            {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
            (),
        ),
        (
            [{"anchor": "a", "positive": "b"}],
            "embed",
            {"anchor": "anchor", "positive": "positive"},
            (),
        ),
        ([{"text": "a"}], "cpt", {"text": "text"}, ()),
        (
            [{"letter": "x", "label": "soon"}, {"letter": "y", "label": "late"}],
            "classify",
            {"text": "letter", "label": "label"},
            ("late", "soon"),
        ),
        (
            [{"a": 1.5, "b": 2, "diagnosis": 0}, {"a": 2.5, "b": 3, "diagnosis": 1}],
            "classify",
            {"features": ("a", "b"), "label": "diagnosis"},
            ("0", "1"),
        ),
    ],
)  # fmt: skip
def test_columns_propose_a_phase(
    tmp_path: Path,
    records: list[dict[str, Any]],
    phase: str,
    columns: dict[str, Any],
    labels: tuple[str, ...],
) -> None:
    found = propose(read_sample(jsonl(tmp_path, *records)))
    assert (found.phase, dict(found.columns), found.labels) == (phase, columns, labels)


def test_csv_and_parquet_give_the_same_as_jsonl(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffx,y\n1,0\n2.5,1\n")
    pq.write_table(pa.table({"x": [1.0, 2.5], "y": [0, 1]}), tmp_path / "a.parquet")
    of_csv, of_parquet = (
        propose(read_sample(tmp_path / f"a.{kind}")) for kind in ("csv", "parquet")
    )
    assert of_csv == of_parquet
    assert of_csv.labels == ("0", "1")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "x;y\n1;0\n2.5;1\n"), ("a.tsv", "x\ty\n1\t0\n2.5\t1\n")],
)
def test_fields_are_separated_as_in_sealing(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    for sample in (read_sample(tmp_path / name), read_sample(tmp_path / f"{name}.gz")):
        assert sample.columns == ("x", "y")
        assert propose(sample).labels == ("0", "1")


def test_a_phase_that_was_asked_for_wins_or_is_refused(tmp_path: Path) -> None:
    sample = read_sample(jsonl(tmp_path, {"text": "a", "prompt": "b", "completion": "c"}))
    assert propose(sample).phase == "sft"
    assert propose(sample, "cpt").phase == "cpt"
    for phase in ("dpo", "rlhf", ""):
        with pytest.raises(UsageError):
            propose(sample, phase)


@pytest.mark.parametrize("phase", [None, "classify"])
def test_columns_that_no_phase_reads_together_are_named(tmp_path: Path, phase: str | None) -> None:
    records = [{"text": "a", "age": 3, "label": name} for name in ("x", "y")]
    sample = read_sample(jsonl(tmp_path, *records))
    with pytest.raises(UsageError) as caught:
        propose(sample, phase, {"text": "text", "label": "label", "features": ("age",)})
    assert "--feature" in str(caught.value.got)
    assert "--feature and --label" in str(caught.value.expected)
    assert "--chosen" not in str(caught.value.expected)  # init has no such option


@pytest.mark.parametrize(
    ("cells", "record"),
    [
        pytest.param(["1", "12 %"], 2, id="percentage"),
        pytest.param(["1", "2", "1,234.50"], 3, id="thousands"),
        pytest.param(["3 kg"], 1, id="unit"),
        pytest.param(["1", "Total"], 2, id="totals"),
        pytest.param(["2025-11-03", "04.11.2025"], 2, id="dates"),
        pytest.param(["1.5", "1,5"], 2, id="decimals"),
    ],
)
def test_a_feature_that_is_none_is_refused_by_file_column_and_record(
    tmp_path: Path, cells: list[str], record: int
) -> None:
    path = tmp_path / "visits.csv"
    rows = "".join(f'"{cell}";{number % 2}\n' for number, cell in enumerate([*cells, "7"]))
    path.write_text("share;label\n" + rows)
    sample = read_sample(path)
    with pytest.raises(UsageError, check=carries(check="--feature")) as caught:
        propose(sample, named={"features": ("share",), "label": "label"})
    told = str(caught.value.got)
    assert told.startswith(f"visits.csv: record {record} ")
    assert "column share" in told
    assert caught.value.hint
    assert not any(cell in str(caught.value) for cell in cells if len(cell) > 3)


@pytest.mark.parametrize(
    ("text", "row"),
    [("x,y\n1,2\n1,2,3\n", 3), ("Title\nx,y\n1,2\n", 2), ('x,y\n1,2\n"3,4\n5,6\n', 3)],
)
def test_a_row_that_does_not_fit_is_named_as_sealing_names_it(
    tmp_path: Path, text: str, row: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    for read in (read_sample, infer_schema):
        with pytest.raises(RecordInvalid, check=carries(check="record")) as caught:
            read(path)
        assert f"row {row}" in str(caught.value)


def test_columns_between_bars_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(" Text | Label \nx|1\ny|0\n")
    assert propose(read_sample(path), named={"text": "text"}).labels == ("0", "1")
    assert infer_schema(path).names == [" Text ", " Label "]


@pytest.mark.parametrize(
    ("name", "head", "row"),
    [
        ("a.csv", "text,label\n", "complaint,{}\n"),
        ("a.jsonl", "", '{{"text": "a", "label": {}}}\n'),
    ],
)
def test_no_more_of_a_long_file_is_read_than_its_first_records(
    tmp_path: Path, name: str, head: str, row: str
) -> None:
    """Behind them is a hole of 10 GB, whose zeros are no record."""
    path = tmp_path / name
    path.write_text(head + "".join(row.format(number % 2) for number in range(200_000)))
    os.truncate(path, 10 * 10**9)
    sample = read_sample(path)
    assert sample.records == 10_000
    assert propose(sample).labels == ("0", "1")


def test_labels_that_differ_by_case_or_spaces_are_named() -> None:
    assert similar_labels(("YES ", "Yes", "no", "yes")) == [("YES ", "Yes", "yes")]
    assert similar_labels(("a", "b")) == []


def test_a_label_with_many_values_is_no_class(tmp_path: Path) -> None:
    records = [{"a": n, "label": f"patient-{n}"} for n in range(30)]
    with pytest.raises(UsageError) as caught:
        propose(read_sample(jsonl(tmp_path, *records)))
    assert "patient" not in str(caught.value)
    assert caught.value.got == "a, label"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", ""),
        ("a.csv", "x,y\n"),
        ("a.csv", 'x,y\n"1,2\n'),
        ("a.csv", "x,y\n1,2,3\n"),
        ("a.csv", "x,y\n1\n"),
        ("a.jsonl", "not json\n"),
        ("a.jsonl", "[1]\n"),
        ("a.jsonl", "[" * 100_000 + "\n"),
        ("a.parquet", "not parquet"),
        ("a.xlsx", "x"),
        ("a", "x"),
    ],
)
def test_what_cannot_be_read_is_refused_without_its_content(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataInvalid) as caught:
        read_sample(tmp_path / name)
    assert "not json" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name in ("none.csv", "folder.csv"):
        with pytest.raises(DataInvalid):
            read_sample(tmp_path / name)


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        ('age,"crp\n(mg/l)",label', "crp"),
        ("age,\ufeffcrp,label", "crp"),
        (f"age,{'c' * 129},label", "c"),
        ("age, ,label", " "),
        ("age,cr\u202ep,label", "cr"),
    ],
)
def test_a_name_that_no_recipe_holds_is_refused_by_its_column(
    tmp_path: Path, head: str, fault: str
) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(head + "\n1,2,a\n3,4,b\n", "utf-8")
    with pytest.raises(SchemaMismatch, check=carries(check="schema")) as caught:
        propose(read_sample(path))
    assert "visits.csv" in str(caught.value)
    assert "column 2" in str(caught.value)
    assert fault in str(caught.value.got)


@pytest.mark.parametrize(
    ("cell", "told"),
    [("1,5", "crp"), ("2024-01-05", "crp"), ("yes", "crp"), ("unknown", "crp")],
)
def test_the_column_that_keeps_a_table_from_being_numbers_is_named(
    tmp_path: Path, cell: str, told: str
) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(f"age;crp;label\n1;{cell};a\n3;{cell};b\n")
    with pytest.raises(UsageError) as caught:
        propose(read_sample(path), named={"label": "label"})
    assert told in str(caught.value.hint)
    assert "--feature" in str(caught.value.hint)


def test_booleans_are_features_and_mixed_with_numbers_they_are_not(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("a,b,label\ntrue,1,x\nFalse,2,y\n")
    assert propose(read_sample(path)).columns["features"] == ("a", "b")
    path.write_text("a,b,label\ntrue,1,x\n3,2,y\n")
    with pytest.raises(UsageError):
        propose(read_sample(path))
    typed = jsonl(tmp_path, {"a": True, "label": "x"}, {"a": False, "label": "y"})
    assert propose(read_sample(typed)).columns["features"] == ("a",)


def test_numbers_that_may_mean_something_else_are_seen(tmp_path: Path) -> None:
    rows = "".join(
        f"1.{100 + at},{at},{999 if at % 3 else at},{-1 if at % 3 else at},{at - 5},{at % 2}\n"
        for at in range(9)
    )
    path = tmp_path / "visits.csv"
    path.write_text("price,age,score,stage,change,label\n" + rows)
    seen = read_sample(path)
    assert seen.grouped == {"price"}
    assert seen.stand_ins == {"score": ("999",), "stage": ("-1",)}


def test_labels_of_one_number_are_named_as_alike() -> None:
    assert similar_labels(("1", "1.0", "0", ' "0"')) == [("1", "1.0"), ("0", ' "0"')]


@pytest.mark.parametrize(
    ("name", "data", "record"),
    [
        ("a.csv", "text,label\nGr\u00f6\u00dfe,1\n".encode("cp1252"), None),
        ("a.csv", b"\x1f\x8b\x08\x00" + bytes(40), None),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b",}\n', 2),
        ("a.jsonl", b"{\n", 1),
        ("a.jsonl", b"[1]\n", 1),
        ("a.jsonl", '{"text": "\u00e4"}\n'.encode("cp1252"), 1),
        ("a.json", b'[{"text": "a"}, 3]', 2),
        ("a.parquet", b"PAR1" + bytes(30) + b"PAR1", None),
    ],
)
def test_a_sample_is_refused_as_sealing_refuses_it(
    tmp_path: Path, name: str, data: bytes, record: int | None
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(RecordInvalid) as caught:
        read_sample(path)
    assert caught.value.hint
    assert record is None or f"record {record} " in str(caught.value)


def test_an_array_of_records_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "a", "label": name} for name in ("x", "y")], indent=1))
    assert propose(read_sample(path)).labels == ("x", "y")


def test_many_columns_take_no_time_of_their_square(tmp_path: Path) -> None:
    """Each name was compared with each other: minutes for a table of a million columns."""
    path = tmp_path / "wide.csv"
    names = [f"c{at}" for at in range(200_000)]
    path.write_text(",".join(names) + "\n")
    assert header(path) == (names, ",")
    path.write_text(",".join([*names, "c7"]) + "\n")
    with pytest.raises(SchemaMismatch, check=carries(check="schema", column="c7")):
        header(path)


def test_one_column_in_two_roles_is_refused(tmp_path: Path) -> None:
    sample = read_sample(jsonl(tmp_path, *({"text": name} for name in ("x", "y"))))
    with pytest.raises(UsageError, check=carries(check="--label")):
        propose(sample, named={"text": "text", "label": "text"})


def test_a_file_without_the_usual_separators_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age~label\n1~x\n2~y\n")
    with pytest.raises(UsageError, check=carries(check="--label", got="age~label")):
        propose(read_sample(path), named={"label": "label"})
