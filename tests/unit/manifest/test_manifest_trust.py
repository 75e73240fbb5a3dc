"""A trust file says everything or is refused: no default, no unknown field, `any` is a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from carrying import carries
from manifest_world import World

from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.registry import TEES
from sealtrain.errors import SealtrainError, TrustInvalid
from sealtrain.manifest.limits import OPEN, list_skipped
from sealtrain.manifest.trust import Trust, load_trust, parse_trust

pytestmark = pytest.mark.claim("C28")

KEY = "A" * 43 + "="
BROKERS = {"signing_keys": [KEY], "threshold": 1, "datasets": "all"}


def test_a_written_trust_file_is_read_back(world: World, tmp_path: Path) -> None:
    path = tmp_path / "trust.yaml"
    path.write_text(yaml.safe_dump(world.trust_document()))
    assert load_trust(path) == world.trust()


@pytest.mark.parametrize("field", sorted(Trust.model_fields.keys() - {"chain"}))
def test_a_field_left_out_is_refused_by_name(world: World, field: str) -> None:
    document = world.trust_document()
    del document[field]
    with pytest.raises(TrustInvalid, check=carries(field=field)) as caught:
        parse_trust(document)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("consortium_id", "any"),
        ("recipe_hash", "any"),
        ("compose_hash", "*"),
        ("compose_hash", None),
        ("app_id", "00" * 32),
        ("simulated", "accept"),
        ("simulated", True),
        ("version", 2),
        ("brokers", BROKERS | {"signing_keys": ["AAAA"]}),
        ("brokers", BROKERS | {"signing_keys": ["A" * 42 + "B="]}),
        ("brokers", BROKERS | {"signing_keys": []}),
        ("brokers", BROKERS | {"signing_keys": [KEY, KEY]}),
        ("brokers", BROKERS | {"threshold": 0}),
        ("brokers", BROKERS | {"threshold": 2}),
        ("brokers", BROKERS | {"datasets": "any"}),
        ("brokers", {}),
        ("appraisal", {}),
        ("appraisal", "any"),
    ],
)
def test_a_field_that_says_something_else_is_refused(world: World, field: str, value: Any) -> None:
    with pytest.raises(TrustInvalid):
        world.trust(**{field: value})


def test_an_unknown_field_is_refused_with_the_near_one(world: World) -> None:
    with pytest.raises(TrustInvalid) as caught:
        world.trust(recipe_hsh="00" * 32)
    assert "recipe_hash" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- 1",
        "a: [",
        "version: 1\nversion: 1",
        "a: &x 1\nb: *x",
        "\x00",
        "!!python/object:os.x {}",
    ],
)
def test_what_is_no_trust_file_is_a_configuration_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trust.yaml"
    path.write_text(text)
    with pytest.raises(TrustInvalid):
        load_trust(path)


def test_a_missing_trust_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SealtrainError, match=r"nowhere\.yaml"):
        load_trust(tmp_path / "nowhere.yaml")


def test_the_page_shows_every_field(repository: Path) -> None:
    page = (repository / "spec/trust.md").read_text("utf-8")
    assert [name for name in Trust.model_fields if f"    {name}:" not in page] == []


def test_every_field_that_may_be_any_has_words_for_a_report() -> None:
    policies = [AppraisalPolicy, NvidiaPolicy, Trust, *(tee.rules.form for tee in TEES)]
    open_ = {
        name
        for policy in policies
        for name, field in policy.model_fields.items()
        if "any" in said(field.annotation)
    }
    assert len(open_) > 15
    assert open_ == OPEN.keys()


def said(annotation: Any) -> set[Any]:
    """The words that an annotation has, at any depth."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return set().union(*map(said, get_args(annotation)))


def test_what_processors_and_accelerators_call_alike_is_said_of_each(world: World) -> None:
    trust = world.trust()
    accelerators = {"cpu": {"revocation": "require"}, "gpu": {"revocation": "any"}}

    class Said(AppraisalPolicy):
        def to_dict(self) -> dict[str, Any]:
            return accelerators

    asked = trust.model_copy(update={"appraisal": Said.model_construct()})
    either = [list_skipped(asked, artefacts_checked=True)]
    accelerators = {"cpu": {"revocation": "any"}, "gpu": {"revocation": "require"}}
    either.append(list_skipped(asked, artefacts_checked=True))
    assert [len([value for value in each if OPEN["revocation"] in value]) for each in either] == [
        1,
        1,
    ]
