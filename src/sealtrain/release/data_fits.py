"""Checks 12 and 13 of a release: the data are what owners registered, approved and signed last.

See spec/key-release.md §4.2. Pure, as ``release.decide``, which makes them in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import DatasetMismatch, SeriesMismatch
from sealtrain.consortium.receipts import OwnedId, ReleasedDataset, RunDataset
from sealtrain.consortium.series import members_read, newest_of
from sealtrain.consortium.series_block import NewestMember
from sealtrain.consortium.standing_approval import admits
from sealtrain.recipe.errors import DatasetUnknown
from sealtrain.release.facts import Known, Measured
from sealtrain.release.request_facts import Asks, AsksOfDataset


def list_released(
    asks: Asks, registered: Mapping[str, DatasetManifest]
) -> tuple[ReleasedDataset, ...]:
    """The datasets of a request that are registered."""
    return tuple(
        ReleasedDataset(dataset_id=asked.dataset_id, owner_id=manifest.owner_id, root=manifest.root)
        for asked in asks.datasets
        if (manifest := _find_registered(asked, registered)) is not None
    )


def _find_registered(
    asked: AsksOfDataset, registered: Mapping[str, DatasetManifest]
) -> DatasetManifest | None:
    """The manifest of a dataset; another owner's with the same id is none of it."""
    manifest = registered.get(asked.dataset_id)
    return manifest if manifest is not None and manifest.owner_id == asked.owner_id else None


def find_named(
    asked: AsksOfDataset,
    request: Asks,
    measured: Measured,
    registered: Mapping[str, DatasetManifest],
) -> DatasetManifest:
    """The manifest of a dataset that its owner registered for the target and the recipe names (12).

    Args:
        measured: What the guest runs.
        registered: Verified manifests by dataset id.

    Raises:
        DatasetUnknown: The owner registered no such dataset.
    """
    manifest = _find_registered(asked, registered)
    if manifest is None:
        raise DatasetUnknown(
            "its owner did not register this dataset",
            check="dataset",
            got=asked.dataset_id,
            hint="its owner registers it: sealtrain seal does so unless told otherwise",
        )
    if (manifest.app_id, manifest.compose_hash) != (request.app_id, request.compose_hash):
        raise DatasetUnknown(
            "the dataset was sealed for another deployment",
            check="dataset deployment",
            owner=manifest.owner,
            got=request.compose_hash,
            expected=manifest.compose_hash,
            hint="its owner adds a stanza for this recipe (sealtrain rewrap) and registers it",
        )
    if (manifest.owner, manifest.name) not in measured.datasets:
        raise DatasetUnknown(
            "the recipe does not name this dataset",
            check="dataset name",
            owner=manifest.owner,
            got=f"{manifest.owner}/{manifest.name}",
            expected=", ".join(sorted("/".join(pair) for pair in measured.datasets)),
            hint="ask only for datasets of the approved recipe",
        )
    return manifest


def root_fits(asked: AsksOfDataset, manifest: DatasetManifest) -> None:
    """Return if a dataset's root is the registered one (13).

    Raises:
        DatasetMismatch: It is another.
    """
    if asked.root != manifest.root:
        raise DatasetMismatch(
            "the dataset's root is not the one its owner registered",
            check="dataset root",
            owner=manifest.owner,
            got=asked.root,
            expected=manifest.root,
            hint="give the guest the folder exactly as its owner sealed it",
        )


def pins_fit(asked: AsksOfDataset, manifest: DatasetManifest, known: Known) -> None:
    """Return if an approval of a dataset's owner admits it, and under this root (13).

    Pins of other owners say nothing about it.

    Raises:
        DatasetMismatch: It does not.
    """
    chain = known.chains.get((manifest.owner, manifest.name), ())
    for approval in known.tally.approvals:
        owner, pins = approval.owner.name, approval.decision.pins()
        if owner != manifest.owner:
            continue
        if not admits(approval.decision, manifest, chain):
            raise DatasetMismatch(
                "its owner's approval pins other datasets, not this one",
                check="dataset pin",
                owner=owner,
                got=asked.dataset_id,
                expected=", ".join([*sorted(pins), *approval.decision.series]),
                hint="its owner approves again, naming this dataset or its series too",
            )
        pinned = pins.get(asked.dataset_id)
        if pinned not in (None, asked.root):
            raise DatasetMismatch(
                "its owner's approval pins another root of this dataset",
                check="dataset pin",
                owner=owner,
                got=asked.root,
                expected=pinned,
                hint="the owner approves again, naming the dataset as it is now",
            )


def newest_read(
    asks: Asks,
    measured: Measured,
    chains: Mapping[tuple[str, str], Sequence[DatasetManifest]],
) -> tuple[NewestMember, ...]:
    """The newest member of each series of a recipe, once a new run asks for what it is to read.

    Args:
        asks: The request.
        measured: Names the recipe's series.
        chains: Their members that are registered here for its target. A series of which there are
            none is another broker's to judge.

    Raises:
        SeriesMismatch: A member is left out, or one is asked for that a run does not read.
    """
    found = []
    for key in measured.series:
        chain = chains.get(key, ())
        if not chain or (measured.apart and not _asks_of(asks, chain)):
            continue
        wanted = {
            RunDataset(member.owner_id, member.dataset_id, member.root)
            for member in members_read(chain)
        }
        members = {OwnedId(member.owner_id, member.dataset_id) for member in chain}
        named = {dataset for dataset in asks.data if dataset.owned in members}
        if named != wanted:
            differ = sorted(dataset.dataset_id for dataset in named ^ wanted)
            raise SeriesMismatch(
                f"the run would not read the whole and newest series {key[1]}",
                check="series",
                owner=key[0],
                dataset=key[1],
                got=", ".join(differ[:4]),
                expected=f"{len(wanted)} of {len(chain)} members, up to the newest",
                hint="give the guest every member that its owner registered: --data",
            )
        found.append(newest_of(chain))
    return tuple(found)


def _asks_of(asks: Asks, chain: Iterable[DatasetManifest]) -> bool:
    members = {OwnedId(member.owner_id, member.dataset_id) for member in chain}
    return not members.isdisjoint(dataset.owned for dataset in asks.data)


def of_one_owner(released: Iterable[ReleasedDataset]) -> None:
    """Return if all datasets of a release are one owner's.

    Raises:
        DatasetMismatch: They are of several.
    """
    owners = {dataset.owner_id for dataset in released}
    if len(owners) > 1:
        raise DatasetMismatch(
            "a guest asks for data of several owners, and the recipe gives each a guest of its own",
            check="dataset owner",
            got=f"datasets of {len(owners)} owners",
            expected="datasets of one",
            hint="each party asks for its own data, under its own run id",
        )
