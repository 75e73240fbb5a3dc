"""A guest that holds released keys for as long as its lease lasts.

After step 1 of ``guest.guest``:

2. find the sealed datasets that the guest is to open, signed by their owners;
3. attest to the brokers and obtain data keys and lease; the run's key follows from them;
4. open the datasets as streams: plaintext exists in memory only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sealtrain.errors import UsageError
from sealtrain.guest.datasets import FoundDataset, find_datasets
from sealtrain.guest.guest import AttestedGuest, Surroundings
from sealtrain.guest.lease import RunLease
from sealtrain.guest.leasekeeper import LeaseKeeper
from sealtrain.guest.model_before import ModelBefore, begins_with_last, find_model_before
from sealtrain.guest.series import Chains, check_entries, check_opened, list_series, read_remembered
from sealtrain.recipe.epochs import with_steps

if TYPE_CHECKING:
    from sealtrain.client.grants import Grants
    from sealtrain.client.quorum import OnBrokerFailure, Quorum
    from sealtrain.consortium.members import Consortium
    from sealtrain.guest.outputs import NextRecipe, NextRun
    from sealtrain.guest.settings import RunSettings
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.opened_dataset import SealedDataset
    from sealtrain.training.data.sources import SealedFolder, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """As whom a guest asks the brokers for keys.

    Attributes:
        run_id: Run id under which the brokers know this guest, 32 hex digits; or how the guest
            learns it, once it is admitted.
        resuming: Continue a run that the brokers know.
        owner: Ask for the datasets of this owner alone; for all of the recipe when ``None``.
    """

    run_id: str | Callable[[AttestedGuest], str]
    resuming: bool
    owner: str | None = None


class DataGuest(AttestedGuest):
    """See the module.

    Attributes:
        asked_as: Run id under which the brokers know this guest.
        quorum: The brokers.
        consortium: The consortium that the brokers serve.
        next_recipe: Where the run's model is handed on to; ``None`` where it has recipients.
        next_run: Where the recipe's next run begins with this run's model.
        series: The members of the recipe's series.
        sealed_datasets: The guest's datasets, sealed.
        opened_datasets: The same datasets, opened.
        lease: Until when the guest may use its keys.
        lease_keeper: Renews the lease while its context is entered.
        grant: The brokers' last release.
    """

    asked_as: str
    quorum: Quorum
    consortium: Consortium
    next_recipe: NextRecipe | None
    next_run: NextRun | None
    series: Chains
    sealed_datasets: tuple[FoundDataset, ...]
    opened_datasets: list[SealedDataset]
    lease: RunLease
    lease_keeper: LeaseKeeper
    grant: Grants

    def __init__(
        self,
        settings: RunSettings,
        asking: Asking,
        around: Surroundings,
        *,
        shared_out: bool,
    ) -> None:
        """Do nothing yet.

        Args:
            settings: Where everything is.
            asking: As whom the brokers are asked, and for which data.
            around: What else it is given.
            shared_out: As ``AttestedGuest``.
        """
        super().__init__(settings, around, shared_out=shared_out)
        self._asking = asking
        self._renewing = threading.Lock()

    def prepare(self) -> Self:
        """Steps 1 to 4, in their order. Where one fails, nothing is left open and no key in use.

        Raises:
            UsageError: The recipe is for other roles, or reads no data of this owner.
            Refused: Any check of steps 1 to 4 fails; its class says which.
            Unreachable: Too few brokers answered, or the guest API did not answer.
        """
        stage = self.around.on_stage
        with stage("comparing code, packages and models with the lock"):
            self.admit()
        with ExitStack() as undoing:
            self._before_keys(undoing)
            self._take_name()
            self.quorum = self._brokers()
            undoing.callback(self.quorum.close)
            with stage("waiting for the brokers to prove themselves"):
                self.consortium = self.quorum.meet()
            before = self._find(undoing)
            with stage("proving this guest to the brokers, and waiting for keys"):
                self._obtain_keys(before, undoing)
            with stage("keys received, opening the sealed data"):
                self._open(before, undoing)
            undoing.pop_all()
        return self

    @property
    def sources(self) -> list[Source]:
        """The opened records as training takes them."""
        from sealtrain.recipe.missing import missing_values
        from sealtrain.training.data.sources import Source

        return [
            Source(
                role=sealed.role,
                owner=sealed.manifest.owner,
                name=sealed.manifest.name,
                weight=sealed.weight,
                dataset=dataset,
                max_records=sealed.max_records,
                columns=sealed.columns,
                missing=missing_values(self.recipe),
            )
            for sealed, dataset in zip(self.sealed_datasets, self.opened_datasets, strict=True)
            if sealed.role != "model"
        ]

    @property
    def model(self) -> SealedFolder | None:
        """The opened model, where the recipe names a sealed one or the run follows another."""
        if self._model_before is not None:
            return self._model_before
        opened = zip(self.sealed_datasets, self.opened_datasets, strict=True)
        return next((dataset for sealed, dataset in opened if sealed.role == "model"), None)

    @property
    def secret(self) -> DataKey:
        """The secret of this run on this data, the same after a resume; seeds noise and coins.

        It follows from a key that differs for each run id under which the guest asks for keys, so
        no two runs share noise and no run draws its noise twice. Brokers charge each id's privacy
        once.
        """
        roots = sorted(
            f"{dataset.manifest.dataset_id} {dataset.manifest.root}"
            for dataset in self.sealed_datasets
        )
        return self.grant.run_key.derive("training-secret", *roots)

    @property
    def stores(self) -> tuple[str, ...]:
        """URLs of the servers that hold sealed data of this run, besides this machine."""
        return tuple(
            host
            for dataset in self.sealed_datasets
            for host in getattr(dataset.folder, "hosts", ())
        )

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
            self._keep([receipted.to_dict() for receipted in self.grant.fresh])
            if problem is not None:
                raise problem
            self._take_lease(self.grant, asked)

    def report_failures(self, on_failure: OnBrokerFailure) -> None:
        """As ``AttestedGuest``."""
        self.quorum.on_failure = on_failure

    def close(self) -> None:
        """End the use of the keys and close the opened datasets."""
        self.lease_keeper.given_back = True
        self.lease.end()
        self.quorum.close()
        for dataset in self.opened_datasets:
            dataset.close()

    def _before_keys(self, undoing: ExitStack) -> None:
        """Start what must not inherit a key; on failure ``undoing`` ends it."""

    def _keep(self, receipts: Sequence[dict[str, Any]]) -> None:
        """Keep the receipts of a renewal for the manifest."""
        raise NotImplementedError

    def _take_name(self) -> None:
        """As whom, and for whose data, the brokers are asked."""
        asking = self._asking
        if asking.owner is not None and asking.owner not in self.recipe.owners:
            raise UsageError(
                "the recipe reads no data of this owner",
                check="party",
                got=asking.owner,
                expected=" or ".join(self.recipe.owners),
            )
        known = asking.run_id
        self.asked_as = known if isinstance(known, str) else known(self)

    def _find(self, undoing: ExitStack) -> ModelBefore | None:
        """Step 2, also of the model that the run begins with; and where its own goes."""
        # Before any key is released: a model that cannot be handed on is not trained.
        self.next_recipe = self._next_recipe()
        self.next_run = self._next_run()
        before = find_model_before(self.settings, self.recipe, self.consortium)
        self.series = self._series()
        self.sealed_datasets = find_datasets(
            self.settings.data,
            self.recipe,
            self.consortium,
            owner=self._asking.owner,
            chains={key: chain.members for key, chain in self.series.of.items()},
        )
        for dataset in self.sealed_datasets:
            if not isinstance(dataset.folder, Path):
                undoing.callback(dataset.folder.close)
        return before

    def _obtain_keys(self, before: ModelBefore | None, undoing: ExitStack) -> None:
        """Step 3; on failure ``undoing`` ends the lease."""
        last = [dataset.manifest.last_second for dataset in self.sealed_datasets]
        kept = min((second + 1 for second in last if second is not None), default=None)
        self.lease = RunLease(self._clock, latest=kept)
        undoing.callback(self.lease.end)
        self.lease_keeper = LeaseKeeper(self.lease, self.renew)
        self.grant = self._obtain(before, resuming=self._asking.resuming)
        if self.series.of and not self._asking.resuming:
            check_entries(self.grant, self.series)

    def _open(self, before: ModelBefore | None, undoing: ExitStack) -> None:
        """Step 4; on failure ``undoing`` closes the opened datasets."""
        from sealtrain.sealing.opened_dataset import SealedDataset

        key = self.grant.model_key
        self._model_before = None if before is None or key is None else before.open(key)
        self.opened_datasets = [
            undoing.enter_context(
                SealedDataset.open(
                    sealed.folder,
                    self.grant.data_keys[sealed.manifest.dataset_id],
                    root=sealed.manifest.root,
                )
            )
            for sealed in self.sealed_datasets
        ]
        self.recipe = with_steps(
            self.recipe,
            (
                sum(dataset.batch_rows)
                for sealed, dataset in zip(self.sealed_datasets, self.opened_datasets, strict=True)
                if sealed.role == "train"
            ),
        )
        check_opened(
            self.series,
            {
                sealed.manifest.dataset_id: dataset
                for sealed, dataset in zip(self.sealed_datasets, self.opened_datasets, strict=True)
            },
        )

    def _series(self) -> Chains:
        """Members of the recipe's series as the brokers list them; of a resume, as it began."""
        if all(dataset.series is None for dataset in self.recipe.datasets):
            return Chains()
        named = [
            (dataset.owner, dataset.name)
            for dataset in self.recipe.datasets
            if dataset.series is not None
        ]
        chains = list_series(self.quorum.series(named), self.recipe, self.consortium)
        if not self._asking.resuming:
            return chains
        return chains.until(read_remembered(self.settings.out))

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

    def _next_run(self) -> NextRun | None:
        """The recipe's next run, with the broker's signed key for models of this recipe's runs."""
        if not begins_with_last(self.recipe):
            return None
        from sealtrain.guest.outputs import NextRun

        app_id, compose_hash = self.target.app_id, self.target.compose_hash
        [(broker, key)] = self.quorum.signed_keys(
            self.consortium.consortium_id, app_id=app_id, compose_hash=compose_hash
        )
        return NextRun(
            app_id=app_id, compose_hash=compose_hash, broker_id=broker.broker_id, public_key=key
        )

    def _obtain(self, before: ModelBefore | None, *, resuming: bool) -> Grants:
        """Ask the brokers for the keys of the run, which are lent until the lease ends."""
        asked = self.lease.moment()
        grants = self.quorum.obtain(
            self.collect,
            run_id=self.asked_as,
            recipe_hash=self.lock.recipe_hash,
            datasets=[dataset.wanted for dataset in self.sealed_datasets],
            resume=resuming,
            model=None if before is None else before.wanted,
            submission_id=self.settings.submission_id,
        )
        self._take_lease(grants, asked)
        return grants.with_permit(self.lease.require)

    def _take_lease(self, grants: Grants, asked: float) -> None:
        self.lease.extend(grants.lease_ends, float(grants.lease_seconds), asked)
