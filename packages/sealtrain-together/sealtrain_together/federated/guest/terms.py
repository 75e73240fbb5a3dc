"""What both roles read out of the lock, and the words under which they know each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.federated.messages import PURPOSE

if TYPE_CHECKING:
    from sealtrain.guest.guest import AttestedGuest


def terms_of(guest: AttestedGuest) -> Federated:
    """The recipe's ``collaboration``.

    Raises:
        UsageError: It is of another kind.
    """
    return of_kind(guest.recipe, Federated)


def conversation_of(guest: AttestedGuest, run_id: str) -> ChannelTerms:
    """How a guest of the run proves itself to another, and whom it accepts."""
    return ChannelTerms(
        purpose=PURPOSE,
        context={"run_id": run_id},
        proof=ProveGuest.of(guest),
        accept=AcceptGuest.of(guest),
        random=os.urandom,
    )
