"""Step 2, enough owners agree: which signatures a broker counts before it releases a key."""

from __future__ import annotations

from typing import Final

from sealtrain.keys.identity import Identity
from sealtrain_console.walk.prepared_run import OWNERS, READ_FROM
from sealtrain_console.walk.stage import ServedBroker, Stage
from sealtrain_console.walk.switch import Attempt, Switch

_FIRST, _SECOND, _THIRD = OWNERS
_DAY_S: Final = 24 * 3600


def _quorum(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk(approved_by=(_FIRST,) if off else READ_FROM)
    return _release(desk, f"One owner, {_FIRST}, would have decided for all three")


def _own_data(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk(approved_by=(_FIRST, _THIRD) if off else READ_FROM)
    return _release(desk, f"Two others would have decided over the data of {_SECOND}")


def _same_recipe(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk(approved_by=())
    for owner in READ_FROM:
        desk.approve(owner, locked=stage.run.other if off else None)
    return _release(desk, "The engineer would have run a recipe that no owner read")


def _signature(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk(approved_by=(_FIRST,))
    stranger = Identity.generate(_SECOND)
    signed = desk.approval(_SECOND, signer=stranger if off else None)

    def act() -> str:
        desk.owner_side(_SECOND).hand_in("approval", signed)
        return f"The broker counts the approval of {_SECOND}. {_describe_release(desk)}"

    return Attempt(act=act, stake=desk.stake("Anyone could have approved in an owner's name"))


def _end(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    if off:
        stage.clock.advance(31 * _DAY_S)
    return _release(desk, "An approval that ended yesterday would still have opened the data")


def _revocation(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk(approved_by=(_FIRST,))
    recorded = desk.approve(_SECOND)
    if off:
        desk.revoke(_SECOND)
        # The operator plays the approval of before once more, which it had recorded.
        desk.owner_side(_FIRST).hand_in("approval", recorded)
    return _release(desk, f"{_SECOND} could not have taken its approval back")


def _release(desk: ServedBroker, so: str) -> Attempt:
    return Attempt(act=lambda: _describe_release(desk), stake=desk.stake(so))


def _describe_release(desk: ServedBroker) -> str:
    return f"The broker releases {len(desk.obtain().keys)} data keys to the guest."


SWITCHES: Final = (
    Switch(
        name="approve-quorum",
        step="approve",
        protection="Two of three owners must approve.",
        off="Only one owner approves, and the guest asks for the keys.",
        claim="C10",
        make=_quorum,
    ),
    Switch(
        name="approve-own-data",
        step="approve",
        protection="An owner whose data the recipe reads must be among those who approve.",
        off="Two owners approve, but not the one whose records are read.",
        claim="C45",
        make=_own_data,
    ),
    Switch(
        name="approve-recipe",
        step="approve",
        protection="An approval names one recipe by its hash.",
        off="The owners approved another recipe than the one that runs.",
        claim="C10",
        make=_same_recipe,
    ),
    Switch(
        name="approve-signature",
        step="approve",
        protection="Only an owner's own key signs its approval.",
        off="A stranger signs the missing approval in the owner's name.",
        claim="C12",
        make=_signature,
    ),
    Switch(
        name="approve-end",
        step="approve",
        protection="An approval ends on a date.",
        off="31 days pass; the approvals were for 30.",
        claim="C10",
        make=_end,
    ),
    Switch(
        name="approve-revocation",
        step="approve",
        protection="One owner can stop the recipe for good.",
        off="An owner revokes; the operator hands its earlier approval in again.",
        claim="C11",
        make=_revocation,
    ),
)
