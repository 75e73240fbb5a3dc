"""A federation whose lead or parties die: what goes on, and what an operator cannot make of it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from federated_world import (
    PARTIES,
    RUN_ID,
    START,
    Adds,
    ByStrategy,
    FederatedWorld,
    Mean,
    federated_world,
    rounds,
    share_of,
    values,
)
from polling import wait_until
from variants import variants

from sealtrain.base.secret import Random
from sealtrain.errors import SealtrainError
from sealtrain.recipe.collaborations.strategies import FedAdam, FedAvg
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.runlog import RunLog, verify
from sealtrain_together.errors import TooFewParties, UpdateRefused
from sealtrain_together.federated.federation import Merged
from sealtrain_together.federated.mathematics import Merging
from sealtrain_together.federated.messages import PartyJoined, SealedState
from sealtrain_together.federated.states import FederationStanding, LeadStates, present_after

pytestmark = [pytest.mark.long, pytest.mark.claim("C224", "C225", "C226")]

UNINTERRUPTED = [8.0] * 4  # four rounds of the mean of 1, 2 and 3


class Died(SealtrainError):
    """The lead's process was killed."""


@dataclass
class Leads:
    """Leads of one run, one after the other, over one folder of states."""

    world: FederatedWorld
    folder: Path
    resumed: list[int] = field(default_factory=list)
    on_admitted: Callable[[int], None] = lambda count: None
    on_refused: Callable[[], None] = lambda: None
    merging: Callable[[], Merging] = Mean

    def lead(
        self,
        *,
        dies_at: Callable[[str, dict[str, Any]], bool] = lambda event, fields: False,
        random: Random = os.urandom,
        **changed: Any,
    ) -> Merged:
        """Lead to the end, or until an event would be recorded."""
        world = self.world
        world.log = RunLog(RUN_ID)

        def take_up(
            journal: dict[str, Any], sealed: SealedState, standing: FederationStanding
        ) -> None:
            self.resumed.append(standing.round)
            world.log = RunLog.restore(RUN_ID, journal["log"])
            for party in present_after(world.log.entries):
                world.log.append("party.left", {"party": party, "code": "peer-unreachable"}, 7)

        def record(event: str, fields: dict[str, Any]) -> None:
            if dies_at(event, fields):
                raise Died("killed")
            world.log.append(event, fields, 7)

        leads, admitted = self, set[str]()

        class Watched(LeadStates):
            def admit(self, joined: PartyJoined) -> None:
                try:
                    super().admit(joined)
                except UpdateRefused:
                    leads.on_refused()
                    raise
                admitted.add(joined.party)
                leads.on_admitted(len(admitted))

        states = Watched(
            self.folder,
            RUN_ID,
            min_parties=2,
            journal=lambda: {"log": list(world.log.entries)},
            take_up=take_up,
            random=random,
        )
        plan = rounds(**{"rounds": 4, "round_seconds": 30} | changed)
        federation = world.federation(plan, record=record, states=states, merging=self.merging())
        return federation.run(START)

    def dies(self, after: int) -> None:
        """Lead until the state of a round was sealed."""
        with pytest.raises(Died):
            self.lead(
                dies_at=lambda event, fields: (
                    event == "round.begun" and fields["round"] == after + 1
                )
            )


def again(world: FederatedWorld, name: str, work: Adds, **changed: Any) -> None:
    """A party whose process ended begins again."""
    world.die(name)
    world.works[name] = work
    world.party(name, **changed)


def dying_in_round_two(world: FederatedWorld) -> threading.Event:
    """Have all parties but the first die before they answer in round 2; set when they do."""
    gone = threading.Event()

    def dies(number: int) -> None:
        if number == 2:
            gone.set()
            for name in PARTIES[1:]:
                world.end(name)
            for name in PARTIES[1:]:
                world.die(name)

    for name in PARTIES[1:]:
        world.works[name].before = dies
    return gone


@pytest.fixture
def leads(tmp_path: Path) -> Iterator[Leads]:
    with federated_world() as world:
        for name in PARTIES:
            world.party(name)
        yield Leads(world=world, folder=tmp_path / "states")


def test_a_lead_that_died_goes_on_bit_for_bit_after_any_round(leads: Leads) -> None:
    for round_ in (1, 2, 3):
        leads.dies(after=round_)
    merged = leads.lead()
    assert leads.resumed == [1, 2, 3]
    assert values(merged.state) == UNINTERRUPTED
    assert merged.reports.keys() == set(PARTIES)
    assert merged.steps == 4 * 3 * 3
    assert [leads.world.works[name].asked for name in PARTIES] == [[1, 2, 3, 4]] * 3
    entries = leads.world.log.entries
    verify(RUN_ID, entries, head=leads.world.log.head)
    merges = [entry["fields"]["round"] for entry in entries if entry["event"] == "round.merged"]
    assert merges == [1, 2, 3, 4]
    assert len(list(leads.folder.glob("state-*"))) == 2  # the newest two are kept


def test_most_of_the_parties_open_the_state_and_one_alone_does_not(leads: Leads) -> None:
    leads.dies(after=2)
    world = leads.world
    for name in PARTIES[1:]:
        world.die(name)
    leads.on_admitted = lambda _count: world.skip(20)  # no other one comes
    with pytest.raises(TooFewParties, check=carries(check="parties", got="1")):
        leads.lead(round_seconds=20)
    assert leads.resumed == []
    leads.on_admitted = lambda _count: None
    world.party(PARTIES[2])
    merged = leads.lead(round_seconds=3, joining_seconds=30)
    assert leads.resumed == [2]
    assert values(merged.state) == [4.0 + 2 * 2.0] * 4


@pytest.mark.parametrize("left", [0, 1], ids=["all deleted", "an older one"])
def test_a_lead_whose_state_was_rolled_back_is_refused(
    leads: Leads, tmp_path: Path, left: int
) -> None:
    leads.dies(after=1)
    kept = tmp_path / "kept"
    if left:
        shutil.copytree(leads.folder, kept)
    leads.dies(after=3)  # parties were told of state 2
    shutil.rmtree(leads.folder)
    if left:
        shutil.copytree(kept, leads.folder)
    asked = {name: list(work.asked) for name, work in leads.world.works.items()}
    with pytest.raises(CheckpointRefused, check=carries(check="sealed state")):
        leads.lead()
    assert {name: work.asked for name, work in leads.world.works.items()} == asked


def test_two_leads_of_one_state_cannot_both_go_on(leads: Leads, tmp_path: Path) -> None:
    leads.dies(after=1)
    shutil.copytree(leads.folder, tmp_path / "copy")
    leads.dies(after=3)
    other = Leads(world=leads.world, folder=tmp_path / "copy")
    with pytest.raises(CheckpointRefused, check=carries(check="sealed state")):
        other.lead()
    assert values(leads.lead().state) == UNINTERRUPTED


def test_a_state_of_another_run_or_with_altered_bytes_does_not_open(
    leads: Leads, tmp_path: Path
) -> None:
    leads.dies(after=2)
    newest = leads.folder / "state-00000002.sealed"
    whole = newest.read_bytes()
    # Under another counter, which its parties would take for newer.
    for path in list(leads.folder.glob("*00000002*")):
        shutil.copy(path, path.with_name(path.name.replace("00000002", "00000009")))
    heard: list[object] = []

    def hear(*told: object) -> None:
        heard.append(told)
        if len(heard) == len(PARTIES):
            leads.world.skip(20)

    leads.on_admitted = leads.on_refused = hear
    with pytest.raises((CheckpointRefused, TooFewParties)):
        leads.lead(round_seconds=20)
    leads.on_admitted = leads.on_refused = lambda *_told: None
    for path in list(leads.folder.glob("*00000009*")):
        path.unlink()
    # Altered: torn for all that the lead can see, so an older one; the parties know better.
    for name in PARTIES:
        leads.world.works[name].sealed = SealedState(counter=2, digest="0" * 64)
    newest.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    with pytest.raises(CheckpointRefused, check=carries(check="sealed state")):
        leads.lead()
    assert leads.resumed == []


def test_a_party_with_anothers_share_opens_nothing_and_waits_for_those_who_do(
    leads: Leads,
) -> None:
    leads.dies(after=2)
    world = leads.world
    world.die("clinic-a")
    again(world, "clinic-c", Adds(number=1000), share=share_of("clinic-b"))

    def comes_later() -> None:
        leads.on_refused = lambda: None
        world.party("clinic-a")

    leads.on_refused = comes_later
    leads.lead()
    assert leads.resumed == [2]
    refused = {event["code"] for event in world.events("party.refused")}
    assert refused == {"update-refused"}
    events = [(entry["event"], entry["fields"].get("party")) for entry in world.log.entries]
    resumed = max(at for at, (event, _) in enumerate(events) if event == "party.left")
    after = events[resumed:]
    assert after.index(("party.refused", None)) < after.index(("party.joined", "clinic-c"))
    assert set(world.works["clinic-c"].asked) <= {3, 4}  # none that was merged without it


def test_an_update_of_an_earlier_round_in_place_of_a_new_one_counts_for_nothing(
    leads: Leads,
) -> None:
    kept: list[Any] = []

    class Replays(Adds):
        def learn(self, asked: Any, state: bytes) -> Any:
            done = super().learn(asked, state)
            kept.append(done)
            return kept[0]

    again(leads.world, "clinic-c", Replays(number=3))
    leads.dies(after=2)
    leads.lead()
    refused = leads.world.events("update.refused")
    assert [(refusal["round"], refusal["party"], refusal["code"]) for refusal in refused] == [
        (number, "clinic-c", "update-refused") for number in (2, 3, 4)
    ]
    merges = [event["parties"] for event in leads.world.events("round.merged")]
    assert merges == [list(PARTIES), *[list(PARTIES[:2])] * 3]


def test_a_round_without_enough_parties_waits_for_those_who_come_back(leads: Leads) -> None:
    world = leads.world
    gone = dying_in_round_two(world)

    def comes_again() -> None:
        gone.wait(20)
        wait_until(lambda: len(world.events("party.left")) == 2, 20)
        world.skip(20)  # the time of a round
        again(world, "clinic-b", Adds(number=2))

    with ExitStack() as stack:
        thread = threading.Thread(target=comes_again, daemon=True)
        thread.start()
        stack.callback(thread.join, 10)
        merged = leads.lead(round_seconds=20, joining_seconds=30)
    assert [len(event["parties"]) for event in world.events("round.merged")] == [3, 2, 2, 2]
    assert values(merged.state) == [2.0 + 3 * 1.5] * 4


def test_a_hung_party_is_left_behind_after_its_rounds_time(leads: Leads) -> None:
    world = leads.world
    hangs = threading.Event()
    world.works["clinic-c"].before = lambda number: number == 2 and hangs.wait(60)
    world.skip_once(lambda: len(world.events("update.taken")) == 5, 30)
    began = time.monotonic()
    try:
        merged = leads.lead(round_seconds=30)
    finally:
        hangs.set()
    assert time.monotonic() - began < 25
    assert [len(event["parties"]) for event in world.events("round.merged")] == [3, 2, 2, 2]
    assert values(merged.state) == [2.0 + 3 * 1.5] * 4


def test_too_few_parties_are_named_with_code_and_round(leads: Leads) -> None:
    gone = dying_in_round_two(leads.world)
    # a process that ended says nothing any more, not even why
    leads.world.relay.back = lambda node, data: None if gone.is_set() and node > 1 else data
    left = partial(leads.world.events, "party.left")
    leads.world.skip_once(lambda: len(left()) == 2, 0, each_look=10)  # the others are waited for
    with pytest.raises(TooFewParties) as raised:
        leads.lead(round_seconds=20)
    assert raised.value.owner == "clinic-b"
    assert "clinic-b: peer-unreachable in round 2" in str(raised.value.got)
    assert "clinic-c: peer-unreachable in round 2" in str(raised.value.got)


@pytest.mark.flower
@pytest.mark.claim("C242")
def test_a_strategy_with_memory_outlives_its_lead_bit_for_bit(leads: Leads, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    settings = FedAdam(name="FedAdam", eta=0.3)
    whole = Leads(world=leads.world, folder=tmp_path / "w", merging=lambda: ByStrategy(settings))
    uninterrupted = whole.lead().state
    for name in PARTIES:  # another run: its parties know no state of the first
        again(leads.world, name, Adds(number=1 + PARTIES.index(name)))
    leads.merging = lambda: ByStrategy(settings)
    for round_ in (1, 3):
        leads.dies(after=round_)
    assert leads.lead().state == uninterrupted
    assert leads.resumed == [1, 3]
    assert len(set(values(uninterrupted))) == 1 != values(uninterrupted)[0]


@pytest.mark.flower
@pytest.mark.claim("C242")
def test_the_parties_that_a_strategy_chooses_are_the_same_for_a_resumed_lead(
    leads: Leads, tmp_path: Path
) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    settings = FedAvg(name="FedAvg", fraction_train=0.7, min_train_nodes=2)
    leads.merging = lambda: ByStrategy(settings)
    leads.dies(after=2)
    leads.lead(rounds=6)
    merges = [event["parties"] for event in leads.world.events("round.merged")]
    assert {len(merge) for merge in merges} == {2}
    assert len({tuple(merge) for merge in merges}) > 1
    assert merges == [list(ByStrategy(settings).choose(n, PARTIES, START)) for n in range(1, 7)]


@pytest.mark.flower
@pytest.mark.claim("C242")
@pytest.mark.parametrize("share", [1.0, 0.7], ids=["all", "two of three"])
def test_neither_the_moment_of_a_kill_nor_the_order_of_updates_changes_a_bit(
    leads: Leads, tmp_path: Path, share: float
) -> None:
    """A lead that is killed at another point of each round, and updates in another order in each.

    What it gave to a round that was not sealed a party learns again, as it did before.
    """
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    settings = FedAdam(name="FedAdam", eta=0.3, fraction_train=share)
    world = leads.world
    orders = list(permutations(PARTIES))

    def takes_turns(name: str) -> Callable[[int], None]:
        """Answers after those that are before it in the round's order."""

        def before(number: int) -> None:
            rank = orders[number % len(orders)].index(name)
            time.sleep(0.1 * rank)

        return before

    def begin(taking_turns: bool) -> None:  # anew: its parties know no state of another run
        for name in PARTIES:
            again(world, name, Adds(number=0.1 * (1 + PARTIES.index(name)), records=7))
            if taking_turns:
                world.works[name].before = takes_turns(name)

    begin(taking_turns=False)
    whole = Leads(world=world, folder=tmp_path / "whole", merging=lambda: ByStrategy(settings))
    uninterrupted = whole.lead(rounds=7).state
    begin(taking_turns=True)
    leads.merging = lambda: ByStrategy(settings)
    taken: list[int] = []

    def at_update(count: int, number: int) -> Callable[[str, dict[str, Any]], bool]:
        def dies_at(event: str, fields: dict[str, Any]) -> bool:
            if event == "update.taken" and fields["round"] == number:
                taken.append(number)
            return taken.count(number) == count

        return dies_at

    def in_sealing(size: int) -> bytes:
        """Its second share of state 4 is not written any more, nor the state."""
        if any(leads.folder.glob("share-00000004-*")):
            raise Died("killed")
        return os.urandom(size)

    for changed in (
        {"dies_at": at_update(1, number=1)},
        {"dies_at": at_update(2, number=2)},
        {"dies_at": lambda event, fields: (event, fields.get("round")) == ("round.merged", 3)},
        {"random": in_sealing},
        {"dies_at": lambda event, fields: (event, fields.get("round")) == ("round.begun", 6)},
    ):
        with pytest.raises(Died):
            leads.lead(rounds=7, **changed)
    assert leads.lead(rounds=7).state == uninterrupted
    assert leads.resumed == [1, 2, 3, 5]
    asked = [number for name in PARTIES for number in world.works[name].asked]
    # Those that had answered, or were about to, learned these rounds again.
    assert all(asked.count(number) > asked.count(7) for number in (1, 2, 3, 4))


@pytest.mark.flower
@pytest.mark.claim("C242")
@pytest.mark.parametrize("late", variants(PARTIES, each_time=PARTIES[1:2]))
def test_a_resumed_lead_chooses_from_the_parties_that_were_there_in_whatever_order_they_come(
    leads: Leads, late: str
) -> None:
    """Two parties open the state; the third is held back, one that no round chose yet included."""
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    settings = FedAvg(name="FedAvg", fraction_train=0.7, min_train_nodes=2)
    leads.merging = lambda: ByStrategy(settings)
    leads.dies(after=1)
    (first,) = [event["parties"] for event in leads.world.events("round.merged")]
    assert set(PARTIES) - set(first) == {"clinic-b"}

    def hold(node: int, data: bytes) -> bytes:
        if PARTIES[node - 1] == late:
            wait_until(lambda: leads.resumed == [1])
            with suppress(AssertionError):  # a lead that waits for this party begins no round
                wait_until(lambda: len(leads.world.events("round.begun")) == 2, seconds=1.0)
        return data

    leads.world.relay.there = hold
    leads.lead()
    begun = max(
        at for at, entry in enumerate(leads.world.log.entries)
        if (entry["event"], entry["fields"].get("round")) == ("round.begun", 2)
    )  # fmt: skip
    joined = [
        entry["fields"]["party"]
        for entry in leads.world.log.entries[:begun]
        if entry["event"] == "party.joined"
    ]
    assert joined[-1] == late
    merges = [event["parties"] for event in leads.world.events("round.merged")]
    assert merges == [list(ByStrategy(settings).choose(n, PARTIES, START)) for n in range(1, 5)]


@pytest.mark.flower
@pytest.mark.claim("C242")
def test_others_take_the_place_of_a_chosen_party_that_died(leads: Leads) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    settings = FedAvg(name="FedAvg", fraction_train=0.7, min_train_nodes=2)
    first, *_ = ByStrategy(settings).choose(1, PARTIES, START)
    dead = set()

    def dies(number: int) -> None:
        dead.add(1 + PARTIES.index(first))
        leads.world.die(first)

    leads.world.works[first].before = dies
    leads.world.relay.back = lambda node, data: None if node in dead else data
    leads.merging = lambda: ByStrategy(settings)
    leads.world.skip_once(lambda: leads.world.events("party.left"), 20)
    leads.lead(rounds=1, round_seconds=20)
    (merged,) = leads.world.events("round.merged")
    assert merged["parties"] == sorted(set(PARTIES) - {first})
