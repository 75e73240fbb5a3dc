"""The other guests that train a run with this one, as its kind of collaboration brings them.

The kind makes them (``recipe.kinds``); a run of one guest has ``NoFellows``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from sealtrain.base.distributions import load
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.recipe.kinds import KINDS

if TYPE_CHECKING:
    import socket

    from sealtrain.base.secret import Secret
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.guest.settings import RunSettings
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef


class NextFrame(Protocol):
    """Where one direction of a connection between ranks stands: a key, and a frame's number."""

    @property
    def key(self) -> Secret:
        """Of the direction."""

    @property
    def number(self) -> int:
        """Of its next frame under this key."""


class RankLink(Protocol):
    """A proven connection to a rank of another guest, between two frames."""

    @property
    def sock(self) -> socket.socket:
        """The connection; the keeper detaches its socket as it hands it over."""

    @property
    def sends(self) -> NextFrame:
        """The direction out."""

    @property
    def receives(self) -> NextFrame:
        """The direction in."""


class HandedLinks(Protocol):
    """Connections of this guest's ranks, which its keeper made and hands over.

    Attributes:
        waits: Codes of errors of the other guests that a runner waits for and a workload may raise.
    """

    @property
    def waits(self) -> Collection[str]:
        """As the class says."""

    def link(self, rank: int, peer: int) -> RankLink | None:
        """A connection; ``None`` where there is none, or it was handed over.

        Args:
            rank: Number of a rank within this guest.
            peer: Number of a rank among all.
        """


class Fellows(HandedLinks, Protocol):
    """See the module.

    Attributes:
        urls: Addresses of the others, which the sandbox lets this guest reach.
    """

    urls: Sequence[str]

    def connect(self) -> None:
        """Connect this guest's ranks to those of the others, before the sandbox closes."""

    def begin(self, checkpoint: CheckpointRef | None) -> None:
        """Note in the run log who is there, and let the others train from a checkpoint."""

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Listen to the others while the block trains."""

    def finish(self) -> None:
        """Wait until every other guest is done, with its lease live.

        Raises:
            SealtrainError: One is not.
        """

    def why(self, error: SealtrainError) -> SealtrainError:
        """The cause of an error that training ended with, where another guest has it."""


class NoFellows:
    """``Fellows`` of a run of one guest."""

    urls: Sequence[str] = ()
    waits: Collection[str] = ()

    def link(self, rank: int, peer: int) -> RankLink | None:
        """This guest has all ranks."""

    def connect(self) -> None:
        """No other guest to reach."""

    def begin(self, checkpoint: CheckpointRef | None) -> None:
        """No other guest to tell."""

    @contextmanager
    def listen(self) -> Iterator[None]:
        """No other guest to listen to."""
        yield

    def finish(self) -> None:
        """No other guest to wait for."""

    def why(self, error: SealtrainError) -> SealtrainError:
        """The error is this guest's."""
        return error


def expect_listening(settings: RunSettings) -> None:
    """See that a guest is told to listen exactly where its recipe has others that dial it.

    Raises:
        UsageError: It is not, or is without need.
        LockInvalid: The lock is malformed.
    """
    how = settings.recipe_lock.recipe.collaboration
    wanted = how is not None and KINDS[how.kind].fellows is not None
    if wanted and settings.listen is None:
        raise UsageError(
            "the recipe has several nodes, but --listen is missing",
            expected="--listen HOST:PORT",
            hint="name an address of this machine that the other nodes reach",
        )
    if settings.listen is not None and not wanted:
        raise UsageError(
            "the recipe has no nodes that join this guest",
            got=settings.listen,
            hint="leave --listen out, or lock a recipe with collaboration: {kind: nodes, …}",
        )


@contextmanager
def fellows_of(run: GuestRun) -> Iterator[Fellows]:
    """Bring the others of a run together with this guest, for as long as the block lasts.

    Raises:
        SealtrainError: They do not come, or are not who they should be.
    """
    how = run.recipe.collaboration
    place = None if how is None else KINDS[how.kind].fellows
    if place is None:
        yield NoFellows()
        return
    made: Any = load(place)
    with made.meet(run) as fellows:
        yield fellows
