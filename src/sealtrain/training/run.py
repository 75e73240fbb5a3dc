"""Train a recipe on opened sources, whatever its phase."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sealtrain.training.telemetry.bar import progress_bar
from sealtrain.training.telemetry.monitor import Monitor
from sealtrain.training.telemetry.released import MetricGate
from sealtrain.training.trained import Trained, model_files

if TYPE_CHECKING:
    from sealtrain.recipe.schema import Recipe
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.training.checkpoints.callback import SealedRun
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.lease import LeaseKeeping
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.sources import BlobStore, SealedFolder, Source
    from sealtrain.training.models.standins import StandIns

__all__ = ["Phase", "Trained", "train"]

Phase = Callable[["TrainingContext"], tuple[Any, Any, dict[str, float], "SealedRun"]]
"""Trains and evaluates: model, tokenizer, final metrics, and the callback that ran."""


def train(
    recipe: Recipe,
    *,
    run_id: str,
    base_dir: Path,
    sources: Sequence[Source],
    store: BlobStore | None,
    metrics: Callable[[int, dict[str, float | None]], None],
    on_checkpoint: Callable[[CheckpointRef], None],
    resume: CheckpointRef | None,
    progress: TextIO | None,
    secret: DataKey | None = None,
    monitor: Monitor | None = None,
    model: SealedFolder | None = None,
    keeper: LeaseKeeping | None = None,
    standins: StandIns | None = None,
    phase: Phase | None = None,
) -> Trained:
    """Train from the beginning or from a checkpoint, as one of the ranks if there are several.

    Args:
        recipe: The recipe to train.
        run_id: 32 hex digits, bound into checkpoints.
        base_dir: Folder that the recipe's paths start from.
        sources: The recipe's datasets, opened.
        store: Seals checkpoints; without it the training keeps none.
        metrics: Called with the metrics that the release policy allows, by step.
        on_checkpoint: Called with every sealed checkpoint, in another thread; may raise to stop.
        resume: Checkpoint to continue from.
        progress: Terminal to show a bar on.
        secret: Secret of this run, the same after a resume; seeds noise and canaries.
        monitor: Watches the training; the caller has entered it.
        model: The sealed model that the recipe names, opened.
        keeper: Decides when to stop because the lease on the keys ends.
        standins: Replace the model's layers while it trains and is measured.
        phase: Trains in place of the recipe's phase, and merges adapters by itself.

    Raises:
        SchemaMismatch, RecordInvalid, ModelInvalid: The data or model do not fit the recipe.
        CheckpointRefused: ``resume`` does not fit.
        ExtraMissing: The recipe's backend is not installed.
    """
    from sealtrain.training.backends.ready import make_ready
    from sealtrain.training.distributed.chosen import machinery_of

    make_ready(recipe.backend.name)  # before the libraries that it changes
    from sealtrain.training.checkpoints.callback import RunContext
    from sealtrain.training.checkpoints.randomness import deterministic
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.privacy.audit import audit_figures, canary_source
    from sealtrain.training.privacy.noise import NoiseSource
    from sealtrain.training.privacy.record import privacy_record
    from sealtrain.training.telemetry.facts import accelerators, environment

    # A phase loads only its own libraries.
    of_recipe = import_module(f"sealtrain.training.phases.{recipe.phase}")
    arguments = recipe.trainer
    watch = Monitor() if monitor is None else monitor
    with (
        tempfile.TemporaryDirectory(prefix="sealtrain-") as scratch,
        progress_bar(progress, arguments.max_steps) as bar,
    ):
        gate = MetricGate(recipe.release_policy, metrics, bar.released, watch.released)
        gate.besides = watch.measured
        context = RunContext(
            run_id=run_id,
            store=store,
            gate=gate,
            on_checkpoint=on_checkpoint,
            resume=resume,
            arguments=arguments,
            on_step=(bar.step, watch.step),
            machinery=machinery_of(recipe),
            keeper=keeper,
        )
        work = TrainingContext(
            recipe=recipe,
            base_dir=base_dir,
            scratch=Path(scratch),
            train_sources=[one for one in sources if one.role == "train"],
            test_sources=[one for one in sources if one.role == "test"],
            context=context,
            noise=None if secret is None else NoiseSource(secret),
            model=model,
            standins=standins,
        )
        canaries = canary_source(recipe, work.noise)
        work.train_sources += [] if canaries is None else [canaries]
        with closing(context), deterministic(), warnings.catch_warnings():
            # Deprecations between libraries do not help the engineer, and a warning's text may
            # quote a value.
            warnings.simplefilter("ignore")
            built, tokenizer, measured, callback = (phase or of_recipe.train)(work)
            if built is not None:
                measured = {**measured, **audit_figures(work, built, tokenizer)}
            if built is not None and standins is not None:
                standins.take_out(built)
            merges = phase is None and recipe.peft is not None and recipe.peft.merge
            if built is not None and merges:
                built = _merged(recipe, base_dir, built)
    return Trained(
        files=work.beside | ({} if built is None else model_files(built, tokenizer)),
        steps=callback.steps,
        samples_seen=callback.rows,
        tokens=callback.tokens,
        metrics=gate.filtered({**callback.last, **measured}),
        environment=environment(),
        accelerators=accelerators(),
        withheld=dict(gate.withheld),
        tokens_sha256=None if callback.mark is None else callback.mark.get("tokens_sha256"),
        privacy=privacy_record(work, callback.steps),
    )


def _merged(recipe: Recipe, base_dir: Path, model: Any) -> Any:
    from sealtrain.training.models.merging import merged

    named = recipe.model
    return merged(model, base_dir / named.path if named.kind == "folder" else None, named.dtype)
