"""A long run's manifest keeps what its verification needs, and no more."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from manifest_world import FINISHED, NOW, RELEASED, World
from world import digest

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.limits import MAX_MANIFEST_BYTES, MAX_RECEIPTS
from sealtrain.consortium.receipts import Lease, ReleaseReceipt
from sealtrain.errors import LimitExceeded
from sealtrain.manifest.condense import (
    NeededReleases,
    condense_history,
    select_releases,
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


def verdict_of(world: World, listed: list[dict[str, Any]]) -> str | None:
    """The code with which a manifest with these receipts is refused."""

    def with_these(facts: dict[str, Any]) -> None:
        facts["releases"] = listed

    report = examine(world.manifest(with_these), world.trust(), artefacts=None, now=NOW)
    return None if report.refusal is None else report.refusal.code


@pytest.mark.claim("C266")
def test_the_last_renewal_of_a_lease_is_kept_and_the_manifest_still_verifies(world: World) -> None:
    recorded = world.record(*renewals(world, every=10, lease=100))
    kept = select_releases(recorded)
    assert len(recorded) == 58
    assert kept == [recorded[0], recorded[-1]]
    assert verdict_of(world, kept) is None
    assert verdict_of(world, recorded) is None


@pytest.mark.claim("C266")
def test_without_its_last_renewal_a_run_went_on_too_long(world: World) -> None:
    recorded = world.record(*renewals(world, every=10, lease=100))
    for listed in (recorded[:1], [recorded[0], recorded[10]]):
        assert verdict_of(world, listed) == "lease-stale"


def test_a_run_keeps_as_few_receipts_on_its_way_as_at_its_end(world: World) -> None:
    recorded = world.record(*renewals(world, every=10, lease=100))
    kept: list[dict[str, Any]] = []
    asked = NeededReleases()
    for number, value in enumerate(recorded, 1):
        kept = select_releases([*kept, value])
        asked.add([value])
        assert kept == select_releases(recorded[:number]) == asked.listed
        assert len(kept) <= 2


def test_each_guest_and_each_lease_keeps_a_renewal(world: World) -> None:
    def renewed(at: int, lease: str, run: str, kind: str = "renewal") -> ReleaseReceipt:
        return world.receipt(
            kind=kind,
            run_id=run,
            resume=kind == "release" and at > RELEASED,
            released_at=to_rfc3339(at),
            lease=Lease(lease_id=digest(lease), not_after=to_rfc3339(at + 100)),
            **({"datasets": ()} if kind == "renewal" else {}),
        )

    runs = ("ab" * 16, "cd" * 16)
    receipts = [
        renewed(RELEASED + 10 * place, f"{run} {lease}", run, "release" if turn == 0 else "renewal")
        for place, (lease, turn, run) in enumerate(product((1, 2), (0, 1, 2, 3), runs))
    ]
    recorded = world.record(*receipts)
    kept = select_releases(recorded)
    assert kept == [recorded[place] for place in (0, 1, 6, 7, 8, 9, 14, 15)]


def test_every_release_stays(world: World) -> None:
    def released(at: int, lease: str) -> ReleaseReceipt:
        return world.receipt(
            resume=at > RELEASED,
            released_at=to_rfc3339(at),
            lease=Lease(lease_id=digest(lease), not_after=to_rfc3339(at + 1000)),
        )

    recorded = world.record(*(released(RELEASED + 5 * n, f"lease {n}") for n in range(4)))
    assert select_releases(recorded) == recorded
    assert select_releases([]) == []
    assert select_releases(recorded[:1]) == recorded[:1]


def test_a_long_history_is_thinned_evenly() -> None:
    history = [{"step": step, "values": {"loss": 1.0}} for step in range(100_001)]
    kept = condense_history(history)
    steps = [point["step"] for point in kept]
    assert len(steps) == 2000
    assert (steps[0], steps[-1]) == (0, 100_000)
    assert steps == sorted(set(steps))
    assert condense_history(history[:2000]) == history[:2000]


def one_of(world: World, kind: str) -> dict[str, Any]:
    """A recorded receipt."""
    (kept,) = world.record(
        world.receipt(
            kind=kind,
            released_at=to_rfc3339(RELEASED),
            lease=Lease(lease_id=digest("lease"), not_after=to_rfc3339(RELEASED + 3600)),
            **({"datasets": ()} if kind == "renewal" else {}),
        )
    )
    return kept


@pytest.mark.claim("C261")
@pytest.mark.parametrize(("share", "refused"), [(0.94, False), (0.96, True)])
@pytest.mark.parametrize("renewed", [False, True])
def test_a_run_begins_only_if_its_manifest_will_hold_its_receipts(
    world: World, share: float, renewed: bool, refused: bool
) -> None:
    release, renewal = one_of(world, "release"), one_of(world, "renewal")
    each = len(canonical_json(release)) + len(canonical_json(renewal if renewed else release))
    guests = int(share * min(MAX_MANIFEST_BYTES / (4 * each / 3), MAX_RECEIPTS / 2))
    listed = [
        of_run(value, number)
        for number in range(guests)
        for value in ((release, renewal) if renewed else (release,))
    ]
    if not refused:
        NeededReleases(listed).require_room()
        return
    with pytest.raises(LimitExceeded) as raised:
        NeededReleases(listed).require_room()
    assert raised.value.check == "receipts"


def of_run(release: dict[str, Any], number: int) -> dict[str, Any]:
    """As if it were of another guest."""
    envelope = release["receipt"]
    receipt = parse_json(from_base64(envelope["payload"])) | {"run_id": f"{number:032x}"}
    return release | {
        "receipt": envelope | {"payload": to_base64(canonical_json(receipt))},
    }


def test_a_run_without_a_receipt_has_room() -> None:
    NeededReleases().require_room()
