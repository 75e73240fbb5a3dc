"""Rules for data: each one holds or breaks as counted by hand; reports blur and conceal."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from carrying import carries
from training_world import OWNERS, PlainDataset, records, sft

from sealtrain.errors import SealtrainError, UsageError
from sealtrain.recipe.errors import RecipeInvalid, ValidationFailed
from sealtrain.recipe.schema import parse_recipe
from sealtrain.recipe.validation import Validation
from sealtrain.training.data.sources import Source
from sealtrain.training.data.validation.check import check
from sealtrain.training.data.validation.measure import measure
from sealtrain.training.data.validation.outcome import list_broken_rules, report
from sealtrain.training.data.validation.personal_data import finder
from sealtrain.training.data.validation.repeats import Repeats

CANARY = "canary-6f1e9c"


def rules(**given: Any) -> Validation:
    return Validation.model_validate_json(json.dumps(given))


def source(columns: dict[str, Any], owner: str = OWNERS[0], role: str = "train") -> Source:
    batch = pa.RecordBatch.from_pydict(columns)
    half = batch.num_rows // 2
    dataset = PlainDataset([batch.slice(0, half), batch.slice(half)])
    return Source(role=role, owner=owner, name="records", weight=1.0, dataset=dataset)


def broken(given: Validation, *sources: Source, **options: Any) -> list[str]:
    return list_broken_rules(measure(given, sources, **options))


@pytest.mark.parametrize(
    ("rule", "column", "part"),
    [
        ({"type": "integer"}, ["a", "b"], "type"),
        ({"type": "text"}, [1, 2], "type"),
        ({"max_nulls": 0.4}, [None, "b"], "max_nulls"),
        ({"min": 0}, [-1, 5], "min"),
        ({"max": 4.5}, [4.0, 5.0], "max"),
        ({"max": 4.5}, [4.0, float("nan")], "max"),
        ({"min": 1}, ["a", "b"], "min"),
        ({"min_length": 2}, ["ab", "ü"], "min_length"),
        ({"max_length": 2}, ["ab", "abc"], "max_length"),
        ({"max_length": 1}, [[1], [1, 2]], "max_length"),
        ({"max_length": 1}, [b"a", b"ab"], "max_length"),
        ({"values": ["yes", "no"]}, ["yes", "maybe"], "values"),
        ({"values": ["1"]}, [1, 2], "values"),
        ({"max_tokens": 2}, ["a b", "a b c"], "max_tokens"),
    ],
)
def test_a_broken_column_rule_is_named(rule: dict[str, Any], column: list[Any], part: str) -> None:
    options = {"count_tokens": lambda text: len(text.split())}
    given = rules(columns={"x": rule})
    assert broken(given, source({"x": column}), **options) == [
        f"{OWNERS[0]}.records: columns.x.{part}"
    ]
    assert broken(given, source({"x": [column[0]] * 2}), **options) == (
        [] if part not in ("type", "max_nulls") and rule != {"min": 1} and column[0] != -1 else
        [f"{OWNERS[0]}.records: columns.x.{part}"]
    )  # fmt: skip


def test_a_missing_column_is_named() -> None:
    assert broken(rules(columns={"y": {}}), source({"x": [1]})) == [
        f"{OWNERS[0]}.records: column y is missing"
    ]


def test_integers_are_numbers() -> None:
    assert broken(rules(columns={"x": {"type": "number"}}), source({"x": [1, 2]})) == []


def test_repeats_within_and_across_owners_are_counted() -> None:
    first = source({"x": ["a", "b", "b", "c"], "n": [1, 2, 2, 3]})
    second = source({"x": ["c", "d", "e", "f"], "n": [3.0, 4.0, 5.0, 6.0]}, OWNERS[1])
    findings = measure(
        rules(duplicates={"columns": ["x", "n"], "within_owner": 0.2, "across_owners": 0.25}),
        [first, second],
    )
    assert findings.repeats.within(0).value == 0.25
    assert findings.repeats.across(0).value == 0.25
    assert findings.repeats.within(1).value == 0
    assert findings.repeats.across(1).value == 0.25
    assert list_broken_rules(findings) == [f"{OWNERS[0]}: duplicates.within_owner"]


def test_memory_for_repeats_is_bounded_and_shares_stay_right() -> None:
    def counted(most: int) -> tuple[Repeats, int]:
        tracemalloc.start()
        repeats = Repeats(most=most)
        for number in range(20_000):
            repeats.add(0, b"%d" % number)
            if number % 4 == 0:
                repeats.add(0, b"%d" % number)
            if number % 2 == 0:
                repeats.add(1, b"%d" % number)
        taken, _peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return repeats, taken

    (repeats, taken), (whole, every) = counted(1000), counted(20_000)
    assert not whole.sampled
    assert repeats.sampled
    assert taken < every / 4
    assert abs(repeats.within(0).value - 0.2) < 0.06
    assert abs(repeats.across(0).value - 0.6) < 0.06


def test_labels_are_weighed_over_all_training_data() -> None:
    given = rules(label={"column": "y", "values": ["a", "b"], "min_share": 0.25})
    mostly = source({"y": ["a"] * 30 + ["b"] * 2})
    assert broken(given, mostly) == ["label.min_share: b"]
    assert broken(given, mostly, source({"y": ["b"] * 20}, OWNERS[1])) == []
    assert broken(given, mostly, source({"y": ["b"] * 20}, OWNERS[1], "test")) != []
    assert "label.values" in broken(given, source({"y": ["a", "b", "c", "b"]}))


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("write to jane.doe@example.org today", {"email"}),
        ("card 4111 1111 1111 1111", {"credit-card"}),
        ("card 4111 1111 1111 1112", set()),
        ("IBAN GB82 WEST 1234 5698 7654 32", {"iban"}),
        ("IBAN GB83 WEST 1234 5698 7654 32", set()),
        ("from 192.168.17.4", {"ip-address"}),
        ("version 1.2.3.4567", set()),
        ("ssn 536-90-4399", {"us-ssn"}),
        ("NHS 943 476 5919", {"nhs-number", "phone"}),  # it could be either
        ("call +44 20 7946 0958", {"phone"}),
        ("call (650) 253-0000", {"phone"}),
        ("mean 512.4 over 30 cells, radius 12.5 at 17:45", set()),
        ("", set()),
    ],
)
def test_personal_data_is_found_by_form_and_check_digit(text: str, kinds: set[str]) -> None:
    find = finder(
        ["credit-card", "email", "iban", "ip-address", "nhs-number", "phone", "us-ssn"],
        ["US", "GB"],
    )
    assert set(find(text)) == kinds


def test_a_share_of_records_with_personal_data_breaks_the_rule() -> None:
    given = rules(personal={"columns": ["x"], "kinds": ["email"], "max_share": 0.1})
    clean = ["nothing here"] * 20
    assert broken(given, source({"x": clean})) == []
    assert broken(given, source({"x": [*clean, *["a@b.example"] * 3]})) == [
        f"{OWNERS[0]}.records: personal.max_share"
    ]


def test_small_counts_and_other_labels_are_not_in_the_report() -> None:
    given = rules(
        label={"column": "y", "values": ["a", "b"], "min_share": 0},
        columns={"y": {"max_nulls": 1}, "x": {}},
        floor=10,
    )
    many = source(
        {"y": ["a"] * 57 + ["b"] * 9 + [CANARY] * 4, "x": [CANARY * n for n in range(70)]}
    )
    said = report(measure(given, [many]))
    assert said["labels"] == {"a": 50, "b": None}
    assert said["datasets"][0]["records"] == 70
    assert said["datasets"][0]["columns"]["y"]["nulls"] is None
    assert said["datasets"][0]["columns"]["x"]["lengths"] is None  # 70 < 10 / 5 %
    assert CANARY not in json.dumps(said)


@pytest.mark.claim("C21")
@pytest.mark.parametrize("fault", ["values", "type", "personal", "label", "duplicates", "crash"])
def test_failing_records_show_in_no_report_error_or_output(
    fault: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = f"{CANARY}@example.org"
    given = rules(
        columns={"x": {"type": "integer" if fault == "type" else "text", "values": ["fine"]}},
        label={"column": "x", "values": ["fine", "good"], "min_share": 0},
        personal={"columns": ["x"], "max_share": 0},
        duplicates={"columns": ["x"], "within_owner": 0, "across_owners": 0},
    )
    bad = source({"x": [secret] * 40 + ["fine"] * 40})
    if fault == "crash":

        def crash(_: int) -> None:
            raise ValueError(secret)

        bad.dataset.batch = crash  # type: ignore[method-assign]
    reports: list[dict[str, Any]] = []
    with pytest.raises(ValidationFailed) as caught:
        check(given, [bad], publish=reports.append)
    assert caught.value.exit_code == 5
    assert bool(reports) == (fault != "crash")
    assert caught.value.__cause__ is None
    printed = capsys.readouterr()
    said = [json.dumps(reports), str(caught.value.to_dict()), repr(caught.value), caplog.text]
    assert not any(CANARY in text for text in [*said, printed.out, printed.err])


def test_a_recipe_carries_its_rules() -> None:
    document = sft().to_dict() | {"validation": {"columns": {"prompt": {"type": "text"}}}}
    found = parse_recipe(document).validation
    assert found is not None
    assert found.floor == 10
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="validation")):
        parse_recipe(document | {"validation": {"floor": 3}})
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", field="validation.columns.x")):
        parse_recipe(document | {"validation": {"columns": {"x": {"min": 2, "max": 1}}}})


def test_the_command_tries_plaintext_at_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sealtrain.cli.validate import validate

    document = sft().to_dict() | {
        "validation": {
            "columns": {"question": {"type": "text", "max_length": 200}},
            "duplicates": {"columns": ["question"], "within_owner": 0, "across_owners": 0},
        }
    }
    document["datasets"][0]["columns"] = {"prompt": "question"}
    recipe, data = tmp_path / "recipe.yaml", tmp_path / "rows.jsonl"
    recipe.write_text(json.dumps(document))
    rows = records(30, "home")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    validate(recipe, [f"{OWNERS[0]}.records={data}"], as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["broken"] == []
    assert said["datasets"][0]["records"] == 30
    data.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    with pytest.raises(
        ValidationFailed,
        check=carries(check="validation", got="hospital-a: duplicates.within_owner"),
    ):
        validate(recipe, [f"{OWNERS[0]}.records={data}"])
    assert CANARY not in capsys.readouterr().out


def test_the_command_reads_decimals_and_dates_as_seal_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sealtrain.cli.validate import validate

    ready = Path(__file__).resolve().parents[4] / "recipes/classify-tabular.yaml"
    document = yaml.safe_load(ready.read_text("utf-8"))
    [first, *_] = document["datasets"]
    document["trainer"]["learning_rate"] = 0.003  # a text to this parser
    document["columns"] = {"features": ["size", "admission"], "label": "outcome"}
    document["validation"] = {
        "columns": {"size": {"min": 1.0, "max": 2.0}, "admission": {"min": 20000, "max": 20100}}
    }
    recipe, data = tmp_path / "recipe.yaml", tmp_path / "rows.csv"
    recipe.write_text(json.dumps(document))
    label = document["labels"][0]
    data.write_text(f'size,admission,outcome\n"1,5",04/10/2024,{label}\n"1,7",05/10/2024,{label}\n')
    words = [f"{first['owner']}.{first['name']}={data}"]
    validate(recipe, words, decimals="comma", dates=["admission=DD/MM/YYYY"], as_json=True)
    assert json.loads(capsys.readouterr().out)["broken"] == []
    with pytest.raises(SealtrainError):
        validate(recipe, words, decimals="point", dates=["admission=DD/MM/YYYY"])
    for given, option in (
        ({"decimals": "dot"}, "--decimals"),
        ({"dates": ["admission"]}, "--dates"),
    ):
        with pytest.raises(UsageError, check=carries(check=option)):
            validate(recipe, words, **given)
