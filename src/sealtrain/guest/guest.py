"""A guest of a run, whatever its role: it runs what the lock says, and proves it to other guests.

1. admit: the measured deployment holds this lock, and the environment is the locked one.

All guests of a run measure one deployment document. A guest accepts another only with evidence
that meets the policy in the lock and shows its own compose hash.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO, TypeVar

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.secret import Random
from sealtrain.base.stages import Stage, unsaid
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.guest.admission import Admitted, admit
from sealtrain.guest.sandbox.border import Ways, enclose, telling
from sealtrain.guest.sandbox.events import Named, run_telling
from sealtrain.guest.sandbox.files import evidence_devices
from sealtrain.guest.sandbox.output import OutputTally
from sealtrain.recipe.collaboration import is_shared_out
from sealtrain.signing.target import Target
from sealtrain.training.silence import silence

if TYPE_CHECKING:
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.policy import AppraisalPolicy
    from sealtrain.attest.report_data import Binding
    from sealtrain.client.quorum import OnBrokerFailure, Quorum
    from sealtrain.guest.sandbox.landlock import KernelBorder
    from sealtrain.guest.settings import RunSettings
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import PhaseRecipe

Done = TypeVar("Done")


def _ask_none(_url: str, _error: SealtrainError) -> None:
    """Of a guest without keys: it asks no broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a guest is given besides settings and role; handed on whole.

    Attributes:
        on_failure: Called, until work begins, for each broker that failed while others suffice.
        on_stage: Told what the guest does until its work begins.
        alone: This process serves only the run: what it gives up, it gives up until it ends
            (``guest.admission``, check 4; ``sandbox.border``).
        clock: Source of the time.
        random: Source of ids, nonces and ephemeral keys.
    """

    on_failure: OnBrokerFailure = _ask_none
    on_stage: Stage = unsaid
    alone: bool = False
    clock: Clock = system_clock
    random: Random = os.urandom


class AttestedGuest:
    """See the module. Without a subclass it is a guest without keys: an accelerator, or a dealer.

    Attributes:
        settings: Where everything is.
        around: What else it was given.
        admitted: The lock, and the guest that measured it, once it is admitted.
        recipe: The recipe of the lock.
        tally: Counts dropped output and refused calls.
    """

    admitted: Admitted
    recipe: PhaseRecipe

    def __init__(
        self,
        settings: RunSettings,
        around: Surroundings,
        *,
        shared_out: bool | None = None,
    ) -> None:
        """Do nothing yet.

        Args:
            settings: Where everything is.
            around: What else it is given.
            shared_out: Whether this role belongs to recipes for several parties or for one guest;
                ``None`` where it belongs to both.
        """
        self.settings = settings
        self.around = around
        self._clock = around.clock
        self._shared_out = shared_out
        self.tally = OutputTally()
        self._measuring = threading.RLock()
        self._policy: AppraisalPolicy | None = None

    def admit(self) -> Self:
        """Step 1.

        Raises:
            Refused: A check of step 1 fails; its class says which.
            UsageError: The recipe is for other roles.
            Unreachable: The guest API did not answer.
        """
        silence()
        self.admitted = admit(self.settings, alone=self.around.alone)
        self.recipe = self.lock.recipe
        if self._shared_out is not None and self._shared_out != is_shared_out(self.recipe):
            raise _other_roles(self.recipe)
        return self

    @property
    def lock(self) -> Lock:
        """The lock that the guest measured."""
        return self.admitted.locked.lock

    @property
    def app_id(self) -> str:
        """Id of the deployment."""
        return self.target.app_id

    @property
    def compose_hash(self) -> str:
        """Hash of the deployment document."""
        return self.target.compose_hash

    @property
    def base(self) -> Path:
        """Folder that the recipe's paths start from: the copies of the files that the lock pins."""
        return self.admitted.base

    @property
    def target(self) -> Target:
        """The deployment that the owners approved."""
        return self.admitted.locked.target

    @property
    def simulated(self) -> bool:
        """Whether the guest's evidence proves nothing about hardware."""
        return self.settings.platform == "simulator"

    @property
    def policy(self) -> AppraisalPolicy:
        """The policy that the guests of other parties must meet.

        Raises:
            UsageError: The recipe names no such policy: it is for one guest.
        """
        if self._policy is None:
            self._policy = self.lock.appraisal
        if self._policy is None:
            raise UsageError(
                "the recipe names no policy for other guests",
                check="collaboration",
                hint="name a collaboration with a policy in the recipe and lock it again",
            )
        return self._policy

    @property
    def urls(self) -> tuple[str, ...]:
        """The services that this guest has to reach, besides other parties."""
        return self.admitted.guest.services

    def now(self) -> int:
        """Seconds since the epoch."""
        return self._clock()

    def collect(self, binding: Binding) -> Evidence:
        """Evidence of this guest for one connection; no event is measured meanwhile."""
        with self._measuring:
            return self.admitted.guest.evidence(binding)

    def report_failures(self, on_failure: OnBrokerFailure) -> None:
        """From now on, who hears of brokers that did not help. A guest without keys asks none."""

    def record_sandbox(self, held: KernelBorder) -> None:
        """Record how far the kernel enforces the sandbox; without a run log, record nothing."""

    def close(self) -> None:
        """Release what the guest holds; a guest without keys holds nothing."""

    def _brokers(self) -> Quorum:
        """The brokers of the settings, before the first request."""
        from sealtrain.client.broker_proof import Deployed
        from sealtrain.client.pin import load_pin
        from sealtrain.client.quorum import Quorum

        return Quorum(
            [load_pin(path) for path in self.settings.brokers],
            consortium_id=self.lock.consortium_id,
            deployed=Deployed(
                app_id=self.app_id,
                compose_hash=self.compose_hash,
                brokers=self.lock.brokers,
            ),
            clock=self._clock,
            on_failure=self.around.on_failure,
            random=self.around.random,
        )


def _other_roles(recipe: PhaseRecipe) -> UsageError:
    how = recipe.collaboration
    return UsageError(
        "the recipe is for several parties, each with its own data"
        if is_shared_out(recipe)
        else "the recipe is for one guest that trains on all data",
        check="collaboration",
        got="none" if how is None else how.kind,
        hint="start each role of such a recipe by its run ticket: sealtrain deploy ticket",
    )


def run_secluded(
    guest: AttestedGuest,
    work: Callable[[TextIO], Done],
    *,
    peers: Sequence[str] = (),
    sockets: Sequence[Path] = (),
    writable: Sequence[Path] = (),
) -> Done:
    """Do ``work`` in the sandbox: it prints nothing, and reaches and writes only what is named.

    Args:
        guest: Its brokers, stores and services stay reachable, its folder writable. The sandbox
            lasts until the process ends if it serves the guest alone.
        work: Called with the terminal, for progress.
        peers: Addresses of other parties, as ``tcp://host:port``.
        sockets: Further unix sockets that ``work`` may connect to.
        writable: Further folders that ``work`` may write in.

    Raises:
        SealtrainError: A typed event in place of any exception of ``work``, with as much detail as
            the recipe's release policy allows.
    """
    platform = guest.admitted.guest
    ways = Ways(
        urls=[*guest.urls, *peers],
        folders=[guest.settings.out, *platform.writable, *writable],
        sockets=[*platform.sockets, *sockets],
        devices=evidence_devices(),
    )
    with enclose(guest.tally, alone=guest.around.alone) as room, room.confine(ways):
        guest.report_failures(telling(room.terminal))
        guest.record_sandbox(room.lock(ways))
        return run_telling(
            lambda: work(room.terminal),
            guest.recipe.release_policy.logs,
            lambda: guest.tally.counts,
            named=Named.in_recipe(guest.recipe),
        )
