"""Approvals that wait for an owner, and a memory of those that its watcher told of.

An approval waits where a submitted run has not begun, the owner is in its consortium, and the
owner's newest decision on exactly that document is missing or has ended. A revocation is an answer:
nothing waits then. Submissions are the broker's word: a broker that invents one has a watcher call
once for it, and one that hides one keeps it from calling; it approves nothing either way. Decisions
count only with their owner's signature.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write, read_bounded, try_lock
from sealtrain.base.models import Hex32, Hex64, StrictModel, load_model
from sealtrain.errors import ConfigError, DataInvalid, UsageError
from sealtrain.signing.target import Target

if TYPE_CHECKING:
    from sealtrain.client.broker_api import BrokerClient
    from sealtrain.consortium.members import Consortium

MAX_TOLD: Final = 10_000
MAX_ATTEMPTS: Final = 20
"""Calls for the same approvals, over all starts of the watcher."""
_WAITS: Final = frozenset({"waiting", "claimed"})
_MAX_BYTES: Final = 2 << 20

Told = Literal["nothing-new", "called", "given-up"]


def pending_at(
    client: BrokerClient, consortium: Consortium, owner: str, *, now: int
) -> Iterator[str]:
    """A digest of each approval that waits for an owner at a broker, 64 hex digits.

    The same approval has the same digest at every broker, and another one once a decision ended.

    Args:
        consortium: As the owner holds it.
        owner: The owner's name.
        now: Seconds since the epoch.

    Raises:
        ApprovalUnknown: The owner is not in the consortium.
        Refused: A decision that the broker holds does not verify.
        BrokerUnreachable: It does not answer.
    """
    consortium.owner(owner)
    seen: set[Target] = set()
    for submission in client.submissions(open_only=True):
        target = Target(
            app_id=submission.app_id,
            compose_hash=submission.compose_hash,
            recipe_hash=submission.recipe_hash,
        )
        if submission.state not in _WAITS or submission.stop is not None or target in seen:
            continue
        seen.add(target)
        own = [
            signed
            for signed in client.list_decisions(target, consortium)
            if signed.owner.name == owner
        ]
        newest = max(own, key=lambda signed: signed.decision.signed_at, default=None)
        if newest is not None:
            ends = newest.decision.ends
            if newest.decision.decision == "revoke" or ends is None or ends >= now:
                continue
        yield sha256_hex(
            canonical_json(
                {
                    "consortium_id": consortium.consortium_id,
                    "owner": owner,
                    "target": dict(target.to_dict()),
                    "after": None if newest is None else newest.digest,
                }
            )
        )


class _Calling(StrictModel):
    """A call that is being made.

    Attributes:
        id: The same at each attempt, so that the receiver knows a repeated call.
        approvals: The digests that it is for.
        attempts: So many began.
    """

    id: Hex32
    approvals: tuple[Hex64, ...] = Field(min_length=1, max_length=MAX_TOLD)
    attempts: int = Field(ge=0, le=MAX_ATTEMPTS)


class _ToldFile(StrictModel):
    version: Literal[1]
    told: tuple[Hex64, ...] = Field(max_length=MAX_TOLD)
    calling: _Calling | None


class ToldApprovals:
    """The memory: which approvals were told of. Get it from ``open_told``."""

    def __init__(self, path: Path, kept: _ToldFile) -> None:
        self._path = path
        self._kept = kept

    def tell(
        self,
        pending: Iterable[str],
        call: Callable[[str], None],
        *,
        new_id: Callable[[], str] = lambda: os.urandom(16).hex(),
    ) -> Told:
        """Call once for what is new, however many approvals that are.

        The memory is on the disk before each attempt and after a call that was taken. An attempt
        whose end is unknown is repeated with the same id.

        Args:
            pending: Digests of the approvals that wait.
            call: Makes the call with an id; raises where it was not taken.
            new_id: Makes an id, 32 hex digits.

        Returns:
            ``given-up`` after ``MAX_ATTEMPTS`` attempts: the approvals count as told of.

        Raises:
            Exception: What ``call`` raised; the next ``tell`` tries again.
        """
        waiting = list(dict.fromkeys(pending))
        calling = self._kept.calling
        if calling is not None and not set(calling.approvals) & set(waiting):
            calling = None  # they were answered meanwhile
        if calling is None:
            new = [digest for digest in waiting if digest not in set(self._kept.told)]
            if not new:
                if self._kept.calling is not None:
                    self._keep(self._kept.told, None)
                return "nothing-new"
            calling = _Calling(id=new_id(), approvals=tuple(new[:MAX_TOLD]), attempts=0)
        told = tuple(dict.fromkeys((*self._kept.told, *calling.approvals)))[-MAX_TOLD:]
        if calling.attempts >= MAX_ATTEMPTS:
            self._keep(told, None)
            return "given-up"
        calling = calling.model_copy(update={"attempts": calling.attempts + 1})
        self._keep(self._kept.told, calling)
        call(calling.id)
        self._keep(told, None)
        return "called"

    def _keep(self, told: tuple[str, ...], calling: _Calling | None) -> None:
        self._kept = _ToldFile(version=1, told=told, calling=calling)
        data = canonical_json(self._kept.to_dict())
        atomic_write(self._path, data, mode=0o600, overwrite=True)


@contextmanager
def open_told(path: Path) -> Iterator[ToldApprovals]:
    """The memory in a file, for this process alone; an empty one where there is no file.

    Raises:
        UsageError: Another watcher has it.
        ConfigError: The file is no such memory.
    """
    lock = os.open(
        path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        if not try_lock(lock):
            raise UsageError(
                "another watcher has this memory", check="--memory", hint="end it, or name another"
            )
        yield ToldApprovals(path, _read(path))
    finally:
        os.close(lock)


def _read(path: Path) -> _ToldFile:
    if not path.exists():
        return _ToldFile(version=1, told=(), calling=None)
    try:
        document = parse_json(read_bounded(path, _MAX_BYTES))
    except DataInvalid:
        document = None
    return load_model(_ToldFile, document, ConfigError, "memory of a watcher")
