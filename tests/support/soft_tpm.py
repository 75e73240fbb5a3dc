"""A TPM behind a device file, played in memory."""

from __future__ import annotations

import struct
from collections.abc import Callable

from sealtrain.attest.tpm.collect import CERTIFICATE_INDEX, TEMPLATE_INDEX
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm

PKI = SimulatedPki(b"seed of the test" * 2)
READ_PUBLIC, READ, CREATE, QUOTE, FLUSH = 0x169, 0x14E, 0x131, 0x158, 0x165
CAPABILITY, PCR_READ, EXTEND = 0x17A, 0x17E, 0x182


def sized(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


class SoftTpm:
    """Answers as *TPM 2.0 Library*, Part 3 says; ``spoil`` changes one response."""

    def __init__(
        self, indexes: dict[int, bytes] | None = None, *, simulated: SimulatedTpm | None = None
    ) -> None:
        self.simulated = simulated or SimulatedTpm(PKI, machine=SimulatedMachine())
        chain = b"".join(self.simulated.certificates)
        self.indexes = {CERTIFICATE_INDEX: chain, TEMPLATE_INDEX: b"template"}
        self.indexes |= indexes or {}
        self.asked: list[int] = []
        self.keys: list[int] = []
        self.spoil: Callable[[int, bytes], bytes] = lambda code, response: response
        self.before_quote: Callable[[], None] = lambda: None

    def transmit(self, command: bytes) -> bytes:
        tag, size, code = struct.unpack_from(">HII", command)
        assert size == len(command)
        self.asked.append(code)
        rest = command[10:]
        handles = {READ: 8, CREATE: 4, QUOTE: 4, EXTEND: 4}.get(code, 0)
        if tag == 0x8002:
            (length,) = struct.unpack_from(">I", rest, handles)
            rest = rest[:handles] + rest[handles + 4 + length :]
        front, body = self.answer(code, rest)
        if body is None:
            response = struct.pack(">HII", 0x8001, 10, 0x18B)
        elif tag == 0x8002:
            inner = front + struct.pack(">I", len(body)) + body + b"\0\0\1\0\0"
            response = struct.pack(">HII", tag, 10 + len(inner), 0) + inner
        else:
            response = struct.pack(">HII", tag, 10 + len(body), 0) + body
        return self.spoil(code, response)

    def answer(self, code: int, rest: bytes) -> tuple[bytes, bytes | None]:
        if code in (READ_PUBLIC, READ):
            # Who reads comes before what is read.
            content = self.indexes.get(struct.unpack_from(">I", rest, 4 * (code == READ))[0])
            if content is None:
                return b"", None
            if code == READ_PUBLIC:
                public = struct.pack(">IHIHH", 0, 0x0B, 0, 0, len(content))
                return b"", sized(public) + sized(b"name")
            size, at = struct.unpack_from(">HH", rest, 8)
            return b"", sized(content[at : at + size])
        if code == CREATE:
            return struct.pack(">I", 0x80000001), sized(b"public") + b"more"
        if code == QUOTE:
            self.before_quote()
            key, length = struct.unpack_from(">IH", rest)
            self.keys.append(key)
            asked = rest[6 : 6 + length]
            message, signature = self.simulated.quote(asked, bank="sha256", selection=range(24))
            return b"", sized(message) + signature
        if code == CAPABILITY:
            banks = b"".join(struct.pack(">HB", name, 3) + b"\xff" * 3 for name in (4, 11))
            return b"", struct.pack(">BII", 0, 5, 3) + banks + struct.pack(">HB", 12, 3) + bytes(3)
        if code == PCR_READ:
            bits = int.from_bytes(rest[7:10], "little")
            wanted = [index for index in range(24) if bits >> index & 1][:8]
            shown = sum(1 << index for index in wanted).to_bytes(3, "little")
            values = self.simulated.registers("sha256")
            head = struct.pack(">IIHB", 1, 1, 11, 3) + shown + struct.pack(">I", len(wanted))
            return b"", head + b"".join(sized(values[index]) for index in wanted)
        return b"", b""
