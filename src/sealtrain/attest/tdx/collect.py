"""Quotes of a bare TDX guest from its kernel, and collateral by URI."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from sealtrain.attest.errors import ReportDataMismatch
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx.fetch import fetch_collateral, services_of
from sealtrain.attest.tdx.parse import TdxQuote, canonical_quote, parse_quote
from sealtrain.attest.tsm import REPORTS, Folders, tsm_report
from sealtrain.base.canonical import parse_json
from sealtrain.base.files import parsing_once
from sealtrain.base.secret import Random
from sealtrain.errors import DataInvalid, TrustInvalid

MAX_COLLATERAL_BYTES = 8 << 20
_REUSED_SECONDS = 24 * 3600
_collateral_in = parsing_once(
    lambda data: Collateral.from_dict(parse_json(data, max_depth=8)), MAX_COLLATERAL_BYTES
)


def collect_quote(
    report_data: bytes,
    *,
    base: Path = REPORTS,
    folders: Folders | None = None,
    random: Random = os.urandom,
) -> bytes:
    """A quote of this guest over 64 bytes, in its one encoding.

    Args:
        report_data: What the quote commits to.
        base: Folder of configfs-tsm reports.
        folders: How to touch it, for tests.
        random: Names the report.

    Raises:
        GuestApiUnreachable: The guest is no TDX guest, or its platform does not answer.
        EvidenceMalformed: ``report_data`` is not 64 bytes, or the answer is too long.
        QuoteInvalid: The platform answered with something else than a quote.
        ReportDataMismatch: The quote commits to something else than was asked.
    """
    report = tsm_report(
        report_data, provider="tdx_guest", base=base, folders=folders, random=random
    )
    raw = canonical_quote(report.outblob)
    found = parse_quote(raw).report_data
    if found != report_data:
        raise ReportDataMismatch(
            "the platform quoted something else than it was asked to",
            check="report data",
            got=found.hex(),
            expected=report_data.hex(),
        )
    return raw


class CollateralSource:
    """Collateral that a guest carries along: a file read anew, or a service asked once a day.

    Args:
        uri: As ``load_collateral``.
        timer: Seconds since anything, for the age of a service's answer.
    """

    def __init__(self, uri: str, timer: Callable[[], float] = time.monotonic) -> None:
        self.services = services_of(uri)
        """URLs that must be reachable."""
        self._uri, self._timer = uri, timer
        self._lock = threading.Lock()
        self._kept: tuple[float, Collateral] | None = None

    def of(self, raw: bytes) -> Collateral:
        """For a quote of this guest. Errors as ``load_collateral`` and ``parse_quote``."""
        if not self.services:
            return load_collateral(self._uri)
        with self._lock:
            if self._kept is None or self._timer() - self._kept[0] >= _REUSED_SECONDS:
                self._kept = self._timer(), load_collateral(self._uri, parse_quote(raw))
            return self._kept[1]


def load_collateral(uri: str, quote: TdxQuote | None = None) -> Collateral:
    """Read collateral from a file, or ask a service for a quote's.

    Args:
        uri: ``file:PATH`` or ``file://PATH`` of a JSON document with DCAP's nine fields;
            ``https://HOST`` or ``http://HOST`` of a PCCS or of Intel's service.
        quote: Whose collateral; only a service asks.

    Raises:
        TrustInvalid: Another scheme, no such file, not JSON, or a service but no quote.
        EvidenceMalformed: The document is not collateral.
        EvidenceRefused: As ``fetch_collateral``.
        CollateralUnreachable: As ``fetch_collateral``.
        UsageError: As ``fetch_collateral``.
    """
    scheme, colon, rest = uri.partition(":")
    if services_of(uri):
        if quote is None:
            raise TrustInvalid(
                "collateral of a service depends on the quote, and there is none",
                check="collateral",
                got=uri.rpartition("@")[2][:200],  # what stands before it may be a password
                expected="file:PATH",
            )
        return fetch_collateral(uri, quote)
    if scheme != "file" or not colon or not rest:
        raise TrustInvalid(
            "collateral has an unsupported address",
            check="collateral",
            got=uri.rpartition("@")[2][:200],
            expected="file:PATH or https://HOST",
        )
    path = Path(unquote(rest.removeprefix("//")))
    try:
        return _collateral_in(path)
    except DataInvalid as error:
        raise TrustInvalid(
            f"collateral cannot be read: {error.message}", check="collateral", hint=error.hint
        ) from error
