"""Attacks on a travelling run from the outside: on the wires, by dead parties, by other guests."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from channel_world import COMPOSE, acceptance, guest
from collecting import COLLECTING
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from relays import Meddle, relayed
from variants import variants

from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import AcceleratorUnreachable, EvidenceRefused, SealtrainError
from sealtrain.manifest.checks.collaborations.travelling import Travelled, check_trips
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.travelling.accelerator import CONTROL_PURPOSE
from sealtrain_together.travelling.capability import WriteCapability
from sealtrain_together.travelling.holder import HOLDER_PURPOSE, Holder, Provision
from sealtrain_together.travelling.parties import join_holder

if not COLLECTING:
    from travel_world import HOLDERS, PATIENCE, RUN_ID, TERMS, TravelWorld, travel_world

pytestmark = [pytest.mark.long, pytest.mark.claim("C71", "C72")]

QUICK = 2.0


def dropped(at: int) -> Meddle:
    return lambda number, frame: [] if number == at else [frame]


def twice(at: int) -> Meddle:
    return lambda number, frame: [frame, frame] if number == at else [frame]


def altered(at: int) -> Meddle:
    return lambda number, frame: [frame[:-1] + bytes([frame[-1] ^ 1])] if number == at else [frame]


def swapped(at: int) -> Meddle:
    held: list[bytes] = []

    def meddle(number: int, frame: bytes) -> list[bytes]:
        if number == at:
            held.append(frame)
            return []
        if number == at + 1:
            return [frame, held.pop()]
        return [frame]

    return meddle


MEDDLERS: dict[str, Callable[[int], Meddle]] = {
    "drops": dropped,
    "repeats": twice,
    "alters": altered,
    "swaps": swapped,
}


def came(orchestrator: Any) -> Travelled:
    return check_trips(orchestrator.log.entries, TERMS)


def through(world: TravelWorld, name: str, address: tuple[str, int]) -> Any:
    holders = dict(world.holders) | {name: address}
    return world.parties(holders=holders, timeout=QUICK)


@pytest.mark.parametrize("meddler", variants(MEDDLERS, each_time=["drops", "repeats"]))
def test_who_meddles_with_the_control_channel_ends_the_run(meddler: str) -> None:
    with travel_world() as world, relayed(world.control, there=MEDDLERS[meddler](2)) as (place, _):
        parties = world.parties(accelerator=place, patience=QUICK)
        with (
            pytest.raises((ChannelBroken, AcceleratorUnreachable)),
            world.orchestrator(parties=parties) as orchestrator,
        ):
            orchestrator.run()
        assert not any(entry["event"] == "travel.finished" for entry in orchestrator.log.entries)


def gone(at: int) -> Meddle:
    """The machine ends before it gives an answer."""

    def meddle(number: int, frame: bytes) -> list[bytes]:
        if number == at:
            raise ConnectionResetError
        return [frame]

    return meddle


def silent(at: int) -> Meddle:
    """The machine stands still before it gives an answer."""
    return lambda number, frame: [] if number >= at else [frame]


@pytest.mark.parametrize("way", [gone, silent])
@pytest.mark.parametrize("answer", variants([0, 2], each_time=[2]))
def test_an_accelerator_that_is_gone_is_named_and_ends_the_run(
    way: Callable[[int], Meddle], answer: int
) -> None:
    with travel_world() as world, relayed(world.control, back=way(answer)) as (place, _):
        parties = world.parties(accelerator=place, patience=QUICK)
        with (
            pytest.raises(AcceleratorUnreachable) as caught,
            world.orchestrator(parties=parties) as orchestrator,
        ):
            orchestrator.run()
        assert caught.value.exit_code == 4
        assert caught.value.got == write_host_and_port(*place)


@pytest.mark.claim("C226")
def test_a_holder_that_is_gone_is_named_with_its_place() -> None:
    with travel_world() as world, relayed(world.holders["clinic-b"], back=gone(0)) as (place, _):
        parties = through(world, "clinic-b", place)
        with pytest.raises(PeerUnreachable) as caught:
            join_holder(parties, RUN_ID, "clinic-b", 0, os.urandom)
    assert caught.value.owner == "clinic-b"
    assert str(caught.value.got).endswith(f" at {write_host_and_port(*place)}")


@pytest.mark.parametrize("meddler", variants(["drops", "swaps"], each_time=["swaps"]))
def test_who_meddles_with_one_holders_channel_costs_it_its_turns(meddler: str) -> None:
    with (
        travel_world() as world,
        relayed(world.holders["clinic-b"], there=MEDDLERS[meddler](1)) as (place, _),
    ):
        parties = through(world, "clinic-b", place)
        with world.orchestrator(parties=parties) as orchestrator:
            orchestrator.run()
        trips = came(orchestrator)
        assert set(trips.refused.values()) == {"clinic-b"}
        assert trips.tokens == {"clinic-a": 512, "clinic-c": 512}
        assert not world.lies_there()


@pytest.mark.parametrize("meddler", MEDDLERS)
def test_who_meddles_with_a_chunk_voids_the_trip_and_nothing_of_it_counts(meddler: str) -> None:
    with (
        travel_world() as world,
        relayed(world.writes, there=MEDDLERS[meddler](0), writes=True) as (place, _),
    ):
        world.hold("clinic-c", writes=place, bounds={"timeout": QUICK})
        with world.orchestrator() as orchestrator:
            orchestrator.run()
        trips = came(orchestrator)
        assert set(trips.refused.values()) == {"clinic-c"}
        assert trips.tokens == {"clinic-a": 512, "clinic-b": 512}
        assert not world.lies_there()


@pytest.mark.nightly
def test_two_holders_who_recorded_everything_open_nothing_of_the_third() -> None:
    """They have every secret that they were ever lent, and all bytes of every wire."""
    lent: list[tuple[str, WriteCapability]] = []

    def note(holder: Holder, name: str) -> None:
        provide = holder.provide

        def noted(asked: Provision) -> Any:
            lent.append((name, WriteCapability.from_dict(asked.capability)))
            return provide(asked)

        holder.provide = noted  # type: ignore[method-assign]

    with travel_world() as world, relayed(world.writes, writes=True) as (place, relay):
        for name in HOLDERS:
            note(world.hold(name, writes=place), name)
        with world.orchestrator() as orchestrator:
            orchestrator.run()
        assert came(orchestrator).tokens == dict.fromkeys(HOLDERS, 512)
        secrets = {capability.id: capability for _, capability in lent}
        theirs = [trip for name, trip in lent if name != "clinic-b"]
        keys = [their.key(way).reveal() for their in theirs for way in ("write", "receipt")]
        opened = {True: 0, False: 0}
        plain = {name: tokens.data for name, tokens in world.tokens.items()}
        for there in relay.there:
            wire = bytes(there)
            trip, record = secrets[wire[:16].hex()], wire[16:]
            owner = next(name for name, each_trip in lent if each_trip.id == trip.id)
            head, sealed = record[:5], record[5 : 5 + int.from_bytes(record[1:5], "big")]
            for key in keys:
                try:
                    chunk = AESGCM(key).decrypt(bytes(12), sealed, head)
                except InvalidTag:
                    continue
                opened[owner == "clinic-b"] += 1
                assert chunk[8:] in plain[owner]
            assert not any(part in wire for part in (plain[owner][:64], plain[owner][256:320]))
        assert opened == {True: 0, False: 8}  # their own, so the attack does open what it can


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_holder_that_dies_loses_its_turns_and_the_others_finish() -> None:
    with travel_world() as world:
        holder = world.made["clinic-a"]
        served = holder.provide

        def dies(asked: Any) -> Any:
            if asked.trip:
                raise SystemExit  # ends its thread, and the connection with it
            return served(asked)

        holder.provide = dies  # type: ignore[method-assign]
        with world.orchestrator(parties=world.parties(timeout=QUICK)) as orchestrator:
            orchestrator.run()
        trips = came(orchestrator)
        assert trips.tokens == {"clinic-a": 128, "clinic-b": 512, "clinic-c": 512}
        assert set(trips.refused.values()) == {"clinic-a"}


def test_nobody_listens_where_a_holder_was_and_the_others_finish() -> None:
    with travel_world() as world:
        gone = socket.create_server(("127.0.0.1", 0))
        address = gone.getsockname()[:2]
        gone.close()
        with world.orchestrator(parties=through(world, "clinic-b", address)) as orchestrator:
            orchestrator.run()
        assert came(orchestrator).tokens == {"clinic-a": 512, "clinic-c": 512}


OTHER = b'{"manifest_version":2,"name":"another-party"}'


def as_guest(purpose: str, prove: ProveGuest, accept: AcceptGuest) -> ChannelTerms:
    return ChannelTerms(
        purpose=purpose, context=None, proof=prove, accept=accept, random=os.urandom
    )


@pytest.mark.parametrize("stranger", ["accelerator", "holder", "orchestrator"])
def test_a_guest_of_another_deployment_takes_no_part(stranger: str) -> None:
    """Its evidence is genuine, and its policy is met: it measured another compose hash."""
    compose = dict.fromkeys(("accelerator", "holder", "orchestrator"), COMPOSE)
    compose[stranger] = OTHER
    with travel_world() as world:
        talk = as_guest(CONTROL_PURPOSE, guest(compose["accelerator"]), acceptance())
        giving = as_guest(HOLDER_PURPOSE, guest(compose["holder"]), acceptance())
        holder = world.made["clinic-a"]
        with (
            listening(
                ("127.0.0.1", 0),
                lambda sock: world.accelerator.serve_control(sock, talk),
                what="control",
            ) as control,
            listening(
                ("127.0.0.1", 0), lambda sock: holder.serve(sock, giving), what="holder"
            ) as place,
        ):
            parties = world.parties(
                proof=guest(compose["orchestrator"]),
                accelerator=control,
                holders={"clinic-a": place},
                accept_accelerator=acceptance(),
                accept_holder={"clinic-a": acceptance()},
                patience=PATIENCE,
            )
            plan = world.plan()
            plan = plan.model_copy(update={"holders": plan.holders[:1]})
            if stranger == "holder":
                with world.orchestrator(plan, parties=parties) as orchestrator:
                    orchestrator.run()
                codes = {
                    entry["fields"]["code"]
                    for entry in orchestrator.log.entries
                    if entry["event"] == "trip.refused"
                }
                assert codes == {"compose-hash-mismatch"}
                trained = [
                    entry for entry in orchestrator.log.entries if "trained" in entry["event"]
                ]
                assert trained == []
            else:
                expected = EvidenceRefused if stranger == "accelerator" else SealtrainError
                with pytest.raises(expected), world.orchestrator(plan, parties=parties):
                    pytest.fail("a stranger took part")
        assert holder.given == ()
        assert not world.lies_there()
