"""When a lease is renewed, and when training stops for its sake."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import ApprovalRevoked
from sealtrain.errors import LeaseStale, NodeLost, SealtrainError, TooManyRequests
from sealtrain.guest.errors import RunStopped
from sealtrain.guest.lease import RunLease
from sealtrain.guest.leasekeeper import LeaseKeeper, LeaseStanding, State
from sealtrain.release.errors import AnswerInvalid, DatasetWithdrawn
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.checkpoint import CheckpointRef

NOW, LENGTH = 1_800_000_000, 600
GONE = BrokerUnreachable("the broker does not answer", check="broker", got="ConnectError")
REVOKED = ApprovalRevoked(
    "the approval was revoked",
    check="approvals",
    owner="clinic-c",
    got="1 revoked",
    expected="0",
    hint="another",
)


class World:
    """A broker that answers as it is told to, and clocks that are set by hand."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.jumped = 0
        self.answer: SealtrainError | None = None
        self.meanwhile: Callable[[tuple[int, str] | None], None] = lambda _: None
        self.asked: list[tuple[float, tuple[int, str] | None]] = []
        self.lease = RunLease(
            lambda: NOW + self.jumped + int(self.passed), elapsed=lambda: self.passed
        )
        self.lease_keeper = LeaseKeeper(self.lease, self.renew)
        self.extend()
        self.lease_keeper.begin()  # as entering it does, without a thread

    def extend(self) -> None:
        self.lease.extend(NOW + int(self.passed) + LENGTH, LENGTH, self.lease.moment())

    def renew(self, checkpoint: tuple[int, str] | None) -> None:
        self.meanwhile(checkpoint)
        self.asked.append((self.passed, checkpoint))
        if self.answer is not None:
            raise self.answer
        self.extend()

    def until(self, moment: float) -> None:
        """Let time pass, tending whenever it is time to."""
        for _ in range(1000):
            wait = self.lease_keeper.tend()
            if self.passed + wait > moment:
                self.passed = moment
                return
            self.passed += max(wait, 0.001)
        raise AssertionError("it never waits")

    def steps(self, first: int, last: int, each: float, **question: Any) -> int | None:
        """Train; the step after which it stops."""
        asked = {"ahead": 0, "span": 1, "sealing": 2.0} | question
        for step in range(first, last + 1):
            self.until(self.passed + each)
            if self.lease_keeper.must_stop(step, **asked):
                return step
        return None


@pytest.fixture
def world() -> World:
    return World()


BUG = ZeroDivisionError()
STANDINGS = {
    State.RENEWED: LeaseStanding(),
    State.UNANSWERED: LeaseStanding(State.UNANSWERED, GONE),
    State.REFUSED: LeaseStanding(State.REFUSED, REVOKED),
    State.BROKEN: LeaseStanding(State.BROKEN, bug=BUG),
}
EVENTS: dict[str, Callable[[LeaseStanding], LeaseStanding]] = {
    "renewal": lambda standing: standing.after_renewal(ending=None),
    "silence": lambda standing: standing.after_failure(GONE),
    "refusal": lambda standing: standing.after_failure(REVOKED),
    "bug": lambda standing: standing.after_bug(BUG),
}
RENEWED, UNANSWERED, REFUSED, BROKEN = State


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (RENEWED, (RENEWED, UNANSWERED, REFUSED, BROKEN)),
        (UNANSWERED, (RENEWED, UNANSWERED, REFUSED, BROKEN)),
        (REFUSED, (REFUSED, REFUSED, REFUSED, BROKEN)),
        (BROKEN, (BROKEN, BROKEN, BROKEN, BROKEN)),
    ],
)
def test_transitions_between_states(state: State, after: tuple[State, ...]) -> None:
    before = STANDINGS[state]
    for event, expected in zip(EVENTS.values(), after, strict=True):
        standing = event(before)
        assert standing.state is expected
        assert standing.settled == (expected in (REFUSED, BROKEN))
        if expected is state and standing.settled:
            assert standing == before


@pytest.mark.parametrize(
    ("before", "told", "after"),
    [(False, None, False), (True, None, True), (False, True, True), (True, False, False)],
)
def test_a_lease_that_is_ending_is_so_until_an_answer_says_otherwise(
    before: bool, told: bool | None, after: bool
) -> None:
    standing = LeaseStanding(ending=before).after_failure(GONE)
    assert standing.ending == before
    assert standing.after_renewal(ending=told).ending == after


def ref(counter: int) -> CheckpointRef:
    return CheckpointRef(counter=counter, step=counter * 10, digest=f"{counter:02x}" * 32)


def test_it_renews_at_half_of_the_lease_for_as_long_as_it_runs(world: World) -> None:
    world.until(1000)
    assert [moment for moment, _ in world.asked] == [300, 600, 900]
    assert world.lease.seconds_left() == 500


def test_a_checkpoint_is_anchored_at_once_and_renews(world: World) -> None:
    world.until(10)
    world.lease_keeper.anchor_checkpoint(ref(1))
    assert world.lease_keeper.anchored == 0
    world.until(20)
    assert world.asked == [(10, (1, "01" * 32))]
    assert world.lease_keeper.anchored == 1
    world.lease_keeper.settle()


def test_of_checkpoints_sealed_meanwhile_the_newest_is_anchored(world: World) -> None:
    def seal(checkpoint: tuple[int, str] | None) -> None:
        if checkpoint == (1, "01" * 32):
            world.lease_keeper.anchor_checkpoint(ref(2))
            world.lease_keeper.anchor_checkpoint(ref(3))

    world.meanwhile = seal
    world.lease_keeper.anchor_checkpoint(ref(1))
    world.until(10)
    assert [checkpoint and checkpoint[0] for _, checkpoint in world.asked] == [1, 3]
    assert world.lease_keeper.anchored == 3


@pytest.mark.parametrize(
    "problem",
    [GONE, AnswerInvalid("altered"), TooManyRequests("too many")],
    ids=lambda one: one.code,
)
def test_what_is_no_decision_is_asked_again_ever_more_slowly(
    world: World, problem: SealtrainError
) -> None:
    world.answer = problem
    assert world.steps(1, 40, 10.0) is None
    moments = [moment for moment, _ in world.asked]
    pauses = [later - before for before, later in pairwise(moments)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert all(pause <= 60 for pause in pauses)
    world.answer = None
    assert world.steps(41, 100, 10.0) is None
    assert world.lease.seconds_left() > LENGTH / 2 - 10


def test_a_broker_that_never_comes_back_stops_training_in_time_to_seal(world: World) -> None:
    world.answer = GONE
    world.lease_keeper.anchor_checkpoint(ref(7))
    step = world.steps(1, 1000, 10.0, sealing=20.0)
    assert step is not None
    # Two checkpoints of 20 s, one step of 10 s and a bit still fit; two steps more would not.
    assert 50 <= world.lease.seconds_left() < 70
    with pytest.raises(BrokerUnreachable) as caught:
        world.lease_keeper.end_training()
    error = caught.value
    assert (error.exit_code, error.got) == (4, "ConnectError")
    assert re.findall(r"\d+", error.message)[-2:] == [str(step), "7"]
    assert "sealtrain resume" in str(error.hint)
    with pytest.raises(LeaseStale):
        world.lease.require()


def test_a_refusal_is_not_asked_again_and_waits_for_a_step_that_is_logged(world: World) -> None:
    world.until(299)
    world.answer = REVOKED
    assert world.steps(1, 5, 1.0, ahead=3, span=3) is None
    assert len(world.asked) == 1
    assert world.lease_keeper.must_stop(6, ahead=0, span=5, sealing=2.0)
    with pytest.raises(ApprovalRevoked) as caught:
        world.lease_keeper.end_training()
    assert (caught.value.exit_code, caught.value.owner) == (3, "clinic-c")
    assert re.findall(r"\d+", caught.value.message) == ["6"]
    assert "sealtrain resume" in str(caught.value.hint)


def test_a_process_that_is_told_to_end_stops_after_its_step(world: World) -> None:
    assert world.steps(1, 3, each=1.0, ahead=5) is None
    world.lease_keeper.end_soon()
    assert world.steps(4, 9, each=1.0, ahead=5) == 4
    with pytest.raises(RunStopped) as stopped:
        world.lease_keeper.end_training()
    assert stopped.value.exit_code == 143
    assert world.lease.seconds_left() <= 0  # no key is used any more


def test_what_a_process_was_told_to_end_with_outweighs_an_answer_that_is_awaited(
    world: World,
) -> None:
    world.answer = GONE
    world.until(350)
    assert world.steps(1, 3, each=1.0, ahead=5) is None
    assert world.lease_keeper.unheard is None  # the lease is long enough to ask again
    world.lease_keeper.end_soon(NodeLost("node 1 ended", check="node"))
    assert world.steps(4, 9, each=1.0, ahead=5) == 4
    with pytest.raises(NodeLost):
        world.lease_keeper.end_training()


def test_a_lease_that_ends_unanswered_is_why_even_where_a_process_was_told_to_end(
    world: World,
) -> None:
    world.answer = GONE
    world.until(590)
    assert world.lease_keeper.unheard is GONE
    world.lease_keeper.end_soon()
    world.until(601)
    with pytest.raises(BrokerUnreachable):
        world.lease_keeper.must_stop(1, ahead=0, span=5, sealing=2.0)


def test_after_a_refusal_it_does_not_wait_longer_than_the_lease_is_good(world: World) -> None:
    world.until(299)
    world.answer = REVOKED
    step = world.steps(1, 1000, 10.0, ahead=8, span=8)
    assert step is not None
    assert 10 < world.lease.seconds_left() < 110


def test_what_is_final_says_so_in_its_own_words(world: World) -> None:
    world.answer = DatasetWithdrawn("for good", hint="lock a recipe without it")
    world.until(301)
    assert world.lease_keeper.must_stop(9, ahead=0, span=1, sealing=None)
    with pytest.raises(DatasetWithdrawn) as caught:
        world.lease_keeper.end_training()
    assert caught.value.hint == "lock a recipe without it"


def test_where_another_guest_goes_on_it_stops_at_once_without_a_checkpoint(world: World) -> None:
    world.answer = CheckpointRefused("a newer one is anchored", hint="resume there")
    world.lease_keeper.anchor_checkpoint(ref(2))
    world.until(1)
    with pytest.raises(CheckpointRefused) as caught:
        world.lease_keeper.must_stop(3, ahead=4, span=4, sealing=None)
    assert caught.value.hint == "resume there"
    assert world.lease.seconds_left() <= 0


def test_a_stale_lease_is_not_asked_for(world: World) -> None:
    world.passed = LENGTH + 1
    assert world.lease_keeper.tend() > 60
    assert world.asked == []


def test_a_clock_that_jumps_back_gains_nothing(world: World) -> None:
    world.answer = GONE
    assert world.steps(1, 10, 10.0) is None
    world.jumped -= 86_400
    assert world.steps(11, 1000, 10.0) is not None
    assert 0 < LENGTH - world.passed < 60


def test_a_clock_that_jumps_ahead_ends_training_at_once(world: World) -> None:
    assert world.steps(1, 10, 10.0) is None
    world.jumped += 86_400
    with pytest.raises(LeaseStale) as caught:
        world.steps(11, 12, 10.0)
    assert "11" in re.findall(r"\d+", caught.value.message)


def test_an_error_of_its_own_making_stays_as_it_was(world: World) -> None:
    error = CheckpointRefused("another")
    assert world.lease_keeper.explain_end(error) is error
    world.passed = LENGTH + 1
    assert isinstance(world.lease_keeper.explain_end(error), LeaseStale)


def test_what_fails_after_a_run_closed_is_not_its_leases_doing(world: World) -> None:
    world.lease_keeper.given_back = True
    world.lease.end()
    error = CheckpointRefused("another")
    assert world.lease_keeper.explain_end(error) is error


class Slow:
    """A broker over a real thread and real clocks."""

    def __init__(self, seconds: float) -> None:
        self.lease = RunLease(lambda: int(time.time()))
        self.seconds = seconds
        self.open = threading.Event()
        self.asked = 0
        self.problem: Exception | None = None
        self.extend()
        self.lease_keeper = LeaseKeeper(self.lease, self.renew)

    def extend(self) -> None:
        asked = self.lease.moment()
        self.lease.extend(int(time.time()) + 3600, self.seconds, asked)

    def renew(self, checkpoint: tuple[int, str] | None) -> None:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        if not self.open.wait(20):
            raise GONE
        self.extend()


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow(0.6)
    with made.lease_keeper:
        yield made
        made.open.set()


def test_a_hanging_broker_does_not_hold_training_beyond_the_margin(slow: Slow) -> None:
    stopped_at = None
    for step in range(1, 200):
        time.sleep(0.01)
        if slow.lease_keeper.must_stop(step, ahead=0, span=1, sealing=0.05):
            stopped_at = slow.lease.seconds_left()
            break
    assert stopped_at is not None
    assert 0.05 < stopped_at < 0.4
    with pytest.raises(BrokerUnreachable):
        slow.lease_keeper.end_training()


def test_an_answer_in_time_lets_training_go_on(slow: Slow) -> None:
    threading.Timer(0.35, slow.open.set).start()
    for step in range(1, 100):
        time.sleep(0.01)
        assert not slow.lease_keeper.must_stop(step, ahead=0, span=1, sealing=0.02)
    assert slow.asked >= 2


def test_whoever_sealed_waits_for_the_anchor_while_the_broker_answers(slow: Slow) -> None:
    slow.open.set()
    slow.lease_keeper.anchor_checkpoint(ref(1))
    assert slow.lease_keeper.anchored == 1


def test_whoever_sealed_does_not_wait_for_a_broker_that_is_away(slow: Slow) -> None:
    slow.problem = GONE
    for counter in (1, 2, 3):
        slow.lease_keeper.anchor_checkpoint(ref(counter))
    assert slow.lease_keeper.anchored == 0
    assert slow.lease.seconds_left() > 0.3


def test_a_checkpoint_that_is_sealed_during_a_renewal_is_anchored_right_after_it(
    world: World,
) -> None:
    def sealed(_checkpoint: tuple[int, str] | None) -> None:
        if not world.asked:
            world.lease_keeper.anchor_checkpoint(ref(1))

    world.meanwhile = sealed
    world.until(301)
    assert [checkpoint for _, checkpoint in world.asked] == [None, (1, ref(1).digest)]
    assert world.lease_keeper.anchored == 1


def test_whoever_does_not_wait_goes_on_at_once(slow: Slow) -> None:
    slow.lease_keeper.anchor_checkpoint(ref(1), wait=False)
    assert slow.lease_keeper.anchored == 0
    slow.open.set()
    slow.lease_keeper.settle()
    assert slow.lease_keeper.anchored == 1


def test_a_bug_in_the_thread_ends_training(slow: Slow) -> None:
    slow.problem = ZeroDivisionError()
    slow.lease_keeper.anchor_checkpoint(ref(1))
    with pytest.raises(ZeroDivisionError):
        slow.lease_keeper.settle()
