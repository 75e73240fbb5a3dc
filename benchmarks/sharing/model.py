"""Model sharing: the model goes from holder to holder, each trains it on its next chunk.

Every holder has an accelerator of its own and the whole plan; the turns are those of the travelling
way, so the weights are, too. What travels on each turn is the state: parameters and optimizer. It
goes from one holder straight to the next over a channel that stays open; nothing can be sent ahead,
for there is one model. The lead hands it out first and gets it back at the end.

A message is ``trip (8 bytes, big endian) ‖ seconds of training so far (float64) ‖ state``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sealtrain.errors import DataInvalid
from sealtrain_together.channel.channel import AttestedChannel, connect
from sealtrain_together.travelling.program import TravellingModel
from sealtrain_together.travelling.states import MAX_STATE_BYTES
from sharing.training import turns

if TYPE_CHECKING:
    from sealtrain_together.channel.handshake import ChannelTerms
    from sealtrain_together.channel.streams import Address
    from sealtrain_together.travelling.holder import TokenSource
    from sealtrain_together.travelling.schedule import TravelPlan

MODEL_PURPOSE = "share-model"
LEAD = "lead"
_HEAD = struct.Struct(">Qd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baton:
    """What goes from holder to holder.

    Attributes:
        trip: Whose turn it is; the number of trips when it is over.
        training: Seconds that training took so far.
        state: Of ``Program.state``.
    """

    trip: int
    training: float
    state: bytes

    def encode(self) -> bytes:
        """The message."""
        return _HEAD.pack(self.trip, self.training) + self.state

    @classmethod
    def receive(cls, channel: AttestedChannel) -> Baton | None:
        """The next one of a channel, ``None`` at its end.

        Raises:
            DataInvalid: It is no baton.
            ChannelBroken, LimitExceeded, PeerUnreachable: As the channel.
        """
        message = channel.receive(max_bytes=MAX_STATE_BYTES)
        if message is None:
            return None
        if len(message) <= _HEAD.size:
            raise DataInvalid("a model that was passed on is too short", got=len(message))
        trip, training = _HEAD.unpack_from(message)
        return cls(trip=trip, training=training, state=message[_HEAD.size :])


class Routes:
    """Channels to the others, opened when they are first needed, then kept.

    Args:
        addresses: Where each holder and the lead wait, by name.
        conversation: Made anew for each of them, by name.
        timeout: Seconds to connect and between bytes.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        conversation: Callable[[str], ChannelTerms],
        *,
        timeout: float,
    ) -> None:
        self._addresses = addresses
        self._conversation = conversation
        self._timeout = timeout
        self._open: dict[str, AttestedChannel] = {}

    def send(self, name: str, message: bytes) -> None:
        """Send to somebody. Errors as ``channel.connect`` and ``AttestedChannel.send``."""
        if name not in self._open:
            self._open[name] = connect(
                self._addresses[name], self._conversation(name), timeout=self._timeout
            )
        self._open[name].send(message)

    def close(self) -> None:
        """End all channels."""
        for channel in self._open.values():
            channel.close()


class ModelHolder:
    """A holder that trains whatever model comes, on its own data.

    Args:
        name: Its own.
        plan: Of the run.
        source: Its tokens.
        routes: To the others.
        timer: Seconds.
    """

    def __init__(
        self,
        name: str,
        plan: TravelPlan,
        source: TokenSource,
        routes: Routes,
        *,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._name = name
        self._trips = list(turns(plan))
        self._source = source
        self._routes = routes
        self._timer = timer
        self._program = TravellingModel(plan.program)
        self._chunk = bytearray(plan.chunk_bytes)

    def serve(self, channel: AttestedChannel) -> None:
        """Take models from one channel, train them and pass them on, until it ends.

        Raises:
            DataInvalid: It is not this holder's turn, or its data are nothing to train on.
            SealtrainError: As channels raise.
        """
        while (baton := Baton.receive(channel)) is not None:
            self._routes.send(*self.passed(baton))

    def passed(self, baton: Baton) -> tuple[str, bytes]:
        """Train, and who gets the model then.

        Raises:
            DataInvalid: As ``serve``.
        """
        number, training = baton.trip, baton.training
        if not self._has_turn(number):
            raise DataInvalid("it is not this holder's turn", got=f"trip {number}")
        self._program.restore(baton.state)
        while self._has_turn(number):
            trip = self._trips[number]
            chunk = memoryview(self._chunk)[: trip.size]
            if self._source.read_into(trip.offset, chunk) != trip.size:
                raise DataInvalid("the holder has no such tokens", got=trip.offset)
            began = self._timer()
            self._program.train(chunk)
            training += self._timer() - began
            number += 1
        following = self._trips[number].holder if number < len(self._trips) else LEAD
        onward = Baton(trip=number, training=training, state=self._program.state())
        return following, onward.encode()

    def _has_turn(self, number: int) -> bool:
        return number < len(self._trips) and self._trips[number].holder == self._name
