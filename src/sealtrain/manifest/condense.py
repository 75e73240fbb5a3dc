"""Keep a long run's manifest short: leave out receipts and points that verification does not need.

A run that renews its lease at every checkpoint collects thousands of receipts and points. Leaving
items out can only make a verifier refuse, never accept (spec/run-manifest.md §3, monotonic); the
items that remain are chosen so that the verifier still accepts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.encoding import from_base64
from sealtrain.base.limits import MAX_MANIFEST_BYTES, MAX_RECEIPTS
from sealtrain.errors import LimitExceeded

MAX_POINTS = 2000
_SHARE: Final = 0.95


def in_order_of_ledgers(releases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Receipts of all guests of a run by time; those of one broker in the order of its ledger.

    Args:
        releases: ``{"receipt": envelope, "proof": proof}`` in any order.
    """
    by_broker: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for document in releases:
        receipt = _receipt(document)
        signer = document["receipt"]["signatures"][0]["keyid"]
        place = (int(document["proof"]["index"]), receipt["released_at"], document)
        by_broker.setdefault(signer, []).append(place)
    ledgers = [sorted(places, key=lambda place: place[0]) for places in by_broker.values()]
    return [place[2] for place in heapq.merge(*ledgers, key=lambda place: place[1])]


class NeededReleases:
    """The release and the last renewal of each lease, as they come; each is read once.

    A broker renews no lease that has ended, so the last renewal says that it was live until then
    (spec/run-manifest.md §4). So a run needs as many receipts as it got leases, however long it is.
    """

    def __init__(self, releases: Sequence[dict[str, Any]] = ()) -> None:
        """Begin with some receipts, as ``add``."""
        self._kept: dict[tuple[str, ...], _Kept] = {}
        self._added = 0
        self.add(releases)

    def add(self, releases: Sequence[dict[str, Any]]) -> None:
        """Keep further receipts.

        Args:
            releases: ``{"receipt": envelope, "proof": proof}`` in order of time; the guest verified
                each answer when it came.
        """
        for release in releases:
            self._added += 1
            receipt = _receipt(release)
            guest_and_broker = receipt["run_id"], release["receipt"]["signatures"][0]["keyid"]
            renewal = receipt["kind"] == "renewal"
            own = receipt["lease"]["lease_id"] if renewal else f"release {self._added}"
            self._kept.pop((*guest_and_broker, own), None)  # the newest one stands at the end
            self._kept[(*guest_and_broker, own)] = _Kept(
                release=release,
                renewal=renewal,
                guest_and_broker=guest_and_broker,
                size=len(canonical_json(release)),
            )

    @property
    def listed(self) -> list[dict[str, Any]]:
        """The receipts, in order of time."""
        return [listed.release for listed in self._kept.values()]

    def require_room(self) -> None:
        """Refuse to begin or resume a run whose receipts would outgrow its manifest.

        Each lease needs its release and, in the end, a renewal. So a run that has room as it begins
        has room when it ends, and one that has none stops before it trained.

        Raises:
            LimitExceeded: The receipts and the renewals to come fill nearly all of a manifest.
        """
        newest = {listed.guest_and_broker: listed for listed in self._kept.values()}
        to_come = [listed for listed in newest.values() if not listed.renewal]
        listed = [*self._kept.values(), *to_come]
        in_base64 = 4 * sum(release.size for release in listed) / 3
        share = max(in_base64 / MAX_MANIFEST_BYTES, len(listed) / MAX_RECEIPTS)
        if share > _SHARE:
            raise LimitExceeded(
                "the receipts of this run outgrow its manifest",
                check="receipts",
                got=f"{len(listed)} receipts of {len(newest)} leases, {share:.0%} of a manifest",
                expected="two for each guest, broker and resume, in one manifest",
                hint="it has too many guests or brokers, or was resumed too often: begin another",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    release: dict[str, Any]
    renewal: bool
    guest_and_broker: tuple[str, str]
    size: int


def select_releases(releases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The receipts of a whole run that its manifest needs (``NeededReleases``)."""
    return NeededReleases(releases).listed


def _receipt(release: dict[str, Any]) -> dict[str, Any]:
    payload: dict[str, Any] = parse_json(from_base64(release["receipt"]["payload"]))
    return payload


def condense_history(
    history: Sequence[dict[str, Any]], limit: int = MAX_POINTS
) -> list[dict[str, Any]]:
    """At most ``limit`` points, evenly chosen; the first and the last one stay.

    Args:
        history: ``{"step", "values"}`` with rising steps.
        limit: At least 2.
    """
    if len(history) <= limit:
        return list(history)
    stride = (len(history) - 1) / (limit - 1)
    return [history[round(index * stride)] for index in range(limit)]
