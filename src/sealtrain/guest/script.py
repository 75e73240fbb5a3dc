"""The engineer's own training script inside a run.

The recipe names the script and the lock holds its text. ``sealtrain train`` attests and obtains the
keys as for any recipe, then runs the script in this process; ``unwrap_dataset``, ``SealedRun`` (or
``SealedLoop``) and ``sign_manifest`` act on that run. Outside a run they refuse, because the
process holds no keys.

A script gets the columns and the datasets that the recipe names, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.guest.closing import Outcome, close_run
from sealtrain.guest.scriptmodules import run_as_main
from sealtrain.training.checkpoints import callback as sealed_callback
from sealtrain.training.checkpoints import loop as sealed_loop
from sealtrain.training.data.hugging import (
    Positioned,
    as_iterable_dataset,
    as_map_style_dataset,
)
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.telemetry.facts import accelerators, environment
from sealtrain.training.telemetry.released import MetricGate
from sealtrain.training.trained import Trained, model_files

if TYPE_CHECKING:
    import datasets

    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.training.checkpoints.callback import Evaluation
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.data.sources import Source
    from sealtrain.training.telemetry.monitor import Monitor

__all__ = ["SealedLoop", "SealedRun", "run_script", "sign_manifest", "unwrap_dataset"]


class _ScriptRun:
    """The run a script acts on."""

    def __init__(self, run: GuestRun, resume: CheckpointRef | None, monitor: Monitor) -> None:
        self.run = run
        self.gate = MetricGate(run.recipe.release_policy, run.released_metrics, monitor.released)
        self.gate.besides = monitor.measured
        self.context = sealed_callback.RunContext(
            run_id=run.run_id,
            store=run.store,
            gate=self.gate,
            on_checkpoint=run.checkpointed,
            resume=resume,
            arguments=run.recipe.trainer,
            on_step=(monitor.step,),
            keeper=run.keeper,
        )
        self.callback: SealedRun | None = None
        self.outcome: Outcome | None = None


_current: _ScriptRun | None = None


def run_script(run: GuestRun, resume: CheckpointRef | None, monitor: Monitor) -> Outcome:
    """Run the lock's script on a run that holds its keys.

    Args:
        run: Admitted and granted.
        resume: Checkpoint ``SealedRun`` continues from.
        monitor: Watches the training.

    Raises:
        UsageError: The script ended without ``sign_manifest``.
        Exception: As raised inside the script; ``sandbox.events`` keeps its text.
    """
    global _current
    _current = _ScriptRun(run, resume, monitor)
    try:
        run_as_main(run.lock.scripts, run.recipe.scripts, run.base)
        outcome = _current.outcome
    finally:
        _current.context.close()
        _current = None
    if outcome is None:
        raise UsageError(
            "the training script ended without a manifest",
            check="script",
            hint="call sealtrain.sign_manifest(trainer) at the end of the script",
        )
    return outcome


def unwrap_dataset(
    path: str | Path | None = None, *, map_style: bool = False
) -> datasets.IterableDataset | datasets.Dataset:
    """Records of a sealed dataset, decrypted in memory as they are read.

    They have the columns that the recipe names, under the names it gives them.

    Args:
        path: The sealed dataset's folder; all training datasets of the recipe, mixed by their
            weights, when ``None``.
        map_style: Give a ``datasets.Dataset`` held in memory instead of a shuffled endless stream.

    Raises:
        UsageError: Not inside a run, no dataset of this run, or ``map_style`` for a dataset of
            which the recipe gives only so many records an epoch (``max_records``).
        SchemaMismatch: A column of a dataset is missing, or has another type.
    """
    script = _running()
    sources = _sources_at(script.run, path)
    if map_style:
        if any(source.max_records is not None for source in sources):
            raise UsageError(
                "map_style is refused: a dataset with max_records is a stream, a part each epoch",
                check="datasets",
                hint="leave map_style out, or max_records",
            )
        return as_map_style_dataset(sources, script.run.recipe.columns.names)
    return as_iterable_dataset(Positioned(_stream(script.run, sources)))


class SealedRun(sealed_callback.SealedRun):
    """Trainer callback of this run: sealed checkpoints, exact resume, run log, released metrics."""

    def __init__(self, evaluation: Evaluation | None = None) -> None:
        """Attach to the run.

        Args:
            evaluation: Measures a model, metrics by name; called every ``trainer.eval_steps`` of
                the recipe. Early stopping and the choice of the best weights compare its metrics.

        Raises:
            UsageError: Not inside a run.
        """
        script = _running()
        script.context.evaluation = evaluation
        super().__init__(script.context)
        script.callback = self


class SealedLoop(sealed_loop.SealedLoop):
    """A PyTorch loop of this run: batches, sealed checkpoints, exact resume, released metrics."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        processing_class: Any = None,
        path: str | Path | None = None,
    ) -> None:
        """Attach to the run, and continue from its checkpoint if it has one.

        Args:
            model: The ``torch.nn.Module`` to train.
            optimizer: Optimizer of its parameters.
            scheduler: Scheduler of the optimizer, or ``None``.
            processing_class: Tokenizer to seal with the model.
            path: As in ``unwrap_dataset``.

        Raises:
            UsageError: Not inside a run, or no dataset of this run.
            CheckpointRefused: The run's checkpoint is of another model.
        """
        script = _running()
        super().__init__(
            script.context,
            _stream(script.run, _sources_at(script.run, path)),
            script.run.recipe.trainer,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            processing_class=processing_class,
        )


def sign_manifest(trainer: Any, **metrics: float) -> Path:
    """Seal the trained model to the recipe's recipients and sign the manifest.

    Args:
        trainer: The trainer that ran with ``SealedRun``, or the ``SealedLoop``.
        metrics: Final measurements; the manifest holds those that the release policy names.

    Returns:
        Path of ``manifest.json``; the sealed model lies beside it.

    Raises:
        UsageError: Not inside a run, or no ``SealedRun`` took part.
    """
    script = _running()
    ran = trainer if isinstance(trainer, SealedLoop) else script.callback
    if ran is None or (ran is not trainer and ran not in trainer.callback_handler.callbacks):
        raise UsageError(
            "this trainer ran without SealedRun",
            check="script",
            hint="pass callbacks=[sealtrain.SealedRun()] to the trainer",
        )
    model = trainer.model
    if ran is not trainer:
        model = trainer.accelerator.unwrap_model(model)
    trained = Trained(
        files=model_files(model, getattr(trainer, "processing_class", None)),
        steps=ran.steps,
        samples_seen=ran.rows,
        tokens=ran.tokens,
        metrics=script.gate.filtered({**ran.last, **metrics}),
        environment=environment(),
        accelerators=accelerators(),
        withheld=dict(script.gate.withheld),
    )
    script.outcome = close_run(script.run, trained)
    return script.outcome.manifest


def _running() -> _ScriptRun:
    if _current is None:
        raise UsageError(
            "no run holds keys in this process",
            check="script",
            hint="name this file in scripts of the recipe and start it with: sealtrain train",
        )
    return _current


def _stream(run: GuestRun, sources: Sequence[Source]) -> RecordStream:
    """The records of datasets, shuffled, with the recipe's columns and no others."""
    trainer = run.recipe.trainer
    seed = trainer.seed if trainer.data_seed is None else trainer.data_seed
    return RecordStream(sources, run.recipe.columns.names, seed=seed)


def _sources_at(run: GuestRun, path: str | Path | None) -> list[Source]:
    if path is None:
        return [source for source in run.sources if source.role == "train"]
    wanted = Path(path).resolve()
    for found, source in zip(run.found, run.sources, strict=True):
        here = isinstance(found.folder, Path) and found.folder.resolve() == wanted
        if here or str(path) in (found.folder.name, str(found.folder)):
            return [source]
    raise UsageError(
        "no such dataset in this run",
        check="datasets",
        got=str(path),
        expected=", ".join(found.folder.name for found in run.found),
    )
