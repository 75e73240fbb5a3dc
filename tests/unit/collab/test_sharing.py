"""Ways to train that travelling is compared with learn what pooled training learns."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import DataInvalid
from sealtrain.training.errors import ChannelBroken, ChannelRefused, PeerUnreachable
from sealtrain_together.channel.channel import accept
from sealtrain_together.channel.ports import listening
from sealtrain_together.travelling.program import TravellingModel
from sharing.data import BusFeed, TlsFeed, relay, serve_data
from sharing.gradient import (
    GRADIENT_PURPOSE,
    GradientHolder,
    gradient_steps,
    train_apart,
)
from sharing.model import LEAD, MODEL_PURPOSE, Baton, ModelHolder, Routes
from sharing.tls import Identity, client_context, server_context
from sharing.training import train_fed, turns

if not COLLECTING:
    from sharing_world import (
        HOLDERS,
        TIMEOUT,
        Held,
        calling,
        conversation,
        held,
        pooled,
    )
    from travel_world import PROGRAM, plan_of

BUS = "share-bus"
LOOPBACK = ("127.0.0.1", 0)


@pytest.fixture(scope="module")
def identities() -> dict[str, Identity]:
    now = int(time.time())  # OpenSSL compares with its own clock
    return {name: Identity.make(name, now) for name in (*HOLDERS, "guest", "stranger")}


@contextmanager
def sessions(
    identities: dict[str, Identity], sources: dict[str, Held], me: str = "guest"
) -> Iterator[TlsFeed]:
    """Sessions of ``me`` with holders that serve ``guest``."""
    with ExitStack() as stack:
        addresses = {}
        for name, source in sources.items():
            context = server_context(identities[name], [identities["guest"].certificate])

            def serve(
                sock: socket.socket, context: ssl.SSLContext = context, source: Held = source
            ) -> None:
                serve_data(sock, context, source, timeout=TIMEOUT)

            addresses[name] = stack.enter_context(listening(LOOPBACK, serve, what=name))
        known = [identities[name].certificate for name in sources]
        feed = TlsFeed(addresses, client_context(identities[me], known), timeout=TIMEOUT)
        with closing(feed):
            yield feed


def test_data_sharing_learns_what_pooled_training_learns(identities: dict[str, Identity]) -> None:
    sources = held()
    plan = plan_of(sources)
    program = TravellingModel(plan.program)
    with sessions(identities, sources) as feed:
        progress = train_fed(program, plan, feed)
    assert program.digest() == pooled(plan, sources).digest()
    assert len(progress.losses) == len(list(turns(plan))) > 4
    for seconds in (progress.training, progress.transfer, progress.timers["receive"]):
        assert seconds > 0


def test_data_over_a_bus_are_the_same_data(identities: dict[str, Identity]) -> None:
    sources = held()
    plan = plan_of(sources)
    program = TravellingModel(plan.program)
    with (
        sessions(identities, sources) as feed,
        calling(BUS, {"gateway": lambda channel: relay(channel, feed)}) as channels,
    ):
        train_fed(program, plan, BusFeed(channels["gateway"]))
    assert program.digest() == pooled(plan, sources).digest()


def test_sessions_are_tls_13_and_chunks_of_many_parts_arrive_whole(
    identities: dict[str, Identity],
) -> None:
    sources = {"clinic-a": Held(7, 3 << 19)}  # three parts
    with sessions(identities, sources) as feed:
        assert feed.versions == {"clinic-a": "TLSv1.3"}
        whole = memoryview(bytearray(sources["clinic-a"].size))
        feed.ask_for("clinic-a", 0, len(whole) - 2)
        feed.ask_for("clinic-a", len(whole) - 2, 2)  # sent ahead
        feed.take_from("clinic-a", whole[:-2])
        feed.take_from("clinic-a", whole[-2:])
    assert whole == sources["clinic-a"].data


def test_a_stranger_gets_no_data(identities: dict[str, Identity]) -> None:
    sources = held()
    chunk = memoryview(bytearray(64))
    with sessions(identities, sources, me="stranger") as feed:
        # In TLS 1.3 the caller learns of its refusal with the first answer.
        with suppress(PeerUnreachable):
            feed.ask_for("clinic-a", 0, 64)
        with pytest.raises((PeerUnreachable, ChannelBroken)):
            feed.take_from("clinic-a", chunk)
    assert not any(chunk)


def test_a_holder_with_another_certificate_is_refused(identities: dict[str, Identity]) -> None:
    impostor = server_context(identities["stranger"], [identities["guest"].certificate])
    source = Held(0, 64)
    known = client_context(identities["guest"], [identities["clinic-a"].certificate])
    with (
        listening(
            LOOPBACK, lambda sock: serve_data(sock, impostor, source, timeout=TIMEOUT), what="it"
        ) as address,
        pytest.raises(
            ChannelRefused, check=carries(check="certificate", got="SSLCertVerificationError")
        ),
    ):
        TlsFeed({"clinic-a": address}, known, timeout=TIMEOUT)


def test_model_sharing_learns_what_pooled_training_learns() -> None:
    sources = held()
    plan = plan_of(sources)
    results: queue.Queue[Baton] = queue.Queue()
    everybody = (*HOLDERS, LEAD)
    with ExitStack() as stack:
        addresses: dict[str, tuple[str, int]] = {}

        def routes(me: str) -> Routes:
            made = Routes(
                addresses, lambda other: conversation(MODEL_PURPOSE, me, other), timeout=TIMEOUT
            )
            stack.callback(made.close)
            return made

        def lead(sock: socket.socket) -> None:
            agreed = conversation(MODEL_PURPOSE, LEAD, *HOLDERS, called=True)
            with accept(sock, agreed, timeout=TIMEOUT) as channel:
                while (baton := Baton.receive(channel)) is not None:
                    results.put(baton)

        addresses[LEAD] = stack.enter_context(listening(LOOPBACK, lead, what="lead"))
        for name in HOLDERS:
            holder = ModelHolder(name, plan, sources[name], routes(name))

            def serve(sock: socket.socket, name: str = name, holder: ModelHolder = holder) -> None:
                agreed = conversation(MODEL_PURPOSE, name, *everybody, called=True)
                with accept(sock, agreed, timeout=TIMEOUT) as channel:
                    holder.serve(channel)

            addresses[name] = stack.enter_context(listening(LOOPBACK, serve, what=name))
        first = Baton(trip=0, training=0.0, state=TravellingModel(plan.program).state())
        routes(LEAD).send(next(turns(plan)).holder, first.encode())
        last = results.get(timeout=TIMEOUT)
    assert last.trip == len(list(turns(plan)))
    assert last.training > 0
    assert TravellingModel(plan.program, last.state).digest() == pooled(plan, sources).digest()


def test_a_model_out_of_turn_is_not_trained() -> None:
    sources = held()
    plan = plan_of(sources)
    nowhere = Routes({}, lambda other: conversation(MODEL_PURPOSE, "x", other), timeout=TIMEOUT)
    holder = ModelHolder("clinic-b", plan, sources["clinic-b"], nowhere)
    state = TravellingModel(plan.program).state()
    with pytest.raises(DataInvalid, check=carries(got="trip 0")):
        holder.passed(Baton(trip=0, training=0.0, state=state))


def test_gradient_sharing_learns_what_accumulation_in_one_place_learns() -> None:
    sources = held()
    plan = plan_of(sources)
    steps, share = gradient_steps(plan)
    assert (steps, share) == (18, PROGRAM.sequence_bytes)  # the second holder's data end first
    handlers = {name: GradientHolder(plan, sources[name]).serve for name in HOLDERS}
    with calling(GRADIENT_PURPOSE, handlers) as channels:
        progress, state = train_apart(channels, steps)
    alone = TravellingModel(plan.program)
    for step in range(steps):
        parts = [
            np.frombuffer(alone.gradient(memoryview(source.data)[step * share :][:share])[0], "<f4")
            for source in sources.values()
        ]
        alone.apply(((parts[0] + parts[1]) / 2).astype("<f4").tobytes())
    assert state == alone.state()
    assert len(progress.losses) == steps


def test_a_step_of_gradients_is_the_step_of_the_whole_batch() -> None:
    # In another order of additions, so not bit for bit.
    tokens = memoryview(Held(5, 32).data)
    half = len(tokens) // 2
    whole, apart = TravellingModel(PROGRAM), TravellingModel(PROGRAM)
    _, loss = whole.train(tokens)
    (left, loss_left), (right, loss_right) = (
        apart.gradient(part) for part in (tokens[:half], tokens[half:])
    )
    mean = (np.frombuffer(left, "<f4") + np.frombuffer(right, "<f4")) / 2
    gradient, _ = apart.gradient(tokens)
    assert np.allclose(mean, np.frombuffer(gradient, "<f4"), atol=1e-7)
    assert (loss_left + loss_right) / 2 == pytest.approx(loss, abs=1e-6)
    apart.apply(gradient)
    assert apart.digest() == whole.digest()


def test_what_cannot_be_dealt_out_or_is_no_gradient_is_refused() -> None:
    sources = held() | {"clinic-c": Held(2, 320)}
    with pytest.raises(DataInvalid, check=carries(got="2 sequences, 3 holders")):
        gradient_steps(plan_of(sources))
    with pytest.raises(DataInvalid, check=carries(got="2")):
        TravellingModel(PROGRAM).apply(bytes(8))


def test_the_next_chunk_is_sent_for_before_this_one_is_waited_for() -> None:
    sources = held()
    plan = plan_of(sources)
    seen: list[tuple[str, int]] = []
    threads = set()

    class Watched:
        def ask(self, trip: object) -> None:
            threads.add(threading.get_ident())
            seen.append(("ask", trip.number))  # type: ignore[attr-defined]

        def take(self, trip: object, into: memoryview) -> None:
            threads.add(threading.get_ident())
            seen.append(("take", trip.number))  # type: ignore[attr-defined]

    train_fed(TravellingModel(plan.program), plan, Watched())  # type: ignore[arg-type]
    assert seen[:5] == [("ask", 0), ("ask", 1), ("take", 0), ("ask", 2), ("take", 1)]
    assert len(threads) == 1
