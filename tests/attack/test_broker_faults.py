"""A broker whose clock jumps, or that many ask at once: nothing opens that was shut."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from release_world import ReleaseWorld, release_world
from world import DAY

from sealtrain.base.canonical import canonical_json
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.service.keyring import Keyring
from sealtrain.client.grant import renew
from sealtrain.consortium.errors import ApprovalRevoked, ApprovalsMissing
from sealtrain.errors import LeaseStale, Refused, RunMismatch, SealtrainError
from sealtrain.release.errors import ChallengeExpired, ChallengeReplayed, ChallengeUnknown
from sealtrain.release.messages import ReleaseRequest, load_message

pytestmark = pytest.mark.claim("C17")


def again(world: ReleaseWorld) -> None:
    """The last request once more, as it was."""
    request = world.wire.requests[-1]
    world.wire.release(load_message(ReleaseRequest, canonical_json(request.to_dict())))


@pytest.mark.parametrize("jump", [-10 * DAY, -3600, 3600, 2 * DAY])
def test_no_jump_of_the_clock_lets_a_request_serve_twice(world: ReleaseWorld, jump: int) -> None:
    world.obtain()
    world.clock.advance(jump)
    # Asking for another challenge is what makes the broker forget old ones.
    world.wire.challenge(world.consortium.consortium_id, "release")
    with pytest.raises((ChallengeReplayed, ChallengeUnknown)):
        again(world)
    world.clock.advance(-jump)
    with pytest.raises((ChallengeReplayed, ChallengeUnknown)):
        again(world)
    assert world.kinds().count("release") == 1


def test_a_challenge_that_is_over_is_burnt_by_trying_it(world: ReleaseWorld) -> None:
    plain = world.wire.challenge

    def held(consortium_id: str, purpose: str) -> object:
        found = plain(consortium_id, purpose)
        world.clock.advance(121)
        return found

    world.wire.challenge = held  # type: ignore[assignment]
    with pytest.raises(ChallengeExpired):
        world.obtain(attested=world.attest())
    world.clock.advance(-121)
    with pytest.raises(ChallengeReplayed):
        again(world)


def test_a_clock_set_back_counts_no_approval_from_its_future(world: ReleaseWorld) -> None:
    world.clock.advance(-3600)
    with pytest.raises(ApprovalsMissing):
        world.obtain()
    world.clock.advance(3600)
    world.obtain()


@pytest.mark.parametrize("jump", [-DAY, -3600, 3600])
def test_a_revocation_holds_whatever_the_clock_says(world: ReleaseWorld, jump: int) -> None:
    grant, attested = world.obtain(), world.attest()
    world.revoke("hospital-c")
    world.clock.advance(jump)
    with pytest.raises(ApprovalRevoked):
        world.obtain(attested=attested)
    with pytest.raises(ApprovalRevoked):
        renew(world.wire, attested, world.collect(world.guest()), grant)


def test_a_lease_that_a_resume_ended_stays_ended_when_the_clock_goes_back(
    world: ReleaseWorld,
) -> None:
    grant, attested = world.obtain(), world.attest()
    world.clock.advance(4000)
    world.obtain(run_id=grant.run_id, resume=True, attested=attested)
    world.clock.advance(-4000)
    with pytest.raises(LeaseStale):
        renew(world.wire, attested, world.collect(world.guest()), grant)
    with pytest.raises(RunMismatch):
        world.obtain(run_id=grant.run_id, attested=attested)


def test_refusals_and_failures_give_their_place_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_asked: object, **_named: object) -> bytes:
        raise ZeroDivisionError

    with release_world(tmp_path, limits=BrokerLimits(deciding=2)) as world:
        attested = world.attest()
        for _ in range(5):
            with pytest.raises(Refused):
                world.obtain(attested=attested, recipe_hash="00" * 32)
        with monkeypatch.context() as patched:
            patched.setattr(Keyring, "seal_answer", broken)
            for _ in range(5):
                with pytest.raises(ZeroDivisionError):
                    world.obtain(attested=attested)
        world.obtain(attested=attested)


def test_more_guests_than_are_served_at_a_time_all_get_their_keys(tmp_path: Path) -> None:
    with release_world(tmp_path, limits=BrokerLimits(deciding=2)) as world:
        attested, guest = world.attest(), world.guest()
        runs: list[str] = []
        errors: list[SealtrainError] = []

        def ask() -> None:
            try:
                runs.append(world.obtain(attested=attested, guest=guest).run_id)
            except SealtrainError as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert len(set(runs)) == 9
        assert world.kinds().count("release") == 9
