"""One training run inside a guest, from evidence to manifest.

Steps in this order and no other:

1. to 4. as ``GuestRun.prepare``: admit, find, attest and obtain, open; where the recipe has several
   nodes, meet the others (``guest.fellows``);
5. train in a workload with all its ranks, which was forked before the brokers were asked
   (``guest.workload``). The guest seals checkpoints, the brokers anchor their counters, and
   ``leasekeeper`` renews the lease;
6. seal the model to its recipients;
7. build and sign the manifest over a final quote, and hand it to the broker's ledger.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from sealtrain.errors import SealtrainError
from sealtrain.guest.guestrun import GuestRun
from sealtrain.guest.helper_machines import addresses, expect_helpers
from sealtrain.guest.other_guests import Fellows, expect_listening, fellows_of
from sealtrain.guest.run_end import Outcome
from sealtrain.guest.sandbox.border import Room, Ways, enclose, saying, telling
from sealtrain.guest.sandbox.events import Named, run_telling
from sealtrain.guest.sandbox.files import evidence_devices
from sealtrain.guest.sandbox.rehearsal import shows_insecurely
from sealtrain.guest.settings import RunSettings
from sealtrain.guest.signals import softly
from sealtrain.guest.validating import validate_data
from sealtrain.recipe.backends import UNDIVIDED, Division, processes_of

if TYPE_CHECKING:
    from sealtrain.guest.guest import Surroundings
    from sealtrain.guest.guestrun import Stored
    from sealtrain.training.telemetry.monitor import Monitor

__all__ = ["Outcome", "RunSteps", "resume", "start"]


def start(
    settings: RunSettings,
    around: Surroundings,
    *,
    progress: bool,
    metrics_port: int | None = None,
    stored: Stored | None = None,
) -> Outcome:
    """Run a locked recipe from the beginning.

    Args:
        settings: Where everything is.
        around: What else the guest is given.
        progress: Show a bar on stderr.
        metrics_port: Loopback port of the page for Prometheus; no page when ``None``.
        stored: Asks whether a checkpoint is in the run's output store (``guest.supervision``);
            ``None`` where there is no store.

    Raises:
        SealtrainError: A step failed; no plaintext is left anywhere.
    """
    expect_helpers(settings)
    expect_listening(settings)
    run = GuestRun.begin(settings, around, stored=stored)
    return RunSteps(run, resuming=False, progress=progress).outcome(metrics_port)


def resume(
    settings: RunSettings,
    run_id: str,
    around: Surroundings,
    *,
    progress: bool,
    metrics_port: int | None = None,
    stored: Stored | None = None,
    division: Division = UNDIVIDED,
) -> Outcome:
    """Continue an interrupted run from its newest sealed checkpoint. As ``start``.

    With ``division`` on another number of ranks or nodes, which ``backend.resume_ranks`` or
    ``collaboration.resume_nodes`` of the recipe names; any other raises ``RecipeInvalid``.
    """
    expect_helpers(settings)
    expect_listening(settings)
    run = GuestRun.again(settings, run_id, around, stored=stored, division=division)
    return RunSteps(run, resuming=True, progress=progress).outcome(metrics_port)


class RunSteps:
    """What a run does while its process holds keys: meet, close the border, train, close.

    ``GuestRun.prepare`` came before: admit, keys, open.
    """

    def __init__(self, run: GuestRun, *, resuming: bool, progress: bool) -> None:
        """Do nothing yet.

        Args:
            run: It holds its keys.
            resuming: From its newest checkpoint.
            progress: Show a bar on the terminal.
        """
        self._run = run
        self._resuming = resuming
        self._progress = progress

    def outcome(self, metrics_port: int | None) -> Outcome:
        """All of it; workload and opener are gone afterwards.

        Raises:
            SealtrainError: What ended the run; the brokers were told its code.
        """
        run = self._run
        try:
            with fellows_of(run) as fellows:
                return self._inside(fellows, metrics_port)
        except SealtrainError as error:
            ended = run.lease_keeper.explain_end(error)
            run.quorum.report_failure(ended.code, run.grant)
            raise ended from None
        finally:
            if run.workload is not None:
                run.workload.end()
            if run.opener is not None:
                run.opener.end()

    def _inside(self, fellows: Fellows, metrics_port: int | None) -> Outcome:
        """Train behind the border, and tell an error as far as the release policy allows."""
        run = self._run
        guest = run.admitted.guest
        shown = shows_insecurely(run.settings.platform)
        ways = Ways(
            urls=[*run.urls, *_webhook(run), *addresses(run.settings), *fellows.urls],
            folders=[run.settings.out, *guest.writable],
            sockets=guest.sockets,
            signals=True,
            devices=evidence_devices(),
        )
        with (
            softly(run.lease_keeper.end_soon) if run.around.alone else nullcontext(),
            enclose(
                run.tally,
                alone=run.around.alone,
                accelerated=False,
                insecure_shown=shown,
            ) as room,
            _monitor(run, metrics_port) as monitor,
            room.confine(ways),
        ):
            run.quorum.on_failure = telling(room.terminal)
            try:
                return run_telling(
                    lambda: self._train(fellows, monitor, room, ways),
                    run.recipe.release_policy.logs,
                    lambda: run.tally.counts,
                    scripts={str(run.base / path): path for path in run.recipe.scripts},
                    insecure_shown=shown,
                    named=Named.in_recipe(run.recipe),
                )
            except SealtrainError as error:
                raise fellows.why(error) from None

    def _train(self, fellows: Fellows, monitor: Monitor, room: Room, ways: Ways) -> Outcome:
        """Keep the workload, which was forked before there were keys; its last word closes."""
        from sealtrain.guest.keeper import Keeper
        from sealtrain.guest.side_processes import hand_keys_over
        from sealtrain.training.telemetry.bar import progress_bar

        run = self._run
        if run.workload is None or run.opener is None:
            raise AssertionError("there is no workload to keep")
        fellows.connect()
        held = room.lock(ways)
        hand_keys_over(run, run.opener)
        monitor.watch()
        checkpoint = run.newest_checkpoint() if self._resuming else None
        # A large checkpoint may take the others longer than a lease lasts.
        with run.lease_keeper:
            fellows.begin(checkpoint)
            with fellows.listen():
                if checkpoint is None:
                    validate_data(run)
                shown = self._progress and not run.recipe.scripts
                with progress_bar(
                    room.terminal if shown else None, run.recipe.trainer.max_steps
                ) as bar:
                    keeper = Keeper(
                        run,
                        run.workload,
                        monitor,
                        held=held,
                        resume=checkpoint,
                        fellows=fellows,
                        bar=bar,
                        say=saying(room.terminal),
                    )
                    return keeper.outcome()


def _webhook(run: GuestRun) -> tuple[str, ...]:
    monitoring = run.recipe.monitoring
    return () if monitoring is None or monitoring.webhook is None else (monitoring.webhook,)


def _monitor(run: GuestRun, port: int | None) -> Monitor:
    from sealtrain.training.telemetry.monitor import Monitor

    trainer = run.recipe.trainer
    return Monitor(
        run.recipe.monitoring,
        folder=run.settings.out,
        rows_per_step=trainer.per_device_train_batch_size
        * trainer.gradient_accumulation_steps
        * processes_of(run.recipe),
        port=port,
        lease_left=run.lease.seconds_left,
    )
