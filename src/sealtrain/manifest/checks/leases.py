"""Within check 14: the leases of each broker, and how many were live at each moment of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.consortium.receipts import ReleaseReceipt
from sealtrain.errors import LeaseStale
from sealtrain.manifest.errors import ClaimContradicted


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWindow:
    """One lease of one broker, from the release that began it to its last end.

    Attributes:
        begins: When the keys were released, seconds since the epoch.
        ends: First second at which they must not be used any more.
        datasets: Ids of the datasets it lent.
    """

    begins: int
    ends: int
    datasets: frozenset[str]


def windows_of(receipts: Sequence[ReleaseReceipt]) -> tuple[LeaseWindow, ...]:
    """The leases that one broker granted, in order.

    A renewal says that its lease was live until then: a broker renews none that has ended.

    Args:
        receipts: All of one broker that the manifest lists, in its order.

    Raises:
        ClaimContradicted: They do not follow each other: a renewal first, back in time, of another
            lease, or a second release that resumes nothing.
    """
    windows: list[LeaseWindow] = []
    for place, receipt in enumerate(receipts):
        moment, ends = from_rfc3339(receipt.released_at), from_rfc3339(receipt.lease.not_after)
        if place == 0:
            if receipt.kind != "release":
                raise _disorder("the first receipt is a renewal", "renewal", "release")
        else:
            _refuse_disorder(receipts[place - 1], receipt)
        if receipt.kind == "release":
            if windows:  # a resume ends the lease before it
                windows[-1] = replace(windows[-1], ends=min(windows[-1].ends, moment))
            lent = frozenset(dataset.dataset_id for dataset in receipt.datasets)
            windows.append(LeaseWindow(begins=moment, ends=ends, datasets=lent))
        else:
            windows[-1] = replace(windows[-1], ends=ends)
    return tuple(windows)


def live_throughout(
    windows: Iterable[LeaseWindow], threshold: int, *, until: int, name: str
) -> None:
    """Return if at least ``threshold`` of the windows are live at each moment of a run.

    The run begins when so many are for the first time. Fewer may be live between two moments only
    where a release begins the second, which is what a resume does.

    Args:
        windows: Of all brokers, for one dataset.
        threshold: At least 1.
        until: Latest moment of the run, less the tolerance between two clocks.
        name: Of the dataset.

    Raises:
        LeaseStale: So many were never live at once, or not until the end.
    """
    # At one moment an end comes before a beginning: a lease is good while now < not_after.
    moments = sorted(
        [(window.begins, 1) for window in windows] + [(window.ends, -1) for window in windows]
    )
    live, last_end = 0, None
    for moment, change in moments:
        if live >= threshold > live + change:
            last_end = moment
        live += change
    if last_end is None:
        raise LeaseStale(
            f"too few leases on {name} were live at once", check="times", expected=f"{threshold}"
        )
    if until > last_end:
        raise LeaseStale(
            "the run went on after its lease had ended",
            check="times",
            got=to_rfc3339(until),
            expected=f"before {to_rfc3339(last_end)}: {threshold} leases on {name}",
        )


def _refuse_disorder(before: ReleaseReceipt, after: ReleaseReceipt) -> None:
    if from_rfc3339(after.released_at) < from_rfc3339(before.released_at):
        raise _disorder("receipts go back in time", after.released_at, before.released_at)
    if after.kind == "release" and after.resume:
        return
    if after.kind == "release" or after.lease.lease_id != before.lease.lease_id:
        raise _disorder(
            "a receipt belongs to another lease", after.lease.lease_id, before.lease.lease_id
        )


def _disorder(problem: str, got: str, expected: str) -> ClaimContradicted:
    return ClaimContradicted(problem, check="times", got=got, expected=expected)
