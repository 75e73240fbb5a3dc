from __future__ import annotations

import pytest
from carrying import carries

from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.recipe.errors import RecipeInvalid


def parse(text: str | bytes, **limits: int) -> object:
    data = text.encode() if isinstance(text, str) else text
    return parse_yaml(data, error=RecipeInvalid, what="recipe", **limits)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 2e-5", {"a": 2e-5}),
        ("a: 1E3", {"a": 1000.0}),
        ("a: -0.5", {"a": -0.5}),
        ("a: 12", {"a": 12}),
        ("a: no", {"a": "no"}),
        ("a: 0x10", {"a": "0x10"}),
        ("a: 010", {"a": "010"}),
        ("a: 12:30:45", {"a": "12:30:45"}),
        ("a: 2020-01-01", {"a": "2020-01-01"}),
        ("a: .inf", {"a": ".inf"}),
        ("a: '1'", {"a": "1"}),
        ('a: "true"', {"a": "true"}),
        ("a: true", {"a": True}),
        ("a: none", {"a": "none"}),
        ("a: ~\nb:\nc: null", {"a": None, "b": None, "c": None}),
        ("a: [1, {b: c}]\nd: x\n", {"a": [1, {"b": "c"}], "d": "x"}),
        ("'null': 1", {"null": 1}),
        ("", None),
        ("# only a comment", None),
    ],
)
def test_scalars_follow_the_json_rules_of_yaml(text: str, value: object) -> None:
    parsed = parse(text)
    assert parsed == value
    assert repr(parsed) == repr(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3", 3),
        ("a: {b: 1, b: 2}", 1),
        ("a: 1\n'a': 2", 2),
        ("a: &x 1\nb: *x", 1),
        ("a: *x", 1),
        ("a: !!python/object/apply:os.system ['true']", 1),
        ("a: !!str 1", 1),
        ("!!set {a, b}", 1),
        ("a: ! x", 1),
        ("<<: {b: 1}", 1),
        ("? [a, b]\n: 1", 1),
        ("a: 1\n---\nb: 2", 2),
        ("a: 1\n...\nb: 2", 2),
        ("%YAML 1.1\n---\na: 1", 1),
        ("a: [1", 1),
        ("a: 1e999", 1),
        ("a: 1e1000", 1),
        ("a: 9007199254740992", 1),
        (f"a: 0.{'1' * 31}", 1),
        ("a: 1\nd: |\n  x", 2),
        ("a: one\n  two", 2),
        ("null: 1", 1),
        ("1: 1", 1),
        ("a:\tb", 1),
        ("# x\rb: 1", 1),
        ("\n\n# x\u2028b: 1", 3),
        ("a: '\u202e'", 1),
        ("a: \x00", 1),
    ],
)
def test_what_is_not_in_the_subset_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", got=f"line {line}")):
        parse(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="recipe")):
        parse(b"a: \xff")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("a: [\n  b, # c\n  d,\n  ]\n", {"a": ["b", "d"]}),
        ('{"a":{"b":[1,2]},\n"c":"\\u00e9"}', {"a": {"b": [1, 2]}, "c": "é"}),
        ("a:\n- b: c\n  d:\n  - e\n-\n", {"a": [{"b": "c", "d": ["e"]}, None]}),
        ("--- \na: b", {"a": "b"}),
        ("a: it's # so\nb: x#y\nc: x:y\nd: -x", {"a": "it's", "b": "x#y", "c": "x:y", "d": "-x"}),
    ],
)
def test_forms_that_people_write_are_read(text: str, value: object) -> None:
    assert parse(text) == value


def test_length_depth_and_count_are_bounded() -> None:
    with pytest.raises(RecipeInvalid, check=carries(check="recipe", got="4 bytes")):
        parse("a: 1", max_bytes=3)
    with pytest.raises(RecipeInvalid, match=r"\b4\b"):
        parse("[" * 5 + "]" * 5, max_depth=4)
    assert parse("[" * 4 + "]" * 4, max_depth=4) == [[[[]]]]
    with pytest.raises(RecipeInvalid, match=r"\b10\b"):
        parse(str(list(range(10))), max_nodes=10)
    assert parse(str(list(range(9))), max_nodes=10) == list(range(9))


@pytest.mark.parametrize(
    "text", ["7e5", "12", "0", "-1", "1e-7", "no", "true", "null", "", "0x1f", "2026-01-01", "a: b"]
)
def test_what_is_written_reads_back_as_it_was(text: str) -> None:
    value = {"z": text, "a": [text, 7, 1.5, None, True], text: {"nested": text}}
    assert parse(yaml_text(value)) == value
    assert list(parse(yaml_text(value))) == list(value)  # type: ignore[call-overload]
