"""A TPM 2.0 behind Linux's device file: the seven commands that a guest of ours asks.

*TPM 2.0 Library*, Part 3 has the commands, Part 2 their structures; numbers are big-endian. Nothing
that comes back is verified here. The module imports little, since the first program of a guest has
it, too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.tpm.byte_cursor import Octets

DEVICES: Final = (Path("/dev/tpmrm0"), Path("/dev/tpm0"))
"""Through the kernel's resource manager, and without it."""
MAX_RESPONSE_BYTES: Final = 4096
ENDORSEMENT: Final = 0x4000000B
OWNER: Final = 0x40000001
SHA256: Final = 0x000B
ALGORITHMS: Final = {"sha256": SHA256, "sha384": 0x000C}
REGISTERS: Final = 24

_PASSWORD: Final = struct.pack(">IHBH", 0x40000009, 0, 1, 0)
"""A session with an empty password."""
_PLAIN, _AUTHORISED = 0x8001, 0x8002
_CREATE_PRIMARY, _NV_READ, _QUOTE, _FLUSH = 0x131, 0x14E, 0x158, 0x165
_NV_READ_PUBLIC, _GET_CAPABILITY, _PCR_READ, _PCR_EXTEND = 0x169, 0x17A, 0x17E, 0x182
_CAP_PCRS: Final = 5
_NULL: Final = 0x0010
_RETRY: Final = {0x908, 0x922}
"""``TPM_RC_YIELDED``, ``TPM_RC_RETRY``."""
_TRIES: Final = 5
_NV_CHUNK: Final = 512
_WHAT: Final = "TPM response"

Transmit = Callable[[bytes], bytes]
"""A command → its response, both whole."""


class Tpm:
    """Commands to one TPM.

    Args:
        transmit: How a command reaches it.
    """

    def __init__(self, transmit: Transmit) -> None:
        self._transmit = transmit

    def extend(self, register: int, digests: Mapping[str, bytes]) -> None:
        """Extend a register in some banks; names of banks are those of ``ALGORITHMS``."""
        body = struct.pack(">I", len(digests))
        for name, digest in digests.items():
            body += struct.pack(">H", ALGORITHMS[name]) + digest
        self._call(_PCR_EXTEND, (register,), body, authorised=1)

    def banks(self) -> tuple[str, ...]:
        """Banks of ``ALGORITHMS`` that this TPM keeps registers in."""
        answer = self._call(_GET_CAPABILITY, (), struct.pack(">III", _CAP_PCRS, 0, 1))
        answer.number(1)
        if answer.number(4) != _CAP_PCRS:
            raise answer.malformed_error("it is of another capability")
        kept = {algorithm for algorithm, selected in _selections(answer) if selected}
        return tuple(name for name, algorithm in ALGORITHMS.items() if algorithm in kept)

    def registers(self, bank: str = "sha256") -> dict[int, bytes]:
        """All registers of a bank. They may change while they are read."""
        found: dict[int, bytes] = {}
        while len(found) < REGISTERS:
            wanted = [index for index in range(REGISTERS) if index not in found]
            answer = self._call(_PCR_READ, (), selection(bank, wanted))
            answer.number(4)
            shown = [index for _, indexes in _selections(answer) for index in indexes]
            if answer.number(4) != len(shown) or not shown or not set(shown) <= set(wanted):
                raise answer.malformed_error("it has other registers")
            for index in shown:
                found[index] = answer.read_sized(2, 64)
            answer.finish()
        return found

    def read_index(self, index: int, most: int, *, by: int | None = None) -> bytes:
        """Content of a non-volatile index that its reader needs no password for.

        Args:
            index: Its handle.
            most: Bytes that it has at most.
            by: Whose right to read is used: ``OWNER``, or ``None`` for the index's own.

        Raises:
            GuestApiUnreachable: There is no such index.
            EvidenceMalformed: It is longer, or a response is of another form.
        """
        public = Octets(
            self._call(_NV_READ_PUBLIC, (), struct.pack(">I", index)).read_sized(2, 256), _WHAT
        )
        public.take(10)
        public.read_sized(2, 64)
        size = public.number(2)
        public.finish()
        if size > most:
            raise public.malformed_error(f"index {index:#x} has {size} bytes")
        found = b""
        while len(found) < size:
            part = min(_NV_CHUNK, size - len(found))
            body = struct.pack(">HH", part, len(found))
            reader = index if by is None else by
            answer = self._call(_NV_READ, (reader, index), body, authorised=1)
            data = answer.read_sized(2, part)
            if len(data) != part:
                raise answer.malformed_error("it has other bytes than were asked for")
            found += data
        return found

    @contextmanager
    def primary(self, template: bytes, hierarchy: int = ENDORSEMENT) -> Iterator[tuple[int, bytes]]:
        """A primary key of a template (``TPMT_PUBLIC``), gone when the block ends.

        Yields:
            Its handle and its ``TPMT_PUBLIC``.
        """
        sensitive = struct.pack(">HHH", 4, 0, 0)
        body = sensitive + _prefix_size(template) + struct.pack(">HI", 0, 0)
        answer = self._call(_CREATE_PRIMARY, (hierarchy,), body, authorised=1, returned=1)
        handle = answer.number(4)
        answer.number(4)  # size of the parameters
        try:
            yield handle, answer.read_sized(2, 1024)
        finally:
            self._call(_FLUSH, (), struct.pack(">I", handle))

    def quote(self, key: int, qualifying_data: bytes, bank: str = "sha256") -> tuple[bytes, bytes]:
        """``TPMS_ATTEST`` over all registers of a bank, and ``TPMT_SIGNATURE``, by a loaded key."""
        body = (
            _prefix_size(qualifying_data)
            + struct.pack(">H", _NULL)
            + selection(bank, range(REGISTERS))
        )
        answer = self._call(_QUOTE, (key,), body, authorised=1, returned=0)
        signed = Octets(answer.read_sized(4, 2048), _WHAT)
        message = signed.read_sized(2, 1024)
        return message, signed.take(signed.left)

    def _call(
        self,
        code: int,
        handles: tuple[int, ...],
        body: bytes,
        *,
        authorised: int = 0,
        returned: int | None = None,
    ) -> Octets:
        """Send a command; its parameters, ``returned`` keeps handles and size before them."""
        front = b"".join(struct.pack(">I", handle) for handle in handles)
        if authorised:
            front += struct.pack(">I", len(_PASSWORD)) + _PASSWORD
        tag = _AUTHORISED if authorised else _PLAIN
        command = struct.pack(">HII", tag, 10 + len(front) + len(body), code) + front + body
        for _ in range(_TRIES):
            response = Octets(self._transmit(command), _WHAT)
            answered, size, result = response.number(2), response.number(4), response.number(4)
            if size != response.left + 10:
                raise response.malformed_error("it has another length than it says")
            if result in _RETRY:
                continue
            if result:
                raise GuestApiUnreachable(
                    "the TPM refused a command",
                    check="TPM",
                    got=f"{result:#x}",
                    expected=f"command {code:#x}",
                )
            if answered != tag:
                raise response.malformed_error("it is of another form than the command")
            if authorised and returned is None:
                response = Octets(response.read_sized(4, MAX_RESPONSE_BYTES), _WHAT)
            return response
        raise GuestApiUnreachable("the TPM is busy", check="TPM", got=f"{_TRIES} tries")


def selection(bank: str, registers: Sequence[int] | range) -> bytes:
    """``TPML_PCR_SELECTION`` of one bank."""
    bits = sum(1 << index for index in registers).to_bytes(REGISTERS // 8, "little")
    return struct.pack(">IHB", 1, ALGORITHMS[bank], len(bits)) + bits


def _selections(answer: Octets) -> list[tuple[int, list[int]]]:
    found = []
    for _ in range(min(answer.number(4), 16)):
        algorithm, size = answer.number(2), answer.number(1)
        bits = int.from_bytes(answer.take(size), "little")
        found.append((algorithm, [index for index in range(8 * size) if bits >> index & 1]))
    return found


def _prefix_size(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


@contextmanager
def open_tpm(device: Path) -> Iterator[Tpm]:
    """The TPM behind a device file.

    Raises:
        GuestApiUnreachable: The device cannot be opened or used.
        EvidenceMalformed: A response is of another form.
    """
    try:
        file = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _unreachable(device, error) from error

    def transmit(command: bytes) -> bytes:
        try:
            os.write(file, command)
            response = os.read(file, MAX_RESPONSE_BYTES)
        except OSError as error:
            raise _unreachable(device, error) from error
        if len(response) < 10:
            raise EvidenceMalformed("TPM response is malformed: it is truncated", check=_WHAT)
        return response

    try:
        yield Tpm(transmit)
    finally:
        os.close(file)


def _unreachable(device: Path, error: OSError) -> GuestApiUnreachable:
    return GuestApiUnreachable(
        f"the TPM at {device} does not answer",
        check="TPM",
        got=error.strerror or type(error).__name__,
        hint=f"run this in a guest with a TPM, as a user that may open {device}",
    )
