"""Members of series as a ledger's entries register them (spec/approvals.md §5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sealtrain.consortium.errors import SeriesMismatch
from sealtrain.consortium.receipts import OwnedId, RunDataset
from sealtrain.consortium.series import (
    block_of,
    chain_of,
    may_join,
    member_digest,
    members_read,
    newest_of,
)
from sealtrain.consortium.series_block import NewestMember

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.signing.target import Target

_Key = tuple[str, str]
_Deployment = tuple[str, str]


class Members:
    """The members so far. Feed it every dataset manifest, in the order of the ledger."""

    def __init__(self) -> None:
        self._of: dict[_Key, dict[tuple[_Deployment, int], DatasetManifest]] = {}
        self._manifests: dict[OwnedId, dict[_Deployment, DatasetManifest]] = {}

    def problems(self, manifest: DatasetManifest) -> Iterator[str]:
        """Yield a problem if the next manifest may not be recorded; it is taken in any case."""
        deployment = (manifest.app_id, manifest.compose_hash)
        known = self._manifests.setdefault(_name_owned(manifest), {})
        key = (manifest.owner, manifest.name)
        members = tuple(self._of.get(key, {}).values())
        try:
            may_join(manifest, others=tuple(known.values()), members=members)
        except SeriesMismatch as error:
            yield error.message
        known[deployment] = manifest
        if manifest.series is not None:
            self._of.setdefault(key, {})[deployment, manifest.series.number] = manifest

    def chain(self, target: Target, owner: str, name: str) -> tuple[DatasetManifest, ...]:
        """Members that are registered for a target, from member 1 on, as far as they hold."""
        deployment = (target.app_id, target.compose_hash)
        found = sorted(
            (
                manifest
                for (of, _), manifest in self._of.get((owner, name), {}).items()
                if of == deployment
            ),
            key=lambda one: block_of(one).number,
        )
        while found:
            try:
                return chain_of(found)
            except SeriesMismatch:
                found.pop()
        return ()

    def misread(
        self,
        target: Target,
        data: frozenset[RunDataset],
        stated: Sequence[NewestMember],
        counted: ApprovalTally,
    ) -> Iterator[str]:
        """Yield the problems of the series that a run reads.

        Args:
            target: Of the run.
            data: All its data.
            stated: What the entry of its first release says.
            counted: The approvals that it began under.
        """
        named = {(member.owner, member.name) for member in stated}
        if len(named) != len(stated):
            yield "it states the newest member of a series twice"
        for item in stated:
            chain = self.chain(target, item.owner, item.name)
            if not chain or newest_of(chain) != item:
                yield f"it states another newest member of {item.owner}/{item.name}"
                continue
            wanted = {
                RunDataset(*_name_owned(member), member.root) for member in members_read(chain)
            }
            members = {_name_owned(member) for member in chain}
            if {dataset for dataset in data if dataset.owned in members} != wanted:
                yield f"its run does not read the whole and newest series {item.name}"
        for approval in counted.approvals:
            owner = approval.owner.name
            terms = approval.decision.standing
            for approved in () if terms is None else terms.series:
                chain = self.chain(target, owner, approved.name)
                if not chain or member_digest(chain[0]) != approved.first:
                    continue
                read = {_name_owned(member) for member in chain} & {
                    dataset.owned for dataset in data
                }
                if read and (owner, approved.name) not in named:
                    yield f"it does not state the newest member of {owner}/{approved.name}"


def _name_owned(manifest: DatasetManifest) -> OwnedId:
    return OwnedId(manifest.owner_id, manifest.dataset_id)
