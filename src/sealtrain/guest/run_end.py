"""The end of a run: seal the model, take the final quote, sign the manifest, enter the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import atomic_write
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.base.models import load_model
from sealtrain.base.processes import usage_of_all
from sealtrain.errors import LimitExceeded
from sealtrain.guest.outputs import FileContent, NextRecipe, NextRun, hand_on_model, seal_model
from sealtrain.manifest.build import build_manifest
from sealtrain.manifest.condense import (
    condense_history,
    in_order_of_ledgers,
    select_releases,
)
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.limits import limits_for
from sealtrain.manifest.outputs import dataset_of, files_of, subjects_of
from sealtrain.manifest.predicate import SIMULATED_MARKER, Predicate
from sealtrain.sealing.trainedmodel import MODEL_FOLDER, RUN_MANIFEST
from sealtrain.signing.dsse import Ed25519Signer
from sealtrain.training.model_files import with_named_base

if TYPE_CHECKING:
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.report_data import Binding
    from sealtrain.client.quorum import Quorum
    from sealtrain.consortium.members import Consortium
    from sealtrain.guest.admission import Admitted
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.guest.journal import Journal
    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.guest.settings import RunSettings
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.sealing.trainedmodel import TrainedModel
    from sealtrain.signing.target import Target
    from sealtrain.training.run import Trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        run_id: 32 hex digits.
        simulated: The guest's evidence proves nothing about hardware.
        steps: Optimizer steps.
        metrics: Final metrics that the release policy allows.
        history: Released metrics by step, ``[{"step": int, name: number}]``.
        model: Folder of sealed model files.
        manifest: The signed manifest.
    """

    run_id: str
    simulated: bool
    steps: int
    metrics: dict[str, float | None]
    history: list[dict[str, Any]]
    model: Path
    manifest: Path

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "run_id": self.run_id,
            "simulated": self.simulated,
            "steps": self.steps,
            "metrics": self.metrics,
            "history": self.history,
            "model": str(self.model),
            "manifest": str(self.manifest),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedInputs:
    """The data and keys of a run as its manifest states them, whichever guest held them.

    Attributes:
        datasets: Manifests of the datasets (DSSE envelopes).
        releases: Receipts with their proofs, in order of time.
        collaboration: Field ``collaboration`` of the predicate, ``None`` for one guest by itself.
        series: Field ``series`` of the predicate; empty where the recipe names none.
    """

    datasets: list[dict[str, Any]]
    releases: list[dict[str, Any]]
    collaboration: dict[str, Any] | None
    series: list[dict[str, Any]] = field(default_factory=list)


class LoggedRun(Protocol):
    """What a manifest is written of: a run of one guest (``GuestRun``), or the lead of several."""

    @property
    def settings(self) -> RunSettings:
        """Where everything is."""

    @property
    def admitted(self) -> Admitted:
        """The lock, and the guest that measured it."""

    @property
    def recipe(self) -> PhaseRecipe:
        """Of the lock."""

    @property
    def tally(self) -> OutputTally:
        """Counts of what was not said or was refused."""

    @property
    def run_id(self) -> str:
        """32 hex digits."""

    @property
    def simulated(self) -> bool:
        """The guest proves nothing about hardware."""

    @property
    def target(self) -> Target:
        """What the owners approved."""

    @property
    def quorum(self) -> Quorum:
        """The brokers."""

    @property
    def consortium(self) -> Consortium:
        """That they serve."""

    @property
    def journal(self) -> Journal:
        """Run log and metrics."""

    def record(self, event: str, fields: dict[str, Any]) -> None:
        """Append an event to the run log."""

    def collect(self, binding: Binding) -> Evidence:
        """Evidence of the guest."""

    def now(self) -> int:
        """Seconds since the epoch."""

    def wall(self) -> float:
        """Seconds of work so far."""


def close_run(run: GuestRun, trained: Trained) -> Outcome:
    """Steps 6 and 7 of a run (``guest.run``); its caller closes it then.

    Args:
        run: The run, which still holds its keys.
        trained: Model files in memory, and the counts of training.

    Returns:
        The paths of model and manifest, and the final metrics.

    Raises:
        SealtrainError: The newest checkpoint is not anchored, or the lease has ended.
    """
    run.lease_keeper.settle()
    files = trained.files | _event_file(run)

    def state_inputs() -> StatedInputs:
        run.lease.require()  # a manifest that ends after the last lease would be refused
        how = run.recipe.collaboration
        return StatedInputs(
            datasets=[dataset.envelope for dataset in run.sealed_datasets],
            releases=select_releases(in_order_of_ledgers(run.journal.releases)),
            collaboration=None if how is None else {"kind": how.kind, "parties": []},
            series=run.series.to_list(),
        )

    manifest = write_outputs(run, trained, files, state_inputs, run.next_recipe, run.next_run)
    run.quorum.submit_manifest(manifest, run.quorum.closings(run.grant))
    return outcome_of(run, trained)


def write_outputs(
    run: LoggedRun,
    trained: Trained,
    files: Mapping[str, bytes],
    held: Callable[[], StatedInputs],
    next_recipe: NextRecipe | None = None,
    next_run: NextRun | None = None,
) -> bytes:
    """Seal the model, write the manifest over a final quote into the run's folder.

    Args:
        run: The run whose log the manifest carries.
        trained: The counts of training.
        files: Name → content of the files to seal, besides those that were delivered.
        held: Called once the outputs are sealed.
        next_recipe: Where the model is handed on to; ``None`` where it is sealed to recipients.
        next_run: Where the recipe's next run begins with the model.

    Returns:
        The manifest's bytes.

    Raises:
        LimitExceeded: It is longer than a verifier reads.
    """
    out = run.settings.out
    named = with_named_base(files, _base_name(run.admitted.locked.lock))
    contents: dict[str, FileContent] = {**named, **trained.delivered}
    if run.recipe.release_policy.logs == "structured":
        run.record("output.withheld", dict(run.tally.counts))
    run.record("training.finished", {"steps": trained.steps, "samples": trained.samples_seen})
    run_id, owner_id = run.run_id, run.consortium.consortium_id
    if next_recipe is None:
        recipients = run.recipe.release_policy.model.recipients
        owners = [run.consortium.owner(name) for name in recipients]
        model = seal_model(
            contents, out, run_id=run_id, owner_id=owner_id, recipients=owners, next_run=next_run
        )
    else:
        model = hand_on_model(contents, out, run_id=run_id, owner_id=owner_id, to=next_recipe)
    subjects = subjects_of(model)
    run.record("outputs.sealed", {subject.name: subject.sha256 for subject in subjects})
    signer = Ed25519Signer(Ed25519PrivateKey.generate())
    document = _predicate(run, trained, model, signer, held())
    facts = load_model(Predicate, document, ClaimContradicted, "run manifest")
    predicate = facts.model_copy(update={"limits": limits_for(facts)})
    manifest = build_manifest(
        subjects=subjects, predicate=predicate, guest_signer=signer, quote=run.collect
    )
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise LimitExceeded(
            "the manifest of this run is longer than a verifier reads",
            check="manifest",
            got=f"{len(manifest)} bytes",
            expected=f"at most {MAX_MANIFEST_BYTES}",
            hint="checkpoint less often, in the next run",
        )
    atomic_write(out / RUN_MANIFEST, manifest, overwrite=True)
    return manifest


def _base_name(lock: Lock) -> str:
    """The recipe's base model as an opened adapter names it: never by a path of the guest."""
    model, sealed = lock.recipe.model, lock.recipe.sealed_model
    if sealed is not None:
        return f"{sealed.owner}/{sealed.name}"
    name = PurePosixPath(model.path).name if model.kind == "folder" else "config"
    return f"{name}@sha256:{lock.model.sha256}"


def outcome_of(run: LoggedRun, trained: Trained) -> Outcome:
    """The outcome of a finished run, read from its folder."""
    out = run.settings.out
    return Outcome(
        run_id=run.run_id,
        simulated=run.simulated,
        steps=trained.steps,
        metrics=trained.metrics,
        history=[{"step": point["step"], **point["values"]} for point in run.journal.history],
        model=out / MODEL_FOLDER,
        manifest=out / RUN_MANIFEST,
    )


def _event_file(run: GuestRun) -> dict[str, bytes]:
    monitoring = run.recipe.monitoring
    if monitoring is None or not monitoring.tensorboard:
        return {}
    from sealtrain.training.telemetry.eventfile import event_file

    return dict([event_file(run.journal.history, from_rfc3339(run.journal.started_at))])


def _predicate(
    run: LoggedRun,
    trained: Trained,
    model: TrainedModel,
    signer: Ed25519Signer,
    held: StatedInputs,
) -> dict[str, Any]:
    """The predicate as JSON, without its limits; ``manifest.predicate`` validates it."""
    locked = run.admitted.locked
    cpu_seconds, peak_bytes = usage_of_all()
    stated: dict[str, Any] = {"series": held.series} if held.series else {}
    if held.collaboration is not None:
        stated["collaboration"] = held.collaboration
    if run.settings.continues is not None:
        stated["continues"] = run.settings.continues.to_dict()
    return stated | {
        "version": 2,
        "simulated": run.simulated,
        "marker": SIMULATED_MARKER if run.simulated else None,
        "signer": {"public_key": to_base64(signer.public)},
        "consortium": run.consortium.to_dict(),
        "recipe": {
            "recipe_hash": locked.recipe_hash,
            "lock": parse_json(locked.lock_bytes),
        },
        "deployment": {
            "platform": run.settings.platform,
            "tier": run.admitted.tier,
            "app_id": locked.app_id,
            "compose_hash": locked.compose_hash,
        },
        "datasets": held.datasets,
        "approvals": run.quorum.decisions(run.target, run.consortium),
        "releases": held.releases,
        "run": {
            "run_id": run.run_id,
            "started_at": run.journal.started_at,
            "finished_at": to_rfc3339(run.now()),
            "steps": trained.steps,
            "tokens": trained.tokens,
            "tokens_sha256": trained.tokens_sha256,
            "resumes": run.journal.resumes,
            "history": condense_history(run.journal.history),
            "metrics": trained.metrics,
            "environment": {name: str(value) for name, value in trained.environment.items()},
        },
        "run_log": {"head": run.journal.log.head, "entries": run.journal.log.entries},
        "outputs": {
            "recipients": list(run.recipe.release_policy.model.recipients),
            "files": files_of(model),
        }
        | dataset_of(model),
        "compute": {
            "wall_s": round(run.wall(), 3),
            "cpu_s": round(cpu_seconds, 3),
            "processors": os.cpu_count(),
            "accelerators": list(trained.accelerators),
            "peak_memory_bytes": peak_bytes,
        },
        "privacy": trained.privacy,
        "limits": [],
    }
