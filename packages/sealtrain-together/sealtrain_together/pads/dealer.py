"""A dealer: makes the products of pads for a guest, and never speaks with its accelerator.

Both ends of their conversation (spec/one-time-pads.md §6). One attested channel is one session. Its
pad secret is exported from the channel's handshake: no message carries it or begins with it, so
nothing that was recorded can begin again, and neither end can choose a secret twice.

1. a matrix is brought before the first rows are dealt          ``PadsRefused``
2. rows are dealt for matrices of this session                  ``DataInvalid``
3. rows of a stream are dealt in order, each once               ``PadsRefused``
4. matrices and answers stay within the dealer's limits         ``LimitExceeded``
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_hex
from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.models import Hex32, Hex64, StrictModel, load_model
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, LimitExceeded, PadsRefused, UsageError
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.channel.answers import Done, answer, operation, receive_answer_into
from sealtrain_together.channel.channel import AttestedChannel, accept, go_on
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import Peer
from sealtrain_together.pads.accelerator import expect_digest
from sealtrain_together.pads.connections import (
    PURPOSE,
    SECONDS,
    conversation,
    dealer_reached,
    reach_dealer,
)
from sealtrain_together.pads.masks import Masks
from sealtrain_together.pads.matrix import MAX_ENTRIES, MAX_SIDE, Direction, PublicMatrix
from sealtrain_together.pads.multiplying import Device, Limits, Matrices
from sealtrain_together.pads.tensors import (
    MAX_ROWS,
    Later,
    ask_in_parts,
    elements,
    expect_rows,
    octets,
    row_parts,
)

__all__ = [
    "PURPOSE",
    "ConnectedDealer",
    "Dealer",
    "RemoteDealer",
    "Session",
    "conversation",
]

_LABEL: Final = "one-time-pads"
_MAX_ASKED_BYTES: Final = 1 << 10
_MAX_ANSWER_BYTES: Final = 16 << 10
_NOTHING: Final = memoryview(b"")
_LAST_SECONDS: Final = 5.0
_Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class _DealerContext(StrictModel):
    run_id: Hex32


class _Matrix(StrictModel):
    outputs: _Side
    inputs: _Side

    @property
    def size(self) -> int:
        return self.outputs * self.inputs


class _Deal(StrictModel):
    matrix: Hex64
    direction: Literal["forward", "backward"]
    first: Annotated[int, Field(ge=0, lt=1 << 48)]
    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)]


# --- The dealer's end ---------------------------------------------------------------------------


class Session:
    """What a dealer does for one guest, from its beginning to its end.

    Args:
        secret: The pad secret of this beginning.
        matrices: Of this session alone.
        device: Multiplies.
    """

    def __init__(self, secret: Secret, matrices: Matrices, device: Device) -> None:
        self._masks = Masks(secret)
        self._matrices = matrices
        self._device = device
        self._announced: _Matrix | None = None
        self._dealing = False

    def attend(self, channel: AttestedChannel) -> None:
        """Answer until the guest ends the session. The first refusal ends it, too.

        Raises:
            SealtrainError: What was refused, or as the channel.
        """
        with torch.no_grad():
            while (message := channel.receive(max_bytes=_MAX_ASKED_BYTES)) is not None:
                answer(channel, partial(self._handle, message), refusal_ends=True)
                announced, self._announced = self._announced, None
                if announced is not None:
                    answer(channel, partial(self._keep, channel, announced), refusal_ends=True)

    def _handle(self, message: bytes) -> Done:
        name, asked = operation(message, ("matrix", "deal"))
        if name == "matrix":
            return self._announce(load_model(_Matrix, asked, DataInvalid, "matrix"))
        return self._deal(load_model(_Deal, asked, DataInvalid, "deal"))

    def _announce(self, asked: _Matrix) -> Done:
        if self._dealing:
            raise PadsRefused("the matrices of a session are fixed when dealing begins")  # (1)
        if asked.size > MAX_ENTRIES:
            raise LimitExceeded(
                "a matrix is too large",
                got=f"{asked.size} bytes",
                expected=f"at most {MAX_ENTRIES}",
            )
        self._matrices.reserve(asked.size)
        self._announced = asked
        return {}, b""

    def _keep(self, channel: AttestedChannel, asked: _Matrix) -> Done:
        body = bytearray(asked.size)
        if channel.receive_into(memoryview(body)) != asked.size:
            raise DataInvalid("a matrix has the wrong length", expected=f"{asked.size} bytes")
        values = torch.frombuffer(body, dtype=torch.int8).view(asked.outputs, asked.inputs)
        return {"matrix": self._matrices.keep(values).hex()}, b""

    def _deal(self, asked: _Deal) -> Done:
        digest, way = from_hex(asked.matrix), asked.direction
        matrix = self._matrices.find(digest)  # (2)
        expect_rows(asked.rows, max(matrix.widths(way)))  # (4)
        if (position := self._masks.position(matrix, way)) != asked.first:
            raise PadsRefused(  # (3)
                "rows of a stream are dealt in order, each once", got=asked.first, expected=position
            )
        self._dealing = True
        _, mask = self._masks.rows(matrix, way, asked.rows)
        product = self._device.product(mask, self._matrices.factor(digest, way))
        return {}, octets(product)


@dataclass(frozen=True, slots=True, eq=False)
class _AtWork:
    """A session that goes on."""

    sock: socket.socket
    over: threading.Event = field(default_factory=threading.Event)


class Dealer:
    """Deals for guests that prove themselves, each in a session of its own.

    Args:
        conversation: How the dealer proves itself, and for whom it deals.
        device: Multiplies.
        limits: What it takes of all guests.
    """

    def __init__(self, conversation: ChannelTerms, device: Device, limits: Limits) -> None:
        self._conversation = conversation
        self._device = device
        self._limits = limits
        self._room = ByteBudget(limits.matrix_bytes)
        self._at_work: dict[str, _AtWork] = {}
        self._lock = threading.Lock()

    def serve(self, sock: socket.socket) -> None:
        """Serve one connection to its end.

        Raises:
            SealtrainError: The caller did not prove itself, asked for what is refused, or is gone.
        """
        with (
            accept(sock, self._conversation, timeout=self._limits.frame_seconds) as channel,
            self._only_session(channel, sock),
            Matrices(self._room, self._device.name) as matrices,
        ):
            sock.settimeout(self._limits.idle_seconds)
            Session(channel.export(_LABEL), matrices, self._device).attend(channel)

    @contextmanager
    def _only_session(self, channel: AttestedChannel, sock: socket.socket) -> Iterator[None]:
        """End the session before of the same run: its guest is gone, or is about to be."""
        run = load_model(
            _DealerContext, channel.context, DataInvalid, "context of a session"
        ).run_id
        this = _AtWork(sock)
        with self._lock:
            before, self._at_work[run] = self._at_work.get(run), this
        try:
            if before is not None:
                with suppress(OSError):
                    before.sock.shutdown(socket.SHUT_RDWR)
                before.over.wait(self._limits.frame_seconds)  # then its room is free
            yield
        finally:
            this.over.set()
            with self._lock:
                if self._at_work.get(run) is this:
                    del self._at_work[run]


# --- The guest's end ----------------------------------------------------------------------------


class ConnectedDealer:
    """A dealer at the other end of an attested channel. A ``Supplier`` for one beginning.

    Args:
        channel: Opened for this session alone.
        place: Name of the dealer, for errors.
    """

    def __init__(self, channel: AttestedChannel, place: str) -> None:
        self._place, self._channel = place, channel
        self._begun = False
        self._known: set[bytes] = set()
        self._using = threading.Lock()  # a thread prefetches while another one ends the session

    def close(self) -> None:
        """End the session, also one that waits for a dealer that does not answer."""
        if not self._using.acquire(timeout=_LAST_SECONDS):
            self._channel.cut()
            self._using.acquire()
        try:
            self._channel.close()
        finally:
            self._using.release()

    def begin(self) -> Secret:
        """As ``Supplier.begin``: the secret of the channel."""
        if self._begun:
            raise UsageError("a session with a dealer is one beginning", hint="open another one")
        self._begun = True
        return self._channel.export(_LABEL)

    def admit(self, matrix: PublicMatrix) -> None:
        """As ``Supplier.admit``. A matrix travels once.

        Raises:
            DealerUnreachable: No answer, or it has no room.
            PadsRefused: Rows were dealt already.
            ProductAltered: It took the matrix for another one.
        """
        if matrix.digest in self._known:
            return
        outputs, inputs = matrix.values.shape
        with dealer_reached(self._place):
            self._ask({"do": "matrix", "outputs": outputs, "inputs": inputs})
            self._answer()
            self._channel.send(octets(matrix.values))
            said = self._answer()
        expect_digest(matrix, _digest(said), of="dealer")
        self._known.add(matrix.digest)

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """As ``Supplier.product``.

        Raises:
            DealerUnreachable: No answer. So may the product.
            PadsRefused: It dealt these rows already.
            ChannelBroken: Something else came than it sent.
        """
        widths = matrix.widths(direction)

        def ask(part: slice) -> None:
            begin, rows = first + part.start, part.stop - part.start
            asked: dict[str, JsonValue] = {"matrix": matrix.digest.hex(), "direction": direction}
            with self._using, dealer_reached(self._place):
                self._ask({"do": "deal", "first": begin, "rows": rows} | asked)

        def read(part: slice) -> torch.Tensor:
            rows = part.stop - part.start
            dealt = bytearray(4 * rows * widths[1])
            with self._using, dealer_reached(self._place):
                self._answer(memoryview(dealt))
            return elements(dealt, rows, widths[1])

        return ask_in_parts(row_parts(mask.shape[0], widths), ask, read)

    def _ask(self, asked: dict[str, JsonValue]) -> None:
        self._channel.send(canonical_json(asked))

    def _answer(self, dealt: memoryview = _NOTHING) -> dict[str, Any]:
        return receive_answer_into(self._channel, dealt, max_bytes=_MAX_ANSWER_BYTES)


class RemoteDealer(ConnectedDealer):
    """A dealer that this process connects to, and that proves itself to it.

    Args:
        host: Name or address.
        port: Where it listens.
        conversation: How this guest proves itself, and what the dealer must be (``conversation``).
        seconds: To connect, and between bytes of an answer.

    Attributes:
        peer: What the dealer proved.

    Raises:
        DealerUnreachable: No dealer answers there, or it did not let this guest in.
        Refused: It is not the dealer to trust, by the class of the first check that fails.
    """

    def __init__(
        self, host: str, port: int, conversation: ChannelTerms, *, seconds: float = SECONDS
    ) -> None:
        connection, keys = reach_dealer((host, port), conversation, seconds=seconds)
        super().__init__(go_on(connection, keys), write_host_and_port(host, port))
        self.peer: Peer = keys.peer


def _digest(said: dict[str, Any]) -> bytes:
    try:
        return from_hex(said["matrix"], length=32)
    except (KeyError, TypeError, DataInvalid) as error:
        raise ChannelBroken("the dealer does not confirm its matrices", check="pads") from error
