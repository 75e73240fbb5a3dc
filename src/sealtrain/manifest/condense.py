"""Keep a long run's manifest short: leave out receipts and points that verification does not need.

A run that renews its lease at every checkpoint collects thousands of receipts and points. Leaving
items out can only make a verifier refuse, never accept (spec/run-manifest.md §3, monotonic); the
items that remain are chosen so that the verifier still accepts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Final

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.encoding import from_base64
from sealtrain.base.limits import MAX_MANIFEST_BYTES, MAX_RECEIPTS
from sealtrain.errors import LimitExceeded

__all__ = [
    "MAX_POINTS",
    "condensed_history",
    "in_order_of_ledgers",
    "needed_releases",
    "require_room_for_receipts",
]

MAX_POINTS = 2000
_LONGEST_LEASE_SECONDS: Final = 7 * 86_400
_SHARE_OF_SHORT_LEASES: Final = 0.75
_SHARE: Final = 0.95


def in_order_of_ledgers(releases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Receipts of all guests of a run by time; those of one broker in the order of its ledger.

    Args:
        releases: ``{"receipt": envelope, "proof": proof}`` in any order.
    """
    by_broker: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for document in releases:
        receipt = parse_json(from_base64(document["receipt"]["payload"]))
        signer = document["receipt"]["signatures"][0]["keyid"]
        place = (int(document["proof"]["index"]), receipt["released_at"], document)
        by_broker.setdefault(signer, []).append(place)
    ledgers = [sorted(places, key=lambda place: place[0]) for places in by_broker.values()]
    return [place[2] for place in heapq.merge(*ledgers, key=lambda place: place[1])]


def needed_releases(releases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The receipts that show an unbroken chain of leases of each broker and party, in their order.

    Every release stays; between two releases the fewest renewals whose leases still overlap stay,
    including the last renewal.

    Args:
        releases: ``{"receipt": envelope, "proof": proof}`` in order of time; the guest verified
            each answer when it came.
    """
    chains = [_chain_of(release["receipt"]) for release in releases]
    kept: list[int] = []
    for chain in dict.fromkeys(chains):
        places = [place for place, one in enumerate(chains) if one == chain]
        kept += [places[at] for at in _needed([releases[place] for place in places])]
    return [releases[place] for place in sorted(kept)]


def require_room_for_receipts(releases: Sequence[dict[str, Any]]) -> None:
    """Refuse to go on with a run whose receipts would outgrow its manifest.

    A run of many guests, many brokers or short leases needs more receipts than a manifest may hold.
    With longer leases it needs fewer, so room is left for those of a run that goes on with them.

    Args:
        releases: As ``needed_releases`` returned them.

    Raises:
        LimitExceeded: They fill three quarters of a manifest and leases could be longer, or nearly
            all of it.
    """
    if not releases:
        return
    in_base64 = 4 * sum(len(canonical_json(release)) for release in releases) / 3
    share = max(in_base64 / MAX_MANIFEST_BYTES, len(releases) / MAX_RECEIPTS)
    newest = parse_json(from_base64(releases[-1]["receipt"]["payload"]))
    ends = from_rfc3339(newest["lease"]["not_after"])
    seconds = ends - from_rfc3339(newest["released_at"])
    if share > (_SHARE if seconds >= _LONGEST_LEASE_SECONDS else _SHARE_OF_SHORT_LEASES):
        raise LimitExceeded(
            "the receipts of this run outgrow its manifest",
            check="receipts",
            got=f"{len(releases)} receipts, {share:.0%} of a manifest, by leases of {seconds} s",
            expected="room for those until the end of the run",
            hint="give the brokers a longer lease (up to 7 days), then: sealtrain resume",
        )


def _chain_of(receipt: dict[str, Any]) -> tuple[str, str]:
    """Broker and run that a receipt is about."""
    return receipt["signatures"][0]["keyid"], parse_json(from_base64(receipt["payload"]))["run_id"]


def _needed(releases: Sequence[dict[str, Any]]) -> list[int]:
    """Indexes of the receipts that show the chain of one broker and run."""
    receipts = [parse_json(from_base64(release["receipt"]["payload"])) for release in releases]
    kept = [0] if receipts else []
    while kept and kept[-1] < len(receipts) - 1:
        last = kept[-1]
        ends = from_rfc3339(receipts[last]["lease"]["not_after"])
        following = last + 1
        for place in range(last + 1, len(receipts)):
            renewal = receipts[place]["kind"] == "renewal"
            if not renewal or from_rfc3339(receipts[place]["released_at"]) >= ends:
                break
            following = place
        kept.append(following)
    return kept


def condensed_history(
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
