"""When collateral and a quote's certificates are valid: one interval over all of them.

The library checks the same times; it does not always say which one failed. Here the whole interval
is known before any signature is looked at, so a refusal can name it. A wrong answer here could only
refuse: nothing is accepted for lying inside the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509

from sealtrain.attest.errors import CollateralExpired, CollateralMismatch
from sealtrain.attest.roots import X509_ERRORS
from sealtrain.attest.statement import Collateral
from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.errors import DataInvalid

_MAX_VALUES = 1 << 15  # of one signed document


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Seconds since 1970: valid where ``start <= now < end``.

    ``issued`` is when the older of TCB info and QE identity was made: the age of the collateral.
    """

    start: int
    end: int
    issued: int


def collateral_window(collateral: Collateral, certificates: tuple[bytes, ...]) -> Window:
    """Intersection of all validity periods.

    Args:
        collateral: TCB info, QE identity, two revocation lists.
        certificates: All certificates of the quote and of the collateral, DER.

    Raises:
        CollateralMismatch: A date, certificate or revocation list cannot be parsed.
    """
    try:
        issued, start, end = _read_window(collateral)
        for der in certificates:
            first, last = _period(der)
            start, end = max(start, first), min(end, last + 1)  # inclusive, RFC 5280
    except (DataInvalid, KeyError, *X509_ERRORS) as error:
        raise CollateralMismatch("collateral cannot be parsed", check="collateral") from error
    return Window(start=start, end=end, issued=issued)


# What is published changes once a day and is asked about with every quote.


@lru_cache(maxsize=8)
def _read_window(collateral: Collateral) -> tuple[int, int, int]:
    """Older issue date, latest start and earliest end of what the vendor signed."""
    starts: list[int] = []
    ends: list[int] = []
    for text in (collateral.tcb_info, collateral.qe_identity):
        document = parse_json(text.encode("utf-8"), max_depth=16, max_values=_MAX_VALUES)
        starts.append(from_rfc3339(document["issueDate"]))
        ends.append(from_rfc3339(document["nextUpdate"]))
    issued = min(starts)
    for crl_hex in (collateral.root_ca_crl, collateral.pck_crl):
        crl = x509.load_der_x509_crl(bytes.fromhex(crl_hex))
        starts.append(int(crl.last_update_utc.timestamp()))
        # A list without an end counts as ended.
        ends.append(int(crl.next_update_utc.timestamp()) if crl.next_update_utc else 0)
    return issued, max(starts), min(ends)


@lru_cache(maxsize=64)
def _period(der: bytes) -> tuple[int, int]:
    certificate = x509.load_der_x509_certificate(der)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return int(first.timestamp()), int(last.timestamp())


def check_window(window: Window, now: int) -> None:
    """Refuse a moment outside the window.

    Raises:
        CollateralExpired: ``now`` lies before or after it, or it is empty.
    """
    if window.start >= window.end:
        raise CollateralExpired(
            "collateral was never current as a whole: a part of it ended before another began",
            check="collateral time",
            got=f"one part ended {_text(window.end)}, another begins {_text(window.start)}",
            expected="parts that were fetched at one time",
            hint="fetch all of it anew, from one service",
        )
    if not window.start <= now < window.end:
        raise CollateralExpired(
            "collateral is not valid at the verification time",
            check="collateral time",
            got=_text(now),
            expected=f"from {_text(window.start)} to before {_text(window.end)}",
            hint="fetch fresh collateral" if now >= window.end else "check the clock",
        )


def _text(seconds: int) -> str:
    try:
        return to_rfc3339(seconds)
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"
