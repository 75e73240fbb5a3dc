"""A field of a file with what it means, and how long values are shown to people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from sealtrain.attest.registry import TEES
from sealtrain.attest.roots import X509_ERRORS, quiet
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.visible import escape_hidden

__all__ = ["CPU", "Field", "certificate_fields", "on_off", "rows_of", "shortened", "time_of"]

CPU = "cpu0"
"""The part of a file that the processor signed."""

_LONG_HEX = re.compile(r"[0-9a-fA-F]{33,}")
_HEAD, _TAIL, _WIDTH = 16, 8, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One value: what it is called, what it says, what that means in one sentence."""

    part: str
    name: str
    value: str
    meaning: str

    def to_dict(self) -> dict[str, str]:
        """JSON form."""
        return {
            "part": self.part,
            "name": self.name,
            "value": self.value,
            "meaning": self.meaning,
        }


def rows_of(rows: Iterable[tuple[str, str, str]], part: str = CPU) -> Iterator[Field]:
    """Fields of one part from names, values and meanings."""
    for name, value, meaning in rows:
        yield Field(part=part, name=name, value=value, meaning=meaning)


def on_off(state: bool) -> str:
    """A bit in words."""
    return "on" if state else "off"


def shortened(value: str) -> str:
    """A value in visible characters: the ends of long hex, the beginning of long text."""
    text = _LONG_HEX.sub(lambda found: f"{found[0][:_HEAD]}…{found[0][-_TAIL:]}", value)
    text = escape_hidden(text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _date(moment: datetime) -> str:
    """A certificate's date."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_of(seconds: int) -> str:
    """Seconds since 1970 as a date, where it has one."""
    try:
        return to_rfc3339(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"


def certificate_fields(part: str, certificates: tuple[bytes, ...]) -> list[Field]:
    """One line for each certificate of a chain."""
    return [
        Field(part=part, name=f"certificate {index}", value=value, meaning=meaning)
        for index, der in enumerate(certificates)
        for value, meaning in [_certificate(der)]
    ]


@cache
def _pinned() -> dict[str, str]:
    """SHA-256 of each vendor's pinned root → its name in words."""
    from sealtrain.attest.nvidia.chain import NVIDIA_ROOT_SHA256
    from sealtrain.attest.nvidia.rim import NVIDIA_RIM_ROOT_SHA256

    found = {
        NVIDIA_ROOT_SHA256: "NVIDIA's pinned root of devices",
        NVIDIA_RIM_ROOT_SHA256: "NVIDIA's pinned root of reference values",
    }
    for tee in TEES:
        found |= tee.verifier.pinned_roots
    return found


def _certificate(der: bytes) -> tuple[str, str]:
    digest = sha256_hex(der)
    try:
        with quiet():
            found = x509.load_der_x509_certificate(der)
            subject, issuer = _name(found.subject), _name(found.issuer)
        dates = f"{_date(found.not_valid_before_utc)} to {_date(found.not_valid_after_utc)}"
    except X509_ERRORS:
        return f"sha256 {digest}", "A certificate that cannot be read."
    if digest in _pinned():
        meaning = f"This is {_pinned()[digest]}."
    elif subject == issuer:
        meaning = "It issued itself and is not a root that this release pins."
    else:
        meaning = f"Says that it was issued by {issuer}."
    return f"{subject}, valid {dates}, sha256 {digest}", meaning


def _name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return shortened(", ".join(str(one.value) for one in found) or "(no common name)")
