"""The ranks of other guests, as the kind of collaboration brings them to a workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sealtrain.base.distributions import load
from sealtrain.recipe.kinds import KINDS
from sealtrain.training.distributed.ranks import Company

if TYPE_CHECKING:
    from sealtrain.errors import SealtrainError
    from sealtrain.guest.workload.channel import AskingEnd
    from sealtrain.recipe.recipe import PhaseRecipe


class WorkloadCompany(Company, Protocol):
    """``Company`` as a workload has it: its keeper made the connections and hands them over."""

    def explain_failure(self, error: BaseException) -> SealtrainError | None:
        """The end of the connections, if that is why training failed in this process.

        Args:
            error: What training failed with.
        """


def company_of(
    recipe: PhaseRecipe,
    *,
    first: int,
    ranks: int,
    world: int,
    line: Callable[[int], AskingEnd],
    prepare: Callable[[], None],
) -> WorkloadCompany | None:
    """The ranks of all guests, in a workload; ``None`` where this guest has them all.

    Args:
        recipe: As these ranks train it.
        first: Global number of this guest's first rank.
        ranks: Number of this guest's ranks.
        world: Number of all ranks, in all guests.
        line: The channel to the keeper of the rank with this number within the guest.
        prepare: Called in each rank once the ranks of this guest are connected, before it asks its
            keeper for connections to others.
    """
    how = recipe.collaboration
    place = None if how is None else KINDS[how.kind].company
    if place is None or world == ranks:
        return None
    company: WorkloadCompany = load(place)(
        first=first, ranks=ranks, world=world, line=line, prepare=prepare
    )
    return company
