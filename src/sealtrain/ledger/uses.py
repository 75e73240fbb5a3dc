"""Uses of a dataset: runs that got it, their manifests, and the model files in these.

Read from a ledger's entries, in order. A caller who does not trust the broker gives the
same entries to ``ledger.audit`` and compares the tree with a tree head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sealtrain.base.canonical import JsonValue, canonical_json

MAX_OUTPUTS = 1024
_MAX_OUTPUTS_BYTES = 128 << 10


def outputs_entry(outputs: Sequence[tuple[str, str]]) -> list[JsonValue] | None:
    """Field ``outputs`` of the ledger's entry about a run manifest.

    Args:
        outputs: Name and SHA-256 of every file that the manifest names.

    Returns:
        The files, or ``None`` where they are more than an entry holds: the manifest lists them.
    """
    listed: list[JsonValue] = [{"name": name, "sha256": digest} for name, digest in outputs]
    if len(listed) > MAX_OUTPUTS or len(canonical_json(listed)) > _MAX_OUTPUTS_BYTES:
        return None
    return listed


@dataclass(slots=True, kw_only=True)
class RunUse:
    """A run that got the dataset's key."""

    run_id: str
    recipe_hash: str
    compose_hash: str
    released_at: str
    leased_until: str
    """End of its last lease."""
    renewals: int = 0
    manifests: list[dict[str, Any]] = field(default_factory=list)
    """``{index, digest, outputs}`` of each that was recorded; ``outputs`` as in the ledger."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "run_id": self.run_id,
            "recipe_hash": self.recipe_hash,
            "compose_hash": self.compose_hash,
            "released_at": self.released_at,
            "leased_until": self.leased_until,
            "renewals": self.renewals,
            "manifests": self.manifests,
        }


@dataclass(slots=True, kw_only=True)
class DatasetUse:
    """One owner's dataset and all that got it."""

    dataset_id: str
    owner: str | None = None
    """``None`` where only releases of it are known: the entries before were not read."""
    name: str | None = None
    withdrawn_at: str | None = None
    runs: list[RunUse] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "dataset_id": self.dataset_id,
            "owner": self.owner,
            "name": self.name,
            "withdrawn_at": self.withdrawn_at,
            "runs": [run.to_dict() for run in self.runs],
        }


class Uses:
    """Feed it every entry of a ledger, in order."""

    def __init__(self, dataset_ids: Iterable[str]) -> None:
        self._datasets: dict[str, dict[str, DatasetUse]] = {id_: {} for id_ in dataset_ids}
        self._runs: dict[str, RunUse] = {}

    def entry(self, index: int, entry: Any) -> None:
        """Take the next entry; one that has not the form of its kind is left out.

        Args:
            index: Its place.
            entry: ``{kind, at, body}``.
        """
        try:
            self._take(index, entry["kind"], entry["at"], entry["body"])
        except (KeyError, TypeError, AttributeError):
            return  # an audit reports it

    def list_uses(self) -> tuple[DatasetUse, ...]:
        """The datasets in the order they were asked for.

        An id that several owners named is listed once for each: it is another dataset of each.
        """
        return tuple(
            use
            for dataset_id, by_owner in self._datasets.items()
            for use in (by_owner.values() or [DatasetUse(dataset_id=dataset_id)])
        )

    def _use(self, dataset_id: str, owner_id: str) -> DatasetUse:
        return self._datasets[dataset_id].setdefault(owner_id, DatasetUse(dataset_id=dataset_id))

    def _take(self, index: int, kind: str, at: str, body: dict[str, Any]) -> None:
        if kind == "dataset" and body["dataset_id"] in self._datasets:
            known = self._use(body["dataset_id"], body["owner_id"])
            known.owner, known.name = body["owner"], body["name"]
        elif kind == "withdrawal":
            for dataset_id in self._datasets.keys() & set(body["datasets"]):
                one = self._use(dataset_id, body["owner_id"])
                one.withdrawn_at = one.withdrawn_at or at
                one.owner = body["owner"]
        elif kind == "release":
            self._note_release(at, body)
        elif kind == "renewal" and body["run_id"] in self._runs:
            run = self._runs[body["run_id"]]
            run.renewals += 1
            run.leased_until = body["not_after"]
        elif kind == "manifest":
            # Of a run of several parties, each asked for its keys under a run id of its own.
            for run_id in self._runs.keys() & {body["run_id"], *body.get("parties", ())}:
                self._runs[run_id].manifests.append(
                    {
                        "index": index,
                        "digest": body["manifest_digest"],
                        "outputs": body["outputs"],
                    }
                )

    def _note_release(self, at: str, body: dict[str, Any]) -> None:
        listed = ((dataset["dataset_id"], dataset["owner_id"]) for dataset in body["datasets"])
        named = [pair for pair in listed if pair[0] in self._datasets]
        known = self._runs.get(body["run_id"])
        if known is not None:
            known.leased_until = body["not_after"]
        elif named:
            known = self._runs[body["run_id"]] = RunUse(
                run_id=body["run_id"],
                recipe_hash=body["recipe_hash"],
                compose_hash=body["compose_hash"],
                released_at=at,
                leased_until=body["not_after"],
            )
        for dataset_id, owner_id in named:
            runs = self._use(dataset_id, owner_id).runs
            if known is not None and known not in runs:
                runs.append(known)
