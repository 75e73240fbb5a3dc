"""Freshness, binding and key service, case by case: what must end in refusal, and does.

The numbers are those of the list that ``pytest -m negative`` shows. TLS carries nothing here, so
cases about TLS sessions (55 to 57) are played by whoever terminates one: they see every byte, may
change every byte, and end up with neither keys nor a way to pass for somebody.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_world import claiming
from release_world import BROKER_COMPOSE, ReleaseWorld, Wire, release_world
from world import booted, simulated_pki

from sealtrain.attest.appraise import appraise
from sealtrain.attest.errors import (
    CollateralExpired,
    ComposeHashMismatch,
    EventLogMismatch,
    ReportDataMismatch,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerLimits
from sealtrain.client.grant import KeyRequest, obtain
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.errors import DataInvalid, Refused, RunMismatch, SealtrainError
from sealtrain.release.errors import AnswerInvalid, ChallengeReplayed, ChallengeUnknown
from sealtrain.release.messages import ReleaseRequest, load_message
from sealtrain.sealing.errors import WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing.errors import BrokerMismatch
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

pytestmark = pytest.mark.claim("C18")


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseWorld]:
    limits = BrokerLimits(posts_per_minute=100_000)
    with release_world(tmp_path_factory.mktemp("negative"), limits=limits) as made:
        yield made


@pytest.fixture
def world(lasting: ReleaseWorld) -> ReleaseWorld:
    """One broker for all who only try; its wire is honest again for each."""
    lasting.wire = Wire(broker=lasting.broker)
    return lasting


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ReleaseWorld]:
    """A broker of one's own, for those who change it."""
    with release_world(tmp_path) as made:
        yield made


def refused(
    world: ReleaseWorld, error: type[SealtrainError], attempt: Callable[[], object]
) -> SealtrainError:
    """The attempt fails as told, no release is in the ledger, and nothing secret left."""
    released = world.kinds().count("release")
    with pytest.raises(SealtrainError) as caught:
        attempt()
    assert type(caught.value) is error
    assert world.kinds().count("release") == released
    world.assert_no_key_left()
    return caught.value


# --- 4, 5: the challenge, and all of report data -------------------------------------------------


@pytest.mark.negative(4)
@pytest.mark.parametrize(
    "bend",
    [
        lambda text: text[:-2],
        lambda text: text[:32],
        lambda text: text + "00",
        lambda text: "",
        lambda text: None,
        lambda text: text.upper(),
        lambda text: " " + text,
        lambda text: "0x" + text,
        lambda text: int(text, 16) % 2**50,
        lambda text: [text],
    ],
    ids=["cut", "half", "longer", "empty", "null", "upper", "space", "0x", "number", "list"],
)
def test_a_challenge_of_another_form_is_refused(
    world: ReleaseWorld, bend: Callable[[str], Any]
) -> None:
    world.wire.on_request = lambda document: document.update(challenge=bend(document["challenge"]))
    refused(world, DataInvalid, world.obtain)


@pytest.mark.negative(4)
def test_a_missing_challenge_is_refused(world: ReleaseWorld) -> None:
    world.wire.on_request = lambda document: document.pop("challenge")
    refused(world, DataInvalid, world.obtain)


@pytest.mark.negative(2)
@pytest.mark.negative(4)
@pytest.mark.negative(63)
def test_a_challenge_that_differs_in_one_digit_is_unknown_wherever_it_differs(
    world: ReleaseWorld,
) -> None:
    """The refusal of a wrong first digit is that of a wrong last one, word for word."""
    told = []
    for place in (0, 31, 63):

        def alter(document: dict[str, Any], place: int = place) -> None:
            text = document["challenge"]
            other = "0" if text[place] != "0" else "1"
            document["challenge"] = text[:place] + other + text[place + 1 :]

        world.wire.on_request = alter
        told.append(refused(world, ChallengeUnknown, world.obtain).to_dict())
    assert told[0] == told[1] == told[2]


@pytest.mark.negative(5)
@pytest.mark.parametrize("kept", [slice(0, 32), slice(32, 64), slice(0, 63), slice(1, 64)])
def test_half_of_the_report_data_is_none_of_it(world: ReleaseWorld, kept: slice) -> None:
    guest = world.guest()

    def partly(binding: Binding) -> Evidence:
        wrong = bytearray(b ^ 0xFF for b in binding.report_data())
        wrong[kept] = binding.report_data()[kept]
        return guest.evidence(bytes(wrong), collateral=None)

    refused(world, ReportDataMismatch, lambda: world.obtain(collect=partly))


@pytest.mark.negative(5)
def test_report_data_that_is_a_padded_digest_is_refused(world: ReleaseWorld) -> None:
    """Other systems put 32 bytes there; a verifier that compares a prefix would take them."""
    guest = world.guest()
    refused(
        world,
        ReportDataMismatch,
        lambda: world.obtain(
            collect=lambda binding: guest.evidence(binding.report_data()[:32], collateral=None)
        ),
    )


# --- 6, 8: fields exchanged after the quote ------------------------------------------------------


@pytest.mark.negative(6)
@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("event_log", EventLogMismatch),
        ("app_compose", ComposeHashMismatch),
        ("quote", ReportDataMismatch),
    ],
)
def test_a_part_of_the_evidence_taken_from_another_moment_is_refused(
    world: ReleaseWorld, field: str, error: type[SealtrainError]
) -> None:
    """Each part is genuine and of a guest that could have keys; they do not belong together."""
    changed = world.lock(lambda recipe: recipe["trainer"].update(max_steps=301))
    other = world.guest(changed if field == "app_compose" else None, number=1)
    theirs = other.evidence(Binding("release", {}), collateral=None).to_dict()["cpu"][field]
    if field == "quote":  # of the same guest, made for another conversation
        theirs = world.guest().evidence(Binding("release", {}), collateral=None).cpu.quote

    def exchange(document: dict[str, Any]) -> None:
        document["evidence"]["cpu"][field] = theirs

    world.wire.on_request = exchange
    refused(world, error, world.obtain)


@pytest.mark.negative(6)
@pytest.mark.parametrize(
    "lie",
    [
        {"dev_tools": True},
        {"environment": "SIM"},
        {"cc_feature": False},
        {"driver_version": "1.0"},
        {"gpu_count": 2},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_accelerators_claims_changed_after_the_quote_are_refused(
    world: ReleaseWorld, lie: dict[str, Any]
) -> None:
    """No accelerator signs these claims; the processor's quote does, through their digest."""
    asked = Binding("release", {"challenge": "fresh"})
    shown = SimulatedGpus(b"accelerators of one machine").evidence(asked.gpu_nonce())
    guest = world.guest()
    honest = Evidence.from_dict(
        {
            **guest.evidence(asked.report_data(shown.digest), collateral=None).to_dict(),
            "gpu": shown.to_dict(),
        }
    )
    policy = policy_from_dict({**world.policy.to_dict(), "gpu": "any"})
    collateral = world.pki.collateral(world.clock())

    def decided(evidence: Evidence) -> object:
        facts = verify(evidence, policy, world.clock(), binding=asked, collateral=collateral)
        return appraise(facts, policy, binding=asked, compose_hash=None, app_id=None)

    decided(honest)
    for gpu in (claiming(shown, **lie), None):
        with pytest.raises(ReportDataMismatch):
            decided(honest.model_copy(update={"gpu": gpu}))


@pytest.mark.negative(8)
def test_a_good_guests_quote_does_not_vouch_for_a_strangers_key(world: ReleaseWorld) -> None:
    """The relay attack: forward the challenge to an honest guest, keep one's own key."""
    honest = world.guest()
    mine = HpkePrivateKey(Secret(os.urandom(32)))

    def relay(document: dict[str, Any]) -> None:
        del document["evidence"]
        asked_of_the_honest = Binding("release", dict(document))
        document["hpke_public_key"] = to_base64(mine.public.raw)
        document["evidence"] = honest.evidence(asked_of_the_honest, collateral=None).to_dict()

    world.wire.on_request = relay
    refused(world, ReportDataMismatch, world.obtain)


# --- 7, 9: roles and purposes --------------------------------------------------------------------


@pytest.mark.negative(7)
def test_the_brokers_own_evidence_is_no_guests(world: ReleaseWorld) -> None:
    """Reflection: what the broker says of itself comes back to it as a guest's."""
    answer = world.wire.keys(
        app_id=world.locked.app_id, compose_hash=world.locked.compose_hash, nonce="ab" * 32
    )

    def reflect(document: dict[str, Any]) -> None:
        document["evidence"] = answer.evidence.to_dict()

    world.wire.on_request = reflect
    refused(world, ComposeHashMismatch, world.obtain)


@pytest.mark.negative(7)
def test_a_guests_evidence_is_no_brokers(world: ReleaseWorld) -> None:
    """A guest that owners approved is still not the service that they pinned."""

    def impersonate(document: dict[str, Any]) -> None:
        statement = {
            name: value for name, value in document.items() if name not in ("version", "evidence")
        }
        evidence = world.guest().evidence(
            Binding("broker-keys", statement),
            collateral=world.pki.collateral(world.clock()),
        )
        document["evidence"] = evidence.to_dict()

    world.wire.on_answer = impersonate
    refused(world, ComposeHashMismatch, world.attest)


@pytest.mark.negative(7)
@pytest.mark.negative(9)
@pytest.mark.parametrize("purpose", ["renewal", "broker-keys", "manifest", "releases", "r"])
def test_evidence_for_any_other_purpose_does_not_release(world: ReleaseWorld, purpose: str) -> None:
    """Even where the very same transcript was signed by the very same guest."""
    guest = world.guest()
    refused(
        world,
        ReportDataMismatch,
        lambda: world.obtain(
            collect=lambda asked: guest.evidence(
                Binding(purpose, asked.transcript), collateral=None
            )
        ),
    )


@pytest.mark.negative(9)
@pytest.mark.parametrize(
    "prefix",
    [b"sealtrain/release/v2:", b"sealtrain/release/v1", b"sealtrain/release/v1::", b"", b"dstack:"],
)
def test_another_domain_separator_or_version_does_not_release(
    world: ReleaseWorld, prefix: bytes
) -> None:
    import hashlib

    guest = world.guest()

    def otherwise(asked: Binding) -> Evidence:
        data = hashlib.sha512(prefix + canonical_json(asked.transcript)).digest()
        return guest.evidence(data, collateral=None)

    refused(world, ReportDataMismatch, lambda: world.obtain(collect=otherwise))


@pytest.mark.negative(9)
def test_evidence_of_another_version_is_refused(world: ReleaseWorld) -> None:
    for version in (0, 1, 3, "2", None, True):
        world.wire.on_request = lambda document, version=version: document["evidence"].update(
            version=version
        )
        refused(world, DataInvalid, world.obtain)


# --- 10: the verifier's clock --------------------------------------------------------------------


@pytest.mark.negative(10)
@pytest.mark.parametrize("days", [-400, -2, 31, 4000])
def test_a_broker_whose_clock_is_outside_its_collateral_releases_nothing(
    tmp_path: Path, days: int
) -> None:
    with release_world(tmp_path) as world:
        fixed = world.pki.collateral(world.clock())
        world.restart(collateral=lambda _evidence: fixed)
        honest = world.obtain()
        assert honest.keys
        attested = world.attest()
        world.clock.advance(days * 24 * 3600)
        refused(world, CollateralExpired, lambda: world.obtain(attested=attested))


# --- 55 to 57: whoever terminates the connection -------------------------------------------------


@pytest.mark.negative(55)
@pytest.mark.negative(56)
def test_whoever_relays_every_byte_learns_no_key(world: ReleaseWorld) -> None:
    """Genuine evidence over somebody else's connection: the answer opens for one key only."""
    grant = world.obtain()
    assert len(grant.keys) == 3
    world.assert_no_key_left()
    request = canonical_json(world.wire.requests[-1].to_dict())
    secrets = [key.reveal() for key in grant.keys.values()]
    for data in (request, *world.wire.left_the_broker):
        for secret in secrets:
            for form in (secret, secret.hex().encode(), to_base64(secret).encode()):
                assert form not in data


@pytest.mark.negative(56)
def test_a_relay_that_keeps_the_answer_cannot_open_it_with_its_own_key(
    world: ReleaseWorld,
) -> None:
    seen: list[dict[str, Any]] = []
    world.wire.on_answer = lambda document: seen.append(dict(document))
    world.obtain()
    sealed = from_base64(seen[-1]["enc"])
    mine = HpkePrivateKey(Secret(os.urandom(32)))
    for info in (b"", b"sealtrain/release/v1"):
        with pytest.raises(SealtrainError):
            mine.open(sealed, info=info)


@pytest.mark.negative(55)
@pytest.mark.negative(57)
def test_another_server_of_the_same_name_is_not_the_pinned_one(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    """Same address, same consortium, same software, other keys: an attested broker is its key."""
    attested = world.attest()
    with release_world(tmp_path, root=bytes(32)) as impostor:
        with pytest.raises(BrokerMismatch):
            impostor.obtain(attested=attested)
        assert impostor.kinds()[-1] == "refusal"


@pytest.mark.negative(55)
def test_a_broker_that_attests_one_key_and_signs_with_another_is_refused(
    world: ReleaseWorld,
) -> None:
    attested = world.attest()
    other = HpkePrivateKey(Secret(bytes(32))).public.raw[:32]
    with pytest.raises(Refused):
        world.obtain(attested=replace(attested, signing_key=other))


@pytest.mark.negative(57)
def test_a_stranger_with_the_brokers_software_under_another_vendor_is_refused(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    stranger = booted(simulated_pki("a stranger"), BROKER_COMPOSE, 0)

    def answer(document: dict[str, Any]) -> None:
        statement = {
            name: value for name, value in document.items() if name not in ("version", "evidence")
        }
        document["evidence"] = stranger.evidence(
            Binding("broker-keys", statement), collateral=world.pki.collateral(world.clock())
        ).to_dict()

    world.wire.on_answer = answer
    with pytest.raises(Refused) as caught:
        world.keys_from(world.wire, world.pin)
    assert caught.value.code == "quote-root-untrusted"


# --- 58, 59: another run, another epoch ----------------------------------------------------------


@pytest.mark.negative(59)
def test_keys_sealed_for_one_run_do_not_open_in_another(world: ReleaseWorld) -> None:
    """The same guest, the same recipe, the same broker: ``info`` names the one request."""
    seen: list[str] = []
    world.wire.on_answer = lambda document: seen.append(document.get("enc", ""))
    world.obtain()

    def replay(document: dict[str, Any]) -> None:
        if "enc" in document:
            document["enc"] = seen[-1]

    world.wire.on_answer = replay
    with pytest.raises(AnswerInvalid):
        world.obtain()


# --- 61, 62: between evidence and release --------------------------------------------------------


@pytest.mark.negative(61)
def test_a_revocation_between_evidence_and_release_counts(fresh: ReleaseWorld) -> None:
    """What is checked is what holds when keys leave, not when the guest was asked."""
    honest = fresh.collect(fresh.guest())

    def revoked_meanwhile(binding: Binding) -> Evidence:
        evidence = honest(binding)
        fresh.revoke("hospital-c")
        return evidence

    refused(fresh, ApprovalRevoked, lambda: fresh.obtain(collect=revoked_meanwhile))


@pytest.mark.negative(61)
def test_a_policy_tightened_between_evidence_and_release_counts(fresh: ReleaseWorld) -> None:
    honest = fresh.collect(fresh.guest())
    document = fresh.policy.to_dict()
    tightened = policy_from_dict(
        {**document, "cpu": {**document["cpu"], "platform_ids": ["0a" * 16]}}
    )

    def tightened_meanwhile(binding: Binding) -> Evidence:
        evidence = honest(binding)
        fresh.restart(policy=tightened)
        return evidence

    with pytest.raises(Refused) as caught:
        fresh.obtain(collect=tightened_meanwhile)
    assert caught.value.code == "platform-mismatch"
    fresh.assert_no_key_left()


@pytest.mark.negative(62)
def test_of_guests_that_ask_for_one_run_at_once_one_gets_keys(world: ReleaseWorld) -> None:
    run_id, before = os.urandom(16).hex(), world.kinds().count("release")
    attested = world.attest()
    together = threading.Barrier(4)
    outcomes: list[str] = []

    def ask(number: int) -> None:
        guest = world.guest(number=number)
        collect = world.collect(guest)
        together.wait()
        try:
            obtain(
                Wire(broker=world.broker),
                attested,
                collect,
                KeyRequest(
                    run_id=run_id,
                    recipe_hash=world.locked.recipe_hash,
                    datasets=[dataset.asked for dataset in world.sealed.values()],
                    resume=False,
                ),
            )
            outcomes.append("released")
        except RunMismatch:
            outcomes.append("refused")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused", "refused", "refused", "released"]
    assert world.kinds().count("release") == before + 1


@pytest.mark.negative(62)
def test_one_request_sent_by_two_gets_one_answer(world: ReleaseWorld) -> None:
    world.obtain()
    again = load_message(ReleaseRequest, canonical_json(world.wire.requests[-1].to_dict()))
    refused(world, ChallengeReplayed, lambda: world.wire.release(again))


# --- 63: what an error tells ---------------------------------------------------------------------


@pytest.mark.negative(63)
def test_a_wrong_key_is_told_the_same_way_wherever_it_is_wrong(world: ReleaseWorld) -> None:
    """Any byte of a wrapped key, any byte of it altered: one refusal, letter for letter."""
    sealed = world.sealed["hospital-a"]
    body = sealed.stanza.body
    told = []
    for place in (*range(0, len(body), max(1, len(body) // 6)), len(body) - 17, len(body) - 1):
        altered = bytearray(body)
        altered[place] ^= 1
        stanza = replace(sealed.stanza, body=bytes(altered))
        error = refused(
            world,
            WrongKey,
            lambda stanza=stanza: world.obtain(datasets=[sealed.asked_with(stanza=stanza)]),
        )
        told.append(error.to_dict())
    assert len(told) > 6
    assert all(answer == told[0] for answer in told)


@pytest.mark.negative(63)
def test_an_invented_lease_is_told_like_one_that_nearly_exists(world: ReleaseWorld) -> None:
    from sealtrain.client.grant import renew
    from sealtrain.release.errors import LeaseUnknown

    grant = world.obtain()
    first = grant.receipts[0]
    told = []
    for place in (0, 63):
        lease_id = first.receipt.lease.lease_id
        other = "0" if lease_id[place] != "0" else "1"
        lease = first.receipt.lease.model_copy(
            update={"lease_id": lease_id[:place] + other + lease_id[place + 1 :]}
        )
        receipt = first.receipt.model_copy(update={"lease": lease})
        near = replace(grant, receipts=(replace(first, receipt=receipt),))
        with pytest.raises(LeaseUnknown) as caught:
            renew(world.wire, world.attest(), world.collect(world.guest()), near)
        fields = caught.value.to_dict()
        fields.pop("got", None)
        told.append(fields)
    assert told[0] == told[1]
