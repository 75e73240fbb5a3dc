"""Train a recipe on opened sources, whatever its phase."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sealtrain.base.collector import pause_collection
from sealtrain.base.stages import Stage, say_stages, unsaid
from sealtrain.recipe.epochs import with_steps
from sealtrain.training.basefiles import base_files_of, base_folder, baseless_files, with_base_files
from sealtrain.training.model_files import PlannedFiles, Trained, plan_files
from sealtrain.training.telemetry.bar import progress_bar
from sealtrain.training.telemetry.metric_gate import MetricGate
from sealtrain.training.telemetry.monitor import Monitor

if TYPE_CHECKING:
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.lease import LeaseKeeping
    from sealtrain.training.context import PhaseResult, TrainingContext
    from sealtrain.training.data.sources import BlobStore, SealedFolder, Source
    from sealtrain.training.distributed.shared_model import SharedModel
    from sealtrain.training.models.merge_by_module import MergeByModule
    from sealtrain.training.models.standins import StandIns
    from sealtrain.training.weight_file import WeightSource

__all__ = ["Checkpoints", "Inputs", "Phase", "Reporting", "Trained", "load_phase", "train"]

Phase = Callable[["TrainingContext[PhaseRecipe]"], "PhaseResult"]
"""Trains and evaluates."""
Deliver = Callable[[str, int, Iterator[memoryview]], None]
"""Takes a file by name, size and content, of which each block is gone with the next."""


def _ignore(*_: object) -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What training reads.

    Attributes:
        base_dir: Folder that the recipe's paths start from.
        sources: The recipe's datasets, opened.
        model: The sealed model that the recipe names, opened.
        secret: What this run alone has, the same after a resume; noise and canaries come from it.
    """

    base_dir: Path
    sources: Sequence[Source]
    model: SealedFolder | None = None
    secret: DataKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Where checkpoints go, and where training continues.

    Attributes:
        store: Seals checkpoints; none are kept without.
        on_checkpoint: Called with every sealed checkpoint, from another thread; may raise to stop.
        resume: Checkpoint to continue from.
        lease_keeper: Says when to stop for the sake of the lease on the keys.
        approved_ranks: Numbers of ranks whose checkpoints may be continued from besides this one.
    """

    store: BlobStore | None = None
    on_checkpoint: Callable[[CheckpointRef], None] = _ignore
    resume: CheckpointRef | None = None
    lease_keeper: LeaseKeeping | None = None
    approved_ranks: Collection[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """The receivers of a training's progress.

    Attributes:
        on_metrics: Called with the metrics that the release policy lets out, by step.
        progress: Terminal to show a bar on.
        monitor: Watches, opened by the caller.
        gate: Takes the measurements in place of a gate over ``on_metrics``, bar and monitor.
        on_step: Called after every step with its latest logged values.
    """

    on_metrics: Callable[[int, dict[str, float | None]], None] = _ignore
    progress: TextIO | None = None
    monitor: Monitor | None = None
    gate: MetricGate | None = None
    on_step: Callable[[int, dict[str, float]], None] = _ignore


def load_phase(phase: str) -> Any:
    """Load a phase's module, which loads only its own libraries."""
    name = f"sealtrain.training.phases.{phase}"
    if name in sys.modules:
        return sys.modules[name]
    with pause_collection():
        return import_module(name)


def train(
    recipe: PhaseRecipe,
    *,
    run_id: str,
    inputs: Inputs,
    checkpoints: Checkpoints | None = None,
    reporting: Reporting | None = None,
    standins: StandIns | None = None,
    phase: Phase | None = None,
    deliver: Deliver | None = None,
) -> Trained:
    """Train from the beginning or from a checkpoint, as one of the ranks if there are several.

    Args:
        recipe: The recipe to train.
        run_id: 32 hex digits, bound into checkpoints.
        inputs: Data, model and secret.
        checkpoints: Where they go; none are kept without.
        reporting: Callbacks and terminal.
        standins: Take the place of the model's layers while it trains and is measured.
        phase: Trains in place of the recipe's phase, and merges by itself what is to be merged.
        deliver: Takes the file of weights, which is not held; the result then lacks it. Called in
            rank 0 alone, while all ranks read what they share out.

    Raises:
        SchemaMismatch, RecordInvalid, ModelInvalid: The data or model do not fit the recipe.
        CheckpointRefused: The checkpoint to continue from does not fit.
        TrainingDiverged: A loss, gradient norm or weight is not a finite number.
        ExtraMissing: The recipe's backend is not installed, or a model cannot be compiled here.
    """
    checkpoints, reporting = checkpoints or Checkpoints(), reporting or Reporting()
    trained_on = (source.dataset for source in inputs.sources if source.role == "train")
    recipe = with_steps(recipe, (sum(dataset.batch_rows) for dataset in trained_on))
    from sealtrain.training.backends.ready import make_ready
    from sealtrain.training.compiling import prepare_compiling
    from sealtrain.training.distributed.machinery import machinery_of

    make_ready(recipe.backend.name)  # before the libraries that it changes
    with _stages(reporting.progress)("loading the training libraries"):
        of_recipe = load_phase(recipe.phase)
        prepare_compiling(recipe)
    from sealtrain.training.checkpoints.kernels import deterministic
    from sealtrain.training.checkpoints.run_context import RunContext
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.finite import refuse_not_finite
    from sealtrain.training.privacy.audit import audit_figures, canary_source
    from sealtrain.training.privacy.noise import NoiseSource
    from sealtrain.training.privacy.record import privacy_record
    from sealtrain.training.telemetry.facts import accelerators, environment

    arguments = recipe.trainer
    watch = Monitor() if reporting.monitor is None else reporting.monitor
    with (
        tempfile.TemporaryDirectory(prefix="sealtrain-") as scratch,
        progress_bar(reporting.progress, arguments.max_steps) as bar,
    ):
        gate = reporting.gate
        if gate is None:
            released = reporting.on_metrics, bar.take_metrics, watch.take_metrics
            gate = MetricGate(recipe.release_policy, *released)
            gate.besides = watch.measure
        context = RunContext(
            run_id=run_id,
            store=checkpoints.store,
            gate=gate,
            on_checkpoint=checkpoints.on_checkpoint,
            resume=checkpoints.resume,
            arguments=arguments,
            on_step=(bar.step, watch.step, reporting.on_step),
            machinery=machinery_of(recipe),
            lease_keeper=checkpoints.lease_keeper,
            approved_ranks=checkpoints.approved_ranks,
        )
        work = TrainingContext(
            recipe=recipe,
            base_dir=inputs.base_dir,
            scratch=Path(scratch),
            train_sources=[source for source in inputs.sources if source.role == "train"],
            test_sources=[source for source in inputs.sources if source.role == "test"],
            context=context,
            noise=None if inputs.secret is None else NoiseSource(inputs.secret),
            model=inputs.model,
            standins=standins,
        )
        canaries = canary_source(recipe, work.noise)
        work.train_sources += [] if canaries is None else [canaries]
        with closing(context), deterministic(), warnings.catch_warnings():
            # Deprecations between libraries do not help the engineer, and a warning's text may
            # quote a value.
            warnings.simplefilter("ignore")
            result: PhaseResult = (phase or of_recipe.train)(work)
            built, tokenizer, counts = result.model, result.tokenizer, result.counts
            measured = result.metrics
            if built is not None:
                measured = {**measured, **audit_figures(work, built, tokenizer)}
            refuse_not_finite(counts.steps, measured)
            if built is not None and standins is not None:
                standins.take_out(built)
            merge = None
            merges = phase is None and recipe.peft is not None and recipe.peft.merge
            if built is not None and merges and work.shared is None:
                built = _merge(recipe, inputs.base_dir, built)
            elif built is not None and merges:
                merge = _merge_while_read(recipe, inputs.base_dir, built)
                built = merge.merged
    made = None if built is None else plan_files(built, tokenizer, merge)
    files = work.beside
    if made is not None:
        files = files | {made.weights.name: b""} | made.beside
    base = base_files_of(recipe, inputs.base_dir, inputs.model)
    if built is not None and base is not None:
        files = with_base_files(files, base, recipe, tokenizer)
    elif built is not None:
        files = baseless_files(files, recipe)
    if made is not None:
        _read_weights(made, work.shared, merge, files, deliver)
    elif work.shared is not None:
        work.shared.follow()
    return Trained(
        files=files,
        steps=counts.steps,
        samples_seen=counts.rows,
        tokens=counts.tokens,
        metrics=gate.filter({**counts.last, **measured}),
        environment=environment(),
        accelerators=accelerators(),
        withheld=dict(gate.withheld),
        tokens_sha256=counts.tokens_sha256,
        privacy=privacy_record(work, counts.steps),
    )


def _read_weights(
    made: PlannedFiles,
    shared: SharedModel | None,
    merge: MergeByModule | None,
    files: dict[str, bytes],
    deliver: Deliver | None,
) -> None:
    """Read the trained tensors one after the other, into ``files`` or to where they go."""
    weights = made.weights
    if shared is None:
        source: WeightSource = made.held
    elif merge is None:
        source = shared.lead(weights.order)
    else:
        source = merge.read_with(shared.lead, weights.order)
    blocks = weights.blocks(source)
    if deliver is None:
        files[weights.name] = b"".join(blocks)
    else:
        del files[weights.name]
        deliver(weights.name, weights.size, blocks)


def _stages(terminal: TextIO | None) -> Stage:
    """Stages on a terminal that only names of them reach, so nothing of a record."""
    if terminal is None:
        return unsaid

    def say(line: str) -> None:
        terminal.write(f"{line}\n")
        terminal.flush()

    return say_stages(say)


def _merge(recipe: PhaseRecipe, base_dir: Path, model: Any) -> Any:
    from sealtrain.training.models.merging import merge_adapter

    return merge_adapter(model, base_folder(recipe, base_dir), recipe.model.dtype)


def _merge_while_read(recipe: PhaseRecipe, base_dir: Path, outline: Any) -> MergeByModule:
    from sealtrain.training.models.merging import merge_while_read

    return merge_while_read(outline, base_folder(recipe, base_dir), recipe.model.dtype)
