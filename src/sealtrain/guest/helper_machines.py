"""Other machines that a run of one guest uses: named in its settings, as its recipe asks for them.

The kind of collaboration says which (``recipe.kinds``), and makes the ``StandIns`` that talk to
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from sealtrain.base.hostport import host_and_port
from sealtrain.errors import UsageError
from sealtrain.recipe.kinds import KINDS, load
from sealtrain.recipe.lock import load_lock
from sealtrain.training.models.standins import StandIns

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.guest.settings import RunSettings
    from sealtrain.recipe.kinds import Collaboration
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef

__all__ = ["HelpedStandIns", "addresses", "expect_helpers", "place_of", "stand_ins"]

_HELPERS: Final = ("accelerator", "dealer")
"""Fields of ``RunSettings`` that name a machine."""


class HelpedStandIns(StandIns, Protocol):
    """The ``StandIns`` of a run, which note in its run log what was made elsewhere."""

    def checkpointed(self, ref: CheckpointRef) -> None:
        """As ``GuestRun.checkpointed``."""


def expect_helpers(settings: RunSettings) -> None:
    """See that a run is told of the machines its recipe needs, before it asks for keys.

    Raises:
        UsageError: One is missing, or named for a recipe that has no use for it.
        LockInvalid: The lock is malformed.
    """
    how = load_lock(settings.lock).recipe.collaboration
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
        settings: Of the run.
        name: Of ``how.helpers``.
        how: The recipe's collaboration.

    Raises:
        UsageError: It is not named, or by no address.
    """
    given = getattr(settings, name)
    if given is None:
        raise UsageError(
            f"the recipe uses {how.kind}, but --{name} is missing",
            expected=f"--{name} HOST:PORT",
            hint=f"start one: sealtrain split {name}",
        )
    return host_and_port(given)


def addresses(settings: RunSettings) -> tuple[str, ...]:
    """URLs of the helpers, for the borders of the process."""
    named = [getattr(settings, name) for name in _HELPERS]
    return tuple(f"tcp://{place}" for place in named if place is not None)


@contextmanager
def stand_ins(run: GuestRun) -> Iterator[HelpedStandIns | None]:
    """Those of a run, connected as long as the block; ``None`` where its recipe has no helper."""
    how = run.recipe.collaboration
    place = None if how is None else KINDS[how.kind].stand_ins
    if place is None:
        yield None
        return
    made: Any = load(place)
    with made(run) as standing_in:
        yield standing_in
