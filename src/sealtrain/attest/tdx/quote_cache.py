"""Quotes of a machine that the library has judged already, at the same second.

Two quotes of one machine differ in what their guests measured and asked for (RTMR0 to RTMR3,
REPORTDATA), and in the attestation key's signature over that. All else of a quote is the same: the
key itself, the quoting enclave's report that vouches for it, the certificates above that, versions
of the TDX module, attributes of the guest. The library judges the first quote whole. A later one
needs the library no more where

1. all its bytes but those named are the first one's;
2. root, collateral, accepted statuses, floor and second are the first one's;
3. the attestation key signed its header and report.

None of the bytes that may differ is looked at by the library for anything but that signature. Only
what the library accepted is remembered, by the SHA-256 of all of 1 and 2, and only so much of it.
A quote that does not pass is judged by the library, which also says why it is refused.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sealtrain.attest.tdx.parse import REGISTERS_AND_DATA, TdxQuote
from sealtrain.attest.tdx.policy import QuotePolicy

_ECDSA = ec.ECDSA(hashes.SHA256())
_SIGNATURE_BYTES, _KEY_BYTES, _HALF = 64, 64, 32
_REMEMBERED: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedMachine:
    """What the library said of a machine."""

    tcb_status: str
    advisories: tuple[str, ...]
    tcb_evaluation_data_number: int
    ppid: str
    fmspc: str


class KnownMachines:
    """Machines that were judged, the latest ``most`` of them; threads may share it."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._judged: OrderedDict[bytes, JudgedMachine] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: bytes) -> JudgedMachine | None:
        """What was said of a machine, by ``machine_key``."""
        with self._lock:
            found = self._judged.get(key)
            if found is not None:
                self._judged.move_to_end(key)
            return found

    def keep(self, key: bytes, judged: JudgedMachine) -> None:
        """Remember an accepted machine; the one that was not met for longest is forgotten."""
        with self._lock:
            self._judged[key] = judged
            self._judged.move_to_end(key)
            while len(self._judged) > self._most:
                self._judged.popitem(last=False)

    def __len__(self) -> int:
        """How many are remembered."""
        with self._lock:
            return len(self._judged)

    def cache_clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._judged.clear()


KNOWN = KnownMachines()


def machine_key(
    quote: TdxQuote, collateral: bytes, policy: QuotePolicy, root: bytes | None, now: int
) -> bytes:
    """SHA-256 of everything that the library's verdict hangs on but the quote's signature.

    Args:
        quote: Parsed, so its lengths hold.
        collateral: SHA-256 of the collateral.
        policy: Accepted statuses and floor.
        root: Trusted software root, ``None`` for Intel's.
        now: Verification time, seconds since 1970.
    """
    raw, (start, end) = quote.raw, quote.report_span
    first, last = start + REGISTERS_AND_DATA.start, start + REGISTERS_AND_DATA.stop
    rest = end + 4 + _SIGNATURE_BYTES
    rules = (policy.tcb_status, policy.min_tcb_evaluation_data_number, now, len(raw), end)
    found = hashlib.sha256(collateral)
    found.update(hashlib.sha256(b"intel" if root is None else b"root" + root).digest())
    found.update(hashlib.sha256(repr(rules).encode("ascii")).digest())
    for part in (raw[:first], raw[last : end + 4], raw[rest:]):
        found.update(len(part).to_bytes(4, "big"))
        found.update(part)
    return found.digest()


def signs_quote(quote: TdxQuote) -> bool:
    """Whether the attestation key in the quote signed its header and report."""
    raw, (_, end) = quote.raw, quote.report_span
    at = end + 4
    r, s = (
        int.from_bytes(raw[at + _HALF * half : at + _HALF * (half + 1)], "big") for half in (0, 1)
    )
    place = at + _SIGNATURE_BYTES
    try:
        key = _key(raw[place : place + _KEY_BYTES])
        key.verify(encode_dss_signature(r, s), raw[:end], _ECDSA)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=_REMEMBERED)
def _key(point: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + point)
