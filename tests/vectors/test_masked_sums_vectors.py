"""Masked sums against vectors that were made without sealtrain and without numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sealtrain.base.secret import Secret
from sealtrain.errors import SealtrainError
from sealtrain_collab.federated.masks.keys import Pair, Place, half_info, pair_seed, self_seed
from sealtrain_collab.federated.masks.ring import decode, encode, mask, words_of

pytestmark = pytest.mark.claim("C253")

FOLDER = Path(__file__).parents[2] / "vectors" / "masked-sums"


def vectors(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


RING, KEYS, SUMS = vectors("ring"), vectors("keys"), vectors("sums")
PARTIES = {one["party"]: one for one in SUMS["parties"]}


def place(of: dict[str, Any]) -> Place:
    return Place(run_id=of["run_id"], round=of["round"], attempt=of["attempt"])


@pytest.mark.parametrize("case", RING["cases"], ids=lambda one: one["name"])
def test_an_update_is_encoded_or_refused_as_the_vector_says(case: dict[str, Any]) -> None:
    change = np.array(case["change"])
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            encode(change, case["weight"])
        assert caught.value.code == case["outcome"]
        return
    found = encode(change, case["weight"])
    assert found.astype("<u8").tobytes().hex() == case["elements"]


@pytest.mark.parametrize("case", KEYS["cases"], ids=lambda one: one["name"])
def test_two_parties_seal_and_agree_as_the_vector_says(case: dict[str, Any]) -> None:
    where, members = place(KEYS), KEYS["members"]
    info = half_info(where, members, sender=case["from"], receiver=case["to"])
    assert info.decode() == case["half_info"]
    ends = {"place": where, "members": members, "secret": Secret(bytes.fromhex(KEYS["secret"]))}
    sender = Pair(me=case["from"], peer=case["to"], **ends)
    receiver = Pair(me=case["to"], peer=case["from"], **ends)
    envelope = bytes.fromhex(case["envelope"])
    assert sender.seal(bytes.fromhex(case["plaintext"])) == envelope
    assert receiver.open(envelope).reveal().hex() == case["plaintext"]
    survivors = KEYS["survivors"]
    assert sender.tag(survivors, sent=True) == receiver.tag(survivors, sent=False) == case["tag"]


@pytest.mark.parametrize("name", sorted(PARTIES))
def test_a_vector_is_masked_as_the_vector_says(name: str) -> None:
    party, where = PARTIES[name], place(SUMS)
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(party["private_key"]))
    own = self_seed(Secret(bytes.fromhex(party["own_secret"])), where, name)
    assert own.reveal().hex() == party["own_seed"]
    found = encode(np.array(party["change"]), party["weight"])
    mask(found, own, add=True)
    mine = name, bytes.fromhex(party["public_key"])
    for other, expected in party["pair_seeds"].items():
        theirs = other, bytes.fromhex(PARTIES[other]["public_key"])
        seed = pair_seed(private, mine, theirs, where)
        assert seed.reveal().hex() == expected
        mask(found, seed, add=name < other)
    assert found.astype("<u8").tobytes().hex() == party["masked"]


@pytest.mark.parametrize("case", SUMS["cases"], ids=lambda one: " ".join(one["survivors"]))
def test_a_sum_is_opened_as_the_vector_says(case: dict[str, Any]) -> None:
    count = len(SUMS["parties"][0]["change"]) + 1
    survivors = case["survivors"]
    total = np.zeros(count, np.uint64)
    for name in survivors:
        party = PARTIES[name]
        total += words_of(bytes.fromhex(party["masked"]), count, party=name)
        mask(total, Secret(bytes.fromhex(party["own_seed"])), add=False)
        for gone in PARTIES.keys() - set(survivors):
            mask(total, Secret(bytes.fromhex(party["pair_seeds"][gone])), add=gone < name)
    assert total.astype("<u8").tobytes().hex() == case["sum"]
    assert decode(total, case["weight"], len(survivors)).change.tolist() == pytest.approx(
        case["mean"], rel=1e-15, abs=2**-60
    )
