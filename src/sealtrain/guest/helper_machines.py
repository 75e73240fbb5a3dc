"""Other machines that a run of one guest uses: named in its settings, as its recipe asks for them.

The kind of collaboration says which (``recipe.kinds``). It makes a ``HelperDesk`` for the keeper,
which reaches them, and for the workload the ``StandIns`` that talk to them (``guest.phase``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol

from sealtrain.base.distributions import load
from sealtrain.base.hostport import host_and_port
from sealtrain.errors import UsageError
from sealtrain.guest.workload.channel import Misused, Reply
from sealtrain.recipe.kinds import KINDS

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.guest.settings import RunSettings
    from sealtrain.guest.workload.messages import WorkloadQuestion
    from sealtrain.recipe.kinds import Collaboration

_HELPERS: Final = ("accelerator", "dealer")
"""Fields of ``RunSettings`` that name a machine."""


class HelperDesk(Protocol):
    """The keeper's part in what helpers do for its workload (spec/workload-channel.md §7)."""

    @property
    def waits(self) -> Collection[str]:
        """Codes of errors of the helpers that a runner waits for and a workload may report."""

    def answer(self, question: WorkloadQuestion) -> Reply:
        """Answer what the workload asks of a helper, or says of one.

        Raises:
            Misused: It may not ask that, or not now.
            SealtrainError: The helper is gone, or not the one to trust.
        """

    def require_told(self) -> None:
        """See that the workload said what helpers did so far.

        Raises:
            Misused: It did not.
        """

    def log(self) -> None:
        """Write what the workload said last into the run log: at a checkpoint and at the end."""


class _NoHelpers:
    """The ``HelperDesk`` of a recipe without any."""

    waits: Collection[str] = ()

    def answer(self, _question: WorkloadQuestion) -> Reply:
        raise Misused("the recipe has no helper")

    def require_told(self) -> None: ...

    def log(self) -> None: ...


def expect_helpers(settings: RunSettings) -> None:
    """See that a run is told of the machines its recipe needs, before it asks for keys.

    Raises:
        UsageError: One is missing, or named for a recipe that has no use for it.
        LockInvalid: The lock is malformed.
    """
    how = settings.recipe_lock.recipe.collaboration
    for name in _HELPERS:
        if how is not None and name in how.helpers:
            place_of(settings, name, how)
            continue
        given = getattr(settings, name)
        if given is not None:
            raise UsageError(
                f"the recipe has no use for a {name}",
                got=given,
                hint="collaboration in the recipe says where products and pads are made",
            )


def place_of(settings: RunSettings, name: str, how: Collaboration) -> tuple[str, int]:
    """Host and port of a helper that a collaboration asks for.

    Args:
        name: Of ``how.helpers``.
        how: The recipe's collaboration.

    Raises:
        UsageError: It is not named, or by no address.
    """
    given = getattr(settings, name)
    if given is None:
        raise UsageError(
            f"the recipe uses {how.kind}, but the run ticket names no {name}",
            expected=f"--peer {name}=HOST:PORT",
            hint="start one, and name it in the ticket: sealtrain deploy ticket",
        )
    return host_and_port(given)


def addresses(settings: RunSettings) -> tuple[str, ...]:
    """URLs of the helpers, for the borders of the process."""
    named = [getattr(settings, name) for name in _HELPERS]
    return tuple(f"tcp://{place}" for place in named if place is not None)


def helper_desk(run: GuestRun) -> HelperDesk:
    """That of a run, for its keeper."""
    how = run.recipe.collaboration
    place = None if how is None else KINDS[how.kind].helper_desk
    return _NoHelpers() if place is None else load(place)(run)
