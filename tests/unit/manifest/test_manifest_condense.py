"""A long run's manifest keeps what its verification needs, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_world import FINISHED, NOW, RELEASED, World
from world import digest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.limits import MAX_MANIFEST_BYTES, MAX_RECEIPTS
from sealtrain.consortium.receipts import Lease, ReleaseReceipt
from sealtrain.errors import LimitExceeded
from sealtrain.manifest.condense import (
    condensed_history,
    needed_releases,
    require_room_for_receipts,
)
from sealtrain.manifest.verify import examine


def renewals(world: World, *, every: int, lease: int) -> list[ReleaseReceipt]:
    """A release and one renewal every so many seconds until the end of the run."""
    times = range(RELEASED, FINISHED, every)
    return [
        world.receipt(
            kind="release" if at == RELEASED else "renewal",
            released_at=to_rfc3339(at),
            lease=Lease(lease_id=digest("lease"), not_after=to_rfc3339(at + lease)),
            **({} if at == RELEASED else {"datasets": ()}),
        )
        for at in times
    ]


def test_few_renewals_are_kept_and_the_chain_still_verifies(world: World) -> None:
    recorded = world.record(*renewals(world, every=10, lease=100))
    kept = needed_releases(recorded)
    assert len(recorded) == 58
    assert len(kept) == 8
    assert kept[0] == recorded[0]
    assert kept[-1] == recorded[-1]

    def long(facts: dict[str, Any]) -> None:
        facts["releases"] = kept

    report = examine(world.manifest(long), world.trust(), artefacts=None, now=NOW)
    assert report.accepted, report.refusal


def test_one_renewal_less_would_not_do(world: World) -> None:
    kept = needed_releases(world.record(*renewals(world, every=10, lease=100)))
    for place in range(1, len(kept) - 1):

        def gap(facts: dict[str, Any], place: int = place) -> None:
            facts["releases"] = kept[:place] + kept[place + 1 :]

        report = examine(world.manifest(gap), world.trust(), artefacts=None, now=NOW)
        assert report.refusal is not None
        assert report.refusal.code == "lease-stale"


def test_a_run_keeps_as_few_receipts_on_its_way_as_at_its_end(world: World) -> None:
    recorded = world.record(*renewals(world, every=10, lease=100))
    kept: list[dict[str, Any]] = []
    for number, one in enumerate(recorded, 1):
        kept = needed_releases([*kept, one])
        assert kept == needed_releases(recorded[:number])
        assert len(kept) <= 2 + number // 9  # one each time that a lease is nearly over


def test_every_release_stays(world: World) -> None:
    def released(at: int, lease: str) -> ReleaseReceipt:
        return world.receipt(
            resume=at > RELEASED,
            released_at=to_rfc3339(at),
            lease=Lease(lease_id=digest(lease), not_after=to_rfc3339(at + 1000)),
        )

    recorded = world.record(*(released(RELEASED + 5 * n, f"lease {n}") for n in range(4)))
    assert needed_releases(recorded) == recorded
    assert needed_releases([]) == []
    assert needed_releases(recorded[:1]) == recorded[:1]


def test_a_gap_that_was_there_is_not_hidden(world: World) -> None:
    recorded = world.record(*renewals(world, every=50, lease=40))
    assert needed_releases(recorded) == recorded


def test_a_long_history_is_thinned_evenly() -> None:
    history = [{"step": step, "values": {"loss": 1.0}} for step in range(100_001)]
    kept = condensed_history(history)
    steps = [point["step"] for point in kept]
    assert len(steps) == 2000
    assert (steps[0], steps[-1]) == (0, 100_000)
    assert steps == sorted(set(steps))
    assert condensed_history(history[:2000]) == history[:2000]


def one_of(world: World, lease: int) -> dict[str, Any]:
    """A recorded renewal with a lease of so many seconds."""
    (kept,) = world.record(
        world.receipt(
            kind="renewal",
            released_at=to_rfc3339(RELEASED),
            lease=Lease(lease_id=digest("lease"), not_after=to_rfc3339(RELEASED + lease)),
            datasets=(),
        )
    )
    return kept


@pytest.mark.claim("C261")
@pytest.mark.parametrize(
    ("lease", "share", "refused"),
    [
        (3600, 0.70, False),
        (3600, 0.80, True),
        (7 * 86_400, 0.80, False),
        (7 * 86_400, 0.97, True),
    ],
)
def test_receipts_leave_room_for_those_of_longer_leases(
    world: World, lease: int, share: float, refused: bool
) -> None:
    kept = one_of(world, lease)
    in_base64 = 4 * len(canonical_json(kept)) / 3
    number = int(share * min(MAX_MANIFEST_BYTES / in_base64, MAX_RECEIPTS))
    if not refused:
        require_room_for_receipts([kept] * number)
        return
    with pytest.raises(LimitExceeded) as raised:
        require_room_for_receipts([kept] * number)
    assert raised.value.check == "receipts"


def test_a_run_without_a_receipt_has_room() -> None:
    require_room_for_receipts([])
