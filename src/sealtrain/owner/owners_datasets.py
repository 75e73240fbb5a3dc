"""The datasets that owners registered for a recipe, as these owners signed them.

A broker names their ids, and its ledger holds what was registered. Nothing of this is believed:
each manifest is verified, so a broker can keep one back or show an older one, and invent none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.datasets import DatasetManifest, verify_dataset
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.owner_document import verify_owned
from sealtrain.consortium.receipts import OwnedId
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import LimitExceeded, SealtrainError
from sealtrain.release.errors import AnswerInvalid
from sealtrain.signing.dsse import Envelope

if TYPE_CHECKING:
    from sealtrain.client.broker_api import BrokerClient
    from sealtrain.consortium.members import Consortium
    from sealtrain.signing.target import Target

_PAGE: Final = 100
_MOST_PAGES: Final = 10_000
_MOST_DATASETS: Final = 4096
"""Of each owner: one that registers more hides some of its own, and nothing of another."""


def list_registered(
    client: BrokerClient, consortium: Consortium, target: Target, size: int
) -> list[DatasetManifest]:
    """Manifests of the datasets that a broker has for a recipe, in the order of owner and name.

    The ledger is read from its end until each is found; datasets that their owner withdrew, or that
    no present owner signed for this recipe, are left out.

    Args:
        consortium: As the caller holds it.
        target: The recipe.
        size: Entries of the broker's ledger.

    Raises:
        AnswerInvalid: The broker answers with other entries than it was asked for.
        LimitExceeded: A million entries were read in vain.
    """
    wanted = {
        OwnedId(owner.owner_id, dataset_id)
        for owner in consortium.owners
        for dataset_id in client.list_registered(
            owner.owner_id,
            app_id=target.app_id,
            compose_hash=target.compose_hash,
            most=_MOST_DATASETS,
        )
    }
    found: dict[OwnedId, DatasetManifest] = {}
    withdrawn: set[tuple[str, str]] = set()
    for entry in _newest_first(client, size):
        if not wanted:
            break
        kind, body = entry.get("kind"), entry.get("body") or {}
        try:
            if kind == Withdrawal.entry_kind:
                gone = verify_owned(Withdrawal, Envelope.from_dict(body["envelope"]), consortium)
                withdrawn.update((gone.owner.name, dataset) for dataset in gone.document.datasets)
            elif kind == "dataset" and (owned := _read_owned(body)) in wanted:
                wanted.discard(owned)  # an older entry counts for nothing
                manifest = verify_dataset(Envelope.from_dict(body["envelope"]), consortium)
                bound = (manifest.app_id, manifest.compose_hash)
                if bound == (target.app_id, target.compose_hash):
                    found[OwnedId(manifest.owner_id, manifest.dataset_id)] = manifest
        except SealtrainError:
            continue  # an owner's former key, or what the broker made up
        except (KeyError, TypeError) as error:
            raise AnswerInvalid("an entry of the ledger is malformed", check="ledger") from error
    return sorted(
        (
            dataset
            for dataset in found.values()
            if (dataset.owner, dataset.dataset_id) not in withdrawn
        ),
        key=lambda dataset: (dataset.owner, dataset.name, dataset.sealed_at),
    )


def merge_answers(answers: Iterable[list[DatasetManifest]], me: str) -> tuple[DatasetManifest, ...]:
    """What several brokers have, each dataset once and as it was signed last.

    Args:
        answers: Of each broker.
        me: Name of the owner who asks. Another owner's two signed roots hinder no approval.

    Raises:
        DatasetMismatch: The owner who asks signed two roots of a dataset at the same time.
    """
    newest: dict[OwnedId, DatasetManifest] = {}
    for manifest in (dataset for answer in answers for dataset in answer):
        owned = OwnedId(manifest.owner_id, manifest.dataset_id)
        known = newest.get(owned, manifest)
        ages = from_rfc3339(manifest.sealed_at), from_rfc3339(known.sealed_at)
        if manifest.owner == me and ages[0] == ages[1] and manifest.root != known.root:
            raise DatasetMismatch(
                f"brokers have different roots of the dataset {manifest.name}",
                check="dataset root",
                owner=manifest.owner,
                got=manifest.root,
                expected=known.root,
                hint="name the folder that you sealed last with --data, and register it again",
            )
        newest[owned] = manifest if ages[0] >= ages[1] else known
    return tuple(
        sorted(
            newest.values(), key=lambda dataset: (dataset.owner, dataset.name, dataset.sealed_at)
        )
    )


def _read_owned(body: dict[str, Any]) -> OwnedId:
    """Which dataset an entry says that it is about."""
    return OwnedId(body["owner_id"], body["dataset_id"])


def _newest_first(client: BrokerClient, size: int) -> Iterator[dict[str, Any]]:
    end = size
    for _ in range(_MOST_PAGES):
        if end <= 0:
            return
        start = max(0, end - _PAGE)
        page: list[Any] = client.ledger_entries(start, end - start)
        if len(page) != end - start or not all(isinstance(entry, dict) for entry in page):
            raise AnswerInvalid(
                "the broker does not show the entries of its own ledger",
                check="ledger",
                got=f"{len(page)} entries",
                expected=f"{end - start} from {start} on",
            )
        yield from reversed(page)
        end = start
    raise LimitExceeded(
        "a registered dataset is not among the ledger's newest entries",
        expected=f"at most {_PAGE * _MOST_PAGES} entries back",
        hint="name your datasets with --data",
    )
