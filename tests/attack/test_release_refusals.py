"""No key leaves unless every check of the protocol holds: one attack, one code, one entry."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from release_world import ReleaseWorld, SealedSet, ids_of, release_world, served_world
from world import DAY, identity, lock_changed, simulated_pki

from sealtrain.attest.errors import (
    AppIdMismatch,
    ComposeHashMismatch,
    EventLogMismatch,
    PlatformMismatch,
    QuoteRootUntrusted,
    ReportDataMismatch,
)
from sealtrain.attest.report_data import Binding
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.store.transaction import Transaction
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.grant import AskedKey
from sealtrain.consortium.errors import (
    ApprovalExpired,
    ApprovalRevoked,
    ApprovalsMissing,
    ApprovalUnknown,
    ConsortiumMismatch,
    DatasetMismatch,
)
from sealtrain.errors import (
    KeyProviderMismatch,
    RecipeChanged,
    Refused,
    RunMismatch,
    SealtrainError,
    TooManyRequests,
    Unreachable,
)
from sealtrain.keys.derive import recipe_key
from sealtrain.keys.identity import Identity
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.release.errors import ChallengeExpired, ChallengeReplayed, ChallengeUnknown
from sealtrain.release.messages import ReleaseRequest
from sealtrain.sealing.errors import NoStanza, WrongKey
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey
from sealtrain.sealing.stanza import BrokerBinding, RecipeBinding, Stanza, wrap_for_recipe
from sealtrain.signing.errors import StatementInvalid

pytestmark = [pytest.mark.long, pytest.mark.claim("C19")]


def refused(
    world: ReleaseWorld, error: type[SealtrainError], attempt: Callable[[], object]
) -> SealtrainError:
    """The attempt fails as told, is in the ledger as a refusal, and nothing secret left."""
    before = len(world.refusals())
    with pytest.raises(error) as caught:
        attempt()
    assert type(caught.value) is error
    if issubclass(error, Refused):
        assert caught.value.exit_code == 3
    entries = world.refusals()[before:]
    assert [entry["code"] for entry in entries] == [error.code]
    assert "release" not in world.kinds()[-1]
    world.assert_no_key_left()
    return caught.value


def changed_recipe(world: ReleaseWorld) -> LockedRecipe:
    return world.lock(lambda recipe: recipe["trainer"].update(max_steps=301))


def replaced(sealed: SealedSet, stanza: Stanza) -> AskedKey:
    return sealed.asked_with(stanza=stanza)


@pytest.mark.claim("C10")
def test_one_approval_short(tmp_path: Path) -> None:
    with release_world(tmp_path, approved_by=("hospital-a",)) as world:
        error = refused(world, ApprovalsMissing, world.obtain)
        assert error.got is not None
        assert error.got.startswith("1 of 2")
        world.approve("hospital-c")
        assert len(world.obtain().keys) == 3


@pytest.mark.claim("C10")
def test_an_expired_approval_does_not_count(tmp_path: Path) -> None:
    with release_world(tmp_path, approved_by=("hospital-a",)) as world:
        world.approve("hospital-b", not_after=world.clock() + 60)
        world.obtain()
        world.clock.advance(61)
        error = refused(world, ApprovalExpired, world.obtain)
        assert error.owner == "hospital-b"


@pytest.mark.claim("C11")
def test_one_revocation_stops_releases(world: ReleaseWorld) -> None:
    world.obtain()
    world.revoke("hospital-c")
    error = refused(world, ApprovalRevoked, world.obtain)
    assert error.owner == "hospital-c"
    world.approve("hospital-c")
    refused(world, ApprovalRevoked, world.obtain)


@pytest.mark.claim("C10")
def test_a_recipe_changed_after_approval(world: ReleaseWorld) -> None:
    other = changed_recipe(world)
    sets = [world.seal(owner, locked=other) for owner in ("hospital-a", "hospital-b")]
    error = refused(
        world,
        RecipeChanged,
        lambda: world.obtain(locked=other, datasets=[dataset.asked for dataset in sets]),
    )
    assert (error.got, error.expected) == (other.recipe_hash, world.locked.recipe_hash)


@pytest.mark.claim("C10")
def test_no_approval_at_all_is_not_called_a_changed_recipe(tmp_path: Path) -> None:
    with release_world(tmp_path, approved_by=()) as world:
        refused(world, ApprovalsMissing, world.obtain)


@pytest.mark.claim("C12")
def test_an_approval_by_an_outsider_counts_for_nothing(world: ReleaseWorld) -> None:
    mallory = Identity("hospital-c", Secret(bytes(range(1, 33))))
    refused(world, ApprovalUnknown, lambda: world.approve("hospital-c", identity_of=mallory))


@pytest.mark.claim("C12")
def test_an_approval_for_another_consortium_counts_for_nothing(world: ReleaseWorld) -> None:
    refused(world, ApprovalUnknown, lambda: world.approve("hospital-c", consortium_id="ab" * 32))


@pytest.mark.claim("C10")
def test_an_approval_from_the_future_is_refused(world: ReleaseWorld) -> None:
    late = world.clock() + 301
    refused(
        world,
        StatementInvalid,
        lambda: world.approve("hospital-c", signed_at=late, not_after=late + DAY),
    )


@pytest.mark.claim("C10")
def test_an_approval_that_is_over_is_refused_at_the_door(world: ReleaseWorld) -> None:
    past = world.clock() - DAY
    refused(
        world,
        ApprovalExpired,
        lambda: world.approve("hospital-c", signed_at=past, not_after=past + 60),
    )


def test_a_guest_that_claims_the_approved_compose_hash(world: ReleaseWorld) -> None:
    error = refused(
        world,
        ComposeHashMismatch,
        lambda: world.obtain(guest=world.guest(changed_recipe(world))),
    )
    assert error.expected == world.locked.compose_hash


def test_a_guest_that_claims_the_approved_recipe_hash(world: ReleaseWorld) -> None:
    other = changed_recipe(world)
    error = refused(
        world,
        RecipeChanged,
        lambda: world.obtain(locked=other, recipe_hash=world.locked.recipe_hash),
    )
    assert (error.got, error.expected) == (other.recipe_hash, world.locked.recipe_hash)


def test_a_guest_with_another_app_id(world: ReleaseWorld) -> None:
    def claim(document: dict[str, Any]) -> None:
        document["app_id"] = "ab" * 20

    world.wire.on_request = claim
    # The claim is in the transcript, so report data differs; the app id is compared before it.
    refused(world, AppIdMismatch, world.obtain)


def test_a_deployment_document_without_a_lock(world: ReleaseWorld) -> None:
    compose = b'{"manifest_version":2,"name":"bare"}'
    bare: Any = SimpleNamespace(
        compose_bytes=compose,
        compose_hash=sha256_hex(compose),
        app_id=sha256_hex(compose)[:40],
        recipe_hash=world.locked.recipe_hash,
        lock=world.locked.lock,
    )
    refused(world, RecipeChanged, lambda: world.obtain(locked=bare))


def test_a_lock_made_for_another_consortium(world: ReleaseWorld) -> None:
    other = lock_changed("cd" * 32, world.locked.lock.brokers)
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner, target=other.target, datasets=[])
    refused(world, ConsortiumMismatch, lambda: world.obtain(locked=other))


def test_a_platform_the_recipe_does_not_allow(world: ReleaseWorld) -> None:
    def on_hardware(recipe: dict[str, Any]) -> None:
        recipe["hardware"] |= {
            "platforms": ["dstack"],
            "tier": "processor",
            "image": f"registry.example/sealtrain:1@sha256:{'5a' * 32}",
        }

    other = world.lock(on_hardware)
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner, target=other.target, datasets=[])
    refused(world, PlatformMismatch, lambda: world.obtain(locked=other))


def test_a_key_provider_the_recipe_does_not_pin(world: ReleaseWorld) -> None:
    """The broker's policy says any; the recipe that owners approved does not."""

    def pinned(recipe: dict[str, Any]) -> None:
        recipe["hardware"] |= {"key_provider": "kms", "key_provider_id": "30" * 91}

    other = world.lock(pinned)
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner, target=other.target, datasets=[])
    refused(world, KeyProviderMismatch, lambda: world.obtain(locked=other))


@pytest.mark.claim("C14")
def test_a_quote_of_the_wrong_root(world: ReleaseWorld) -> None:
    pki = simulated_pki("somebody else")
    guest = world.guest(pki=pki)
    refused(
        world,
        QuoteRootUntrusted,
        lambda: world.obtain(guest=guest, collect=world.collect(guest, pki=pki)),
    )


@pytest.mark.claim("C18")
def test_evidence_of_another_conversation(world: ReleaseWorld) -> None:
    honest = world.collect(world.guest())
    other = Binding("release", {})
    refused(world, ReportDataMismatch, lambda: world.obtain(collect=lambda _asked: honest(other)))


@pytest.mark.claim("C18")
@pytest.mark.negative(9)
def test_evidence_made_for_a_renewal_does_not_release(world: ReleaseWorld) -> None:
    collect = world.collect(world.guest())

    def attest_a_renewal(document: dict[str, Any]) -> None:
        del document["evidence"]
        document["evidence"] = collect(Binding("renewal", document)).to_dict()

    world.wire.on_request = attest_a_renewal
    refused(world, ReportDataMismatch, world.obtain)


@pytest.mark.claim("C14")
@pytest.mark.negative(6)
def test_an_event_log_that_does_not_replay(world: ReleaseWorld) -> None:
    def drop_an_event(document: dict[str, Any]) -> None:
        del document["evidence"]["cpu"]["event_log"][-1]

    world.wire.on_request = drop_an_event
    refused(world, EventLogMismatch, world.obtain)


@pytest.mark.parametrize("field", ["hpke_public_key", "run_id", "root", "stanza", "resume"])
@pytest.mark.negative(6)
@pytest.mark.negative(8)
def test_anything_swapped_in_transit_breaks_the_report_data(
    world: ReleaseWorld, field: str
) -> None:
    mallory = HpkePrivateKey(Secret(os.urandom(32)))

    def swap(document: dict[str, Any]) -> None:
        match field:
            case "hpke_public_key":
                document["hpke_public_key"] = to_base64(mallory.public.raw)
            case "run_id":
                document["run_id"] = "ab" * 16
            case "root":
                document["datasets"][0]["root"] = "ab" * 32
            case "stanza":
                first, second = document["datasets"][:2]
                first["stanza"], second["stanza"] = second["stanza"], first["stanza"]
            case "resume":
                document["resume"] = True

    world.wire.on_request = swap
    refused(world, ReportDataMismatch, world.obtain)


@pytest.mark.claim("C17")
@pytest.mark.negative(1)
def test_a_challenge_serves_once(world: ReleaseWorld) -> None:
    world.obtain()
    refused(world, ChallengeReplayed, lambda: world.wire.release(world.wire.requests[-1]))


@pytest.mark.claim("C17")
@pytest.mark.negative(1)
def test_a_refused_request_burns_its_challenge_too(world: ReleaseWorld) -> None:
    world.revoke("hospital-a")
    refused(world, ApprovalRevoked, world.obtain)
    refused(world, ChallengeReplayed, lambda: world.wire.release(world.wire.requests[-1]))


@pytest.mark.claim("C17")
@pytest.mark.negative(2)
def test_a_challenge_of_another_broker(world: ReleaseWorld, tmp_path: Path) -> None:
    with release_world(tmp_path, root=bytes(32)) as other:
        world.wire.challenge = other.wire.challenge
        refused(world, ChallengeUnknown, world.obtain)


@pytest.mark.claim("C17")
@pytest.mark.negative(2)
def test_a_challenge_for_a_renewal_does_not_release(world: ReleaseWorld) -> None:
    plain = world.wire.challenge
    world.wire.challenge = lambda consortium_id, _purpose: plain(consortium_id, "renewal")
    refused(world, ChallengeUnknown, world.obtain)


@pytest.mark.claim("C17")
@pytest.mark.negative(3)
def test_an_expired_challenge(world: ReleaseWorld) -> None:
    collect = world.collect(world.guest())

    def slow(data: bytes) -> Any:
        world.clock.advance(120)
        return collect(data)

    refused(world, ChallengeExpired, lambda: world.obtain(collect=slow))


@pytest.mark.claim("C17")
@pytest.mark.negative(1)
def test_of_eight_simultaneous_replays_one_wins(world: ReleaseWorld) -> None:
    held: list[ReleaseRequest] = []

    class Held(Exception):  # not an error of the product
        pass

    def hold(request: ReleaseRequest) -> Any:
        held.append(request)
        raise Held

    release, world.wire.release = world.wire.release, hold
    with pytest.raises(Held):
        world.obtain()
    outcomes: list[str] = []
    together = threading.Barrier(8)

    def send() -> None:
        together.wait()
        try:
            release(held[0])
            outcomes.append("released")
        except ChallengeReplayed:
            outcomes.append("replayed")

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["released", *["replayed"] * 7]
    assert world.kinds().count("release") == 1
    assert len(world.refusals()) == 7


@pytest.mark.claim("C17")
def test_challenges_that_wait_cost_nothing_and_keep_nobody_out(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_disk(*_: object, **__: object) -> None:
        raise AssertionError("a challenge that nobody used touched the database")

    consortium_id = world.consortium.consortium_id
    with monkeypatch.context() as patched:
        patched.setattr("sealtrain.broker.store.memory.begin", no_disk)
        issued = {world.wire.challenge(consortium_id, "release").challenge for _ in range(5000)}
    assert len(issued) == 5000
    world.obtain()
    with world.store.reading() as transaction:
        assert transaction.counts(world.clock())[0] == 1


@pytest.mark.claim("C17")
@pytest.mark.parametrize("place", [0, 7, 8, 15, 16, 31])
def test_a_challenge_that_was_altered_is_not_the_brokers(world: ReleaseWorld, place: int) -> None:
    """A later end, another random part, another tag: none was made here."""
    plain = world.wire.challenge

    def altered(consortium_id: str, purpose: str) -> Any:
        found = plain(consortium_id, purpose)
        data = bytearray(bytes.fromhex(found.challenge))
        data[place] ^= 1
        return found.model_copy(update={"challenge": data.hex()})

    world.wire.challenge = altered  # type: ignore[method-assign]
    refused(world, ChallengeUnknown, world.obtain)


@pytest.mark.claim("C17")
def test_a_challenge_for_a_renewal_serves_for_no_release(world: ReleaseWorld) -> None:
    plain = world.wire.challenge
    world.wire.challenge = lambda consortium_id, _purpose: plain(  # type: ignore[method-assign]
        consortium_id, "renewal"
    )
    refused(world, ChallengeUnknown, world.obtain)


@pytest.mark.claim("C17")
def test_a_challenge_of_another_root_secret_or_consortium_is_unknown(
    world: ReleaseWorld, tmp_path: Path
) -> None:
    for changed in ({"root": bytes([9]) * 32}, {"owners": ("hospital-a", "hospital-b")}):
        (tmp_path / str(len(changed))).mkdir(exist_ok=True)
        with release_world(tmp_path / str(len(changed)), **changed) as other:
            theirs = other.wire.challenge(other.consortium.consortium_id, "release")
        plain = world.wire.challenge
        world.wire.challenge = lambda *_asked, theirs=theirs: theirs  # type: ignore[method-assign]
        try:
            refused(world, ChallengeUnknown, world.obtain)
        finally:
            world.wire.challenge = plain  # type: ignore[method-assign]


@pytest.mark.claim("C17")
def test_another_consortium_gets_no_challenge(world: ReleaseWorld) -> None:
    with pytest.raises(ConsortiumMismatch):
        world.wire.challenge("ab" * 32, "release")


def test_a_dataset_nobody_registered(world: ReleaseWorld) -> None:
    fresh = world.seal("hospital-a")
    refused(world, DatasetUnknown, lambda: world.obtain(datasets=[fresh.asked]))


def test_a_dataset_the_recipe_does_not_name(world: ReleaseWorld) -> None:
    extra = world.seal("hospital-c", name="payroll")
    world.register(extra)
    refused(world, DatasetUnknown, lambda: world.obtain(datasets=[extra.asked]))


def test_a_dataset_sealed_for_another_recipe(world: ReleaseWorld) -> None:
    other = world.seal("hospital-c", locked=changed_recipe(world))
    world.register(other)
    error = refused(world, DatasetUnknown, lambda: world.obtain(datasets=[other.asked]))
    assert error.owner == "hospital-c"


def test_a_swapped_dataset_root(world: ReleaseWorld) -> None:
    sealed = world.sealed["hospital-a"]
    asked = sealed.asked_with(root="ab" * 32)
    error = refused(world, DatasetMismatch, lambda: world.obtain(datasets=[asked]))
    assert (error.owner, error.got, error.expected) == ("hospital-a", "ab" * 32, sealed.root)


def test_a_root_that_an_approval_does_not_pin(world: ReleaseWorld) -> None:
    pin = world.sealed["hospital-b"].pin.model_copy(update={"root": "ab" * 32})
    world.approve("hospital-b", datasets=[pin])
    error = refused(world, DatasetMismatch, world.obtain)
    assert error.check == "dataset pin"


def test_an_owner_who_shows_a_second_dataset_under_the_same_approval(world: ReleaseWorld) -> None:
    second = world.seal("hospital-a")
    world.register(second)
    error = refused(world, DatasetMismatch, lambda: world.obtain(datasets=[second.asked]))
    assert (error.owner, error.check) == ("hospital-a", "dataset pin")


def test_a_manifest_signed_by_another_owner(world: ReleaseWorld) -> None:
    forged = world.seal("hospital-a", signed_by="hospital-b")
    refused(world, DatasetMismatch, lambda: world.register(forged))


def test_a_dataset_id_that_another_owner_registered(world: ReleaseWorld) -> None:
    taken = world.seal("hospital-b", dataset_id=world.sealed["hospital-a"].dataset_id)
    world.register(taken)
    assert world.obtain().keys
    swapped = [taken.asked, *(world.sealed[name].asked for name in ("hospital-b", "hospital-c"))]
    refused(world, DatasetMismatch, lambda: world.obtain(datasets=swapped))


def test_a_second_manifest_that_does_not_continue_the_first(world: ReleaseWorld) -> None:
    again = world.seal("hospital-a", dataset_id=world.sealed["hospital-a"].dataset_id)
    refused(world, DatasetMismatch, lambda: world.register(again))


@pytest.mark.claim("C6")
def test_a_stanza_of_another_owner(world: ReleaseWorld) -> None:
    stanza = world.sealed["hospital-b"].stanza
    asked = replaced(world.sealed["hospital-a"], stanza)
    error = refused(world, NoStanza, lambda: world.obtain(datasets=[asked]))
    assert error.owner == "hospital-a"


@pytest.mark.claim("C6")
def test_a_stanza_of_another_dataset(world: ReleaseWorld) -> None:
    asked = replaced(world.sealed["hospital-a"], world.seal("hospital-a").stanza)
    refused(world, WrongKey, lambda: world.obtain(datasets=[asked]))


@pytest.mark.claim("C6")
def test_a_stanza_of_another_recipe(world: ReleaseWorld) -> None:
    stanza = world.seal("hospital-a", locked=changed_recipe(world)).stanza
    refused(
        world,
        NoStanza,
        lambda: world.obtain(datasets=[replaced(world.sealed["hospital-a"], stanza)]),
    )


@pytest.mark.claim("C6")
def test_a_stanza_made_for_another_brokers_root(world: ReleaseWorld) -> None:
    sealed = world.sealed["hospital-a"]
    binding = RecipeBinding(
        app_id=world.locked.app_id,
        compose_hash=world.locked.compose_hash,
        owner_id=identity("hospital-a").public.owner_id,
    )
    other = HpkePublicKey(recipe_key(Secret(bytes(32)), **binding.to_dict()).public.raw)
    for broker, error in ((world.pin.broker_id, WrongKey), (ids_of(bytes(32))[0], NoStanza)):
        stanza = wrap_for_recipe(
            sealed.key,
            dataset_id=sealed.dataset_id,
            binding=BrokerBinding.of(binding, broker),
            public=other,
        )
        asked = [replaced(sealed, stanza)]
        refused(world, error, lambda asked=asked: world.obtain(datasets=asked))


def test_an_unknown_run_cannot_be_resumed(world: ReleaseWorld) -> None:
    refused(world, RunMismatch, lambda: world.obtain(resume=True))


@pytest.mark.negative(62)
def test_a_known_run_cannot_be_started_again(world: ReleaseWorld) -> None:
    run_id = world.obtain().run_id
    refused(world, RunMismatch, lambda: world.obtain(run_id=run_id))


def test_a_run_cannot_be_resumed_with_another_recipe(world: ReleaseWorld) -> None:
    run_id = world.obtain().run_id
    other = changed_recipe(world)
    for owner in ("hospital-a", "hospital-b"):
        world.approve(owner, target=other.target, datasets=[])
    refused(world, RunMismatch, lambda: world.obtain(run_id=run_id, locked=other, resume=True))


def test_nothing_leaves_when_the_ledger_cannot_be_written(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise Unreachable("the disk is full")

    monkeypatch.setattr(world.ledger, "append", full)
    with pytest.raises(Unreachable):
        world.obtain()
    world.assert_no_key_left()
    monkeypatch.undo()
    assert "release" not in world.kinds()
    with world.store.transaction() as transaction:
        assert transaction.run(world.wire.requests[-1].run_id) is None


def test_nothing_leaves_when_the_database_cannot_commit(
    world: ReleaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no space left")

    monkeypatch.setattr(Transaction, "grant_lease", broken)
    with pytest.raises(RuntimeError):
        world.obtain()
    world.assert_no_key_left()
    assert "release" not in world.kinds()


def test_decisions_per_minute_are_bounded(tmp_path: Path) -> None:
    limits = BrokerLimits(posts_per_minute=2)
    with served_world(tmp_path, limits=limits) as (world, url), BrokerClient(url) as client:
        world.obtain()
        again = world.wire.requests[-1]
        assert isinstance(again, ReleaseRequest)

        def ask() -> None:
            client.release(again)

        with pytest.raises(ChallengeReplayed):
            ask()
        for _ in range(3):
            with pytest.raises(TooManyRequests):
                ask()
        assert len(world.refusals()) == 1
        world.clock.advance(60)
        with pytest.raises(ChallengeReplayed):
            ask()
