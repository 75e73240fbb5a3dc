"""What the keeper of a run under pads does for its workload (spec/workload-channel.md §7).

The keeper reaches accelerator and dealer, proves this guest to the dealer and verifies the dealer,
and passes each connection to the workload once. It keeps neither the connection nor the session's
keys. The workload multiplies under pads and says what was made; the keeper writes that into the run
log, as far as it fits the recipe and what was said before.

It loads no library that multiplies.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sealtrain.base.encoding import to_base64
from sealtrain.guest.helper_machines import place_of
from sealtrain.guest.workload.channel import Misused, Reply
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    HelperName,
    ProductsBegun,
    ProductsMade,
    WorkloadQuestion,
)
from sealtrain.manifest.checks.collaborations.padfacts import LAYER_NAMES, PadsBegun, PadsSpent
from sealtrain.recipe.collaborations.pads import product_settings
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.pads.connections import (
    SECONDS,
    conversation,
    reach_accelerator,
    reach_dealer,
)

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun


class KeptPads:
    """As ``HelperDesk``, of one process of a run.

    Args:
        run: Its recipe is of kind ``pads``.
        seconds: To connect, and between bytes of a handshake.
    """

    def __init__(self, run: GuestRun, *, seconds: float = SECONDS) -> None:
        self._run, self._how, self._seconds = run, product_settings(run.recipe), seconds
        self._passed: set[HelperName] = set()
        self._dealer: dict[str, Any] | None = None
        self._begun = False
        self._spent: PadsSpent | None = None
        self._logged: PadsSpent | None = None

    @property
    def waits(self) -> frozenset[str]:
        """As ``HelperDesk.waits``: of machines that the workload speaks with."""
        return frozenset(f"{name}-unreachable" for name in self._passed)

    def answer(self, question: WorkloadQuestion) -> Reply:
        """As ``HelperDesk.answer``."""
        match question:
            case ConnectHelper():
                return self._connect(question.name)
            case ProductsBegun():
                return self._begin(question)
            case ProductsMade():
                return self._note(question)
        raise AssertionError(f"no answer for {type(question).__name__}")

    def require_told(self) -> None:
        """As ``HelperDesk.require_told``."""
        if self._spent is None:
            raise Misused("products are counted before a checkpoint, and before the manifest")

    def log(self) -> None:
        """As ``HelperDesk.log``: a log is public, so not each word of a workload is in it."""
        spent = self._spent
        if spent is not None and spent != self._logged:
            self._run.record("pads.spent", spent.to_dict())
            self._logged = spent

    def _connect(self, name: HelperName) -> Reply:
        run, how = self._run, self._run.recipe.collaboration
        if how is None or name not in how.helpers or name in self._passed:
            raise Misused("no machine that this process may still reach")
        self._passed.add(name)
        run.lease.require()
        place = place_of(run.settings, name, how)
        if name == "accelerator":
            connection = reach_accelerator(place, seconds=self._seconds)
            return Reply({}, connection.detach())
        connection, keys = reach_dealer(
            place,
            conversation(
                run.run_id,
                proof=ProveGuest.of(run),
                accept=AcceptGuest.of(run),
                random=os.urandom,
            ),
            seconds=self._seconds,
        )
        self._dealer = {"simulated": keys.peer.simulated}
        secrets = {
            "initiator": keys.initiator,
            "responder": keys.responder,
            "export": keys.export,
        }
        fields = {of: to_base64(secret.reveal()) for of, secret in secrets.items()}
        return Reply(fields, connection.detach())

    def _begin(self, question: ProductsBegun) -> Reply:
        if self._begun or self._passed != set(self._how.helpers):
            raise Misused("pads begin once, with all their machines")
        if not LAYER_NAMES.issuperset(question.layers):
            raise Misused("a layer of another name")
        begun = PadsBegun.model_validate(
            {
                "pads": self._how.pads,
                "checks": self._how.checks,
                "skip": self._how.skip,
                "layers": question.layers,
                "products": question.products,
                "dealer": self._dealer,
            }
        )
        if begun.products > sum(begun.layers.values()):
            raise Misused("more products than layers")
        self._begun = True
        self._run.record("pads.begun", begun.to_dict())
        return Reply()

    def _note(self, question: ProductsMade) -> Reply:
        spent = PadsSpent(
            products=question.products,
            rows=question.rows,
            bytes_out=question.bytes_out,
            bytes_in=question.bytes_in,
        )
        if not self._begun or (self._spent is not None and spent.falls_below(self._spent)):
            raise Misused("no count that follows the one before")
        self._spent = spent
        return Reply()
