"""A guest of a run, whatever its role: it is what the lock says, and can prove it to others.

1. admit: the measured deployment holds this lock, and the environment is the locked one.

All guests of a run measure one deployment document. A guest accepts another only with evidence
that meets the policy in the lock and shows its own compose hash.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.secret import Random
from sealtrain.consortium.decisions import Target
from sealtrain.errors import UsageError
from sealtrain.guest.admission import Admitted, admit
from sealtrain.guest.sandbox.border import Ways, enclosed, telling
from sealtrain.guest.sandbox.events import told
from sealtrain.guest.sandbox.output import Tally
from sealtrain.recipe.collaboration import is_shared_out
from sealtrain.training.silence import silence

if TYPE_CHECKING:
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.policy import AppraisalPolicy
    from sealtrain.attest.report_data import Binding
    from sealtrain.client.quorum import Quorum, Told
    from sealtrain.guest.sandbox.landlock import Held
    from sealtrain.guest.settings import RunSettings
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import Recipe
    from sealtrain_collab.channel.proofs import AcceptGuest, ProveGuest

__all__ = ["AttestedGuest", "secluded"]

Done = TypeVar("Done")


class AttestedGuest:
    """See the module. By itself it is a guest without keys: an accelerator, or a dealer.

    Attributes:
        settings: Where everything is.
        admitted: The lock, and the guest that measured it.
        recipe: Of the lock.
        tally: Counts what was not said or was refused.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        shared_out: bool | None = None,
        alone: bool = False,
        clock: Clock = system_clock,
        random: Random = os.urandom,
    ) -> None:
        """Step 1.

        Args:
            settings: Where everything is.
            shared_out: Whether this role belongs to recipes for several parties or for one guest;
                ``None`` where it belongs to both.
            alone: This process is for the run only (``guest.admission``, check 4).
            clock: Source of the time.
            random: Source of nonces and ephemeral keys.

        Raises:
            Refused: A check of step 1 fails; its class says which.
            UsageError: The recipe is for other roles.
            Unreachable: The guest API did not answer.
        """
        silence()
        self.settings = settings
        self._clock = clock
        self._random = random
        self.admitted: Admitted = admit(settings, alone=alone)
        self.recipe = self.lock.recipe
        if shared_out is not None and shared_out != is_shared_out(self.recipe):
            raise _other_roles(self.recipe)
        self.tally = Tally()
        self._measuring = threading.RLock()
        self._policy: AppraisalPolicy | None = None

    @property
    def lock(self) -> Lock:
        """What was measured."""
        return self.admitted.lock

    @property
    def app_id(self) -> str:
        """Of the deployment."""
        return self.admitted.app_id

    @property
    def compose_hash(self) -> str:
        """Of the deployment document."""
        return self.admitted.compose_hash

    @property
    def base(self) -> Path:
        """Folder that the recipe's paths start from: copies of what the lock pins."""
        return self.admitted.base

    @property
    def target(self) -> Target:
        """What the owners approved."""
        return Target(
            app_id=self.app_id, compose_hash=self.compose_hash, recipe_hash=self.lock.recipe_hash
        )

    @property
    def simulated(self) -> bool:
        """The guest proves nothing about hardware."""
        return self.settings.platform == "simulator"

    @property
    def policy(self) -> AppraisalPolicy:
        """What the guests of other parties must meet.

        Raises:
            UsageError: The recipe names none: it is for one guest.
        """
        if self._policy is None:
            self._policy = self.lock.appraisal
        if self._policy is None:
            raise UsageError(
                "the recipe names no policy for other guests",
                check="collaboration",
                hint="a recipe for several parties has a collaboration with a policy",
            )
        return self._policy

    @property
    def proof(self) -> ProveGuest:
        """How this guest proves itself on a channel."""
        from sealtrain_collab.channel.proofs import ProveGuest

        return ProveGuest(self.collect)

    @property
    def accepts(self) -> AcceptGuest:
        """Whom this guest talks to: guests of its own deployment that meet the policy."""
        from sealtrain_collab.channel.proofs import AcceptGuest

        return AcceptGuest(policy=self.policy, compose_hash=self.compose_hash, clock=self._clock)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where this guest has to reach, beside other parties."""
        return self.admitted.guest.services

    def now(self) -> int:
        """Seconds since the epoch."""
        return self._clock()

    def collect(self, binding: Binding) -> Evidence:
        """Evidence of this guest for one conversation; no event is measured meanwhile."""
        with self._measuring:
            return self.admitted.guest.evidence(binding)

    def tell(self, told: Told) -> None:
        """From now on, who hears of brokers that did not help. A guest without keys asks none."""

    def closed(self, held: Held) -> None:
        """Note how far the kernel holds the closed border. Without a run log, nothing is noted."""

    def close(self) -> None:
        """Let go of what the guest holds: nothing, without keys."""

    def _brokers(self, told: Told) -> Quorum:
        """The brokers of the settings, asked by nobody yet."""
        from sealtrain.client.pin import load_pin
        from sealtrain.client.quorum import Quorum

        return Quorum(
            [load_pin(path) for path in self.settings.brokers],
            consortium_id=self.lock.consortium_id,
            app_id=self.app_id,
            compose_hash=self.compose_hash,
            brokers=self.lock.brokers,
            clock=self._clock,
            told=told,
            random=self._random,
        )


def _other_roles(recipe: Recipe) -> UsageError:
    how = recipe.collaboration
    return UsageError(
        "the recipe is for several parties, each with its own data"
        if is_shared_out(recipe)
        else "the recipe is for one guest that trains on all data",
        check="collaboration",
        got="none" if how is None else how.kind,
        hint="recipes of several parties run by sealtrain travel, federate or split",
    )


def secluded(
    guest: AttestedGuest,
    work: Callable[[TextIO], Done],
    *,
    peers: Sequence[str] = (),
    sockets: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    alone: bool = False,
) -> Done:
    """Do ``work`` with nothing to be said, reached or written but what is named.

    Args:
        guest: Its brokers, stores and services stay reachable, its folder writable.
        work: Given the terminal, for progress.
        peers: Addresses of other parties, as ``tcp://host:port``.
        sockets: Further unix sockets that are connected to.
        writable: Further folders that are written in.
        alone: This process is for the work only: give up for good what it gives up.

    Raises:
        SealtrainError: In place of whatever ``work`` raised: a typed event, as far as the recipe's
            release policy goes.
    """
    platform = guest.admitted.guest
    ways = Ways(
        urls=[*guest.urls, *peers],
        folders=[guest.settings.out, *platform.writable, *writable],
        sockets=[*platform.sockets, *sockets],
    )
    with enclosed(guest.tally, alone=alone) as room, room.closed(ways):
        guest.tell(telling(room.terminal))
        guest.closed(room.lock(ways))
        return told(
            lambda: work(room.terminal),
            guest.recipe.release_policy.logs,
            lambda: guest.tally.counts,
        )
