"""Ask a machine's TPM for a quote of every register, by the key that its maker certified.

The layout is that of Google's machines: the template of the attestation key and its certificate lie
in non-volatile indexes, and the key is made of the template anew. A test machine of ours has in the
second index the issuers behind the certificate, where Google's lie on a server.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.tee import Shown
from sealtrain.attest.tpm.chain import MAX_AK_CERTIFICATE_BYTES, MAX_AK_CERTIFICATES
from sealtrain.attest.tpm.device import Tpm
from sealtrain.attest.tpm.log import MAX_LOG_BYTES, parse_log
from sealtrain.attest.tpm.quote import REGISTERS, parse_quote
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import read_bounded
from sealtrain.errors import DataInvalid

CERTIFICATE_INDEX: Final = 0x01C10002
TEMPLATE_INDEX: Final = 0x01C10003
BOOT_LOG: Final = Path("/sys/kernel/security/tpm0/binary_bios_measurements")
_MAX_INDEX_BYTES: Final = 4096
_MAX_TEMPLATE_BYTES: Final = 512
_MAX_SHOWN_EVENTS: Final = 1024
_TRIES: Final = 3
_CHANGED: Final = "TPM registers"


def quote_registers(tpm: Tpm, qualifying_data: bytes, log: bytes | None) -> Shown:
    """A quote of all registers of the SHA-256 bank, in the form of evidence.

    Args:
        tpm: Of the machine.
        qualifying_data: What the quote is for.
        log: The firmware's log; ``None`` where Linux shows none.

    Raises:
        GuestApiUnreachable: The TPM refuses, or has no certified key.
        EvidenceMalformed: Its answers are of another form, or registers change all the time.
    """
    certificates = split_certificates(tpm.read_index(CERTIFICATE_INDEX, _MAX_INDEX_BYTES))
    template = tpm.read_index(TEMPLATE_INDEX, _MAX_TEMPLATE_BYTES)
    with tpm.primary(template) as (key, _):
        shown = quote_by(tpm, key, qualifying_data, log)
    return {**shown, "certificates": [to_base64(der) for der in certificates]}


def quote_by(tpm: Tpm, key: int, qualifying_data: bytes, log: bytes | None) -> Shown:
    """The same by a loaded key, without its certificates; as ``quote_registers``."""
    for _ in range(_TRIES):
        registers = tpm.registers()
        message, signature = tpm.quote(key, qualifying_data)
        values = [registers[index] for index in range(REGISTERS)]
        if parse_quote(message).digest == hashlib.sha256(b"".join(values)).digest():
            return {
                "message": to_base64(message),
                "signature": to_base64(signature),
                "registers": [
                    {"index": index, "value": value.hex()} for index, value in enumerate(values)
                ],
                "events": [] if log is None else _events(log),
            }
    raise EvidenceMalformed("registers of the TPM changed while they were read", check=_CHANGED)


def vtpm_shown(tpm: Tpm, report_data: bytes, log: bytes | None) -> Shown:
    """Evidence of kind ``test-vtpm``; arguments and errors as ``quote_registers``."""
    asked = hashlib.sha256(report_data).digest()
    return {
        "tee": "test-vtpm",
        "tpm": quote_registers(tpm, asked, log),
        "report_data": report_data.hex(),
    }


def read_boot_log(path: Path = BOOT_LOG) -> bytes | None:
    """The firmware's log; ``None`` where Linux shows none.

    Raises:
        DataInvalid: It cannot be read, or is too long.
    """
    if not path.exists():
        return None
    return read_bounded(path, MAX_LOG_BYTES)


def split_certificates(data: bytes) -> tuple[bytes, ...]:
    """Certificates (DER) that follow each other; zeros may follow the last one.

    Raises:
        EvidenceMalformed: Something else, or more than a chain has.
    """
    found: list[bytes] = []
    rest = data
    while rest.strip(b"\0"):
        # SEQUENCE with a length of two bytes, as every certificate has.
        size = 4 + int.from_bytes(rest[2:4], "big")
        if rest[:2] != b"\x30\x82" or not 4 < size <= min(len(rest), MAX_AK_CERTIFICATE_BYTES):
            raise EvidenceMalformed("the TPM holds something else than certificates", check="TPM")
        found.append(rest[:size])
        rest = rest[size:]
    if not 1 <= len(found) <= MAX_AK_CERTIFICATES:
        raise EvidenceMalformed(
            "the TPM holds no chain of certificates",
            check="TPM",
            got=len(found),
            expected=f"1 to {MAX_AK_CERTIFICATES}",
        )
    return tuple(found)


def _events(log: bytes) -> list[Shown]:
    """What the firmware logged, in the bank that is quoted; none where that is too much."""
    parsed = parse_log(log)
    if "sha256" not in parsed.banks:
        return []
    # Register 0 of a TPM that was started in another locality does not begin with zeros.
    left_out = {0} if parsed.locality else set()
    events = [event for event in parsed.events if event.register not in left_out]
    if len(events) > _MAX_SHOWN_EVENTS:
        raise DataInvalid("the firmware's log has too many events", check="boot log")
    return [{"index": event.register, "digest": event.digests["sha256"].hex()} for event in events]
