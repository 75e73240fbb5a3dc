"""The Nitro Secure Module inside an enclave: documents, and the registers they show.

A transport (``Nsm``) takes one request in CBOR and returns one answer; ``device_nsm`` is the real
one, the simulator another. The module puts a register into its documents only once it is locked,
so a reader of PCR16 in a document knows that nothing in the enclave could extend it afterwards.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.nitro.cbor import decode, encode
from sealtrain.attest.nitro.parse import PCR_BYTES
from sealtrain.attest.nitro.verify import COMPOSE_PCR, compose_register
from sealtrain.attest.tee import Shown
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64

DEVICE = Path("/dev/nsm")
Nsm = Callable[[bytes], bytes]
"""Sends one request to a module and returns its answer, both CBOR."""

MAX_REQUEST_BYTES = 0x1000
MAX_RESPONSE_BYTES = 0x3000
MAX_RANDOM_BYTES = 256
_IOCTL = 0xC0200A00  # _IOWR(0x0A, 0, 32)
_MESSAGE = struct.Struct("=QQQQ")  # request address, its length, response address, its length
_HINT = "run inside a Nitro enclave whose kernel has the nsm driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A register as it is now."""

    value: bytes
    locked: bool


def device_nsm(path: Path = DEVICE) -> Nsm:
    """Transport to the module of the enclave this program runs in.

    Args:
        path: The driver's device.

    Returns:
        A transport that raises ``GuestApiUnreachable`` where there is no module or it fails.
    """

    def ask(request: bytes) -> bytes:
        if len(request) > MAX_REQUEST_BYTES:
            raise EvidenceMalformed(
                "request to the Nitro Secure Module is too long",
                got=f"{len(request)} bytes",
                expected=f"at most {MAX_REQUEST_BYTES}",
            )
        given = ctypes.create_string_buffer(request, len(request))
        answer = ctypes.create_string_buffer(MAX_RESPONSE_BYTES)
        message = bytearray(
            _MESSAGE.pack(
                ctypes.addressof(given), len(request), ctypes.addressof(answer), len(answer)
            )
        )
        try:
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _IOCTL, message)
            finally:
                os.close(device)
        except OSError as error:
            raise GuestApiUnreachable(
                f"Nitro Secure Module at {path} does not answer",
                check="guest API",
                got=error.strerror,
                hint=_HINT,
            ) from error
        # The driver writes the answer's length where its capacity stood.
        length = _MESSAGE.unpack(message)[3]
        return answer.raw[: min(length, MAX_RESPONSE_BYTES)]

    return ask


def attestation(
    nsm: Nsm,
    *,
    user_data: bytes | None = None,
    nonce: bytes | None = None,
    public_key: bytes | None = None,
) -> bytes:
    """Ask for a document over up to three fields.

    Raises:
        GuestApiUnreachable: No module, or it refuses.
        EvidenceMalformed: The answer is not what the module promises.
    """
    fields = {"user_data": user_data, "nonce": nonce, "public_key": public_key}
    document = _ask(nsm, "Attestation", fields).get("document")
    if not isinstance(document, bytes):
        raise _refuse_unexpected("Attestation", "without a document")
    return document


def nitro_shown(nsm: Nsm, report_data: bytes) -> Shown:
    """Evidence of kind ``test-nitro`` over 64 bytes. Raises as ``attestation``."""
    document = attestation(nsm, user_data=report_data)
    return {"tee": "test-nitro", "document": to_base64(document)}


def extend_pcr(nsm: Nsm, index: int, data: bytes) -> bytes:
    """Extend a register; return its new value. Raises as ``attestation``."""
    return _register(_ask(nsm, "ExtendPCR", {"index": index, "data": data}), "ExtendPCR")


def lock_pcr(nsm: Nsm, index: int) -> None:
    """Lock a register until the enclave ends. Raises as ``attestation``."""
    _ask(nsm, "LockPCR", {"index": index})


def describe_pcr(nsm: Nsm, index: int) -> Register:
    """Read a register. Raises as ``attestation``."""
    answer = _ask(nsm, "DescribePCR", {"index": index})
    locked = answer.get("lock")
    if not isinstance(locked, bool):
        raise _refuse_unexpected("DescribePCR", "without a lock")
    return Register(value=_register(answer, "DescribePCR"), locked=locked)


def random_bytes(nsm: Nsm) -> bytes:
    """Random bytes of the module: 1 to 256, as many as it gives. Raises as ``attestation``."""
    found = _ask_module(nsm, "GetRandom", "GetRandom").get("random")
    if not isinstance(found, bytes) or not 0 < len(found) <= MAX_RANDOM_BYTES:
        raise _refuse_unexpected("GetRandom", "without random bytes")
    return found


def measure_compose(nsm: Nsm, app_compose: bytes) -> bytes:
    """Bind the enclave to its deployment document: extend PCR16 with its SHA-256 and lock it.

    The measured init calls this once, before anything of the document runs.

    Args:
        nsm: Transport.
        app_compose: The document, raw bytes.

    Returns:
        The register's value.

    Raises:
        GuestApiUnreachable: No module, it refuses, or the register was extended before.
        EvidenceMalformed: The answer is not what the module promises.
    """
    compose_hash = sha256_hex(app_compose)
    value = extend_pcr(nsm, COMPOSE_PCR, bytes.fromhex(compose_hash))
    lock_pcr(nsm, COMPOSE_PCR)
    if value != compose_register(compose_hash):
        raise GuestApiUnreachable(
            "PCR16 held something before the deployment document",
            check="compose hash",
            got=value.hex(),
            expected=compose_register(compose_hash).hex(),
            hint="extend PCR16 once, in the enclave's init; restart the enclave",
        )
    return value


def _ask(nsm: Nsm, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return _ask_module(nsm, name, {name: fields})


def _ask_module(nsm: Nsm, name: str, request: Any) -> dict[str, Any]:
    """One request. Variants without fields are asked for and answered by their bare name."""
    answer = nsm(encode(request))
    if len(answer) > MAX_RESPONSE_BYTES:
        raise _refuse_unexpected(name, "with too much")
    value = decode(answer, "answer of the Nitro Secure Module")
    if value == name:
        return {}
    if not isinstance(value, dict) or len(value) != 1:
        raise _refuse_unexpected(name, "with another structure")
    if "Error" in value:
        raise GuestApiUnreachable(
            f"Nitro Secure Module refuses {name}",
            check="guest API",
            got=str(value["Error"])[:64],
            hint="ReadOnlyIndex means that the register is locked; documents take at most 1024 "
            "bytes a field",
        )
    found = value.get(name)
    if not isinstance(found, dict):
        raise _refuse_unexpected(name, "about something else")
    return found


def _register(answer: dict[str, Any], name: str) -> bytes:
    value = answer.get("data")
    if not isinstance(value, bytes) or len(value) != PCR_BYTES:
        raise _refuse_unexpected(name, "without a register")
    return value


def _refuse_unexpected(name: str, how: str) -> EvidenceMalformed:
    return EvidenceMalformed(f"Nitro Secure Module answers {name} {how}", check="guest API")
