"""The network, other guests and whoever kept a recording attack a guest's session with a dealer."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from channel_world import COMPOSE, guest
from collecting import COLLECTING
from polling import wait_until
from relays import Meddle, Relay, answered, expect_only_a_handshake, honest, relayed
from world import signer

from sealtrain.base.canonical import canonical_json
from sealtrain.errors import LimitExceeded, PadsRefused, Refused, SealtrainError
from sealtrain.training.errors import ChannelBroken, ChannelRefused
from sealtrain_together.channel.answers import receive_answer
from sealtrain_together.channel.channel import AttestedChannel, connect
from sealtrain_together.channel.proofs import ProveKey
from sealtrain_together.errors import DealerUnreachable

if not COLLECTING:
    import torch
    from pads_world import (
        RUN_ID,
        Address,
        Watched,
        dealing,
        dealt,
        masks_seen,
        random_entries,
        random_matrix,
        talk,
    )

    from sealtrain_together.pads.dealer import RemoteDealer
    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.matrix import PublicMatrix
    from sealtrain_together.pads.tensors import octets

once = pytest.mark.claim("C85")
proven = pytest.mark.claim("C73")
OTHER = canonical_json({"name": "another-deployment", "manifest_version": 2})
OTHER_RUN = "cd" * 16
if not COLLECTING:
    MATRIX = random_matrix()
    ENTRIES = random_entries(MATRIX, "forward")
    ZERO = PublicMatrix(torch.zeros(64, 64, dtype=torch.int8))


class Guest:
    """A guest with a session, an engine under its pads, and what its accelerator saw."""

    def __init__(self, dealer: RemoteDealer) -> None:
        self.dealer = dealer
        self.accelerator = Watched()
        self.engine = UnderPads(self.accelerator, supplier=self.dealer)
        self.engine.admit(MATRIX)

    def multiply(self) -> None:
        product = self.engine.product(MATRIX, "forward", ENTRIES)
        assert torch.equal(product, Inside().product(MATRIX, "forward", ENTRIES))

    @property
    def masks(self) -> set[bytes]:
        return masks_seen(self.accelerator, ENTRIES)


if not COLLECTING:

    @contextmanager
    def at(address: Address, run_id: str = RUN_ID) -> Iterator[Guest]:
        with closing(dealt(address, talk(run_id))) as dealer:
            yield Guest(dealer)


def recorded(address: Address) -> Relay:
    """What passes between a guest and its dealer in one session."""
    with relayed(address) as (through, relay), at(through) as one:
        one.multiply()
        one.multiply()
    return relay


# --- What was recorded, on another connection ---------------------------------------------------


@once
def test_a_recorded_session_gets_nothing_on_another_connection() -> None:
    said: list[str] = []
    with dealing(said=said) as address:
        relay = recorded(address)
        (there,) = relay.there
        for replayed in (there, there[: len(there) // 2], there * 2):
            expect_only_a_handshake(answered(address, bytes(replayed)))
        # Each refusal is told; where the relay hung up on the recorded session itself, that too.
        wait_until(lambda: sum("report-data-mismatch" in line for line in said) == 2)
        wait_until(lambda: any("channel-cut" in line for line in said))
    assert sum("report-data-mismatch" in line for line in said) == 2
    assert sum("channel-cut" in line for line in said) in (1, 2)
    assert len(said) in (3, 4)


@once
def test_a_recorded_session_gets_nothing_while_it_goes_on() -> None:
    with (
        dealing() as address,
        relayed(address) as (through, relay),
        at(through) as one,
        ThreadPoolExecutor(4) as pool,
    ):
        one.multiply()
        copies = [bytes(relay.there[0])] * 4
        for heard in pool.map(answered, [address] * 4, copies):
            expect_only_a_handshake(heard)
        one.multiply()
        assert len(one.masks) == 2 * len(ENTRIES)


@once
def test_a_dealer_that_was_started_again_knows_no_session_of_before() -> None:
    with dealing() as before:
        relay = recorded(before)
    with dealing() as after:
        expect_only_a_handshake(answered(after, bytes(relay.there[0])))


@once
def test_a_guest_whose_dealer_is_gone_multiplies_nothing_and_begins_anew_with_other_pads() -> None:
    with dealing() as before:
        old = Guest(dealt(before))
        old.multiply()
    with dealing() as after:
        for _ in range(2):
            with pytest.raises(DealerUnreachable):
                old.multiply()
        # The rows of the first try were on their way when it was noticed; of the second none.
        assert len(old.masks) == len(old.accelerator.seen) * len(ENTRIES) <= 2 * len(ENTRIES)
        with at(after) as new:
            new.multiply()
            assert new.masks.isdisjoint(old.masks)
    old.dealer.close()


@once
def test_each_beginning_has_its_own_pads_also_at_the_same_time() -> None:
    with dealing() as address, at(address) as one, at(address, OTHER_RUN) as other:
        for _ in range(2):
            one.multiply()
            other.multiply()
        assert len(one.masks | other.masks) == 4 * len(ENTRIES)


@once
def test_a_guest_whose_chance_comes_back_still_has_other_pads() -> None:
    """As where its machine was set back: half of a session's secret is the dealer's."""
    with dealing() as address:
        masks = []
        for _ in range(2):
            supplier = dealt(address, talk(random=lambda size: bytes(size)))
            accelerator = Watched()
            engine = UnderPads(accelerator, supplier=supplier)
            engine.admit(MATRIX)
            engine.product(MATRIX, "forward", ENTRIES)
            masks.append(masks_seen(accelerator, ENTRIES))
            supplier.close()
    assert masks[0].isdisjoint(masks[1])


@once
def test_a_session_ends_where_another_of_its_run_begins() -> None:
    """A guest that came again: what the one before held is free, and deals no more."""
    room = MATRIX.values.numel()
    with dealing(matrix_bytes=room) as address, at(address) as before:
        before.multiply()
        with at(address) as after:
            after.multiply()
            with pytest.raises(DealerUnreachable):
                before.multiply()
            after.multiply()
            assert before.masks
            assert after.masks.isdisjoint(before.masks)


@once
def test_one_session_is_one_beginning() -> None:
    with dealing() as address, at(address) as one, pytest.raises(SealtrainError) as refused:
        UnderPads(Watched(), supplier=one.dealer)
    assert refused.value.code == "usage"


@once
def test_a_forked_guest_asks_its_dealer_for_nothing() -> None:
    with dealing() as address, at(address) as one:
        one.multiply()
        child = os.fork()
        if child == 0:  # says by its exit code what happened; nothing else of it comes back
            try:
                one.engine.product(MATRIX, "forward", ENTRIES)
                os._exit(1)
            except PadsRefused:
                os._exit(17 if len(one.accelerator.seen) == 1 else 2)
            except BaseException:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        one.multiply()


# --- In the middle ------------------------------------------------------------------------------


def altered(number: int, frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])] if number == 4 else [frame]


def repeated(number: int, frame: bytes) -> list[bytes]:
    return [frame, frame] if number == 4 else [frame]


def dropped(number: int, frame: bytes) -> list[bytes]:
    return [] if number == 4 else [frame]


def swapped() -> Meddle:
    held: list[bytes] = []

    def meddle(number: int, frame: bytes) -> list[bytes]:
        if number == 3:
            held.append(frame)
            return []
        return [frame, *held] if number == 4 else [frame]

    return meddle


def cut(number: int, frame: bytes) -> list[bytes]:
    if number == 4:
        raise OSError
    return [frame]


MEDDLERS = {
    "altered": lambda: altered,
    "repeated": lambda: repeated,
    "dropped": lambda: dropped,
    "swapped": swapped,
    "cut": lambda: cut,
}


def multiplied(engine: UnderPads, times: int) -> None:
    engine.admit(MATRIX)
    for _ in range(times):
        engine.product(MATRIX, "forward", ENTRIES)


@once
@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("meddler", MEDDLERS)
def test_what_the_network_does_to_a_session_ends_it_before_a_row_is_used_twice(
    meddler: str, way: str
) -> None:
    meddle = {"there": honest, "back": honest} | {way: MEDDLERS[meddler]()}
    with dealing() as address, relayed(address, **meddle) as (through, _):
        supplier = dealt(through, seconds=1.0)
        accelerator = Watched()
        engine = UnderPads(accelerator, supplier=supplier)
        with pytest.raises((ChannelBroken, DealerUnreachable)):
            multiplied(engine, 5)
        seen = len(accelerator.seen)
        assert seen < 5
        with pytest.raises((ChannelBroken, DealerUnreachable)):
            engine.product(MATRIX, "forward", ENTRIES)
        assert len(accelerator.seen) == seen
        assert seen == 0 or len(masks_seen(accelerator, ENTRIES)) == seen * len(ENTRIES)
        supplier.close()


@once
def test_what_passes_shows_neither_matrices_nor_products_nor_the_same_bytes_twice() -> None:
    with dealing() as address:
        passed = [recorded(address) for _ in range(2)]
        with at(address) as one:
            one.multiply()
    both = b"".join(bytes(part[0]) for relay in passed for part in (relay.there, relay.back))
    assert bytes(octets(MATRIX.values))[:16] not in both
    first, again = (records(bytes(relay.back[0])) for relay in passed)
    seen = {first[at : at + 16] for at in range(len(first) - 16)}
    assert not any(again[at : at + 16] in seen for at in range(len(again) - 16))


def records(back: bytes) -> bytes:
    """What the dealer said behind its handshake."""
    (size,) = struct.unpack_from(">I", back)
    return back[4 + size :]


# --- Other callers, other matrices --------------------------------------------------------------


def framed(kind: int, body: bytes) -> bytes:
    return struct.pack(">BI", kind, len(body)) + body


STRANGERS: dict[str, Callable[[], bytes]] = {
    "a matrix in a frame": lambda: framed(1, struct.pack(">II", 64, 64) + bytes(64 * 64)),
    "a beginning in a frame": lambda: framed(3, bytes(16 + 1168)),
    "rows in a frame": lambda: framed(4, ZERO.digest + struct.pack(">IQI", 0, 0, 9)),
    "nothing": lambda: b"",
    "a hello of another kind": lambda: struct.pack(">I", 2) + b"{}",
}


@once
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_caller_without_a_proof_is_told_nothing_and_changes_nothing(stranger: str) -> None:
    with dealing(frame_seconds=0.5) as address, at(address) as one:
        one.multiply()
        assert answered(address, STRANGERS[stranger]()) == b""
        one.multiply()


@once
def test_what_another_guest_brings_is_in_its_own_session_alone() -> None:
    with dealing() as address, at(address) as one:
        one.multiply()
        other = dealt(address, talk(OTHER_RUN))
        other.begin()
        other.admit(ZERO)
        nothing = torch.zeros(3, 64, dtype=torch.int32)
        assert not other.product(ZERO, "forward", 0, nothing)().any()
        with pytest.raises(DealerUnreachable) as refused:
            other.product(MATRIX, "forward", 0, torch.zeros(3, 40, dtype=torch.int32))()
        assert refused.value.got == "data-invalid: this matrix was not brought here"
        other.close()
        with pytest.raises(DealerUnreachable):  # nor the other way round
            one.dealer.product(ZERO, "forward", 0, nothing)()


@once
def test_the_matrices_of_a_session_are_fixed_when_its_first_rows_are_dealt() -> None:
    with dealing() as address, at(address) as one:
        one.multiply()
        with pytest.raises(PadsRefused):
            one.engine.admit(ZERO)
        with pytest.raises(PadsRefused):  # and with that the session is over
            one.multiply()
        assert len(one.accelerator.seen) == 1


@once
@pytest.mark.parametrize("first", [0, 8, 10, 100], ids=["again", "overlapping", "gap", "far"])
def test_rows_are_dealt_in_order_and_each_once(first: int) -> None:
    with dealing() as address, at(address) as one:
        one.multiply()
        with pytest.raises(PadsRefused):
            one.dealer.product(MATRIX, "forward", first, ENTRIES)()
        with pytest.raises(DealerUnreachable):  # nothing comes after a refusal
            one.dealer.product(MATRIX, "forward", len(ENTRIES), ENTRIES)()


# --- Limits -------------------------------------------------------------------------------------

if not COLLECTING:

    @contextmanager
    def speaking(address: Address, run_id: str = RUN_ID) -> Iterator[AttestedChannel]:
        """A proven guest that says what it likes."""
        with connect(address, talk(run_id), timeout=10.0) as channel:
            yield channel


def said_to(channel: AttestedChannel, **fields: Any) -> dict[str, Any]:
    channel.send(canonical_json(fields))
    return receive_answer(channel, max_bytes=1 << 14, max_data_bytes=1 << 20)[0]


@once
def test_what_there_is_no_room_for_is_refused_before_it_is_sent() -> None:
    with dealing(matrix_bytes=MATRIX.values.numel()) as address:
        with speaking(address) as channel, pytest.raises(LimitExceeded):
            said_to(channel, do="matrix", outputs=1 << 14, inputs=1 << 13)
        with speaking(address) as channel:
            assert said_to(channel, do="matrix", outputs=24, inputs=40) == {}
            with speaking(address, OTHER_RUN) as another, pytest.raises(LimitExceeded):
                said_to(another, do="matrix", outputs=1, inputs=1)
        with at(address) as one:  # sessions that are over hold nothing
            one.multiply()


@once
def test_a_session_has_so_many_matrices_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealtrain_together.pads.multiplying.MAX_MATRICES", 3)
    with dealing() as address:
        supplier = dealt(address)
        for size in range(1, 4):
            supplier.admit(PublicMatrix(torch.ones(size, 1, dtype=torch.int8)))
        with pytest.raises(DealerUnreachable) as refused:
            supplier.admit(PublicMatrix(torch.ones(4, 1, dtype=torch.int8)))
        assert refused.value.got == "limit-exceeded: too many matrices"
        supplier.close()


@once
def test_sessions_at_a_time_are_bounded_and_a_caller_too_many_waits_for_nothing() -> None:
    with dealing(connections=1) as address, at(address) as one:
        with pytest.raises(DealerUnreachable):
            dealt(address, talk(OTHER_RUN))
        one.multiply()


# --- Who deals, and for whom --------------------------------------------------------------------


def test_a_dealer_that_proved_itself_says_what_it_proved() -> None:
    with dealing() as address, at(address) as one:
        one.multiply()
        assert one.dealer.peer.simulated


@proven
def test_a_dealer_of_another_deployment_is_refused() -> None:
    with (
        dealing(talk(None, proof=guest(OTHER))) as address,
        pytest.raises(Refused) as refused,
    ):
        dealt(address)
    assert refused.value.code == "compose-hash-mismatch"


@proven
def test_whoever_has_only_a_key_is_no_dealer() -> None:
    with (
        dealing(talk(None, proof=ProveKey(signer("mallory")))) as address,
        pytest.raises(ChannelRefused) as refused,
    ):
        dealt(address)
    assert (refused.value.check, refused.value.got) == ("proof", "signature")


@proven
@pytest.mark.parametrize(
    "proof", [guest(OTHER), guest(COMPOSE, vendor="another vendor"), ProveKey(signer("mallory"))]
)
def test_a_dealer_deals_for_no_guest_of_another_deployment(proof: Any) -> None:
    said: list[str] = []
    with dealing(said=said) as address:
        with pytest.raises(DealerUnreachable):
            dealt(address, talk(proof=proof))
        wait_until(lambda: said)
    assert len(said) == 1  # the operator of the dealer sees why


@proven
@pytest.mark.parametrize(("run_id", "more"), [(None, {}), ("ab", {}), (True, {"more": 1})])
def test_a_session_is_of_a_run(run_id: str | bool | None, more: dict[str, Any]) -> None:
    from dataclasses import replace

    named = RUN_ID if run_id is True else run_id
    context = more if named is None else {"run_id": named, **more}
    with dealing() as address:
        supplier = RemoteDealer(*address, replace(talk(), context=context), seconds=10.0)
        supplier.begin()
        with pytest.raises(DealerUnreachable):
            supplier.admit(MATRIX)
        supplier.close()


@proven
@pytest.mark.parametrize("record", [0, 1], ids=["ready", "the first answer"])
def test_who_stands_between_cannot_speak_for_the_dealer(record: int) -> None:
    def meddle(number: int, frame: bytes) -> list[bytes]:
        return [frame[:-1] + bytes([frame[-1] ^ 1])] if number == record else [frame]

    with (
        dealing() as address,
        relayed(address, back=meddle) as (through, _),
        pytest.raises(ChannelBroken) as refused,
        at(through),
    ):
        pass
    assert refused.value.code == "channel-broken"


@proven
def test_a_dealer_that_stays_silent_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DealerUnreachable):
        dealt(silent.getsockname()[:2], seconds=0.5)  # taken by the system, answered by nobody


def test_a_dealer_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()[:2]
    with pytest.raises(DealerUnreachable) as refused:
        dealt((host, port))
    assert refused.value.got == f"{host}:{port}"


def test_only_data_of_the_right_length_is_a_product() -> None:
    from channel_world import called

    with called(talk(None)) as (address, outcome, thread):
        supplier = dealt(address)
        thread.join(10)
        assert outcome.channel is not None
        later = supplier.product(MATRIX, "forward", 0, torch.zeros(2, 40, dtype=torch.int32))
        outcome.channel.send(canonical_json({"ok": {}, "payload": 4}))
        outcome.channel.send(b"1234")
        with pytest.raises(ChannelBroken) as refused:
            later()
        assert refused.value.check == "payload"
        supplier.close()
