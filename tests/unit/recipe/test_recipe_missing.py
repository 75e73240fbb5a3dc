"""What a recipe says of missing values: rules for columns, and which of them a run can keep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from training_world import (
    PlainDataset,
    classify,
    document,
    private_classify,
    releasing,
    source_of,
)

from sealtrain.base.models import load_model
from sealtrain.guest.workload.frames import GivenDataset
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.metricnames import find_unmeasured
from sealtrain.recipe.missing import list_learned, missing_values
from sealtrain.recipe.records import RecordCheck
from sealtrain.recipe.schema import parse_recipe
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.columns import Projection

pytestmark = pytest.mark.claim("C626")
RULES: dict[str, Any] = {"size": "median", "spread": "own-category"}
TELLS = {"release_policy": releasing("loss", "missing_1")}


def test_a_recipe_without_rules_has_the_lock_that_it_had() -> None:
    assert "missing" not in classify().to_dict()
    ruled = classify(missing=RULES, **TELLS)
    assert parse_recipe(ruled.to_dict()) == ruled
    assert (list_learned(ruled), find_unmeasured(ruled)) == ({"size": "missing_1"}, [])
    values = missing_values(ruled)
    assert all(isinstance(value, float) and math.isnan(value) for value in values.values())
    constant = classify(missing={"size": {"constant": 3}, "spread": "refuse"})
    assert missing_values(constant) == {"size": 3.0}
    assert find_unmeasured(classify(**TELLS)) == ["missing_1"]


@pytest.mark.parametrize(
    "changed",
    [
        {"missing": {}},
        {"missing": {"size": "mode"}},
        {"missing": {"other": "refuse"}},
        {"missing": {"size": {"constant": "big"}}},
        {"missing": {"size": {"constant": True}}},
        {"missing": {"size": {"constant": 1e31}}},
        {"missing": {"size": {"constant": 1, "x": 1}}},
        {"missing": {"finding": "mean"}},
        {"missing": {"finding": "own-category"}},
        {"missing": {"finding": {"constant": "unknown"}}},
        {"missing": {"size": "mean"}},
        {"missing": {"spread": "mean"}, **TELLS},
        {"missing": {"size": "own-category"}, "scripts": ["mine.py"]},
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid):
        classify(**changed)


def test_what_learns_nothing_from_records_keeps_a_promise_of_privacy() -> None:
    rules = {"size": "own-category", "spread": {"constant": 0}}
    private = private_classify(missing=rules)
    assert private.to_dict()["missing"] == {"size": "own-category", "spread": {"constant": 0.0}}
    policy = private.to_dict()["release_policy"]
    told = policy | {"metrics": [*policy["metrics"], "missing_1"]}
    with pytest.raises(RecipeInvalid):
        private_classify(missing={"size": "mean"}, release_policy=told)


def test_an_evaluation_has_constants_alone() -> None:
    changed = {
        "phase": "evaluate",
        "model": {"path": "model", "tokenizer": None},
        "columns": {"features": ["size"], "label": "finding"},
        "labels": ["benign", "malignant"],
        "datasets": [{"owner": "hospital-a", "name": "held-out", "role": "test"}],
        "release_policy": releasing("accuracy"),
    }
    assert parse_recipe(document(**changed, missing={"size": {"constant": 1}}))
    with pytest.raises(RecipeInvalid):
        parse_recipe(document(**changed, missing={"size": "own-category"}))


def test_an_owner_seals_a_gap_where_the_recipe_has_a_rule() -> None:
    batch = pa.record_batch({"size": [1, None], "spread": [None, 0.5], "finding": ["benign", ""]})
    rules = RULES | {"finding": {"constant": "benign"}}
    recipe = classify(missing=rules, **TELLS)
    check = RecordCheck(recipe, recipe.datasets[0])
    [passed] = check((batch.schema, iter([batch])))[1]
    assert passed.to_pydict() == {
        "size": [1, None], "spread": [None, 0.5], "finding": ["benign", None],
    }  # fmt: skip
    for column, record in (("size", 2), ("spread", 1), ("finding", 2)):
        fewer = {name: rule for name, rule in rules.items() if name != column}
        recipe = classify(missing=fewer, **TELLS)
        check = RecordCheck(recipe, recipe.datasets[0])
        with pytest.raises(RecordInvalid, check=carries(column=column, got=f"record {record}")):
            list(check((batch.schema, iter([batch])))[1])


@pytest.mark.parametrize("ruled", [False, True])
def test_an_owner_is_told_of_numbers_that_are_none_or_infinite(ruled: bool) -> None:
    recipe = classify(missing=RULES, **TELLS) if ruled else classify()
    for number in (math.nan, math.inf):
        batch = pa.record_batch(
            {"size": [1, 2], "spread": [0.5, number], "finding": ["benign"] * 2}
        )
        opened = RecordCheck(recipe, recipe.datasets[0])((batch.schema, iter([batch])))
        if ruled and math.isnan(number):
            assert next(iter(opened[1])).num_rows == 2
            continue
        with pytest.raises(RecordInvalid, check=carries(column="spread", got="record 2")):
            list(opened[1])


def test_an_integer_that_no_float_holds_is_refused_where_gaps_make_floats() -> None:
    recipe = classify(missing=RULES, **TELLS)
    batch = pa.record_batch(
        {"size": [(1 << 53) + 1, None], "spread": [0.5, 1.5], "finding": ["benign"] * 2}
    )
    source = replace(source_of(PlainDataset([batch])), missing=missing_values(recipe))
    with pytest.raises(RecordInvalid, check=carries(column="size")):
        Projection([source]).read(0, 0)


def test_what_the_opener_is_given_of_gaps_comes_back_from_its_frame() -> None:
    missing = {"a": 3, "b": 0.5, "c": "none", "d": None}
    words = {"folder": None, "key": "", "root": "", "owner": "", "name": "", "columns": {}}
    given = load_model(GivenDataset, words | {"missing": missing}, RecordInvalid, "frame")
    assert given.missing == missing


@pytest.mark.parametrize(
    ("constant", "taken"), [(65504, True), (-65504, True), (65505, False), (-1e30, False)]
)
def test_a_constant_beyond_a_column_of_half_precision_is_refused_at_home(
    constant: float, taken: bool
) -> None:
    recipe = classify(missing={"size": {"constant": constant}})
    kinds = {"size": pa.float16(), "spread": pa.float32()}
    names = [*recipe.columns.features, recipe.columns.label]
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
    opened = (schema, iter(()))
    check = RecordCheck(recipe, recipe.datasets[0])
    if taken:
        check(opened)
        return
    with pytest.raises(SchemaMismatch, check=carries(check="columns", column="size")):
        check(opened)


def test_a_column_of_gaps_alone_is_sealed_with_the_type_that_the_recipe_reads() -> None:
    recipe = classify(missing=RULES | {"finding": {"constant": "benign"}}, **TELLS)
    gaps = {"size": pa.nulls(2), "spread": pa.nulls(2), "finding": pa.nulls(2)}
    check = RecordCheck(recipe, recipe.datasets[0])
    batch = pa.record_batch(gaps)
    schema, batches = check((batch.schema, iter([batch])))
    [passed] = batches
    kinds = {"size": pa.float64(), "spread": pa.float64(), "finding": pa.string()}
    assert {field.name: field.type for field in passed.schema} == kinds
    assert {field.name: field.type for field in schema} == kinds
    for column in gaps:
        fewer = {name: rule for name, rule in RULES.items() if name != column}
        if column != "finding":
            fewer["finding"] = {"constant": "benign"}
        check = RecordCheck(classify(missing=fewer, **TELLS), recipe.datasets[0])
        with pytest.raises(SchemaMismatch, check=carries(check="columns")):
            check((batch.schema, iter([batch])))
