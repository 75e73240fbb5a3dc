"""A software vTPM: registers of both banks, and quotes of them under a simulated root.

The structures are those of TPM 2.0 and pass the same verification code under this root; under
Google's root they are refused as simulated.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from sealtrain.attest.tpm.chain import MACHINE_OID
from sealtrain.attest.tpm.quote import BANK_BYTES, REGISTERS, Bank

AttestationKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_ECDSA = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
_ALGORITHMS: Final[dict[Bank, int]] = {"sha256": 0x000B, "sha384": 0x000C}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMachine:
    """What the certificate of the vTPM's key names."""

    zone: str = "simulated-a"
    project_number: int = 1
    project: str = "simulated"
    instance_id: int = 1
    instance: str = "simulated-1"
    production: bool = True

    def der(self) -> bytes:
        """As Google's extension has it."""
        properties = _tlv(0xA0, _integer(0)) + _tlv(
            0xA1, _tlv(1, b"\xff" * self.production or b"\0")
        )
        return _tlv(
            0x30,
            _text(self.zone)
            + _integer(self.project_number)
            + _text(self.project)
            + _integer(self.instance_id)
            + _text(self.instance)
            + _tlv(0xA0, _tlv(0x30, properties)),
        )


class TpmVendor(Protocol):
    """Who makes a vTPM's attestation key."""

    def tpm_key(self, oid: str, machine: bytes) -> tuple[AttestationKey, tuple[bytes, ...]]:
        """The key, and its certificates up to the root.

        Args:
            oid: The extension that names the machine.
            machine: Its value, DER.
        """


class SimulatedTpm:
    """One machine's vTPM.

    Args:
        pki: Whose root its key chains to.
        machine: What the key's certificate names.
        resets: How often it was started.
    """

    def __init__(
        self, pki: TpmVendor, *, machine: SimulatedMachine | None = None, resets: int = 1
    ) -> None:
        named = SimulatedMachine() if machine is None else machine
        self.key, self.certificates = pki.tpm_key(MACHINE_OID, named.der())
        self._resets = resets
        self._banks: dict[Bank, list[bytes]] = {
            bank: [bytes(size)] * REGISTERS for bank, size in BANK_BYTES.items()
        }

    def extend(self, index: int, measured: bytes) -> None:
        """Extend a register of both banks by the hash of ``measured``."""
        for bank, registers in self._banks.items():
            digest = hashlib.new(bank, measured).digest()
            registers[index] = hashlib.new(bank, registers[index] + digest).digest()

    def registers(self, bank: Bank) -> dict[int, bytes]:
        """All registers of a bank."""
        return dict(enumerate(self._banks[bank]))

    def quote(
        self, qualifying_data: bytes, *, bank: Bank, selection: Sequence[int]
    ) -> tuple[bytes, bytes]:
        """``TPMS_ATTEST`` and ``TPMT_SIGNATURE`` over selected registers."""
        values = [self._banks[bank][index] for index in sorted(selection)]
        message = tpms_attest(qualifying_data, values, bank, selection, resets=self._resets)
        return message, tpm_signature(self.key, message)


def tpms_attest(
    qualifying_data: bytes,
    values: Sequence[bytes],
    bank: Bank,
    selection: Sequence[int],
    *,
    resets: int = 1,
) -> bytes:
    """A quote's ``TPMS_ATTEST`` (TPM 2.0, Part 2, 10.12.12)."""
    bits = sum(1 << index for index in selection).to_bytes(REGISTERS // 8, "little")
    signer = b"\x00\x0b" + hashlib.sha256(b"SIMULATED attestation key").digest()
    return b"".join(
        (
            struct.pack(">IH", 0xFF544347, 0x8018),
            _prefix_length(signer),
            _prefix_length(qualifying_data),
            struct.pack(">QIIBQ", 60_000, resets, 0, 1, 1),
            struct.pack(">IHB", 1, _ALGORITHMS[bank], len(bits)),
            bits,
            _prefix_length(hashlib.sha256(b"".join(values)).digest()),
        )
    )


def tpm_signature(key: AttestationKey, message: bytes) -> bytes:
    """``TPMT_SIGNATURE``: ECDSA or RSASSA, with SHA-256."""
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(message, padding.PKCS1v15(), hashes.SHA256())
        return struct.pack(">HH", 0x0014, 0x000B) + _prefix_length(signature)
    halves = (half.to_bytes(32, "big") for half in decode_dss_signature(key.sign(message, _ECDSA)))
    return struct.pack(">HH", 0x0018, 0x000B) + b"".join(map(_prefix_length, halves))


def _prefix_length(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _tlv(tag: int, value: bytes) -> bytes:
    return bytes([tag, len(value)]) + value


def _integer(value: int) -> bytes:
    return _tlv(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _text(value: str) -> bytes:
    return _tlv(0x0C, value.encode("ascii"))
