"""Laws of recipes, locks and deployment documents."""

from __future__ import annotations

import copy
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.secret import Secret
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.errors import SealtrainError
from sealtrain.keys.derive import derive
from sealtrain.recipe.compose import build_compose, compose_hash
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe, parse_lock
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.long

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "recipe" / "compose.json"
EVERY_LOCK = [json.loads(vector["lock"]) for vector in json.loads(VECTORS.read_text())["cases"]]
# Those that fit any recipe of the strategy below: a further model belongs to its own recipe.
LOCKS = [lock for lock in EVERY_LOCK if not lock["models"]]
SCRIPTED = [lock for lock in EVERY_LOCK if lock["scripts"]]
BOUNDED = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,12}", fullmatch=True)
LETTERS = string.ascii_letters + string.digits + string.punctuation + "äßŁΩжデ漢가…≤€"
texts = st.text(LETTERS, min_size=1, max_size=12)
printable = st.text(string.printable.strip() + " äß大", max_size=30)
rates = st.floats(min_value=1e-9, max_value=10)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    recipe = copy.deepcopy(LOCKS[0]["recipe"])
    owners = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    recipe["name"] = draw(names)
    recipe["description"] = draw(printable)
    recipe["datasets"] = [
        {"owner": owner, "name": "d", "role": "train", "weight": draw(rates)} for owner in owners
    ]
    recipe["columns"] = draw(
        st.one_of(
            st.builds(lambda text: {"text": text}, texts),
            st.builds(lambda p, c: {"prompt": p, "completion": c}, texts, texts),
        )
    )
    recipe["trainer"] |= {
        "learning_rate": draw(rates),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "eos_token": draw(st.none() | texts),
    }
    recipe["release_policy"]["model"]["recipients"] = owners
    return parse_recipe(recipe).to_dict()


def locked(recipe: dict[str, Any], base: dict[str, Any]) -> bytes:
    kept = {name: base["recipe"][name] for name in ("hardware", "scripts", "packages")}
    return canonical_json(base | {"recipe": recipe | kept})


@BOUNDED
@given(recipes())
def test_a_recipe_survives_yaml_json_and_back(recipe: dict[str, Any]) -> None:
    parsed = parse_recipe(recipe)
    assert parse_recipe(parse_json(canonical_json(parsed.to_dict()))) == parsed
    text = yaml_text(recipe).encode()
    assert parse_recipe(parse_yaml(text, error=RecipeInvalid, what="recipe")) == parsed


words = st.from_regex(r"[-+]?[0-9]{1,3}(\.[0-9]{1,2})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | rates | printable | words
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(printable.filter(lambda key: key != "<<"), inner, max_size=4)
        | inner.map(lambda shared: [shared, shared])
    ),
    max_leaves=12,
)


@BOUNDED
@given(values, st.sampled_from([False, None, True]))
@example(["0e0", "12e3", "1.5", "-0"], False)
def test_what_we_write_as_yaml_we_read_as_the_same_value(value: Any, flow: bool | None) -> None:
    text = yaml_text({"value": value}, flow=flow).encode()
    assert parse_yaml(text, error=RecipeInvalid, what="value") == {"value": value}


@BOUNDED
@given(recipes(), st.sampled_from(LOCKS))
def test_a_lock_comes_back_out_of_its_document(recipe: dict[str, Any], base: Any) -> None:
    data = locked(recipe, base)
    document = build_compose(parse_lock(data))
    assert LockedRecipe.parse(document).lock_bytes == data
    assert build_compose(LockedRecipe.parse(document).lock) == document


@BOUNDED
@given(st.lists(texts | st.just(""), max_size=8), st.sampled_from(SCRIPTED))
def test_the_text_of_a_script_comes_back_out_of_its_document(lines: list[str], base: Any) -> None:
    text = "\n".join(lines)
    data = canonical_json(base | {"scripts": base["scripts"] | {"train.py": text}})
    assert LockedRecipe.parse(build_compose(parse_lock(data))).lock.scripts["train.py"] == text


@BOUNDED
@given(recipes(), recipes(), st.sampled_from(LOCKS))
def test_two_recipes_share_hash_document_and_diff_only_when_equal(
    one: dict[str, Any], two: dict[str, Any], base: Any
) -> None:
    first, second = parse_lock(locked(one, base)), parse_lock(locked(two, base))
    equal = first.recipe == second.recipe
    assert (first.recipe_hash == second.recipe_hash) == equal
    hashes = {compose_hash(build_compose(lock)) for lock in (first, second)}
    assert (len(hashes) == 1) == equal
    assert (diff(first, second) == []) == equal


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for place, item in enumerate(value) for leaf in leaves(item, (*path, place))]
    return [path]


@pytest.mark.parametrize("base", LOCKS, ids=range(len(LOCKS)))
def test_every_single_field_changes_the_hashes_or_is_refused(base: dict[str, Any]) -> None:
    before = parse_lock(canonical_json(base))
    changed = refused = 0
    for path in leaves(base):
        document = copy.deepcopy(base)
        target = document
        for part in path[:-1]:
            target = target[part]
        value = target[path[-1]]
        target[path[-1]] = (
            not value if isinstance(value, bool)
            else value + 1 if isinstance(value, int | float)
            else value[:-1] + ("0" if value[-1] != "0" else "1") if isinstance(value, str) and value
            else 7
        )  # fmt: skip
        try:
            after = parse_lock(canonical_json(document))
        except LockInvalid:
            refused += 1
            continue
        changed += 1
        assert after.recipe_hash != before.recipe_hash, path
        assert compose_hash(build_compose(after)) != compose_hash(build_compose(before)), path
        assert diff(before, after) != [], path
    assert changed > 20
    assert changed + refused == len(leaves(base))


@BOUNDED
@given(st.data())
def test_one_flipped_bit_of_a_document_is_refused(data: st.DataObject) -> None:
    document = build_compose(parse_lock(canonical_json(data.draw(st.sampled_from(LOCKS)))))
    place = data.draw(st.integers(0, len(document) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = bytearray(document)
    flipped[place] ^= 1 << bit
    try:
        lock_bytes = LockedRecipe.parse(bytes(flipped)).lock_bytes
    except LockInvalid:
        return
    # A flip can land on another valid recipe; then it is that recipe, under another hash.
    assert build_compose(parse_lock(lock_bytes)) == bytes(flipped)
    assert compose_hash(bytes(flipped)) != compose_hash(document)


@BOUNDED
@given(st.binary(max_size=300))
def test_arbitrary_bytes_end_in_a_typed_refusal(data: bytes) -> None:
    for read in (
        parse_lock,
        LockedRecipe.parse,
        lambda raw: parse_recipe(parse_yaml(raw, error=RecipeInvalid, what="recipe")),
    ):
        with pytest.raises(SealtrainError):
            read(data)


@BOUNDED
@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_derived_keys_agree_only_for_equal_parts(one: list[str], two: list[str]) -> None:
    root = Secret(b"p" * 32)
    assert (derive(root, "a", *one) == derive(root, "a", *two)) == (one == two)
