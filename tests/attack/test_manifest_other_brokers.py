"""A manifest whose receipts are by brokers that the lock does not name, or on other data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from manifest_world import FINISHED, NOW, RELEASED, World, make_world
from world import digest, signer

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.secret import Secret
from sealtrain.broker.service.rotating import rotate_key
from sealtrain.consortium.receipts import Lease, ReleaseReceipt, sign_receipt
from sealtrain.errors import SealtrainError
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.rotation import sign_rotation
from sealtrain.manifest.verify import Report, examine
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.identity import broker_id

pytestmark = pytest.mark.claim("C93")

NAMED, SECOND, STRANGER = (signer(name) for name in ("broker", "broker b", "nobody's broker"))
ROOTS = [Secret(bytes([number]) * 32) for number in (1, 2, 3)]
KEYS = [signing_key(root, "broker") for root in ROOTS]
LONG = FINISHED + 600 - RELEASED


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def of_first(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A lock that names one broker, by the key that it had first."""
    folder = tmp_path_factory.mktemp("rotated")
    return make_world(folder, brokers=[broker_id(KEYS[0].public)])


def receipt(world: World, at: int = 0, *, until: int = LONG, **changed: Any) -> ReleaseReceipt:
    return world.receipt(
        released_at=to_rfc3339(RELEASED + at),
        lease=Lease(lease_id=digest(f"lease {at}"), not_after=to_rfc3339(RELEASED + until)),
        **changed,
    )


def judged(
    world: World, listed: Sequence[Any], *trusted: Ed25519Signer, threshold: int = 1
) -> Report:
    def change(facts: dict[str, Any]) -> None:
        facts["releases"] = list(listed)

    brokers = world.brokers(*trusted, threshold=threshold)
    return examine(world.manifest(change), world.trust(brokers=brokers), artefacts=None, now=NOW)


def refused(report: Report) -> SealtrainError:
    assert report.refusal is not None
    assert report.refusal.exit_code == 3
    return report.refusal


def test_a_receipt_of_a_trusted_broker_that_the_lock_does_not_name_is_refused(
    world: World,
) -> None:
    """The measured code obeys no such broker: whoever is trusted, that code wrote no such thing."""
    both = [*world.record(receipt(world)), *world.record(receipt(world), key=STRANGER)]
    for listed in (both, both[1:]):
        refusal = refused(judged(world, listed, NAMED, STRANGER))
        assert (refusal.code, refusal.check) == ("broker-not-approved", "releases")
        assert refusal.got == broker_id(STRANGER.public)


def test_who_trusts_more_brokers_than_the_lock_names_is_not_hindered(world: World) -> None:
    report = judged(world, world.record(receipt(world)), NAMED, STRANGER)
    assert report.accepted, report.refusal


def test_receipts_of_brokers_that_nobody_trusts_count_nothing_whoever_they_are(
    world: World,
) -> None:
    both = [*world.record(receipt(world)), *world.record(receipt(world), key=STRANGER)]
    report = judged(world, both, NAMED)
    assert report.accepted, report.refusal
    refusal = refused(judged(world, both, SECOND))
    assert refusal.code == "signature-invalid"


def test_a_receipt_that_names_another_broker_than_its_signer_is_refused(world: World) -> None:
    (listed,) = copy.deepcopy(world.record(receipt(world)))
    posing = world.receipt(broker_id=broker_id(SECOND.public))
    listed["receipt"] = sign_receipt(posing, NAMED).to_dict()
    refusal = refused(judged(world, [listed], NAMED))
    assert (refusal.code, refusal.check) == ("statement-invalid", "receipt broker")


# A broker whose key was rotated


def rotated(world: World, folder: Path, *receipts: tuple[int, ReleaseReceipt]) -> list[Any]:
    """Receipts by the key of that number, in one ledger whose key is rotated in between."""
    path, origin = folder / "ledger.sqlite", f"sealtrain/ledger/{world.consortium.consortium_id}"
    listed, now = [], 0
    with Ledger.open(path, origin=origin, signer=KEYS[0], clock=lambda: RELEASED) as ledger:
        ledger.append("approval", {"note": "an earlier entry"})
    for number, receipt in receipts:
        while now < number:
            rotate_key(path, origin, old=ROOTS[now], new=ROOTS[now + 1], now=RELEASED)
            now += 1
        key = KEYS[now]
        named = receipt.model_copy(update={"broker_id": broker_id(key.public)})
        envelope = sign_receipt(named, key)
        with Ledger.open(path, origin=origin, signer=key, clock=lambda: RELEASED) as ledger:
            index = ledger.append(receipt.kind, world.entry(named, envelope))
            proof = ledger.proof(index).to_dict()
        listed.append(
            {"receipt": envelope.to_dict(), "proof": proof, "rotations": chain(world, 0, now)}
        )
    return listed


def chain(world: World, first: int, last: int) -> list[Any]:
    origin = f"sealtrain/ledger/{world.consortium.consortium_id}"
    return [
        sign_rotation(origin, old=KEYS[at], new=KEYS[at + 1], now=RELEASED).to_dict()
        for at in range(first, last)
    ]


def test_the_key_that_the_named_one_was_rotated_to_is_the_same_broker(
    of_first: World, tmp_path: Path
) -> None:
    world = of_first
    listed = rotated(world, tmp_path, (0, receipt(world)), (2, receipt(world, 300, resume=True)))
    report = judged(world, listed, KEYS[0], KEYS[2])
    assert report.accepted, report.refusal
    # It is one broker, however many keys of it a reader lists.
    refusal = refused(judged(world, listed, KEYS[0], KEYS[2], threshold=2))
    assert (refusal.code, refusal.got) == ("dataset-mismatch", "1 brokers")


ROTATIONS: dict[str, tuple[Callable[[World], list[Any]], str]] = {
    "none": (lambda _world: [], "broker-not-approved"),
    "the first one missing": (lambda world: chain(world, 1, 2), "broker-not-approved"),
    "the last one missing": (lambda world: chain(world, 0, 1), "statement-invalid"),
    "in another order": (lambda world: chain(world, 0, 2)[::-1], "statement-invalid"),
    "one key's signature": (
        lambda world: [half(value) for value in chain(world, 0, 2)],
        "signature-invalid",
    ),
    "of another ledger": (lambda _world: elsewhere(), "statement-invalid"),
    "something else": (lambda _world: [{"payload": "e30="}], "signature-invalid"),
}


def half(rotation: Any) -> Any:
    return rotation | {"signatures": rotation["signatures"][1:]}


def elsewhere() -> list[Any]:
    origin = "sealtrain/ledger/" + "ab" * 32
    return [
        sign_rotation(origin, old=KEYS[at], new=KEYS[at + 1], now=RELEASED).to_dict()
        for at in range(2)
    ]


@pytest.mark.parametrize("name", ROTATIONS)
def test_without_every_rotation_in_its_order_it_is_another_broker(
    of_first: World, tmp_path: Path, name: str
) -> None:
    make, code = ROTATIONS[name]
    listed = rotated(of_first, tmp_path, (2, receipt(of_first)))
    assert judged(of_first, listed, KEYS[2]).accepted
    listed[0]["rotations"] = make(of_first)
    refusal = refused(judged(of_first, listed, KEYS[2]))
    assert refusal.code == code


# Other data


@pytest.mark.claim("C94")
@pytest.mark.claim("C38")
@pytest.mark.parametrize("way", ["another root", "another owner", "more", "fewer", "not said"])
def test_a_release_on_other_data_than_the_manifests_is_refused(world: World, way: str) -> None:
    """What a broker wrote of a resume; the receipt says nothing of data at other brokers."""
    part = world.receipt().datasets[:2]
    first, again = receipt(world), receipt(world, 300, resume=True, datasets=part)

    class Lying(World):
        def elsewhere(self, one: ReleaseReceipt) -> list[dict[str, str]]:
            found = super().elsewhere(one)
            if not one.resume:
                return found
            return {
                "another root": [found[0] | {"root": "ab" * 32}, *found[1:]],
                "more": [
                    *found,
                    {"owner_id": "ef" * 32, "dataset_id": "ab" * 16, "root": "cd" * 32},
                ],
                "another owner": [found[0] | {"owner_id": "ab" * 32}, *found[1:]],
                "fewer": found[1:],
                "not said": None,
            }[way]  # type: ignore[return-value]

    assert judged(world, world.record(first, again), NAMED).accepted
    lying = Lying(**{name: getattr(world, name) for name in World.__dataclass_fields__})
    refusal = refused(judged(world, lying.record(first, again), NAMED))
    expected = "statement-invalid" if way == "not said" else "dataset-mismatch"
    assert refusal.code == expected
