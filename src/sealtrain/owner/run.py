"""A run, known by the folder that it leaves: where it stands, what it made, whether it verifies.

The folder is the operator's: everything here but ``verify`` says what its files claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sealtrain.errors import UsageError
from sealtrain.guest.inventory import checkpoints_in
from sealtrain.guest.settings import read_held_run
from sealtrain.owner.auditing import report, verify_manifest
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, RUN_MANIFEST

if TYPE_CHECKING:
    from sealtrain.guest.inventory import FoundCheckpoint
    from sealtrain.manifest.trust import Trust
    from sealtrain.manifest.verify import Report, VerifiedManifest

RunState = Literal["not-begun", "interrupted", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's folder.

    Attributes:
        folder: With checkpoints, sealed model and manifest.
    """

    folder: Path

    @property
    def state(self) -> RunState:
        """How far the run is, as its files claim.

        ``not-begun`` before keys were released, ``interrupted`` where it runs or can go on,
        ``finished`` with a manifest.
        """
        if self.manifest.is_file():
            return "finished"
        return "not-begun" if read_held_run(self.folder) is None else "interrupted"

    @property
    def run_id(self) -> str:
        """Id of the run, 32 hex digits, as the folder claims it.

        Raises:
            UsageError: The folder holds no run.
        """
        found = read_held_run(self.folder)
        if found is None:
            raise UsageError(
                f"{self.folder} holds no run",
                check="run",
                hint="name the --out folder of the training run",
            )
        return found

    @property
    def manifest(self) -> Path:
        """``manifest.json``, which is there once the run is finished."""
        return self.folder / RUN_MANIFEST

    @property
    def model(self) -> Path:
        """Folder of the sealed model, which its recipients open."""
        return self.folder / MODEL_FOLDER

    def checkpoints(self, *, whole: bool = False) -> list[FoundCheckpoint]:
        """The sealed checkpoints, newest first, as their files claim them.

        Args:
            whole: Hash every byte, which detects a checkpoint that is damaged inside.

        Raises:
            UsageError: The folder holds no run.
        """
        return checkpoints_in(self.folder, whole=whole)

    def verify(self, trust: Path | Trust, *, now: int | None = None) -> VerifiedManifest:
        """The contents of the run's manifest, once every check holds. As ``verify_manifest``."""
        return verify_manifest(self.manifest, trust, now=now)

    def report(self, trust: Path | Trust, out: Path, *, now: int | None = None) -> Report:
        """Write an HTML page about the run. As ``sealtrain.report``."""
        return report(self.manifest, trust, out, now=now)
