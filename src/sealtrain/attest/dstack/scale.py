"""SCALE, the part dstack's older attestation blob (version 0) uses: read within limits.

``00 | variant | statement | run-time events | 64 bytes of report data | configuration``, where a
vector is its length (compact integer, shortest form) and its bytes. Nothing may follow. The
statement is ``quote | events`` on TDX, with the vTPM's quote behind it on Google Cloud, one
document on EC2 with a NitroTPM and in a Nitro enclave, and ``report | certificates | launch
configuration`` on SEV-SNP.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from sealtrain.attest.errors import EvidenceMalformed

MAX_BYTES = 10 << 20
_MAX_EVENTS = 1024
_TDX_VARIANTS = {0: "tdx", 1: "gcp-tdx"}
_KINDS = {**_TDX_VARIANTS, 2: "nitro-enclave", 3: "amd-sev-snp", 4: "aws-nitro-tpm"}
_NITRO_ENCLAVE, _SNP, _NITRO_TPM = 2, 3, 4
_GOOGLE = 1
_MAX_REGISTERS = 24
_MAX_CERTIFICATES = 8


def unpack_attestation(blob: bytes) -> dict[str, Any]:
    """The parts of a version 0 blob: ``kind``, ``report_data``, ``config``, ``runtime_events``.

    Of TDX also ``quote`` and ``event_log``, on Google Cloud ``tpm_quote``; of a NitroTPM and of an
    enclave ``document``; of SEV-SNP ``report``, ``cert_chain`` and ``mr_config``.

    Raises:
        EvidenceMalformed: Truncated, trailing bytes, over the limits, or of an unknown variant.
    """
    kind = kind_of(blob)
    reader = _ScaleReader(blob)
    variant = reader.take(2)[1]
    parts: dict[str, Any] = {"kind": kind}
    if variant in (_NITRO_TPM, _NITRO_ENCLAVE):
        parts["document"] = reader.vector()
    elif variant == _SNP:
        parts |= _sev_snp(reader)
    else:
        parts |= _tdx(reader)
        if variant == _GOOGLE:
            parts["tpm_quote"] = _tpm_quote(reader)
    # On TDX these are the events of the log once more, in short; the log is what is replayed.
    parts["runtime_events"] = [
        {"event": reader.text(), "payload": reader.vector()} for _ in range(reader.count())
    ]
    parts |= {"report_data": reader.take(64), "config": reader.text()}
    if reader.at != len(blob):
        _refuse("has trailing bytes")
    return parts


def kind_of(blob: bytes) -> str:
    """The kind of machine that a version 0 blob says it is of, as version 1 calls it.

    Raises:
        EvidenceMalformed: Too long, too short, of another version or of an unknown variant.
    """
    if len(blob) > MAX_BYTES:
        _refuse("is too long")
    reader = _ScaleReader(blob)
    if reader.take(1) != b"\0":
        _refuse("is not of version 0")
    variant = reader.take(1)[0]
    if variant not in _KINDS:
        _refuse("is of an unknown variant")
    return _KINDS[variant]


def _sev_snp(reader: _ScaleReader) -> dict[str, Any]:
    """SEV-SNP: the report, its certificates, and the text that HOST_DATA commits to."""
    report, count = reader.vector(), reader.compact()
    if count > _MAX_CERTIFICATES:
        _refuse("holds too many certificates")
    chain = [reader.vector() for _ in range(count)]
    return {"report": report, "cert_chain": chain, "mr_config": reader.text()}


def _tdx(reader: _ScaleReader) -> dict[str, Any]:
    """TDX: the quote, then its event log."""
    return {
        "quote": reader.vector(),
        "event_log": [
            {
                "imr": reader.number("<I"),
                "event_type": reader.number("<I"),
                "digest": reader.vector(),
                "event": reader.text(),
                "event_payload": reader.vector(),
            }
            for _ in range(reader.count())
        ],
    }


def _tpm_quote(reader: _ScaleReader) -> dict[str, Any]:
    """Google's vTPM: its quote, and what came with it; a platform is one byte."""
    message, signature = reader.vector(), reader.vector()
    registers = reader.compact()
    if registers > _MAX_REGISTERS:
        _refuse("holds too many registers")
    values = [
        {"index": reader.number("<I"), "algorithm": reader.text(), "value": reader.vector()}
        for _ in range(registers)
    ]
    certificate = reader.vector()
    if reader.take(1) != b"\1":
        _refuse("holds a TPM quote of another platform")
    events = [
        {"pcr_index": reader.number("<I"), "digest": reader.vector()} for _ in range(reader.count())
    ]
    return {
        "message": message,
        "signature": signature,
        "pcr_values": values,
        "ak_cert": certificate,
        "platform": "gcp",
        "event_log": events,
    }


def _refuse(what: str) -> NoReturn:
    raise EvidenceMalformed(f"attestation blob {what}", check="attestation blob")


class _ScaleReader:
    """Cursor over the blob that never allocates ahead of what it has read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            _refuse("is truncated")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def compact(self) -> int:
        """A compact integer below 2**30 in its shortest form."""
        mode = self.data[self.at : self.at + 1]
        width = {0: 1, 1: 2, 2: 4}.get(mode[0] & 3) if mode else 1
        if width is None:
            _refuse("holds a length beyond its own")
        value = int.from_bytes(self.take(width), "little") >> 2
        if value < {1: 0, 2: 1 << 6, 4: 1 << 14}[width]:
            _refuse("holds a length that is not in its shortest form")
        return value

    def count(self) -> int:
        value = self.compact()
        if value > _MAX_EVENTS:
            _refuse("holds too many events")
        return value

    def vector(self) -> bytes:
        return self.take(self.compact())

    def text(self) -> str:
        try:
            return self.vector().decode("utf-8")
        except UnicodeDecodeError:
            _refuse("holds text that is not UTF-8")
