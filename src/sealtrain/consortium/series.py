"""Series: datasets of one owner, each of which names the one before it (spec/approvals.md §5.2).

``follows`` makes the checks of a successor, ``chain_of`` those of all members from the first on.
Both take manifests whose signatures the caller verified, and read nothing but what these state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import SeriesMismatch
from sealtrain.consortium.series_block import NewestMember, SeriesBlock, SuccessorBounds

_LABEL: Final = b"sealtrain/series-member/v1:"


def block_of(manifest: DatasetManifest) -> SeriesBlock:
    """The block of a member.

    Raises:
        SeriesMismatch: The dataset is in no series.
    """
    if manifest.series is None:
        raise _broken("the dataset is in no series", manifest, got=manifest.dataset_id)
    return manifest.series


def member_digest(manifest: DatasetManifest) -> str:
    """Digest of a member, which covers all before it. Raises as ``block_of``."""
    said = {
        "owner": manifest.owner,
        "dataset_id": manifest.dataset_id,
        "root": manifest.root,
        "records": manifest.records,
        "schema_digest": manifest.schema_digest,
        "series": block_of(manifest).to_dict(),
    }
    return sha256_hex(_LABEL + canonical_json(said))


def follows(member: DatasetManifest, before: Sequence[DatasetManifest]) -> DatasetManifest:
    """Return a member that may stand behind those before it.

    Args:
        member: Verified.
        before: Members 1 to ``number`` - 1, which hold.

    Raises:
        SeriesMismatch: It may not.
    """
    block = block_of(member)
    if block.number != len(before) + 1:
        raise _broken(
            f"member {block.number} stands where member {len(before) + 1} belongs",
            member,
            got=block.number,
            expected=len(before) + 1,
            hint="register the members in their order: sealtrain register SEALED",
        )
    if not before:
        return member
    last = before[-1]
    first, former = block_of(before[0]), block_of(last)
    if (member.owner, block.name, block.mode) != (last.owner, former.name, former.mode):
        raise _broken(
            "a successor has another owner, name or mode than the member before it",
            member,
            got=f"{member.owner}/{block.name} {block.mode}",
            expected=f"{last.owner}/{former.name} {former.mode}",
        )
    if block.previous != member_digest(last):
        raise _broken(
            "a successor does not name the member before it",
            member,
            got=block.previous,
            expected=member_digest(last),
            hint="seal it again after the member that is the newest: sealtrain seal --after",
        )
    bounds = first.bounds
    if bounds is None:
        return member
    if bounds.schema_drift == "same" and member.schema_digest != before[0].schema_digest:
        raise _broken("a successor has other columns than its series allows", member)
    if member.records is not None:
        growth_kept(member, bounds, member.records, last.records)
    return member


def growth_kept(
    member: DatasetManifest, bounds: SuccessorBounds, records: int, former: int | None
) -> None:
    """Return if a successor grew as much as the bounds of its series say.

    Args:
        member: The successor.
        bounds: Of member 1.
        records: How many it holds.
        former: How many the member before it holds; ``None`` where that is not known.

    Raises:
        SeriesMismatch: It grew less or more.
    """
    growth = records
    if block_of(member).mode == "replace":
        if former is None:
            return
        growth -= former
    least, most = bounds.min_growth, bounds.max_growth
    if (least is not None and growth < least) or (most is not None and growth > most):
        raise _broken(
            "a successor grew less or more than its series allows",
            member,
            expected=f"{'-' if least is None else least} to {'-' if most is None else most}",
        )


def chain_of(members: Iterable[DatasetManifest]) -> tuple[DatasetManifest, ...]:
    """Return members that are one chain from member 1 on, by number.

    Args:
        members: Verified manifests of one owner's series, in any order.

    Raises:
        SeriesMismatch: A gap, a fork, another owner or mode, a broken link or bound.
    """
    found: list[DatasetManifest] = []
    for member in sorted(members, key=lambda manifest: block_of(manifest).number):
        found.append(follows(member, found))
    return tuple(found)


def may_join(
    manifest: DatasetManifest,
    *,
    others: Sequence[DatasetManifest],
    members: Sequence[DatasetManifest],
) -> DatasetManifest:
    """Return a manifest that may be recorded for its deployment (spec/approvals.md §5.2).

    Args:
        manifest: Verified; the dataset may be in no series.
        others: Manifests of the same dataset id that were recorded, for any deployment.
        members: Members of its owner's series of this name that were recorded, for any deployment.

    Raises:
        SeriesMismatch: One of the checks 1 to 4 does not hold.
    """
    for other in others:  # (4)
        if other.series != manifest.series or (
            manifest.series is not None and member_digest(other) != member_digest(manifest)
        ):
            raise _broken(
                "the dataset was registered in another place of a series, or in none",
                manifest,
                got=manifest.dataset_id,
                hint="seal the data again: a dataset keeps its place in its series",
            )
    if manifest.series is None:
        return manifest
    block, digest = manifest.series, member_digest(manifest)
    for member in members:  # (1)
        if block_of(member).number == block.number and member_digest(member) != digest:
            raise _broken(
                f"the series has another member {block.number}",
                manifest,
                got=manifest.dataset_id,
                expected=member.dataset_id,
                hint="seal it again after the newest member, or begin a series of another name",
            )
    here = [
        member
        for member in members
        if (member.app_id, member.compose_hash) == (manifest.app_id, manifest.compose_hash)
        and block_of(member).number < block.number
    ]
    return follows(manifest, chain_of(here))  # (2) (3)


def by_series(
    manifests: Iterable[DatasetManifest],
) -> dict[tuple[str, str], list[DatasetManifest]]:
    """Members by owner and series, each series by number; datasets in no series are left out."""
    found: dict[tuple[str, str], list[DatasetManifest]] = {}
    for manifest in sorted(
        (member for member in manifests if member.series is not None),
        key=lambda manifest: (manifest.owner, manifest.name, block_of(manifest).number),
    ):
        found.setdefault((manifest.owner, manifest.name), []).append(manifest)
    return found


def members_read(chain: Sequence[DatasetManifest]) -> tuple[DatasetManifest, ...]:
    """The members of a chain that a run reads: all, or the newest."""
    if not chain or block_of(chain[0]).mode == "append":
        return tuple(chain)
    return (chain[-1],)


def newest_of(chain: Sequence[DatasetManifest]) -> NewestMember:
    """The newest member of a chain of at least one, as a ledger entry states it."""
    last = chain[-1]
    block = block_of(last)
    return NewestMember(
        owner=last.owner, name=block.name, number=block.number, member=member_digest(last)
    )


def _broken(
    problem: str,
    member: DatasetManifest,
    *,
    got: object = None,
    expected: object = None,
    hint: str | None = None,
) -> SeriesMismatch:
    return SeriesMismatch(
        problem,
        check="series",
        owner=member.owner,
        dataset=member.name,
        got=got,
        expected=expected,
        hint=hint,
    )
