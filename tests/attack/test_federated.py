"""Attacks on a federation: by who carries it, by a false lead, by parties that lie."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from carrying import carries
from channel_world import COMPOSE, acceptance, guest
from federated_world import (
    PARTIES,
    START,
    Adds,
    FederatedWorld,
    Relay,
    conversation,
    federated_world,
    rounds,
    values,
)
from polling import wait_until

from sealtrain.base.canonical import canonical_json
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.errors import TooFewParties
from sealtrain_together.federated.frames import HEAD, LOST, NODES, REPLY, TAKEN
from sealtrain_together.federated.mathematics import Merging, Taken
from sealtrain_together.federated.messages import PURPOSE, Asked

pytestmark = pytest.mark.claim("C75")

OTHER = canonical_json({"name": "another-recipe", "manifest_version": 2})
HONEST = [3.0] * 4


def began(world: FederatedWorld, *names: str) -> None:
    for name in names:
        world.party(name)


def of_guests(compose: bytes = COMPOSE) -> ChannelTerms:
    return ChannelTerms(
        purpose=PURPOSE,
        context={"run_id": "4f" * 16},
        proof=guest(compose),
        accept=acceptance(COMPOSE),
        random=os.urandom,
    )


# Whoever carries the messages.


def test_the_operator_of_the_superlink_reads_nothing() -> None:
    start = np.array([1234.5, -77.25, 3.5e7, 0.015625], "<f4")
    with federated_world() as world:
        began(world, *PARTIES)
        world.federation().run(start.tobytes())
        carried = b"".join(world.relay.seen)
        assert len(carried) > 20_000
        for number in range(4):
            for step in range(6):
                assert (start + np.float32(step / 2))[number : number + 1].tobytes() not in carried
        for word in (b"clinic-", b"records", b"learn", b"report", b"hits"):
            assert word not in carried


def _turn(data: bytes) -> int:
    return int(HEAD.unpack_from(data)[1])


class Once:
    """Does something to the answer of one turn of one node, the first time."""

    def __init__(self, world: FederatedWorld, node: int, turn: int) -> None:
        self.node, self.turn = node, turn
        self.asked: dict[int, int] = {}
        self.kept: dict[int, bytes] = {}
        self.done = False
        world.relay.there = self.there
        world.relay.back = self.back

    def there(self, node: int, data: bytes) -> bytes | None:
        self.asked[node] = _turn(data)
        return data

    def back(self, node: int, data: bytes) -> bytes | None:
        if node == self.node and self.asked[node] == self.turn and not self.done:
            self.done = True
            return self.changed(data)
        if node == self.node and not self.done:
            self.kept[self.asked[node]] = data
        return data

    def changed(self, data: bytes) -> bytes | None:
        raise NotImplementedError


class Flipped(Once):
    def changed(self, data: bytes) -> bytes:
        return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


class CutShort(Once):
    def changed(self, data: bytes) -> bytes:
        return data[:-1]


class Replayed(Once):
    def changed(self, data: bytes) -> bytes:
        return self.kept[2]


class Lost(Once):
    def changed(self, data: bytes) -> None:
        return None


class MadeUp(Once):
    def changed(self, data: bytes) -> bytes:
        return TAKEN + os.urandom(len(data) - 1)


@pytest.mark.parametrize("attack", [Flipped, CutShort, Replayed, Lost, MadeUp])
def test_an_answer_that_was_tampered_with_counts_for_nothing(attack: type[Once]) -> None:
    with federated_world(PARTIES[:2]) as world:
        began(world, *PARTIES[:2])
        tampered = attack(world, node=1, turn=3)
        merged = world.federation(rounds(parties=PARTIES[:2])).run(START)
        assert tampered.done
        assert values(merged.state) == HONEST
        (left,) = world.events("party.left")
        assert (left["party"], left["code"]) in (
            ("clinic-a", "channel-broken"),
            ("clinic-a", "channel-cut"),
            ("clinic-a", "peer-unreachable"),
        )
        assert len(world.events("update.taken")) == 4


def test_answers_of_two_parties_that_were_swapped_open_for_nobody() -> None:
    with federated_world(PARTIES[:2]) as world:
        began(world, *PARTIES[:2])
        meet = threading.Barrier(2)
        kept: dict[int, bytes] = {}
        asked: dict[int, int] = {}
        swapped: set[int] = set()

        def there(node: int, data: bytes) -> bytes:
            asked[node] = _turn(data)
            return data

        def back(node: int, data: bytes) -> bytes:
            if asked[node] != 2 or node in swapped:
                return data
            swapped.add(node)
            kept[node] = data
            meet.wait(20)
            return kept[3 - node]

        world.relay.there, world.relay.back = there, back
        merged = world.federation(rounds(parties=PARTIES[:2])).run(START)
        assert values(merged.state) == HONEST
        left = world.events("party.left")
        assert {departure["party"] for departure in left} == set(PARTIES[:2])
        assert {refusal["code"] for refusal in left} == {"channel-broken"}


def test_a_turn_that_comes_again_is_not_answered_again() -> None:
    with federated_world(PARTIES[:2]) as world:
        began(world, *PARTIES[:2])
        again: list[bytes | None] = []

        def there(node: int, data: bytes) -> bytes:
            if node == 1 and _turn(data) == 3 and not again:
                again.append(
                    world.relay.ask(1, data[: HEAD.size - 1] + b"\x02" + data[HEAD.size :])
                )
            return data

        world.relay.there = there
        merged = world.federation(rounds(parties=PARTIES[:2])).run(START)
        assert again == [b"\x01"]
        assert values(merged.state) == HONEST
        assert not world.events("party.left")


def test_who_knocks_at_a_partys_socket_does_not_disturb_it() -> None:
    with federated_world(PARTIES[:2]) as world:
        answers: list[bytes | None] = []

        def knocks(number: int) -> None:
            for _ in range(7):  # each a conversation of its own that says nothing sensible
                answers.append(
                    world.relay.ask(1, HEAD.pack(os.urandom(16), 0) + struct.pack(">I", 9), 0.3)
                )
            world.relay.ask(1, b"short")

        world.works["clinic-b"] = Adds(number=2, before=knocks)
        began(world, *PARTIES[:2])
        merged = world.federation(rounds(parties=PARTIES[:2])).run(START)
        assert values(merged.state) == HONEST
        assert b"\x01" in answers  # not more than four handshakes at a time
        assert not world.events("party.left")


def test_frames_that_are_none_end_the_relay_and_not_the_federation() -> None:
    with federated_world(PARTIES[:2]) as world:
        world.relay.say(REPLY, 77, b"nobody asked")
        world.relay.say(LOST, 77, b"")
        world.relay.say(9, 0, b"no such kind")
        world.relay.lead.sendall(b"\xff\xff\xff\xff")
        world.relay.close()
        places = [world.folder / f"{name}.sock" for name in PARTIES[:2]]
        world.relay = Relay(world.folder / "lead.sock", places)
        world.stack.callback(world.relay.close)
        began(world, *PARTIES[:2])
        assert values(world.federation(rounds(parties=PARTIES[:2])).run(START).state) == HONEST


# A lead that is none, and parties that are none.


def test_a_lead_of_other_code_is_told_nothing() -> None:
    with federated_world(PARTIES[:2]) as world:
        for name in PARTIES[:2]:
            world.party(name, conversation=of_guests())
        lead = of_guests(OTHER)
        refused = world.refused.values()
        world.skip_once(lambda: any("compose-hash-mismatch" in codes for codes in refused), 20)
        plan = rounds(round_seconds=20, parties=PARTIES[:2])
        with pytest.raises(TooFewParties, check=carries(check="parties", got="0")):
            world.federation(plan, conversation=lead).run(START)
        assert all(not work.asked for work in world.works.values())
        assert {code for codes in world.refused.values() for code in codes} <= {
            "compose-hash-mismatch",
            "channel-broken",
            "channel-cut",
            "peer-unreachable",
        }
        assert any("compose-hash-mismatch" in codes for codes in world.refused.values())


def test_a_lead_of_another_run_is_told_nothing() -> None:
    with federated_world(PARTIES[:2]) as world:
        began(world, *PARTIES[:2])
        other = conversation("lead", *PARTIES, run_id="00" * 16)
        refused = world.refused.values()
        world.skip_once(lambda: all("channel-refused" in codes for codes in refused), 20)
        with pytest.raises(TooFewParties):
            world.federation(rounds(round_seconds=20), conversation=other).run(START)
        assert all("channel-refused" in codes for codes in world.refused.values())


def test_a_client_of_another_recipe_is_not_let_in() -> None:
    with federated_world() as world:
        for name in PARTIES[:2]:
            world.party(name, conversation=of_guests())
        world.party("clinic-c", conversation=of_guests(OTHER))
        joined, refused = (
            partial(world.events, "party.joined"),
            partial(world.events, "party.refused"),
        )
        world.skip_once(lambda: len(joined()) == 2 and refused(), 20)
        merged = world.federation(rounds(round_seconds=20), conversation=of_guests()).run(START)
        assert values(merged.state) == HONEST
        assert not world.works["clinic-c"].asked
        assert {event["code"] for event in world.events("party.refused")} == {
            "compose-hash-mismatch"
        }


def test_a_party_that_joins_twice_counts_once() -> None:
    places = (*PARTIES[:2], "impostor")
    with federated_world(places) as world:
        world.works["impostor"] = Adds(number=1000)

        def both_have_come(_round: int) -> None:
            wait_until(lambda: world.events("party.refused"), 15)

        world.works[PARTIES[1]] = Adds(number=2, before=both_have_come)
        began(world, *PARTIES[:2])
        federation = world.federation(rounds(parties=PARTIES[:2], rounds=3))
        world.party("clinic-a", at="impostor")
        done: list[Any] = []
        runs = threading.Thread(target=lambda: done.append(federation.run(START)), daemon=True)
        runs.start()
        runs.join(60)
        assert len(world.events("party.joined")) == 2
        assert [event["code"] for event in world.events("party.refused")] == ["update-refused"]
        # Whichever of the two came first is clinic-a; the other one's numbers are in no merge.
        step = {1.5, 501.0}
        assert values(done[0].state)[0] / 3 in step


@pytest.mark.claim("C595")
def test_nodes_that_are_gone_take_no_partys_seat() -> None:
    """A SuperNode that begins again has another id; whoever carries may list any."""
    with federated_world() as world:
        asked: set[int] = set()
        gone = list(range(100, 140))

        def noted(node: int, data: bytes) -> bytes | None:
            asked.add(node)
            return data if node <= len(PARTIES) else None

        world.relay.there = noted
        world.relay.say(NODES, 0, struct.pack(f">{len(gone)}Q", *gone))
        wait_until(lambda: len(world.carrier.nodes) == len(gone))
        began(world, *PARTIES)
        done: list[Any] = []
        federation = world.federation(rounds(rounds=1))
        runs = threading.Thread(target=lambda: done.append(federation.run(START)), daemon=True)
        runs.start()
        wait_until(lambda: len(asked) >= 4 * len(PARTIES))
        world.relay.tell()
        runs.join(60)
        assert {event["party"] for event in world.events("party.joined")} == set(PARTIES)
        assert len(done) == 1


def test_a_stranger_is_no_party() -> None:
    with federated_world() as world:
        began(world, *PARTIES)
        plan = rounds(parties=PARTIES[:2], round_seconds=10)
        assert values(world.federation(plan).run(START).state) == HONEST
        assert not world.works["clinic-c"].asked


# Updates that are none.


class Tensors(Merging):
    """The project's own reading and merging of adapters."""

    def __init__(self) -> None:
        import torch

        self.form = {"a": torch.zeros(2, 2)}

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        from sealtrain_together.federated.update import Update, change_norm, decode_state

        read = decode_state(update, self.form, party=party)
        norm = change_norm(read, decode_state(state, self.form))
        value = Update(party=party, weight=records, state=read)
        return Taken(party=party, records=records, norm=norm, value=value)

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        return document

    def merge(self, number: int, taken: Sequence[Taken], state: bytes) -> tuple[bytes, Any]:
        from sealtrain_together.federated.merging import merge
        from sealtrain_together.federated.update import decode_state, encode_state

        updates = [turn.value for turn in taken]
        return encode_state(merge("fedavg", updates, decode_state(state, self.form))), {}


class Learns(Adds):
    """Adds to an adapter of one tensor; sends what a test makes of it."""

    def learn(self, asked: Asked, state: bytes) -> Any:
        from safetensors.torch import load

        from sealtrain_together.federated.update import encode_state

        self.asked.append(asked.round)
        tensor = load(state)["a"] + self.number
        words = {
            "round": asked.round, "records": self.records, "steps": 1, "loss": None, "report": {},
        }  # fmt: skip
        return words, self.answers(encode_state({"a": tensor}))

    def finish(self, state: bytes) -> Any:
        return {}, b""


def _shapes(_update: bytes) -> bytes:
    import torch

    from sealtrain_together.federated.update import encode_state

    return encode_state({"a": torch.zeros(4, 1)})


def _numbers(value: float) -> Any:
    def answers(_update: bytes) -> bytes:
        import torch

        from sealtrain_together.federated.update import encode_state

        return encode_state({"a": torch.full((2, 2), value)})

    return answers


@pytest.mark.parametrize(
    "answers",
    [
        _shapes,
        _numbers(float("nan")),
        _numbers(float("inf")),
        _numbers(3e37),
        lambda update: b"not safetensors at all" * 20,
        lambda update: b"",
        lambda update: update + bytes(8 << 20),
    ],
    ids=["shapes", "nan", "inf", "norm", "format", "empty", "size"],
)
def test_an_update_that_is_none_is_refused_and_the_others_are_merged(answers: Any) -> None:
    from safetensors.torch import load

    merging = Tensors()
    start = _numbers(0.0)(b"")
    with federated_world() as world:
        for name in PARTIES:
            world.works[name] = Learns(number=1.0)
        world.works["clinic-c"].answers = answers
        began(world, *PARTIES)
        merged = world.federation(merging=merging).run(start)
        assert load(merged.state)["a"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
        refused = world.events("update.refused")
        assert {(refusal["round"], refusal["party"]) for refusal in refused} == {
            (1, "clinic-c"),
            (2, "clinic-c"),
        }
        assert {refusal["code"] for refusal in refused} == {"update-refused"}
        assert world.works["clinic-c"].asked == [1, 2]
        assert set(merged.reports) == set(PARTIES[:2])
