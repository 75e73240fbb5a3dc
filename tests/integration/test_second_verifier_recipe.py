"""A lock whose recipe breaks its schema is refused by both verifiers; what is left is named."""

from __future__ import annotations

import base64
import copy
import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from lock_mutants import PUBLISHED, Mutant, locks, mutants
from node_judges import judge
from pydantic import BaseModel, ValidationError
from second_verifier import counted

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import SealtrainError
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lockfile import parse_lock
from sealtrain.recipe.schema import PHASES

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/second_locks.mjs"
SAMPLE = 80
CHUNK = 4000
NOT_CHECKED = {
    "lock: policy": {"policy"},
    "recipe": {
        "backend.resume_ranks",
        "collaboration.buffer_bytes",
        "collaboration.local_steps",
        "collaboration.max_tokens",
        "collaboration.min_parties",
        "collaboration.resume_nodes",
        "collaboration.rounds",
        "columns.answer",
        "columns.features",
        "columns.label",
        "datasets",
        "datasets.max_records",
        "datasets.name",
        "datasets.owner",
        "datasets.role",
        "labels",
        "missing",
        "missing.CRP mg/L",
        "missing.age",
        "missing.dose",
        "missing.triage",
        "model.dtype",
        "model.sealed",
        "num_labels",
        "packages",
        "peft.bias",
        "peft.init_lora_weights",
        "peft.lora_dropout",
        "peft.modules_to_save",
        "peft.use_dora",
        "privacy.budgets",
        "privacy.feature_ranges",
        "privacy.target_epsilon",
        "release_policy.metrics",
        "schedule.continue",
        "trainer.activation_checkpointing",
        "trainer.append_eos",
        "trainer.bf16",
        "trainer.eos_token",
        "trainer.eval_steps",
        "trainer.label_smoothing_factor",
        "trainer.loss_type",
        "trainer.max_length",
        "trainer.neftune_noise_alpha",
        "trainer.packing",
        "trainer.pad_token",
        "trainer.truncation_mode",
        "trainer.warmup_steps",
    },
    "recipe.collaboration.federated": {"collaboration.aggregation", "collaboration.trim"},
    "recipe.collaboration.pads": {"collaboration.pads"},
    "recipe.datasets": {"datasets.max_records", "datasets.weight"},
    "recipe.hardware": {"hardware.key_provider", "hardware.key_provider_id", "hardware.platforms"},
    "recipe.monitoring": {"monitoring.alert_to", "monitoring.alerts"},
    "recipe.monitoring.alerts": {"monitoring.alerts"},
    "recipe.preparation": {"preparation.resize"},
    "recipe.preparation.grid": {"preparation.max_area", "preparation.min_area"},
    "recipe.privacy.sgd": {"privacy.feature_ranges"},
    "recipe.release_policy.model": {"release_policy.model"},
    "recipe.schedule": {
        "schedule.cron",
        "schedule.ends_at",
        "schedule.least_seconds",
        "schedule.when",
    },
    "recipe.trainer": {
        "trainer.early_stopping_patience",
        "trainer.eval_steps",
        "trainer.label_smoothing_factor",
        "trainer.load_best_model_at_end",
        "trainer.metric_for_best_model",
        "trainer.neftune_noise_alpha",
        "trainer.padding_free",
        "trainer.per_device_train_batch_size",
        "trainer.warmup_steps",
    },
    "recipe.trainer.dpo": {"trainer.label_smoothing", "trainer.loss_weights"},
    "recipe.trainer.grpo": {
        "trainer.eval_steps",
        "trainer.label_smoothing_factor",
        "trainer.metric_for_best_model",
        "trainer.neftune_noise_alpha",
        "trainer.num_generations",
        "trainer.num_iterations",
        "trainer.per_device_train_batch_size",
        "trainer.warmup_steps",
    },
    "recipe.trainer.ppo": {"trainer.early_stopping_patience"},
    "recipe.trainer.kto": {
        "trainer.early_stopping_patience",
        "trainer.label_smoothing_factor",
        "trainer.load_best_model_at_end",
        "trainer.per_device_train_batch_size",
        "trainer.warmup_steps",
    },
}
"""Rules that the second verifier leaves out: the place in the recipe that each is a rule of, or the
check of a lock, and the fields whose change breaks only such a rule."""
pytestmark = [pytest.mark.long, pytest.mark.claim("C170"), pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return locks(tmp_path_factory.mktemp("locks"))


def theirs(documents: Sequence[bytes]) -> list[bool]:
    return judge(
        DRIVER, (base64.b64encode(document).decode() for document in documents), seconds=900
    )


sys.path.insert(0, str(ROOT / "tools"))
from locked_schema import locked_schema  # noqa: E402


def ours(data: bytes) -> LockInvalid | None:
    try:
        parse_lock(data)
    except LockInvalid as error:
        return error
    return None


def rule_of(data: bytes, refusal: SealtrainError) -> str:
    """The rule that refused: the place of a validator in the recipe, or the check of the lock."""
    recipe = json.loads(data)["recipe"]
    module = import_module(f"sealtrain.recipe.phases.{recipe['phase']}")
    kind: type[BaseModel] = getattr(module, PHASES[recipe["phase"]])
    try:
        kind.model_validate_json(json.dumps(recipe))
    except ValidationError as invalid:
        problems = invalid.errors(include_url=False, include_input=False)
        # Whatever a schema can say, the second verifier has to refuse.
        assert {problem["type"] for problem in problems} == {"value_error"}, refusal
        place = [str(part) for part in problems[0]["loc"] if not isinstance(part, int)]
        return ".".join(["recipe", *place])
    return f"lock: {refusal.check}"


def unlike(asked: Sequence[Mutant]) -> dict[str, list[Mutant]]:
    """The mutants that end otherwise, by the rule that refused them here alone."""
    found = defaultdict(list)
    for start in range(0, len(asked), CHUNK):
        some = asked[start : start + CHUNK]
        written = [canonical_json(mutant.document) for mutant in some]
        for mutant, data, accepted in zip(some, written, theirs(written), strict=True):
            refusal = ours(data)
            assert isinstance(accepted, bool), (str(mutant), accepted)
            if refusal is None and not accepted:
                found["refused by the second alone"].append(mutant)
            elif refusal is not None and accepted:
                found[rule_of(data, refusal)].append(mutant)
    return found


def changed(valid: dict[str, Any]) -> list[Mutant]:
    """Of mutants that say the same of two locks of a phase, the first."""
    kinds: dict[tuple[str, ...], Mutant] = {}
    for name, document in valid.items():
        for mutant in mutants(name, document):
            kinds.setdefault(mutant.kind, mutant)
    return list(kinds.values())


def one_of_each_kind(valid: dict[str, Any]) -> dict[str, Any]:
    kinds = {kind_of(document): name for name, document in valid.items()}
    return {name: valid[name] for name in kinds.values()}


def kind_of(document: Any) -> tuple[str, str | None]:
    """Phase and kind of collaboration."""
    recipe = document["recipe"]
    return recipe["phase"], recipe.get("collaboration", {}).get("kind")


def unnamed(found: dict[str, list[Mutant]]) -> list[str]:
    """The mutants that neither both refuse nor a rule of ``NOT_CHECKED`` does."""
    return [
        f"{rule}: {mutant}"
        for rule, some in found.items()
        for mutant in some
        if mutant.field not in NOT_CHECKED.get(rule, ())
    ]


def told(found: dict[str, list[Mutant]], asked: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        kinds = {rule: len(some) for rule, some in sorted(found.items())}
        print(f"\n{asked} locks, {sum(kinds.values())} refused by rules not checked: {kinds}")


def test_every_valid_lock_is_one_to_both(valid: dict[str, Any]) -> None:
    written = [canonical_json(document) for document in valid.values()]
    assert [text for text in written if ours(text)] == []
    assert dict(zip(valid, theirs(written), strict=True)) == dict.fromkeys(valid, True)
    kinds = [kind_of(document) for document in valid.values()]
    assert {phase for phase, _ in kinds} == PHASES.keys()
    assert {kind for _, kind in kinds} == {None, "federated", "cut", "pads", "travelling", "nodes"}


def test_a_sample_of_changed_locks_ends_alike_but_for_named_rules(
    valid: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    every = changed(one_of_each_kind(valid))
    asked = random.Random(8).sample(every, SAMPLE)  # noqa: S311  # the same in every run
    found = unlike(asked)
    told(found, len(asked), capsys)
    assert unnamed(found) == []
    refused = [question for question in asked if ours(canonical_json(question.document))]
    assert len(refused) > SAMPLE / 2
    assert sum(map(len, found.values())) < len(refused) / 10


@pytest.mark.nightly
def test_every_changed_lock_ends_alike_but_for_named_rules(
    valid: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    every = changed(valid)
    assert len(every) > 100_000
    found = unlike(every)
    told(found, len(every), capsys)
    counted("mutants of locks, rules between fields aside", len(every), len(unnamed(found)))
    assert unnamed(found) == []
    assert found.keys() == NOT_CHECKED.keys()


def schemas(values: Sequence[tuple[Any, Any]]) -> list[Any]:
    """What the second verifier says of a value under a schema, or the error at compiling it."""
    return judge(DRIVER.with_name("second_schemas.mjs"), map(json.dumps, values), seconds=120)


KEYWORDS: tuple[dict[str, Any], ...] = (
    *({"type": kind} for kind in ("null", "boolean", "integer", "number", "string", "array")),
    {"type": "object"},
    *({"const": value} for value in (1, True, None, "x", [1], {"a": 1}, [], {}, 0, False)),
    {"enum": [1, "x", None, [1]]},
    {"minimum": 1},
    {"maximum": 1},
    {"exclusiveMinimum": 1},
    {"exclusiveMaximum": 1},
    {"minLength": 2, "maxLength": 2},
    {"minItems": 1, "maxItems": 2},
    {"uniqueItems": True},
    {"uniqueItems": False},
    {"minProperties": 1, "maxProperties": 1},
    {"required": ["a"]},
    {"pattern": "^[a-z]$"},
    {"pattern": "x"},
    {"propertyNames": {"maxLength": 1}},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"a": True}, "additionalProperties": {"type": "string"}},
    {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
    {"patternProperties": {"a$": False}},
    {"prefixItems": [{"type": "integer"}, {"type": "string"}]},
    {"prefixItems": [{"type": "integer"}], "items": False},
    {"items": {"type": "integer"}},
    {"not": {"type": "integer"}},
    {"anyOf": [{"type": "integer"}, {"minimum": 1}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
    {"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}},
    {"$ref": "#/$defs/x", "maximum": 0, "$defs": {"x": {"type": "integer"}}},
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 1.0, 1.5, -1, 2, "", "x", "xy", "xyz", "\U0001f9ec"),
    *("\U0001f9ec\U0001f9ec", [], [1], [1, "x"], [1, 1], [1, True], [[1], [1]], ["x", 1, 2]),
    *({}, {"a": 1}, {"a": "1"}, {"b": "x"}, {"ab": 1, "b": 2}, {"a": 1, "c": True}, {"ba": 1}),
    *({"__proto__": 1}, {"constructor": 1}, {"toString": "x"}),
)


def test_each_keyword_means_what_a_library_says_it_means() -> None:
    pairs = [(schema, value) for schema in KEYWORDS for value in VALUES]
    expected = [Draft202012Validator(schema).is_valid(value) for schema, value in pairs]
    said = schemas(pairs)
    assert [pair for pair, a, b in zip(pairs, expected, said, strict=True) if a != b] == []
    # The library searches by Python's rules, to which a line feed may follow the end.
    assert schemas([({"pattern": "^[a-z]$"}, "a\n")]) == [False]
    used = {keyword for schema in KEYWORDS for keyword in schema}
    assert used | {"format"} >= keywords_of(locked_schema(PUBLISHED))


def keywords_of(schema: Any) -> set[str]:
    if isinstance(schema, bool):
        return set()
    found = set(schema)
    for keyword, value in schema.items():
        if keyword in {"properties", "patternProperties", "$defs"}:
            found = found.union(*map(keywords_of, value.values()))
        elif keyword in {"additionalProperties", "items", "propertyNames", "not"}:
            found |= keywords_of(value)
        elif keyword in {"anyOf", "oneOf", "prefixItems"}:
            found = found.union(*map(keywords_of, value))
    return found


@pytest.mark.parametrize(
    "unknown",
    [
        {"multipleOf": 2},
        {"type": "whole"},
        {"type": ["integer", "null"]},
        {"format": "email"},
        {"$ref": "#/$defs/none"},
        {"$ref": "other.json"},
        {"constructor": 1},
        {"title": "x"},
    ],
    ids=json.dumps,
)
def test_a_schema_that_says_what_is_not_known_holds_no_value(unknown: dict[str, Any]) -> None:
    """At any depth, before a value is looked at: not even one that the rule does not concern."""
    places = [
        unknown,
        {"properties": {"a": unknown}},
        {"patternProperties": {"a": unknown}},
        {"additionalProperties": unknown},
        {"propertyNames": unknown},
        {"items": unknown},
        {"prefixItems": [unknown]},
        {"not": unknown},
        {"anyOf": [True, unknown]},
        {"oneOf": [True, unknown]},
        {"$defs": {"unused": unknown}},
    ]
    assert schemas([(place, None) for place in places]) == ["Error"] * len(places)


@pytest.mark.timeout(20)
def test_many_items_cost_no_more_than_reading_them(valid: dict[str, Any]) -> None:
    document = copy.deepcopy(valid["sft-lora"])
    document["recipe"]["hardware"]["platforms"] = [f"{number:04x}" for number in range(25_000)]
    data = canonical_json(document)
    assert ours(data)
    assert theirs([data] * 20) == [False] * 20


def test_the_embedded_schema_is_that_of_the_published_one(valid: dict[str, Any]) -> None:
    """A library accepts each lock's recipe by it, and none with a default left out or written."""
    holds = Draft202012Validator(locked_schema(PUBLISHED)).is_valid
    for document in one_of_each_kind(valid).values():
        recipe = document["recipe"]
        assert holds(recipe)
        assert not holds({name: recipe[name] for name in recipe.keys() - {"description"}})
        assert not holds({**recipe, "schedule": None})


def test_what_is_said_of_one_field_is_held_where_no_schema_can_say_it(
    valid: dict[str, Any],
) -> None:
    """Order of other numbers, a label among the features, a std of 0, what is named twice."""
    tabular = copy.deepcopy(valid["classify-tabular"])
    columns = tabular["recipe"]["columns"]
    columns["label"] = columns["features"][0]
    twice = copy.deepcopy(valid["classify-tabular"])
    twice["recipe"]["columns"]["features"] *= 2
    image = copy.deepcopy(valid["classify-image"])
    image["recipe"]["preparation"]["std"] = [0.5, 0, 0.5]
    parts = copy.deepcopy(valid["vlm-llava"])
    parts["recipe"]["parts"] = ["language", "language"]
    ranks = []
    for numbers in ([2, 1], [1, 1], [1]):
        changed = copy.deepcopy(valid["ranks"])
        changed["recipe"]["backend"] |= {"resume_ranks": numbers}
        ranks.append(changed)
    nodes = []
    for numbers in ([4, 3], [3, 3], [3, 4]):
        changed = copy.deepcopy(valid["nodes"])
        changed["recipe"]["trainer"] |= {"gradient_accumulation_steps": 12}
        changed["recipe"]["collaboration"] |= {"resume_nodes": numbers}
        nodes.append(changed)
    asked = [canonical_json(value) for value in (tabular, twice, image, parts, *ranks, *nodes)]
    expected = [False] * 6 + [True] + [False] * 2 + [True]
    assert theirs(asked) == expected
    assert [ours(question) is None for question in asked] == expected
