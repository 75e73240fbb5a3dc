"""In-toto statements: what is written can be read by others, and nothing loose is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid
from sealtrain.signing import statement
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.statement import Subject

TYPE = "https://example.com/predicate/v1"
SUBJECTS = (
    Subject(name="model.safetensors", sha256="ab" * 32),
    Subject(name="a/b", sha256="0" * 64),
)
GOOD: dict[str, Any] = json.loads(statement.build(SUBJECTS, TYPE, {"steps": 3}))


def test_a_statement_has_the_fields_of_the_specification() -> None:
    assert GOOD == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "model.safetensors", "digest": {"sha256": "ab" * 32}},
            {"name": "a/b", "digest": {"sha256": "0" * 64}},
        ],
        "predicateType": TYPE,
        "predicate": {"steps": 3},
    }


def test_what_is_built_is_parsed_again_in_its_order() -> None:
    read = statement.parse(statement.build(SUBJECTS, TYPE, {"steps": 3}), TYPE)
    assert read.subjects == SUBJECTS
    assert read.predicate == {"steps": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "https://example.com/predicate/v2"},
        {"predicateType": 1},
        {"subject": []},
        {"subject": {}},
        {"subject": [{"name": "", "digest": {"sha256": "0" * 64}}]},
        {"subject": [{"name": "a", "digest": {"sha256": "0" * 63}}]},
        {"subject": [{"name": "a", "digest": {"sha256": "A" * 64}}]},
        {"subject": [{"name": "a", "digest": {"sha1": "0" * 40}}]},
        {"subject": [{"name": "a", "digest": {"sha256": "0" * 64, "sha512": "0" * 128}}]},
        {"subject": [{"name": "a", "digest": {"sha256": "0" * 64}, "uri": "x"}]},
        {"subject": [{"name": "a", "digest": {"sha256": "0" * 64}}] * 2},
        {"subject": ["a"]},
        {"predicate": []},
        {"predicate": None},
        {"extra": 1},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_a_statement_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StatementInvalid):
        statement.parse(canonical_json({**GOOD, **change}), TYPE)


def test_a_missing_field_is_refused() -> None:
    for field in GOOD:
        rest = {key: value for key, value in GOOD.items() if key != field}
        with pytest.raises(StatementInvalid):
            statement.parse(canonical_json(rest), TYPE)


def test_another_spelling_is_refused() -> None:
    with pytest.raises(StatementInvalid):
        statement.parse(json.dumps(GOOD).encode(), TYPE)


def test_nothing_is_built_that_would_not_be_read() -> None:
    with pytest.raises(StatementInvalid):
        statement.build([], TYPE, {})
    with pytest.raises(StatementInvalid):
        statement.build([Subject(name="a", sha256="short")], TYPE, {})
    with pytest.raises(DataInvalid):
        statement.build(SUBJECTS, TYPE, {"loss": float("nan")})
    with pytest.raises(DataInvalid):
        statement.build(SUBJECTS, TYPE, {"loss": 2**60})
