"""A guest that holds released keys for as long as its lease lasts.

After step 1 of ``guest.guest``:

2. find the sealed datasets that the guest is to open, signed by their owners;
3. attest to the brokers and obtain data keys and lease; the run's key follows from them;
4. open the datasets as streams: plaintext exists in memory only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.secret import Random
from sealtrain.base.stages import Stage, unsaid
from sealtrain.errors import UsageError
from sealtrain.guest.datasets import FoundDataset, find_datasets
from sealtrain.guest.guest import AttestedGuest
from sealtrain.guest.lease import Lease
from sealtrain.guest.leasekeeper import LeaseKeeper

if TYPE_CHECKING:
    from sealtrain.client.grants import Grants
    from sealtrain.client.quorum import OnBrokerFailure, Quorum
    from sealtrain.consortium.members import Consortium
    from sealtrain.guest.outputs import NextRecipe
    from sealtrain.guest.settings import RunSettings
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.opened import SealedDataset
    from sealtrain.training.data.sources import Source

__all__ = ["Asking", "DataGuest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """As whom a guest asks the brokers for keys.

    Attributes:
        run_id: Run id under which the brokers know this guest, 32 hex digits.
        resuming: Continue a run that the brokers know.
        on_failure: Called for each broker that failed while the others suffice.
        on_stage: Told what the guest does, step by step.
    """

    run_id: str
    resuming: bool
    on_failure: OnBrokerFailure
    on_stage: Stage = unsaid


class DataGuest(AttestedGuest):
    """See the module.

    Attributes:
        asked_as: Run id under which the brokers know this guest.
        quorum: The brokers.
        consortium: The consortium that the brokers serve.
        next_recipe: Where the run's model is handed on to; ``None`` where it has recipients.
        found: The guest's datasets, sealed.
        sealed: The same datasets, opened.
        lease: Until when the guest may use its keys.
        keeper: Renews the lease while its context is entered.
        grant: The brokers' last release.
    """

    grant: Grants

    def __init__(
        self,
        settings: RunSettings,
        asking: Asking,
        *,
        shared_out: bool,
        owner: str | None = None,
        alone: bool = False,
        clock: Clock = system_clock,
        random: Random = os.urandom,
    ) -> None:
        """Steps 1 to 4.

        Args:
            settings: Where everything is.
            asking: As whom the brokers are asked.
            shared_out: As ``AttestedGuest``.
            owner: Ask for the datasets of this owner alone; for all of the recipe when ``None``.
            alone: As ``AttestedGuest``.
            clock: Source of the time.
            random: Source of nonces and ephemeral keys.

        Raises:
            UsageError: The recipe is for other roles, or reads no data of this owner.
            Refused: Any check of steps 1 to 4 fails; its class says which.
            Unreachable: Too few brokers answered, or the guest API did not answer.
        """
        stage = asking.on_stage
        with stage("comparing code, packages and models with the lock"):
            super().__init__(
                settings, shared_out=shared_out, alone=alone, clock=clock, random=random
            )
        if owner is not None and owner not in self.recipe.owners:
            raise UsageError(
                "the recipe reads no data of this owner",
                check="party",
                got=owner,
                expected=" or ".join(self.recipe.owners),
            )
        self.asked_as = asking.run_id
        self._renewing = threading.Lock()
        with ExitStack() as undoing:
            self.quorum: Quorum = self._brokers(asking.on_failure)
            undoing.callback(self.quorum.close)
            self._open(owner, undoing, stage, resuming=asking.resuming)
            undoing.pop_all()

    @property
    def sources(self) -> list[Source]:
        """The opened records as training takes them."""
        from sealtrain.training.data.sources import Source

        return [
            Source(
                role=one.role,
                owner=one.manifest.owner,
                name=one.manifest.name,
                weight=one.weight,
                dataset=dataset,
                max_records=one.max_records,
                columns=one.columns,
            )
            for one, dataset in zip(self.found, self.sealed, strict=True)
            if one.role != "model"
        ]

    @property
    def model(self) -> SealedDataset | None:
        """The opened model, where the recipe names a sealed one."""
        opened = zip(self.found, self.sealed, strict=True)
        return next((dataset for one, dataset in opened if one.role == "model"), None)

    @property
    def secret(self) -> DataKey:
        """The secret of this run on this data, the same after a resume; seeds noise and coins.

        It follows from a key that differs for each run id under which the guest asks for keys, so
        no two runs share noise and no run draws its noise twice. Brokers charge each id's privacy
        once.
        """
        roots = sorted(f"{one.manifest.dataset_id} {one.manifest.root}" for one in self.found)
        return self.grant.run_key.derive("training-secret", *roots)

    @property
    def stores(self) -> tuple[str, ...]:
        """URLs of the servers that hold sealed data of this run, besides this machine."""
        return tuple(host for one in self.found for host in getattr(one.folder, "hosts", ()))

    @property
    def urls(self) -> tuple[str, ...]:
        """Brokers, stores of sealed data, and services of collateral."""
        return (*self.quorum.urls, *self.stores, *super().urls)

    def renew(self, checkpoint: tuple[int, str] | None = None) -> None:
        """Ask the brokers for a later end of the lease. Thread-safe; one thread asks at a time.

        Args:
            checkpoint: (counter, digest) of a sealed checkpoint to anchor with the renewal.

        Raises:
            Refused: Too few brokers renewed: approvals revoked, lease stale, or counter too low.
            Unreachable: Too few brokers answered, or the guest API did not answer; the lease stays
                as it was.
        """
        with self._renewing:
            asked = self.lease.moment()
            self.grant, problem = self.quorum.renew(self.grant, self.collect, checkpoint)
            self._keep([one.to_dict() for one in self.grant.fresh])
            if problem is not None:
                raise problem
            self._take_lease(self.grant, asked)

    def report_failures(self, on_failure: OnBrokerFailure) -> None:
        """As ``AttestedGuest``."""
        self.quorum.on_failure = on_failure

    def close(self) -> None:
        """End the use of the keys and close the opened datasets."""
        self.lease.end()
        self.quorum.close()
        for dataset in self.sealed:
            dataset.close()

    def _keep(self, receipts: Sequence[dict[str, Any]]) -> None:
        """Keep the receipts of a renewal for the manifest."""
        raise NotImplementedError

    def _open(self, owner: str | None, undoing: ExitStack, stage: Stage, *, resuming: bool) -> None:
        """Steps 2 to 4; on failure ``undoing`` ends the lease and closes the opened datasets."""
        from sealtrain.sealing.opened import SealedDataset

        with stage("waiting for the brokers to prove themselves"):
            self.consortium: Consortium = self.quorum.meet()
        # Before any key is released: a model that cannot be handed on is not trained.
        self.next_recipe: NextRecipe | None = self._next_recipe()
        self.found: tuple[FoundDataset, ...] = find_datasets(
            self.settings.data, self.recipe, self.consortium, owner=owner
        )
        for one in self.found:
            if not isinstance(one.folder, Path):
                undoing.callback(one.folder.close)
        self.lease = Lease(self._clock)
        undoing.callback(self.lease.end)
        self.keeper = LeaseKeeper(self.lease, self.renew)
        with stage("proving this guest to the brokers, and waiting for keys"):
            self.grant = self._obtained(resuming=resuming)
        with stage("keys received, opening the sealed data"):
            self.sealed = [
                undoing.enter_context(
                    SealedDataset.open(
                        one.folder,
                        self.grant.data_keys[one.manifest.dataset_id],
                        root=one.manifest.root,
                    )
                )
                for one in self.found
            ]

    def _next_recipe(self) -> NextRecipe | None:
        """The recipe that the model is handed on to, with the brokers' signed keys for it."""
        pin, named = self.lock.handed_on, self.recipe.release_policy.model.handed_on
        if pin is None or named is None:
            return None
        from sealtrain.guest.outputs import NextRecipe

        owner = self.consortium.owner(pin.owner)
        return NextRecipe(
            owner=owner,
            dataset=pin.dataset,
            brokers=self.quorum.keys_for(owner, app_id=pin.app_id, compose_hash=pin.compose_hash),
            threshold=named.threshold,
        )

    def _obtained(self, *, resuming: bool) -> Grants:
        """Ask the brokers for the keys of the run, which are lent until the lease ends."""
        from sealtrain.client.grants import Wanted

        asked = self.lease.moment()
        grants = self.quorum.obtain(
            self.collect,
            run_id=self.asked_as,
            recipe_hash=self.lock.recipe_hash,
            datasets=[
                Wanted(
                    dataset_id=one.manifest.dataset_id,
                    root=one.manifest.root,
                    owner=one.manifest.owner,
                    owner_id=one.manifest.owner_id,
                    stanzas=one.stanzas,
                )
                for one in self.found
            ],
            resume=resuming,
        )
        self._take_lease(grants, asked)
        return grants.lent(self.lease.require)

    def _take_lease(self, grants: Grants, asked: float) -> None:
        self.lease.extend(grants.lease_ends, float(grants.lease_seconds), asked)
