from __future__ import annotations

import pytest
from carrying import carries

from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import RecipeInvalid


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
        ("a: [1, {b: c}]\nd: |\n  x\n", {"a": [1, {"b": "c"}], "d": "x\n"}),
        ("null: 1", {"null": 1}),
        ("", None),
        ("# only a comment", None),
    ],
)
def test_scalars_follow_the_json_rules_of_yaml(text: str, value: object) -> None:
    parsed = parse(text)
    assert parsed == value
    assert repr(parsed) == repr(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "names the key 'a' twice (line 3)"),
        ("a: {b: 1, b: 2}", "names the key 'b' twice"),
        ("a: &x 1\nb: *x", "anchors or aliases (line 1)"),
        ("a: *x", "anchors or aliases"),
        ("a: !!python/object/apply:os.system ['true']", "tags"),
        ("a: !!str 1", "tags"),
        ("!!set {a, b}", "tags"),
        ("a: ! x", "tags"),
        ("<<: {b: 1}", "merge keys"),
        ("? [a, b]\n: 1", "a key that is not text"),
        ("a: 1\n---\nb: 2", "one document"),
        ("%YAML 1.1\n---\na: 1", "one document without directives"),
        ("a: [1", "is not YAML at line"),
        ("a: 1e999", "out of range"),
        (b"a: \xff", "not UTF-8"),
        (b"a: \x00", "character that YAML does not allow"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_line(text: str | bytes, problem: str) -> None:
    with pytest.raises(RecipeInvalid) as refusal:
        parse(text)
    assert problem in refusal.value.message


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
