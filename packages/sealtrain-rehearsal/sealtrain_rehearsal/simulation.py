"""Broker and simulated guests for a program, for as long as a block lasts. Nothing is attested.

Owners, engineer and auditor are the caller's own objects (``sealtrain.owner``): a simulation plays
the operator and the hardware only. Every server is tied to the thread that started it: the kernel
ends it when that thread ends, by ``kill -9`` of the process too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sealtrain.base.extras import require_extras
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.owner.run import Run
from sealtrain_rehearsal.rehearsal import Rehearsal
from sealtrain_rehearsal.rehearsed_store import store_served

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.owner.recipe import Recipe
    from sealtrain.recipe.lock import LockedRecipe

_RUNNER = "runner"


def rehearsal(
    folder: Path,
    consortium: Consortium,
    *,
    brokers: int = 1,
    threshold: int | None = None,
    machine: Sequence[str] = (),
    on_step: Callable[[str], None] = lambda _line: None,
) -> Simulation:
    """Brokers in simulated guests for one consortium. SIMULATED — NOT ATTESTED.

    Use it as a context manager, or end it with ``close``: use data that may be shown.

    Args:
        folder: New folder for all that brokers and guests write.
        consortium: Whose keys the brokers guard.
        brokers: So many; each holds a share of the keys where there are several.
        threshold: So many of several open the data together.
        machine: Options of ``sealtrain simulator serve`` that say what every guest plays.
        on_step: Called with a line for each step.

    Raises:
        AlreadyExists: ``folder`` is there and not empty.
        ExtraMissing: The packages of broker and simulator are missing.
        UsageError: Brokers and threshold do not go together.
    """
    require_extras("a rehearsal", "broker", "simulator")
    return Simulation(
        folder,
        consortium,
        brokers=brokers,
        threshold=threshold,
        machine=tuple(machine),
        on_step=on_step,
    )


class Simulation(Rehearsal):
    """Brokers and simulated guests in one folder; ``rehearsal`` makes it."""

    def __init__(
        self,
        folder: Path,
        consortium: Consortium,
        *,
        brokers: int,
        threshold: int | None,
        machine: tuple[str, ...],
        on_step: Callable[[str], None],
    ) -> None:
        super().__init__(folder, on_step, machine, brokers=brokers, threshold=threshold)
        self._members = consortium
        self._begun: dict[Path, tuple[str | Path, ...]] = {}
        self._store: str | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._members.save(self._consortium)
            self._trust_machines()
            self._open_brokers()
        except BaseException:
            self.close()
            raise
        return self

    def start(self) -> Self:
        """Start the brokers, as the beginning of a ``with`` block does; ``close`` ends them."""
        return self.__enter__()

    def close(self) -> None:
        """End every process; the files stay."""
        self._stack.close()

    @property
    def brokers(self) -> tuple[Path, ...]:
        """Broker file of each broker, pinned."""
        return tuple(self._broker_files)

    @property
    def policy(self) -> Path:
        """Appraisal policy that trusts this simulator and nothing else."""
        return self._policy

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run that was begun here, refused and interrupted ones too, oldest first."""
        return tuple(Run(folder=folder) for folder in self._begun)

    def ticket(self, recipe: Recipe, locked: LockedRecipe, sealed: Path, *, name: str) -> Path:
        """Write the run ticket of a guest that puts its outputs into a store of this simulation.

        Submit it with ``SubmittedRun.submit``; ``serve_runs`` starts what is submitted.

        Args:
            recipe: As for ``train``.
            locked: As for ``train``.
            sealed: As for ``train``.
            name: Of the run's folder in the store, as an owner's.
        """
        if self._store is None:
            self._store = self._stack.enter_context(store_served(self.out / "store"))
        return self._ticket(
            name, "evaluate" if recipe.document.phase == "evaluate" else "train", *self._brokers,
            "--data", sealed.resolve(), "--base", recipe.path.resolve().parent,
            "--store", f"{self._store}/{name}",
        )  # fmt: skip

    def serve_runs(self, locked: LockedRecipe, *places: Path) -> None:
        """Start a runner, which takes submitted runs of a recipe and starts their guests here.

        Args:
            places: Folders that run tickets may name: of the sealed datasets, and of the recipe.
        """
        allowed: list[str | Path] = [] if self._store is None else ["--allow", self._store]
        for place in places:
            allowed += ["--allow", place.resolve()]
        self.serve(
            "runner ready", "run", "serve", "--broker", self._broker_files[0],
            "--identity", self._identity(_RUNNER), "--deployment", self._document(locked),
            "--folder", self.out / f"runner-{locked.compose_hash[:16]}", *allowed,
            "--simulator", self._root, *self._machine,
        )  # fmt: skip

    def train(self, recipe: Recipe, locked: LockedRecipe, sealed: Path) -> Run:
        """Train in a simulated guest that measured the locked recipe, to the signed manifest.

        Args:
            recipe: As the engineer has it; models in its folder are looked for there.
            locked: The same, locked for the brokers here.
            sealed: Folder with the sealed datasets.

        Raises:
            SealtrainError: Why the broker released no key, or what training refused; the run is in
                ``runs``.
        """
        self._deployment = self._document(locked)
        self._sealed = sealed.resolve()
        name = f"guest-{len(self._begun) + 1}"
        ticket = self._ticket(
            name, "evaluate" if recipe.document.phase == "evaluate" else "train",
            *self._brokers, "--data", self._sealed, "--base", recipe.path.resolve().parent,
            *(self._nodes(recipe.path) or self._helpers(recipe.path)),
        )  # fmt: skip
        run = Run(folder=self.out / name / "out")
        self._begun[run.folder] = self._prepare_start(name, ticket)
        self._say("training")
        self._run(*self._begun[run.folder])
        return run

    def _document(self, locked: LockedRecipe) -> Path:
        folder = self.out / "documents" / locked.compose_hash[:16]
        folder.mkdir(parents=True, exist_ok=True)
        locked.write(folder)
        return folder / self._deployment.name

    def _controllers(self) -> tuple[str, ...]:
        key = Identity.generate(_RUNNER)
        key.save_pair(self.out / _RUNNER)
        return ("--runner", f"{_RUNNER}={key.public.signing_key}")

    def resume(self, run: Run) -> Run:
        """Continue an interrupted run in its own simulated guest, from its last sealed checkpoint.

        Args:
            run: Begun here.

        Raises:
            UsageError: It was not begun here.
            SealtrainError: As ``train``.
        """
        words = self._begun.get(run.folder)
        if words is None:
            raise UsageError(
                "the run was not begun in this rehearsal",
                check="run",
                got=run.folder.name,
                hint="in a guest that stays: sealtrain resume FOLDER",
            )
        self._say("training on")
        self._run(*words)
        return run
