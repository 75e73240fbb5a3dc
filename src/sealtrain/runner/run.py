"""One training run inside a guest, from evidence to manifest.

Steps in this order and no other:

1. to 4. as ``runner.guestrun``: admit, find, attest and obtain, open;
5. train, sealing checkpoints; every checkpoint renews the lease and anchors its counter;
6. seal the model to its recipients;
7. build and sign the manifest over a final quote, and hand it to the broker's ledger.
"""

from __future__ import annotations

from pathlib import Path

from sealtrain.base.clock import Clock, system_clock
from sealtrain.runner.closing import Outcome, close_run
from sealtrain.runner.egress import confined_to
from sealtrain.runner.guestrun import GuestRun
from sealtrain.runner.hush import Tally, hushed
from sealtrain.runner.settings import RunSettings
from sealtrain.runner.telling import told

__all__ = ["Outcome", "resume", "start"]


def start(settings: RunSettings, *, progress: bool, clock: Clock = system_clock) -> Outcome:
    """Run a locked recipe from the beginning.

    Args:
        settings: Where everything is.
        progress: Show a bar on stderr.
        clock: Source of the time.

    Raises:
        SealtrainError: Whatever step fails; no plaintext is left anywhere.
    """
    return _train(GuestRun.begin(settings, clock=clock), resuming=False, progress=progress)


def resume(out: Path, *, progress: bool, clock: Clock = system_clock) -> Outcome:
    """Continue an interrupted run from its newest sealed checkpoint. Raises as ``start``."""
    return _train(GuestRun.again(out, clock=clock), resuming=True, progress=progress)


def _train(run: GuestRun, *, resuming: bool, progress: bool) -> Outcome:
    from sealtrain.training.run import train

    tally = Tally()
    policy = run.recipe.release_policy
    script = None
    if run.recipe.script is not None:
        script = run.settings.base / run.recipe.script
    with (
        confined_to(run.broker.url, noted=tally.note),
        hushed(tally) as terminal,
        told(policy.logs, lambda: tally.counts, script=script),
    ):
        checkpoint = run.newest_checkpoint() if resuming else None
        if script is not None:
            from sealtrain.runner.script import run_script

            return run_script(run, script, checkpoint)
        trained = train(
            run.recipe,
            run_id=run.run_id,
            base_dir=run.settings.base,
            sources=run.sources,
            store=run.store,
            metrics=run.released_metrics,
            on_checkpoint=run.checkpointed,
            resume=checkpoint,
            progress=terminal if progress else None,
            secret=run.secret,
        )
        return close_run(run, trained)
