"""A dealer: makes the products of pads for a guest, and never speaks with its accelerator.

It learns the pad secret, sealed to its key, and answers with U, sealed too: whoever knew U could
take the pad off what the accelerator answers (spec/one-time-pads.md §6).
"""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealtrain.base.secret import Secret
from sealtrain.collab.otp import wire
from sealtrain.collab.otp.accelerator import bring_matrix
from sealtrain.collab.otp.matrix import Direction, PublicMatrix
from sealtrain.collab.otp.wire import Later
from sealtrain.errors import DataInvalid, PadsRefused, UsageError
from sealtrain.keys.derive import derive
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.training import quiet

quiet.silence()

import torch  # noqa: E402  # after silence()

__all__ = ["Answers", "RemoteDealer", "session_info"]

_NONCE_BYTES: Final = 12


def session_info(session: bytes) -> bytes:
    """What the pad secret of a session is bound to."""
    return b"sealtrain/otp-dealer/v1" + session


class Answers:
    """Seals what a dealer answers in one session, or opens it: one nonce for each, in order.

    Args:
        secret: The pad secret.
        session: 16 bytes, drawn by the guest.
    """

    def __init__(self, secret: Secret, session: bytes) -> None:
        self._key = AESGCM(derive(secret, "otp-answers", session.hex()).reveal())
        self._number = 0

    def sealed(self, product: torch.Tensor, asked: bytes) -> bytes:
        """U as an answer to ``asked``."""
        return self._key.encrypt(self._nonce(), bytes(wire.octets(product)), asked)

    def opened(self, body: bytearray, asked: bytes, rows: int, columns: int) -> torch.Tensor:
        """U from an answer to ``asked``.

        Raises:
            PadsRefused: It is not the answer to that.
        """
        try:
            plain = bytearray(self._key.decrypt(self._nonce(), bytes(body), asked))
            return wire.elements(plain, rows, columns)
        except (InvalidTag, DataInvalid) as error:
            raise PadsRefused(
                "a dealer's answer does not open as the one that was asked for",
                check="pads",
                hint="see who stands between guest and dealer",
            ) from error

    def _nonce(self) -> bytes:
        number, self._number = self._number, self._number + 1
        return number.to_bytes(_NONCE_BYTES, "big")


class RemoteDealer:
    """A dealer reached over TCP. A ``Supplier`` for one beginning.

    Args:
        host: Name or address.
        port: Where it listens.
        key: The dealer's public key, known from its evidence or from its owner.
        seconds: For each answer.

    Raises:
        AcceleratorUnreachable: Nothing listens there.
    """

    def __init__(self, host: str, port: int, *, key: HpkePublicKey, seconds: float = 120.0) -> None:
        self._channel = wire.connected(host, port, seconds=seconds)
        self._key = key
        self._answers: Answers | None = None
        self._known: set[bytes] = set()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def begin(self, secret: Secret) -> None:
        """As ``Supplier.begin``.

        Raises:
            AcceleratorUnreachable: No answer.
        """
        if self._answers is not None:
            raise UsageError("a dealer's connection serves one beginning", hint="connect again")
        session = secrets.token_bytes(wire.SESSION_BYTES)
        sealed = self._key.seal(secret.reveal(), info=session_info(session))
        self._channel.ask(wire.BEGIN, session, sealed)
        self._answers = Answers(secret, session)

    def admit(self, matrix: PublicMatrix) -> None:
        """As ``Supplier.admit``. A matrix travels once."""
        if matrix.digest not in self._known:
            bring_matrix(self._channel, matrix)
            self._known.add(matrix.digest)

    def product(
        self, matrix: PublicMatrix, direction: Direction, first: int, mask: torch.Tensor
    ) -> Later:
        """As ``Supplier.product``.

        Raises:
            AcceleratorUnreachable: No answer. So may the product.
        """
        answers, widths = self._answers, matrix.widths(direction)
        if answers is None:
            raise UsageError("a dealer gives pads after a beginning only")

        def asked(part: slice) -> tuple[bytes]:
            rows = part.stop - part.start
            return (wire.asked_pads(matrix.digest, direction, first + part.start, rows),)

        def read(body: bytearray, part: slice) -> torch.Tensor:
            return answers.opened(body, asked(part)[0], part.stop - part.start, widths[1])

        parts = wire.row_parts(mask.shape[0], widths)
        return wire.asked_in_parts(self._channel, wire.PADS, parts, asked, read)
