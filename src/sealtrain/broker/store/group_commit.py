"""Group commit: one sync of the disk for all transactions that came at once.

1. Blocks run one after the other, whatever their threads, inside one transaction of the database.
   Each sees the changes of those before it. A block that raises is undone alone. Threads queue up
   here: SQLite would have them sleep and retry with growing delays.
2. The last block commits for all when no thread waits for a turn, or when the group is large or
   old. No block returns before that: an answered change is on disk.
3. Ledger entries of the group are written at its end, in their order, before the database commits:
   the database never holds a change that is missing from the ledger. If only the ledger commits,
   its entries are recorded before the next group begins (``store.following``).
4. If the commit fails, or the database undoes more than one block, the whole group fails.
5. A block that asks to be alone begins after a commit of all before it and commits by itself. It
   may read the ledger, which then agrees with the database. Only such a block changes owners'
   submissions: the others read those once for their group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from sealtrain.broker.store.database import commit, failures
from sealtrain.broker.store.following import Following
from sealtrain.broker.store.statements import Settled
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.tree import Pending

__all__ = ["Together"]

_TURN_SECONDS: Final = 20.0
_COMMIT_SECONDS: Final = 60.0
_MOST: Final = 64
"""Blocks that wait for one commit."""
_OLDEST_SECONDS: Final = 0.1
"""From the first block's begin until no further block joins."""


class Together:
    """Blocks of many threads on one database."""

    def __init__(
        self,
        engine: Engine,
        begin: Callable[[], Connection],
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes an engine, and a function that begins a transaction that writes."""
        self._engine = engine
        self._begin = begin
        self._timer = timer
        self._turns = threading.Condition()
        self._busy = False
        self._waiting = 0
        self._open: _Group | None = None  # of the thread that has the turn
        self.ledger: Ledger | None = None
        """The ledger whose entries commit with the blocks that append them."""
        self.following: Following | None = None
        """Notes how much of the ledger the database reflects."""

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
            group = self._joined(alone=alone)
            try:
                with failures(self._engine), group.block():
                    yield group.connection, None if alone else group.settled
            finally:
                if group.lost is not None:
                    self._open = None
        finally:
            self._pass_turn(commit_now=alone)
        group.wait()

    def _joined(self, *, alone: bool) -> _Group:
        if alone and self._open is not None:
            self._commit(self._open)
        if self._open is None:
            with failures(self._engine):
                began = self._timer()
                self._open = _Group(self._begin(), self.ledger, self.following, began)
        return self._open

    def _take_turn(self) -> None:
        with self._turns:
            self._waiting += 1
            try:
                if not self._turns.wait_for(lambda: not self._busy, _TURN_SECONDS):
                    raise Unreachable(
                        "another request has held the broker's database for too long",
                        check="database",
                        expected=f"a turn within {_TURN_SECONDS:g} s",
                    )
                self._busy = True
            finally:
                self._waiting -= 1

    def _pass_turn(self, *, commit_now: bool) -> None:
        """Pass the turn to the next waiting thread, or end the group if there is none."""
        group = self._open
        full = group is not None and (
            group.blocks >= _MOST or self._timer() - group.began > _OLDEST_SECONDS
        )
        with self._turns:
            # A waiting thread takes the turn: no thread gives up while it is free.
            if group is None or (self._waiting and not full and not commit_now):
                self._busy = False
                self._turns.notify()
                return
        try:
            self._commit(group)
        finally:
            with self._turns:
                self._busy = False
                self._turns.notify()

    def _commit(self, group: _Group) -> None:
        """End the open group and report the result to its blocks."""
        self._open = None
        group.commit()


class _Group:
    """One transaction, its ledger entries, and the blocks that wait for it."""

    def __init__(
        self,
        connection: Connection,
        ledger: Ledger | None,
        following: Following | None,
        began: float,
    ) -> None:
        self.connection = connection
        self.settled: Settled = {}
        self.began = began
        self.blocks = 0
        """Number of its blocks that were not undone."""
        self.lost: BaseException | None = None
        """Why the whole group failed."""
        self._ledger = ledger
        self._following = following
        self._ended = threading.Event()
        self._pending: Pending | None = None
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
                        self._following.advance(self.connection, *self._pending.reaches())
                    self._pending.write()
                commit(self.connection)
        except BaseException as error:
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self.lost = error
        try:
            with suppress(
                SQLAlchemyError
            ):  # the connection may be broken; the result is known already
                self.connection.close()  # undoes uncommitted changes
            if self._pending is not None and error is None:
                self._pending.written()
            elif self._pending is not None:
                self._pending.dropped()
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Return when the group is on disk.

        Raises:
            Unreachable: It was not committed.
            LedgerInconsistent: Earlier entries are missing from the ledger.
        """
        if not self._ended.wait(_COMMIT_SECONDS):
            raise Unreachable(
                "the broker's database did not commit in time",
                check="database",
                expected=f"a commit within {_COMMIT_SECONDS:g} s",
            )
        if isinstance(self.lost, SealtrainError):
            # A new error for each thread: raising writes the thread's frames into the object.
            raise self.lost.restated(self.lost.message) from self.lost
        if self.lost is not None:
            raise Unreachable(
                "the broker's database undid the request together with its group",
                check="database",
                got=type(self.lost).__name__,
                hint="retry: entries that the ledger took are found there",
            ) from self.lost
