"""Certificates as fields of a file: whom each names, and whether this release pins it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from sealtrain.attest.field import Field, shorten
from sealtrain.attest.registry import TEES
from sealtrain.attest.roots import X509_ERRORS, quiet
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.digests import sha256_hex


def certificate_fields(part: str, certificates: tuple[bytes, ...]) -> list[Field]:
    """One line for each certificate of a chain."""
    return [
        Field(part=part, name=f"certificate {index}", value=value, meaning=meaning)
        for index, der in enumerate(certificates)
        for value, meaning in [_certificate(der)]
    ]


@cache
def _index_roots() -> dict[str, str]:
    """SHA-256 of each vendor's pinned root → its name in words."""
    from sealtrain.attest.nvidia.chain import NVIDIA_ROOT_SHA256
    from sealtrain.attest.nvidia.rim import NVIDIA_RIM_ROOT_SHA256

    found = {
        NVIDIA_ROOT_SHA256: "NVIDIA's pinned root of devices",
        NVIDIA_RIM_ROOT_SHA256: "NVIDIA's pinned root of reference values",
    }
    for tee in TEES:
        found |= verifier_of(tee.name).pinned_roots
    return found


def _date(moment: datetime) -> str:
    """A certificate's date."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _certificate(der: bytes) -> tuple[str, str]:
    digest = sha256_hex(der)
    try:
        with quiet():
            found = x509.load_der_x509_certificate(der)
            subject, issuer = _name(found.subject), _name(found.issuer)
        dates = f"{_date(found.not_valid_before_utc)} to {_date(found.not_valid_after_utc)}"
    except X509_ERRORS:
        return f"sha256 {digest}", "A certificate that cannot be read."
    if digest in _index_roots():
        meaning = f"This is {_index_roots()[digest]}."
    elif subject == issuer:
        meaning = "It issued itself and is not a root that this release pins."
    else:
        meaning = f"Says that it was issued by {issuer}."
    return f"{subject}, valid {dates}, sha256 {digest}", meaning


def _name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return shorten(", ".join(str(attribute.value) for attribute in found) or "(no common name)")
