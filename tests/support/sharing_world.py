"""Holders of tokens and a plan, for ways to train that are compared with travelling."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from channel_world import keyed
from travel_world import Tokens

from sealtrain_together.channel.channel import AttestedChannel, accept, connect
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import listening
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.schedule import TravelPlan
from sharing.training import turns

TIMEOUT = 20.0
HOLDERS = ("clinic-a", "clinic-b")


class Held(Tokens):
    """A holder's tokens without an order."""

    def __init__(self, seed: int, count: int) -> None:
        drawn = np.random.default_rng(seed).integers(0, 64, count)
        self.data = drawn.astype("<u2").tobytes()


def held(count: int = 320) -> dict[str, Held]:
    """What each holder has; the second one has a step less."""
    return {name: Held(seed, count - 32 * seed) for seed, name in enumerate(HOLDERS)}


def pooled(plan: TravelPlan, sources: dict[str, Held]) -> TravellingModel:
    """What training gives where all data lie in one place."""
    program = TravellingModel(plan.program)
    for trip in turns(plan):
        program.train(memoryview(sources[trip.holder].data)[trip.offset :][: trip.size])
    return program


def conversation(purpose: str, me: str, *others: str, called: bool = False) -> ChannelTerms:
    """Between parties that know each other's keys."""
    return keyed(purpose, me, *others, context=None if called else {})


@contextmanager
def calling(
    purpose: str, handlers: dict[str, Callable[[AttestedChannel], None]]
) -> Iterator[dict[str, AttestedChannel]]:
    """Channels of ``lead`` to parties that each serve one in a thread."""
    with ExitStack() as stack:
        channels = {}
        for name, handle in handlers.items():

            def serve(sock: socket.socket, name: str = name, handle: Any = handle) -> None:
                agreed = conversation(purpose, name, "lead", called=True)
                with accept(sock, agreed, timeout=TIMEOUT) as channel:
                    handle(channel)

            address = stack.enter_context(listening(("127.0.0.1", 0), serve, what=name))
            agreed = conversation(purpose, "lead", name)
            channels[name] = stack.enter_context(connect(address, agreed, timeout=TIMEOUT))
        yield channels
