"""Keep what vendors publish fresh in files that others read anew for each decision.

1. Collateral is fetched again at half of the time that it still holds, and once in ``every``
   seconds at the latest.
2. What is fetched replaces the files only if it is authentic, current and no older than what was
   fetched last: a service that is behind, or an attacker in its place, cannot turn time back.
3. A failure keeps the files as they are, is told by its code, and is tried again: after a minute,
   then after twice as long each time, and after an hour at most.

The files are replaced one by one, each whole. Readers verify them again: what is refused here would
be refused there, and here the last good files stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealtrain.attest.errors import CollateralExpired, TcbStatusRefused
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.nvidia.ocsp import answers_until
from sealtrain.attest.roots import certificates_of_pem
from sealtrain.attest.snp.fetch import SnpPublished
from sealtrain.attest.statement import Collateral
from sealtrain.attest.tdx.cache import check_signed
from sealtrain.attest.tdx.parse import TdxQuote
from sealtrain.attest.tdx.window import check_window, collateral_window
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import Clock, to_rfc3339
from sealtrain.base.files import atomic_write
from sealtrain.errors import SealtrainError

DAY: Final = 24 * 3600
_LEAST_PAUSE: Final = 60
_MOST_PAUSE: Final = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was fetched and checked.

    Attributes:
        files: Name below the folder → content; the name ``""`` is the place itself.
        made: When the vendor made it, seconds since 1970.
        until: When the first part of it ends.
    """

    files: Mapping[str, bytes]
    made: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshStep:
    """One try.

    Attributes:
        at: When, seconds since 1970.
        code: Of the refusal; ``None`` where the files are fresh.
        until: When the files end; ``None`` where nothing was ever fetched.
        pause: Seconds until the next try.
    """

    at: int
    code: str | None
    until: int | None
    pause: int

    def to_line(self) -> str:
        """For people."""
        state = "fresh" if self.code is None else f"kept ({self.code})"
        end = "" if self.until is None else f", good until {to_rfc3339(self.until)}"
        return f"{to_rfc3339(self.at)}  {state}{end}; next in {self.pause} s"


class Refresher:
    """Files of one place.

    Args:
        fetch: Fetches and checks.
        place: File or folder.
        clock: Time.
        every: Longest time between two fetches, in seconds; at least a minute.
    """

    def __init__(
        self, fetch: Callable[[int], Published], place: Path, *, clock: Clock, every: int = DAY
    ) -> None:
        self._fetch, self._place, self._clock = fetch, place, clock
        self._every = max(every, _LEAST_PAUSE)
        self._last: Published | None = None
        self._failures = 0

    def refresh(self) -> Published:
        """Fetch once and write.

        Raises:
            TcbStatusRefused: It is older than what was fetched before.
            CollateralExpired: It is over already.
            SealtrainError: As ``fetch``.
        """
        now = self._clock()
        found = self._fetch(now)
        if self._last is not None and found.made < self._last.made:
            raise TcbStatusRefused(
                "collateral was rolled back: newer was fetched before",
                check="collateral floor",
                got=to_rfc3339(found.made),
                expected=f"at least {to_rfc3339(self._last.made)}",
                hint="ask another service; the files are as they were",
            )
        if not now < found.until:
            raise CollateralExpired(
                "collateral is over already",
                check="collateral time",
                got=to_rfc3339(found.until),
                expected=f"after {to_rfc3339(now)}",
                hint="ask another service, or check the clock",
            )
        for name, data in found.files.items():
            place = self._place / name if name else self._place
            place.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(place, data, overwrite=True)
        self._last, self._failures = found, 0
        return found

    def step(self) -> RefreshStep:
        """Try once; a refusal is part of the answer."""
        at, code = self._clock(), None
        try:
            self.refresh()
        except SealtrainError as error:
            code = error.code
            self._failures += 1
        until = None if self._last is None else self._last.until
        return RefreshStep(at=at, code=code, until=until, pause=self.pause(at))

    def pause(self, at: int) -> int:
        """Seconds until the next try, at a moment after the last one."""
        until = None if self._last is None else self._last.until
        if self._failures:
            return min(_LEAST_PAUSE << min(self._failures - 1, 10), _MOST_PAUSE)
        half = self._every if until is None else (until - at) // 2
        return max(_LEAST_PAUSE, min(half, self._every))


def tdx_published(
    collateral: Collateral, quote: TdxQuote, now: int, strict: bool = True
) -> Published:
    """Collateral that fits a quote, by signatures and dates.

    Args:
        collateral: As it was fetched.
        quote: That it is for.
        now: Seconds since 1970.
        strict: Whether it is checked at all.

    Raises:
        CollateralMismatch: It is not signed under the quote's root.
        CollateralExpired: It is not valid now.
    """
    made, until = now, now + DAY
    if strict:
        check_signed(collateral, quote)
        chains = collateral.tcb_info_issuer_chain + collateral.pck_crl_issuer_chain
        window = collateral_window(collateral, certificates_of_pem(chains.encode("ascii")))
        check_window(window, now)
        made, until = window.issued, window.end
    files = {"": canonical_json(collateral.to_dict())}
    return Published(files=files, made=made, until=until)


def gpu_published(collateral: GpuCollateral, now: int, strict: bool = True) -> Published:
    """Accelerators' collateral, by its dates alone: revocation answers end first.

    Who signed them is for the verifier, who knows the devices. Arguments as ``tdx_published``.

    Raises:
        RevocationUnknown: An answer cannot be parsed.
    """
    # Without answers there is nothing that ends; new ones may be published any day.
    dates = answers_until(collateral.ocsp_answers) if strict else None
    made, until = dates or (now, now + 2 * DAY)
    return Published(files={"": collateral.to_bytes()}, made=made, until=until)


def snp_published(found: SnpPublished) -> Published:
    """AMD's certificates and revocation list, under the names that a guest's address reads."""
    return Published(files=found.files, made=found.made, until=found.until)
