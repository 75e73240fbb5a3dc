"""Group commit: one sync of the disk for all transactions that came at once.

1. Blocks run one after the other, whatever their threads, inside one transaction of the database.
   Each sees the changes of those before it. A block that raises is undone alone. Threads queue up
   here: SQLite would have them sleep and retry with growing delays.
2. The last block commits for all when no thread waits for a turn, or when the group is large or
   old. No block returns before that: an answered change is on disk.
3. Ledger entries of the group are written at its end, in their order, before the database commits:
   it never holds what the ledger does not. What the ledger then holds and the database does not is
   recorded before the next group begins (``store.following``).
4. If the commit fails, or the database undoes more than one block, the whole group fails. A group
   is ``OPEN`` until it is ``ON_DISK`` or ``UNDONE``.
5. A block that asks to be alone begins after a commit of all before it and commits by itself. It
   may read the ledger, which then agrees with the database. Only such a block changes owners'
   submissions: the others read those once for their group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from sealtrain.broker.store.database import commit, failures
from sealtrain.broker.store.following import LedgerFollower
from sealtrain.broker.store.statements import Settled
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.store import PendingEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLimits:
    """How long blocks wait for each other, and how many share a commit.

    Attributes:
        turn_seconds: A block waits for its turn.
        commit_seconds: A block waits for the commit of its group.
        blocks: Most blocks of a group.
        oldest_seconds: From the first block's begin until no further one joins.
    """

    turn_seconds: float = 20.0
    commit_seconds: float = 60.0
    blocks: int = 64
    oldest_seconds: float = 0.1


class GroupState(Enum):
    """Where a group's transaction stands."""

    OPEN = "open"
    ON_DISK = "on disk"
    UNDONE = "undone"


class AfterBlock(Enum):
    """What the thread does whose block has just ended, before it gives up its turn."""

    NOTHING = "nothing"
    LEAVE_OPEN = "leave the group open for the thread that takes the next turn"
    COMMIT = "commit the group"


def after_block(group: GroupState | None, *, waiting: int, full: bool, alone: bool) -> AfterBlock:
    """What happens to a group after a block of it.

    Args:
        group: ``None`` where none could be begun.
        waiting: Threads that wait for a turn. One of them takes it, so the group may stay open.
        full: No further block may join.
        alone: The block shares its commit with none that come after it.
    """
    if group is not GroupState.OPEN:
        return AfterBlock.NOTHING
    if waiting and not full and not alone:
        return AfterBlock.LEAVE_OPEN
    return AfterBlock.COMMIT


class GroupCommit:
    """Blocks of many threads on one database."""

    def __init__(
        self,
        engine: Engine,
        begin: Callable[[], Connection],
        *,
        limits: CommitLimits | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin nothing yet.

        Args:
            engine: Of the database.
            begin: Begins a transaction that writes.
            limits: The defaults when ``None``.
            timer: Seconds, never going back.
        """
        self._engine = engine
        self._begin = begin
        self._limits = limits or CommitLimits()
        self._timer = timer
        self._turns = threading.Condition()
        self._busy = False
        self._waiting = 0
        self._open: _Group | None = None  # only the thread that has the turn touches it
        self.ledger: Ledger | None = None
        """The ledger whose entries commit with the blocks that append them."""
        self.following: LedgerFollower | None = None
        """Notes how much of the ledger the database reflects."""

    @property
    def waiting(self) -> int:
        """Threads that wait for a turn."""
        return self._waiting

    @contextmanager
    def block(self, *, alone: bool) -> Iterator[tuple[Connection, Settled | None]]:
        """A block of a transaction: on disk when it ends, or undone if it raises.

        Yields the connection, and the rows already read from tables that do not change in the
        group.

        Args:
            alone: Begin after all others were committed, and share the commit with none.

        Raises:
            Unreachable: The database cannot be read or written. Nothing happened; unless the
                connection to a server broke during the commit, or the ledger took the block's
                entries and the database did not.
        """
        self._take_turn()
        try:
            group = self._join(alone=alone)
            with failures(self._engine), group.block():
                yield group.connection, None if alone else group.settled
        finally:
            self._pass_turn(alone=alone)
        group.wait(self._limits.commit_seconds)

    def _join(self, *, alone: bool) -> _Group:
        if alone and self._open is not None:
            self._commit()
        if self._open is None:
            with failures(self._engine):
                began = self._timer()
                self._open = _Group(self._begin(), self.ledger, self.following, began)
        return self._open

    def _take_turn(self) -> None:
        with self._turns:
            self._waiting += 1
            try:
                if not self._turns.wait_for(lambda: not self._busy, self._limits.turn_seconds):
                    raise Unreachable(
                        "another request has held the broker's database for too long",
                        check="database",
                        expected=f"a turn within {self._limits.turn_seconds:g} s",
                    )
                self._busy = True
            finally:
                self._waiting -= 1

    def _pass_turn(self, *, alone: bool) -> None:
        """Let the next thread go on with the group, or end the group if none waits."""
        if self._open is not None and self._open.state is GroupState.UNDONE:
            self._open = None
        group = self._open
        with self._turns:
            chosen = after_block(
                None if group is None else group.state,
                waiting=self._waiting,
                full=group is not None and self._full(group),
                alone=alone,
            )
            if chosen is not AfterBlock.COMMIT:
                # Under the lock that counted them: a waiting thread cannot give up in between.
                self._free_turn()
                return
        try:
            self._commit()
        finally:
            with self._turns:
                self._free_turn()

    def _full(self, group: _Group) -> bool:
        age = self._timer() - group.began
        return group.blocks >= self._limits.blocks or age > self._limits.oldest_seconds

    def _free_turn(self) -> None:
        self._busy = False
        self._turns.notify()

    def _commit(self) -> None:
        """End the open group; the threads that wait for it learn how."""
        group, self._open = self._open, None
        if group is not None:
            group.commit()


class _Group:
    """One transaction, its ledger entries, and the threads that wait for it."""

    def __init__(
        self,
        connection: Connection,
        ledger: Ledger | None,
        following: LedgerFollower | None,
        began: float,
    ) -> None:
        self.connection = connection
        self.settled: Settled = {}
        self.began = began
        self.blocks = 0
        """That are in it and were not undone."""
        self.state = GroupState.OPEN
        self._lost: BaseException | None = None  # why nothing of it happened
        self._ledger = ledger
        self._following = following
        self._ended = threading.Event()
        self._pending: PendingEntries | None = None
        self._driver: Any = connection.connection.driver_connection
        if ledger is not None:
            self._pending = ledger.pending(self._driver)

    @contextmanager
    def block(self) -> Iterator[None]:
        """One block: all of it, or nothing."""
        entries = 0 if self._pending is None else self._pending.count
        try:
            if (
                self.blocks
            ):  # the newest savepoint of this name counts; the commit releases all of them
                self._driver.execute("SAVEPOINT block")
            if self._ledger is None or self._pending is None:
                yield
            else:
                with self._ledger.adding_to(self._pending):
                    yield
        except BaseException as error:
            self._undo(error, entries)
            raise
        self.blocks += 1

    def _undo(self, error: BaseException, entries: int) -> None:
        if not self.blocks:
            self._end(error)
            return
        try:
            self._driver.execute("ROLLBACK TO SAVEPOINT block")
            if self._pending is not None:
                self._pending.undo(entries)
        except BaseException as worse:  # the database undid everything, or is gone
            self._end(worse)

    def commit(self) -> None:
        """Make all of it durable: the ledger first."""
        try:
            with failures(self.connection.engine):
                if self._pending is not None and self._pending.count:
                    if self._following is not None:
                        self._following.advance(self.connection, *self._pending.waiting())
                    self._pending.write()
                commit(self.connection)
        except BaseException as error:
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self.state = GroupState.ON_DISK if error is None else GroupState.UNDONE
        self._lost = error
        try:
            with suppress(
                SQLAlchemyError
            ):  # the connection may be broken; the result is known already
                self.connection.close()  # undoes uncommitted changes
            if self._pending is not None and error is None:
                self._pending.on_commit()
            elif self._pending is not None:
                self._pending.on_rollback()
        finally:
            self._ended.set()

    def wait(self, seconds: float) -> None:
        """Return when it is on disk.

        Args:
            seconds: Of patience.

        Raises:
            Unreachable: It was not committed.
            LedgerInconsistent: Earlier entries are missing from the ledger.
        """
        if not self._ended.wait(seconds):
            raise Unreachable(
                "the broker's database did not commit in time",
                check="database",
                expected=f"a commit within {seconds:g} s",
            )
        if isinstance(self._lost, SealtrainError):
            # Another one for each thread: raising writes the thread's frames into the object.
            raise self._lost.with_message(self._lost.message) from self._lost
        if self._lost is not None:
            raise Unreachable(
                "the broker's database undid the request together with its group",
                check="database",
                got=type(self._lost).__name__,
                hint="ask again: what the ledger took of it is found there",
            ) from self._lost
