"""A lease by two clocks: the earlier end counts, in every process, for every key."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from sealtrain.errors import LeaseStale
from sealtrain.guest.lease import RunLease
from sealtrain.sealing.datakey import DataKey

NOW = 1_800_000_000


class Clocks:
    """The wall clock of the guest, and seconds that never go back."""

    def __init__(self) -> None:
        self.wall, self.elapsed = NOW, 50.0

    def pass_by(self, seconds: int) -> None:
        self.wall += seconds
        self.elapsed += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def lease(clocks: Clocks) -> RunLease:
    made = RunLease(lambda: clocks.wall, elapsed=lambda: clocks.elapsed)
    made.extend(NOW + 60, 60.0, made.moment())
    return made


def test_nothing_is_leased_before_a_broker_said_so(clocks: Clocks) -> None:
    with pytest.raises(LeaseStale):
        RunLease(lambda: clocks.wall, elapsed=lambda: clocks.elapsed).require()


def test_it_ends_at_its_second_and_not_before(lease: RunLease, clocks: Clocks) -> None:
    clocks.pass_by(59)
    lease.require()
    clocks.pass_by(1)
    with pytest.raises(LeaseStale) as caught:
        lease.require()
    assert caught.value.exit_code == 3
    assert "resume" in str(caught.value.hint)


@pytest.mark.claim("C64")
@pytest.mark.parametrize("jump", [-86_400, -30, 30, 86_400])
def test_a_clock_that_jumps_never_makes_it_longer(
    lease: RunLease, clocks: Clocks, jump: int
) -> None:
    clocks.pass_by(10)
    clocks.wall += jump
    assert lease.seconds_left() == min(50, 50 - jump)
    clocks.pass_by(50)
    with pytest.raises(LeaseStale):
        lease.require()


@pytest.mark.claim("C64")
def test_a_machine_that_stood_still_finds_its_lease_over(lease: RunLease, clocks: Clocks) -> None:
    clocks.elapsed += 3600  # counts while suspended, even where the wall clock was held back
    with pytest.raises(LeaseStale):
        lease.require()


def test_the_question_counts_from_when_it_was_sent(clocks: Clocks) -> None:
    lease = RunLease(lambda: clocks.wall, elapsed=lambda: clocks.elapsed)
    asked = lease.moment()
    clocks.elapsed += 20  # an answer held back on the way
    lease.extend(NOW + 60, 60.0, asked)
    assert lease.seconds_left() == 40


def test_what_has_ended_for_good_is_not_extended(lease: RunLease) -> None:
    lease.end()
    lease.extend(NOW + 600, 600.0, lease.moment())
    with pytest.raises(LeaseStale):
        lease.require()


@pytest.mark.claim("C64")
@pytest.mark.parametrize(
    "use",
    [DataKey.reveal, lambda key: key.derive("a"), lambda key: key.mac(b"a")],
    ids=["reveal", "derive", "mac"],
)
def test_a_lent_key_and_what_was_derived_from_it_are_not_used(
    lease: RunLease, use: Callable[[DataKey], object]
) -> None:
    key = DataKey(bytes(32))
    lent = key.with_permit(lease.require)
    derived = lent.derive("store")
    assert derived == key.derive("store")
    lease.end()
    for trip in (lent, derived):
        with pytest.raises(LeaseStale):
            use(trip)
    use(key)


def test_a_forked_process_learns_of_extensions_and_of_the_end(
    lease: RunLease, clocks: Clocks
) -> None:
    told, ask = os.pipe()
    answer, say = os.pipe()
    child = os.fork()
    if child == 0:
        for _ in range(3):
            os.read(told, 1)
            os.write(say, b"y" if lease.seconds_left() > 100 else b"n")
        os._exit(0)
    said = b""
    for change in (
        lambda: None,
        lambda: lease.extend(NOW + 200, 200.0, lease.moment()),
        lease.end,
    ):
        change()
        os.write(ask, b".")
        said += os.read(answer, 1)
    os.waitpid(child, 0)
    assert said == b"nyn"
