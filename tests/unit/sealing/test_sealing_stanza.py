"""Stanzas open for exactly one recipient, one dataset, one recipe and one broker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from carrying import carries
from sealing_world import BINDING as RECIPE
from sealing_world import DATASET_ID, KEY, OWNER_ID, context, opened, sealed, stanza

from sealtrain.base.secret import Secret
from sealtrain.errors import LimitExceeded
from sealtrain.sealing.errors import HeaderDamaged, NoStanza, WrongContext, WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.sealing.stanza import (
    MAX_STANZAS,
    BrokerBinding,
    Stanza,
    find_stanza,
    parse_stanzas,
    unwrap_for_owner,
    unwrap_for_recipe,
    wrap_for_owner,
    wrap_for_recipe,
)

pytestmark = [pytest.mark.claim("C2"), pytest.mark.claim("C6")]

BROKER = "e1" * 32
BINDING = BrokerBinding.of(RECIPE, BROKER)
PRIVATE = HpkePrivateKey(Secret(b"p" * 32))
OTHER = HpkePrivateKey(Secret(b"o" * 32))
OWNED = wrap_for_owner(KEY, dataset_id=DATASET_ID, owner_id=OWNER_ID, public=PRIVATE.public)
BOUND = wrap_for_recipe(KEY, dataset_id=DATASET_ID, binding=BINDING, public=PRIVATE.public)


def test_owner_and_recipe_unwrap_their_own() -> None:
    assert unwrap_for_owner(OWNED, dataset_id=DATASET_ID, owner_id=OWNER_ID, private=PRIVATE) == KEY
    assert unwrap_for_recipe(BOUND, dataset_id=DATASET_ID, binding=BINDING, private=PRIVATE) == KEY


def test_a_stanza_survives_its_json_form() -> None:
    assert parse_stanzas([OWNED.to_dict(), BOUND.to_dict()]) == (OWNED, BOUND)


def test_another_private_key_or_dataset_does_not_unwrap() -> None:
    with pytest.raises(WrongKey):
        unwrap_for_owner(OWNED, dataset_id=DATASET_ID, owner_id=OWNER_ID, private=OTHER)
    with pytest.raises(WrongKey):
        unwrap_for_owner(OWNED, dataset_id="00" * 16, owner_id=OWNER_ID, private=PRIVATE)
    with pytest.raises(WrongKey):
        unwrap_for_recipe(BOUND, dataset_id="00" * 16, binding=BINDING, private=PRIVATE)


@pytest.mark.parametrize(
    "other",
    [
        BrokerBinding("a2" * 20, BINDING.compose_hash, OWNER_ID, BROKER),
        BrokerBinding(BINDING.app_id, "b2" * 32, OWNER_ID, BROKER),
        BrokerBinding(BINDING.app_id, BINDING.compose_hash, "0b" * 32, BROKER),
        BrokerBinding.of(RECIPE, "e2" * 32),
    ],
)
def test_another_recipe_or_broker_finds_no_stanza_and_unwraps_none(other: BrokerBinding) -> None:
    with pytest.raises(NoStanza):
        unwrap_for_recipe(BOUND, dataset_id=DATASET_ID, binding=other, private=PRIVATE)
    renamed = replace(BOUND, recipient=other.recipient)
    with pytest.raises(WrongKey):
        unwrap_for_recipe(renamed, dataset_id=DATASET_ID, binding=other, private=PRIVATE)


def test_a_stanza_of_one_kind_is_not_taken_for_another() -> None:
    posing = Stanza(kind="owner", recipient=OWNER_ID, body=BOUND.body)
    with pytest.raises(WrongKey):
        unwrap_for_owner(posing, dataset_id=DATASET_ID, owner_id=OWNER_ID, private=PRIVATE)
    with pytest.raises(NoStanza):
        unwrap_for_owner(BOUND, dataset_id=DATASET_ID, owner_id=OWNER_ID, private=PRIVATE)


def test_a_wrapped_value_that_is_no_data_key_is_refused() -> None:
    from sealtrain.base.canonical import canonical_json

    info = canonical_json(
        {
            "purpose": "sealtrain/stanza/v2",
            "kind": "owner",
            "dataset_id": DATASET_ID,
            "recipient": OWNER_ID,
        }
    )
    short = Stanza(kind="owner", recipient=OWNER_ID, body=PRIVATE.public.seal(b"short", info=info))
    with pytest.raises(WrongKey):
        unwrap_for_owner(short, dataset_id=DATASET_ID, owner_id=OWNER_ID, private=PRIVATE)


def test_finding_a_stanza_names_what_is_there() -> None:
    assert find_stanza([OWNED, BOUND], kind="recipe", recipient=BINDING.recipient) is BOUND
    with pytest.raises(NoStanza, check=carries(check="stanza", got="owner, recipe")):
        find_stanza([OWNED, BOUND], kind="share", recipient="00" * 32)
    with pytest.raises(NoStanza, check=carries(check="stanza", got="no stanza")):
        find_stanza([], kind="owner", recipient=OWNER_ID)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({}, HeaderDamaged),
        ([{}], HeaderDamaged),
        ([{"kind": "owner", "recipient": "aa" * 32, "body": "", "more": 1}], HeaderDamaged),
        ([{"kind": "thief", "recipient": "aa" * 32, "body": ""}], HeaderDamaged),
        ([{"kind": "owner", "recipient": "AA" * 32, "body": ""}], HeaderDamaged),
        ([{"kind": "owner", "recipient": "aa", "body": ""}], HeaderDamaged),
        ([{"kind": "owner", "recipient": "aa" * 32, "body": "?"}], HeaderDamaged),
        ([{"kind": "owner", "recipient": "aa" * 32, "body": "A" * 9000}], LimitExceeded),
        ([{"kind": "owner", "recipient": "aa" * 32, "body": ""}] * 2, HeaderDamaged),
    ],
)
def test_a_malformed_stanza_list_is_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_stanzas(value)


def test_the_header_bounds_number_and_size_of_stanzas() -> None:
    many = [stanza(f"{number:02x}") for number in range(MAX_STANZAS + 1)]
    assert opened(sealed(b"x", stanzas=many[:MAX_STANZAS])).read() == b"x"
    with pytest.raises(LimitExceeded):
        sealed(b"x", stanzas=many)
    with pytest.raises(LimitExceeded):
        sealed(b"x", stanzas=[Stanza(kind="owner", recipient="aa" * 32, body=bytes(4097))])
    with pytest.raises(HeaderDamaged):
        sealed(b"x", stanzas=[stanza(), stanza()])


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset_id": "d2" * 16},
        {"owner_id": "0b" * 32},
        {"name": "others"},
        {"shard": 1},
        {"schema_digest": "ee" * 32},
        {"kind": "arrow"},
        {"padding": "bucket"},
        {"suite": 2},
        {"binding": {"step": 2}},
    ],
)
def test_a_genuine_file_of_another_context_is_refused(changes: dict[str, object]) -> None:
    file = sealed(b"x", binding={"step": 1})
    assert opened(file, expect=context(binding={"step": 1})).read() == b"x"
    with pytest.raises(WrongContext, match=next(iter(changes)).replace("_", " ")):
        opened(file, expect=context(**({"binding": {"step": 1}} | changes)))
