"""An owner at home: seal, register, approve, revoke, withdraw, watch and open, from Python.

No method asks a person. What a command has a person confirm is an argument that names it: an
approval and a revocation name the hash of the recipe that was read, a withdrawal the ids of the
datasets. Nothing is signed where the argument names something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.errors import RecipeChanged
from sealtrain.owner import approving, opening, sealing, series_place, withdrawing, witnessing
from sealtrain.owner.opening import RunManifest
from sealtrain.owner.owner_files import AtEach, OwnerFiles
from sealtrain.owner.sealing import Publication

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.consortium.members import Consortium
    from sealtrain.consortium.series_block import SeriesBlock
    from sealtrain.manifest.trust import Trust
    from sealtrain.owner.approving import Intent
    from sealtrain.owner.opening import OpenedFiles
    from sealtrain.owner.run import Run
    from sealtrain.owner.sealing import Rewrapped, Sealed
    from sealtrain.owner.series_place import Beginning
    from sealtrain.owner.standing import StandingRequest
    from sealtrain.owner.withdrawing import Withdrawn
    from sealtrain.owner.witnessing import WatchedLedger
    from sealtrain.recipe.lock import LockedRecipe
    from sealtrain.sealing.sealer import SealOptions
    from sealtrain.sealing.sourcefiles import SourceFile
    from sealtrain.signing.datause import DataUse


@dataclass(frozen=True, kw_only=True)
class Owner(OwnerFiles):
    """An owner's keys, its consortium, and the brokers that it deals with.

    A method that acts at several brokers returns ``AtEach``: a broker that fails is in ``failed``
    and keeps no other from acting; ``at_all`` returns the answers of all, or raises the worst
    failure. Where none answers, the worst failure is raised at once.

    Attributes:
        identity: The private identity file.
        brokers: Broker file of each broker that the owner deals with.
        threshold: So many of several brokers open the owner's data together, more than half of
            them; ``None`` for one broker, which gets the data key whole.
        state: What the owner remembers of a broker's ledger, for one broker; beside the identity
            file, one for each broker, where it is ``None``.
        consortium: As the owner holds it.

    Raises:
        UsageError: ``state`` is one file for several brokers.
    """

    consortium: Consortium

    @property
    def name(self) -> str:
        """Name of the owner, as the consortium has it."""
        return self.keys.name

    def seal(
        self,
        source: Path | Mapping[str, SourceFile],
        out: Path,
        *,
        name: str,
        locked: LockedRecipe,
        options: SealOptions | None = None,
        publication: Publication | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Sealed:
        """Seal data for one locked recipe, and tell the brokers of it. Only ciphertext is written.

        Interrupted, it continues when called again.

        Args:
            source: File or folder with the data, or files by name that are opened in memory.
            out: Folder to make, by convention ``X.sealed``.
            name: Name of the dataset, as the recipe calls it.
            locked: The recipe that the data is for.
            options: How the records are read and laid out; the defaults when ``None``.
            publication: What others learn of the dataset: counts, and that it is registered,
                when ``None``.
            progress: Called with the number of source bytes read.

        Raises:
            SealtrainError: As ``client.sealing.seal``.
        """
        return sealing.seal(
            self,
            source,
            out,
            name=name,
            deployment=locked,
            options=options,
            publication=publication or Publication(),
            progress=progress,
        )

    def place_in_series(
        self,
        name: str,
        locked: LockedRecipe,
        *,
        after: Path | None = None,
        beginning: Beginning | None = None,
    ) -> SeriesBlock:
        """The place of data that is about to be sealed in a series; ``Publication`` takes it.

        Args:
            name: Of the series, as the recipe calls it.
            locked: The recipe that the data is for.
            after: Sealed member that it follows; the newest that the brokers list when ``None``.
            beginning: What is said of a series that begins: its mode and bounds.

        Raises:
            SealtrainError: As ``client.growing.place_in_series``.
        """
        return series_place.place_in_series(
            self,
            name,
            locked,
            after=after,
            beginning=beginning or series_place.Beginning(),
        )

    def register(self, folder: Path, locked: LockedRecipe) -> AtEach[None]:
        """Tell brokers of a dataset that is sealed already. Again does no harm.

        Args:
            folder: The sealed dataset.
            locked: The recipe that it was sealed for.

        Raises:
            SealtrainError: As ``client.sealing.register``.
        """
        return sealing.register(self, folder, locked)

    def rewrap(
        self,
        folder: Path,
        *,
        drop: Iterable[str] = (),
        locked: LockedRecipe | None = None,
        data_use: DataUse | None = None,
    ) -> Rewrapped:
        """Change which recipients may unwrap a data key; the sealed records stay as they are.

        Args:
            folder: The sealed dataset.
            drop: Kinds of stanza to drop, ``recipe`` or ``share``.
            locked: Another recipe, for which the dataset is signed and registered from now on.
            data_use: How it may be used there; ``None`` keeps what was stated.

        Raises:
            SealtrainError: As ``client.sealing.rewrap``.
        """
        return sealing.rewrap(self, folder, drop=drop, deployment=locked, data_use=data_use)

    def prepare(
        self,
        locked: LockedRecipe,
        *,
        datasets: Iterable[Path] = (),
        lift_revocation: bool = False,
        unpinned: bool = False,
        standing: StandingRequest | None = None,
    ) -> Intent:
        """Read and ask all that an approval depends on, to look at it; nothing is signed.

        Arguments and errors as ``approve``.
        """
        return approving.prepare(
            self,
            locked,
            self.consortium,
            datasets=datasets,
            lift_revocation=lift_revocation,
            unpinned=unpinned,
            standing=standing,
        )

    def approve(
        self,
        locked: LockedRecipe,
        *,
        expecting: str,
        datasets: Iterable[Path] = (),
        days: int = 30,
        lift_revocation: bool = False,
        unpinned: bool = False,
        standing: StandingRequest | None = None,
    ) -> AtEach[ApprovalTally]:
        """Approve exactly one recipe, until a date.

        Args:
            expecting: Hash of the recipe that the owner read, 64 hex digits. Write it down where
                the recipe is reviewed (``LockedRecipe.changes``); taken from ``locked`` itself it
                confirms nothing.
            datasets: The owner's sealed datasets to pin: no others of this owner will be released.
                All that are registered for the recipe when there is none.
            days: It holds for so many days, at least 1.
            lift_revocation: Take back the owner's own revocation of this recipe.
            unpinned: Pin nothing, so that any dataset counts which the owner registers for the
                recipe, later ones too.
            standing: It may run so often, within which budget of privacy, on which series; without
                a limit when ``None``.

        Returns:
            How far the approval is, at each broker.

        Raises:
            RecipeChanged: ``expecting`` is another recipe's hash; no broker was asked.
            SealtrainError: As ``client.approving.prepare`` and ``client.approving.give``.
        """
        _require(locked, expecting, "approved")
        intent = self.prepare(
            locked,
            datasets=datasets,
            lift_revocation=lift_revocation,
            unpinned=unpinned,
            standing=standing,
        )
        return approving.give(self, intent, days=days)

    def revoke(self, locked: LockedRecipe, *, expecting: str) -> AtEach[ApprovalTally]:
        """Stop further releases and renewals for a recipe. Keys that were released stay released.

        Args:
            expecting: Hash of the recipe to revoke, as for ``approve``.

        Raises:
            RecipeChanged: ``expecting`` is another recipe's hash; no broker was asked.
            SealtrainError: No broker took it: the worst failure.
        """
        _require(locked, expecting, "revoked")
        return approving.revoke(self, locked, self.consortium)

    def withdraw(self, dataset_ids: Iterable[str]) -> AtEach[Withdrawn]:
        """Take datasets back for good. What left before stays where it is.

        Args:
            dataset_ids: Ids of the datasets, 32 hex digits each, as ``seal`` returned them; no
                folder, because a folder's content can be exchanged.

        Returns:
            What became of each dataset, as each broker's ledger tells it.

        Raises:
            DataInvalid: An id has another form; no broker was asked.
            SealtrainError: No broker took it: the worst failure.
        """
        return withdrawing.withdraw(self, dataset_ids, self.consortium)

    def witness(self, *, quorum: int = 1) -> AtEach[WatchedLedger]:
        """See that the ledger of each broker only grew since last time, and cosign it.

        Args:
            quorum: So many owners must have cosigned a tree head, at least 1.

        Raises:
            LedgerInconsistent: A ledger is shorter than it was, rewritten or forked.
            SealtrainError: No broker answered: the worst failure.
        """
        return witnessing.witness(self, self.consortium, quorum=quorum)

    def open_dataset(self, sealed: Path, out: Path, *, to: str = "jsonl") -> OpenedFiles:
        """Decrypt a dataset that this owner sealed.

        Args:
            sealed: The sealed dataset.
            out: File or folder to write; it appears whole or not at all.
            to: Format: ``jsonl``, ``csv``, ``parquet``, ``arrow`` or ``raw``.

        Raises:
            NotSealed: It is no sealed dataset, or a run's folder.
            SignatureInvalid: It is another owner's.
            AlreadyExists: ``out`` exists.
        """
        return opening.open_dataset(sealed, out, identity=self.keys, to=to)

    def open_model(
        self, run: Run, out: Path, *, trust: Path | Trust, insecure_code: bool = False
    ) -> OpenedFiles:
        """Decrypt a model that was sealed to this owner, once the run's manifest is verified.

        Args:
            run: That made the model.
            out: Folder to write; it appears whole or not at all.
            trust: What the owner trusts, or the file (YAML).
            insecure_code: Also write files that can run code where a library loads them.

        Raises:
            Refused: The manifest does not verify, or the files are not those it names.
            NoStanza: The model is sealed to others.
            ModelInvalid: A file of the model can carry code.
            AlreadyExists: ``out`` exists.
        """
        return opening.open_model(
            run.folder,
            out,
            identity=self.keys,
            run=RunManifest(trust=trust),
            insecure_code=insecure_code,
        )


def _require(locked: LockedRecipe, expecting: str, done: str) -> None:
    if expecting != locked.recipe_hash:
        raise RecipeChanged(
            f"this is not the recipe that is to be {done}",
            check="expecting",
            got=locked.recipe_hash,
            expected=expecting,
            hint="review the recipe again (LockedRecipe.changes) and name the hash that you read",
        )
