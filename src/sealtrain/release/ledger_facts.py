"""What a broker's ledger says about one recipe: the facts that a release would be decided on.

``Standing`` takes a ledger's entries in order. Documents of owners count only where their signature
verifies; of the broker's own acts, runs that it began and privacy that it reserved are its word.
Whether the entries are the whole ledger is for ``ledger.audit`` to say, which reads the same ones.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sealtrain.consortium.approvals import ApprovalTally, SignedDecision, tally, verify_decision
from sealtrain.consortium.datasets import DatasetManifest, verify_dataset
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import verify_owned
from sealtrain.consortium.policies import OwnerPolicy, SignedPolicy
from sealtrain.consortium.receipts import Anchor, OwnedId, RunDataset, data_of_entry
from sealtrain.consortium.series import by_series, chain_of
from sealtrain.consortium.standing_approval import Begun, Reserve, Use, is_spent, use_of
from sealtrain.consortium.succession import verify_succession
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import SealtrainError
from sealtrain.release.facts import RunState
from sealtrain.signing.continues import Continues
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target


@dataclass(frozen=True, slots=True)
class AskedDataset:
    """A dataset that a guest would ask for."""

    owner_id: str
    dataset_id: str
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a guest would ask for; ``release.decide.objections`` takes it like a request."""

    target: Target
    run_id: str
    resume: bool
    datasets: tuple[AskedDataset, ...]
    continues: Continues | None = None
    """Not known before a guest asks: whichever run is the newest then."""

    @property
    def app_id(self) -> str:
        """Of the deployment."""
        return self.target.app_id

    @property
    def compose_hash(self) -> str:
        """Of the deployment document."""
        return self.target.compose_hash

    @property
    def recipe_hash(self) -> str:
        """Of the lock."""
        return self.target.recipe_hash

    @property
    def data(self) -> frozenset[RunDataset]:
        """All data of the run."""
        return frozenset(
            RunDataset(dataset.owner_id, dataset.dataset_id, dataset.root)
            for dataset in self.datasets
        )


class Standing:
    """See the module. Feed it every entry, in order.

    Attributes:
        policies: Of each owner, by name: the newest, verified.
        withdrawn: Withdrawn datasets, with the name of their owner.
        successor: Id of the consortium that took this one's place, if any did.
        spent: Epsilon reserved, by (owner, dataset name): the broker's word.
        runs: Runs that got keys, by id: the broker's word.
        recorded: Ids of runs whose manifest the broker recorded.
    """

    def __init__(self, consortium: Consortium) -> None:
        self._consortium = consortium
        self._decisions: list[SignedDecision] = []
        self._places: dict[str, int] = {}
        self._begun: list[Begun] = []
        self._index = -1
        self._manifests: dict[tuple[str, str, str, str], DatasetManifest] = {}
        self.policies: dict[str, SignedPolicy] = {}
        self.withdrawn: dict[OwnedId, str] = {}
        self.successor: str | None = None
        self.spent: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.runs: dict[str, RunState] = {}
        self.recorded: set[str] = set()

    def entry(self, index: int, entry: Any) -> None:
        """Take the next entry; one that does not hold is left out, and an audit reports it."""
        self._index = index
        try:
            self._take(entry["kind"], entry["body"])
        except (SealtrainError, KeyError, TypeError, ValueError, AttributeError):
            return

    def tally(
        self,
        target: Target,
        now: int,
        *,
        needs: Needs,
        begins: Sequence[Reserve] | None = None,
    ) -> ApprovalTally:
        """Where the approval of ``target`` stands, counted from the owners' signatures.

        Args:
            target: The recipe in question.
            now: Seconds since the epoch.
            needs: Of the recipe.
            begins: What a run reserves that would begin; ``None`` where none would.
        """
        spent = {
            signed.digest: why
            for signed, use in self.uses(target)
            if begins is not None and (why := is_spent(signed, use, begins)) is not None
        }
        return tally(self._decisions, self._consortium, target, now, needs=needs, spent=spent)

    def uses(self, target: Target) -> list[tuple[SignedDecision, Use]]:
        """Each standing approval of a target, with what runs took of it: the broker's word."""
        return [
            (signed, use_of(signed, self._places[signed.digest], self._begun))
            for signed in self._decisions
            if signed.decision.standing is not None and signed.decision.target == target
        ]

    def chains(self, target: Target) -> dict[tuple[str, str], tuple[DatasetManifest, ...]]:
        """Members of every series that are registered for a target, by owner and name."""
        deployment = [target.app_id, target.compose_hash]
        here = (
            manifest for (_owner, _id, *of), manifest in self._manifests.items() if of == deployment
        )
        found: dict[tuple[str, str], tuple[DatasetManifest, ...]] = {}
        for key, members in by_series(here).items():
            with contextlib.suppress(SealtrainError):  # an audit reports it
                found[key] = chain_of(members)
        return found

    def list_registered(
        self, wanted: Collection[OwnedId], *, app_id: str, compose_hash: str
    ) -> dict[str, DatasetManifest]:
        """Manifests by dataset id, for this deployment where there is one, else for another."""
        mine: dict[str, DatasetManifest] = {}
        other: dict[str, DatasetManifest] = {}
        for (owner_id, dataset_id, *deployment), manifest in self._manifests.items():
            if (owner_id, dataset_id) in wanted:
                fits = deployment == [app_id, compose_hash]
                (mine if fits else other)[dataset_id] = manifest
        return other | mine

    def find_named(self, owner: str, name: str, target: Target) -> DatasetManifest | None:
        """The dataset of a name that a guest is likely to be given.

        That is the one registered last, of those for this deployment and not withdrawn as far as
        there are any.
        """
        known = [
            manifest
            for manifest in self._manifests.values()
            if (manifest.owner, manifest.name) == (owner, name)
        ]
        fit = [
            manifest
            for manifest in known
            if (manifest.app_id, manifest.compose_hash) == (target.app_id, target.compose_hash)
        ]
        present = [
            manifest
            for manifest in fit
            if (manifest.owner_id, manifest.dataset_id) not in self.withdrawn
        ]
        return next(reversed(present or fit or known), None)

    def withdrawn_before(self, target: Target) -> dict[str, str]:
        """Withdrawn data of the runs of a deployment whose manifest is recorded: id → owner."""
        runs = (self.runs[run_id] for run_id in self.recorded & self.runs.keys())
        read = {
            dataset.owned
            for run in runs
            if (run.app_id, run.compose_hash) == (target.app_id, target.compose_hash)
            for dataset in run.data
        }
        return self.withdrawn_of(read)

    def withdrawn_of(self, data: Collection[OwnedId]) -> dict[str, str]:
        """Of some datasets those that their owners withdrew: id → owner."""
        return {owned.dataset_id: owner for owned, owner in self.withdrawn.items() if owned in data}

    def _take(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind in ("approval", "revocation"):
            signed = verify_decision(Envelope.from_dict(body["envelope"]), self._consortium)
            self._decisions.append(signed)
            self._places.setdefault(signed.digest, self._index)
        elif kind == "dataset":
            manifest = verify_dataset(Envelope.from_dict(body["envelope"]), self._consortium)
            key = (
                manifest.owner_id,
                manifest.dataset_id,
                manifest.app_id,
                manifest.compose_hash,
            )
            self._manifests.pop(key, None)  # what was registered last stands last
            self._manifests[key] = manifest
        elif kind == OwnerPolicy.entry_kind:
            envelope = Envelope.from_dict(body["envelope"])
            policy = verify_owned(OwnerPolicy, envelope, self._consortium)
            self.policies[policy.owner.name] = policy
        elif kind == Withdrawal.entry_kind:
            envelope = Envelope.from_dict(body["envelope"])
            withdrawal = verify_owned(Withdrawal, envelope, self._consortium)
            for dataset_id in withdrawal.document.subjects():
                self.withdrawn[OwnedId(withdrawal.owner.owner_id, dataset_id)] = (
                    withdrawal.owner.name
                )
        elif kind == "succession":
            self._on_succession(body)
        elif kind in ("release", "renewal"):
            self._on_grant(kind, body)
        elif kind == "manifest":
            self.recorded |= {body["run_id"], *body.get("parties", ())}

    def _on_succession(self, body: Mapping[str, Any]) -> None:
        predecessor = Consortium.from_dict(body["predecessor"])
        if predecessor.consortium_id == self._consortium.consortium_id:
            found = verify_succession(Envelope.from_dict(body["envelope"]), predecessor)
            self.successor = found.successor.consortium_id

    def _on_grant(self, kind: str, body: Mapping[str, Any]) -> None:
        anchored = body["checkpoint"]
        checkpoint = None if anchored is None else Anchor.model_validate(anchored)
        run_id, before = body["run_id"], self.runs.get(body["run_id"])
        if kind == "release" and before is None:
            self._begun.append(
                Begun(
                    index=self._index,
                    target=Target(
                        app_id=body["app_id"],
                        compose_hash=body["compose_hash"],
                        recipe_hash=body["recipe_hash"],
                    ),
                    reserved=tuple(
                        (reserve["owner"], reserve["name"], reserve["epsilon"])
                        for reserve in body.get("privacy", ())
                    ),
                )
            )
        if kind == "release":
            for reserved in body.get("privacy", ()):
                self.spent[reserved["owner"], reserved["name"]] += reserved["epsilon"]
        data = before.data if before is not None else data_of_entry(body)
        self.runs[run_id] = RunState(
            app_id=body["app_id"],
            compose_hash=body["compose_hash"],
            recipe_hash=body["recipe_hash"],
            data=data,
            checkpoint=checkpoint,
        )
