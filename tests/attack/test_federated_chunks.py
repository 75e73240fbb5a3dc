"""Updates longer than a turn: they go in parts, and no part can be moved, lost, repeated or cut."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from federated_world import (
    PARTIES,
    Adds,
    FederatedWorld,
    Mean,
    federated_world,
    rounds,
    values,
)
from variants import variants

from sealtrain_together.federated.frames import HEAD, TAKEN, AskingStream
from sealtrain_together.federated.mailbox import AnsweringStream
from sealtrain_together.federated.mathematics import Taken

pytestmark = [pytest.mark.long, pytest.mark.claim("C243")]

TURN = 4096
NUMBERS = 12_000  # 48 kB: a dozen turns each way
START = np.zeros(NUMBERS, "<f4").tobytes()
TWO = PARTIES[:2]
HONEST = [3.0] * NUMBERS

Change = Callable[[dict[int, bytes], int, bytes], bytes | None]
"""What the operator makes of a part: all parts so far by their turn, this one's turn, its bytes."""

ATTACKS: dict[str, Change] = {
    "an earlier part again": lambda seen, turn, part: seen[turn - 1],
    "the part before last": lambda seen, turn, part: seen[turn - 2],
    "no part": lambda seen, turn, part: None,
    "an empty part": lambda seen, turn, part: b"",
    "a part cut short": lambda seen, turn, part: part[:-1],
    "a part without its beginning": lambda seen, turn, part: part[1:],
    "a part twice as long": lambda seen, turn, part: part + part,
    "one bit flipped": lambda seen, turn, part: bytes([part[0] ^ 1]) + part[1:],
    "made-up bytes": lambda seen, turn, part: os.urandom(len(part)),
}


class Noting(Mean):
    """Notes how long the updates are that reach the lead's mathematics."""

    def __init__(self, held: list[int]) -> None:
        self.held = held

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        self.held.append(len(update))
        return super().take(party, records, update, state)


def began(world: FederatedWorld, **changed: int) -> None:
    for name in TWO:
        world.party(name, turn_bytes=TURN, **changed)


def led(world: FederatedWorld) -> list[float]:
    plan = rounds(parties=TWO, turn_bytes=TURN, round_seconds=30)
    return values(world.federation(plan).run(START).state)


def test_an_update_of_many_parts_arrives_and_no_turn_is_longer_than_one() -> None:
    with federated_world(TWO) as world:
        began(world)
        assert led(world) == HONEST
        assert len(world.relay.seen) > 2 * 2 * 2 * 2 * (4 * NUMBERS // TURN)
        assert max(map(len, world.relay.seen)) <= TURN + HEAD.size
        assert not world.events("party.left")


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("at", variants(["early", "late"], each_time=["early"]))
def test_a_part_that_was_tampered_with_ends_the_conversation(
    attack: str, way: str, at: str
) -> None:
    """Of the first party's first update or its merged adapter, on the way there or back."""
    with federated_world(TWO) as world:
        began(world)
        parts: dict[bytes, dict[int, bytes]] = {}
        asked: dict[int, tuple[bytes, int]] = {}
        done: list[int] = []

        def changed(conversation: bytes, turn: int, part: bytes) -> bytes | None:
            seen = parts.setdefault(conversation, {})
            seen[turn] = part
            full = [event for event in seen.values() if len(event) == TURN]
            if done or len(part) != TURN or len(full) < (5 if at == "early" else 10):
                return part
            done.append(turn)
            return ATTACKS[attack](seen, turn, part)

        def there(node: int, data: bytes) -> bytes | None:
            conversation, turn = HEAD.unpack_from(data)
            asked[node] = conversation, turn
            if node != 1 or way != "there":
                return data
            part = changed(conversation, turn, data[HEAD.size :])
            return None if part is None else data[: HEAD.size] + part

        def back(node: int, data: bytes) -> bytes | None:
            if node != 1 or way != "back" or data[:1] != TAKEN:
                return data
            part = changed(*asked[node], data[1:])
            return None if part is None else TAKEN + part

        world.relay.there, world.relay.back = there, back
        assert led(world) == HONEST
        assert done
        assert [event["party"] for event in world.events("party.left")] == [TWO[0]]
        (left,) = world.events("party.left")
        assert left["code"] in ("channel-broken", "channel-cut", "peer-unreachable")
        assert len(world.events("update.taken")) == 4


@pytest.mark.parametrize("more", [(4 << 20) + 1, 40 << 20])
def test_a_party_cannot_make_its_lead_hold_more_than_an_update(more: int) -> None:
    """Longer than any update of this run by what a header may have, and a byte; and by far."""
    with federated_world(TWO) as world:
        world.works[TWO[0]] = Adds(number=9, answers=lambda update: update + bytes(more))
        world.party(TWO[0], turn_bytes=1 << 20)
        world.party(TWO[1], turn_bytes=1 << 20)
        plan = rounds(rounds=1, min_parties=1, parties=TWO, turn_bytes=1 << 20)
        held: list[int] = []
        merged = world.federation(plan, merging=Noting(held)).run(START)
        assert values(merged.state) == [2.0] * NUMBERS
        assert max(held) <= 4 * NUMBERS
        refused = world.events("update.refused")
        found = [(refusal["party"], refusal["code"]) for refusal in refused]
        assert found == [(TWO[0], "data-invalid")]


def test_a_lead_that_asks_for_more_than_an_adapter_is_refused_before_it_sends_it() -> None:
    with federated_world(TWO) as world:
        world.party(TWO[0], turn_bytes=TURN, largest=4 * NUMBERS - 1)
        world.party(TWO[1], turn_bytes=TURN)
        plan = rounds(rounds=1, min_parties=1, parties=TWO, round_seconds=4, turn_bytes=TURN)
        assert values(world.federation(plan).run(START).state) == [2.0] * NUMBERS
        assert "limit-exceeded" in world.refused[TWO[0]]
        assert world.works[TWO[0]].asked == []


def test_an_answer_before_the_request_is_over_is_refused() -> None:
    stream = AskingStream(lambda data: TAKEN + b"early", bytes(16), turn_bytes=4)
    with pytest.raises(ConnectionResetError):
        stream.sendall(b"twelve bytes")


def test_a_turn_that_is_longer_than_agreed_is_refused() -> None:
    stream = AskingStream(lambda data: TAKEN + bytes(5), bytes(16), turn_bytes=4)
    with pytest.raises(ConnectionResetError):
        stream.recv_into(memoryview(bytearray(8)))


def test_a_party_whose_lead_says_something_else_than_go_on_ends() -> None:
    from sealtrain_together.federated.mailbox import LeadMessage

    class Socket:
        def __enter__(self) -> Socket:
            return self

        def __exit__(self, *_: object) -> None: ...
        def sendall(self, data: bytes) -> None: ...

    def turn(number: int, data: bytes) -> LeadMessage:
        return LeadMessage(conversation=bytes(16), number=number, data=data, _relay=Socket())  # type: ignore[arg-type]

    stream = AnsweringStream(turn_bytes=4)
    stream.deliver(turn(0, b"asks"))
    stream.recv_into(memoryview(bytearray(4)))
    stream.deliver(turn(1, b"and more"))
    with pytest.raises(ConnectionResetError):
        stream.sendall(b"twelve bytes")
