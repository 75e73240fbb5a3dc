"""The lead of a run that several parties train together: no data, no data key, no lease.

It makes the run id, keeps the run log, which its guest measures, and in the end writes the manifest
(``parties.joint``). Which guests it talks to, and what they do, is its kind's: ``proof`` and
``accepts`` are for its channels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from sealtrain.errors import AlreadyExists
from sealtrain.guest.guest import AttestedGuest, Surroundings
from sealtrain.guest.journal import Journal
from sealtrain.guest.recorder import Recorder
from sealtrain.keys.derive import joint_key
from sealtrain.manifest.limits import BORDER_CLOSED

if TYPE_CHECKING:
    from sealtrain.client.quorum import OnBrokerFailure, Quorum
    from sealtrain.consortium.members import Consortium
    from sealtrain.guest.sandbox.landlock import KernelBorder
    from sealtrain.guest.settings import RunSettings
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef


class LeadRun(AttestedGuest):
    """See the module.

    Attributes:
        run_id: Of the whole run.
        quorum: The brokers: asked for owners' decisions, and handed the manifest.
        consortium: That they serve.
    """

    quorum: Quorum
    consortium: Consortium

    def __init__(self, settings: RunSettings, run_id: str, around: Surroundings) -> None:
        """Do nothing yet; ``begin`` and ``again`` prepare it, too. Arguments as there."""
        super().__init__(settings, around, shared_out=True)
        self.run_id = run_id
        self._held: KernelBorder | None = None

    def prepare(self) -> Self:
        """Step 1 of ``guest.guest``, and have the brokers prove themselves.

        Raises:
            UsageError: The recipe is for one guest.
            Refused, Unreachable: As ``AttestedGuest.admit``, or no broker proved itself.
        """
        self.admit()
        self.quorum = self._brokers()
        try:
            self.consortium = self.quorum.meet()
        except BaseException:
            self.quorum.close()
            raise
        self._began = time.monotonic()
        self._recorder = Recorder(self.admitted.guest, self._measuring, self.run_id, self._clock)
        return self

    @classmethod
    def begin(cls, settings: RunSettings, around: Surroundings) -> LeadRun:
        """Begin a run in ``settings.out``, which must not hold one.

        Args:
            settings: Where everything is; ``data`` is not read.
            around: What else it is given.

        Raises:
            AlreadyExists: The folder holds something.
            SealtrainError: As ``prepare``; then nothing is left behind.
        """
        if settings.out.exists() and any(settings.out.iterdir()):
            raise AlreadyExists(f"{settings.out} is not empty", hint="choose another --out")
        lead = cls(settings, around.random(16).hex(), around).prepare()
        settings.out.mkdir(exist_ok=True)
        lead.begin_log()
        return lead

    def begin_log(self) -> None:
        """Begin the run log."""
        fields = {"platform": self.settings.platform, "phase": self.recipe.phase}
        kind = getattr(self.recipe.collaboration, "kind", "")
        self.record("run.started", fields | {"collaboration": kind})
        if self._held is not None:
            self.record(BORDER_CLOSED, self._held.to_dict())

    @classmethod
    def again(cls, settings: RunSettings, run_id: str, around: Surroundings) -> LeadRun:
        """Go on with a run that another lead began; it did not end. ``take_up`` follows.

        Args:
            settings: Where everything is.
            around: What else it is given.

        Raises:
            SealtrainError: As ``prepare``.
        """
        return cls(settings, run_id, around).prepare()

    def take_up(self, journal: Mapping[str, Any]) -> None:
        """Go on with what another lead of this run noted, once its state could be opened.

        Args:
            journal: What ``journal.to_dict()`` gave, out of a sealed state.

        Raises:
            RunLogBroken: It is of another run, or altered.
        """
        self._recorder.journal = Journal.from_dict(self.run_id, journal)
        self.settings.out.mkdir(exist_ok=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Brokers and services of collateral."""
        return (*self.quorum.urls, *super().urls)

    @property
    def journal(self) -> Journal:
        """What the manifest is made of."""
        return self._recorder.journal

    def record(self, event: str, fields: dict[str, Any]) -> None:
        """Append an event to the run log, and measure its head where the guest can."""
        self._recorder.record(event, fields)

    def record_sandbox(self, held: KernelBorder) -> None:
        """As ``AttestedGuest``: into the run log, from which the manifest's limits follow."""
        self._held = held
        if self.journal.log.entries:  # a lead that takes over has the log of the one before later
            self.record(BORDER_CLOSED, held.to_dict())

    def keep_metrics(self, step: int, values: dict[str, float | None]) -> None:
        """Keep metrics for the manifest, as the release policy lets them out (``MetricGate``)."""
        self.journal.history.append({"step": step, "values": values})

    def record_resume(self, counter: int, step: int, digest: str) -> None:
        """Note that the run goes on from a sealed state.

        Args:
            counter: Of the state, from 1.
            step: Optimizer steps done in it.
            digest: SHA-256 of the sealed state, hex.
        """
        self.record("run.resumed", self._recorder.record_resume(counter, step, digest))
        if self._held is not None:
            self.record(BORDER_CLOSED, self._held.to_dict())

    def anchor_checkpoint(self, ref: CheckpointRef, keep: Callable[[Journal, float], None]) -> None:
        """Note a sealed checkpoint.

        Args:
            keep: Seals the journal that belongs to it; given the seconds of work so far, too.
        """
        with self._measuring:
            self.record(
                "checkpoint.sealed",
                {"counter": ref.counter, "step": ref.step, "digest": ref.digest},
            )
            keep(self.journal, self.wall())

    def joint_key(self, purpose: str, shares: Mapping[str, bytes]) -> DataKey:
        """A key derived from the shares of some parties; the lead cannot derive it alone.

        Args:
            purpose: Lower-case words with hyphens, as given to ``PartyRun.share``.
            shares: 32 bytes by party, each out of that party's channel.

        Raises:
            UsageError: No party, or one of another form.
        """
        return joint_key(
            shares, compose_hash=self.compose_hash, run_id=self.run_id, purpose=purpose
        )

    def wall(self) -> float:
        """Seconds of work so far, earlier leads of this run included."""
        return self.journal.wall_s + time.monotonic() - self._began

    def report_failures(self, on_failure: OnBrokerFailure) -> None:
        """As ``AttestedGuest``."""
        self.quorum.on_failure = on_failure

    def close(self) -> None:
        """Close connections to brokers."""
        self.quorum.close()
