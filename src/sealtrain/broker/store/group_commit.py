"""Transactions that commit together: one sync of the disk for all that came at once.

1. Blocks run one after the other, whatever their threads, inside one transaction of the database.
   Each sees what those before it did. One that raises is undone by itself. Threads queue up here:
   SQLite would have them sleep and try again, by ever longer.
2. The last one commits for all when nobody waits for a turn, or when the group is large or old.
   Nobody returns before that: what a caller was told is on disk.
3. Ledger entries of the group are written at its end, in their order, before the database commits:
   it never holds what the ledger does not. What the ledger then holds and the database does not is
   recorded before the next group begins (``store.following``).
4. If the commit fails, or the database undoes more than one block, the whole group fails.
5. A block that asks to be alone begins after a commit of all before it and commits by itself. It
   may read the ledger and finds there what the database says. Only such a block changes what owners
   handed in: the others read that once for their group.
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
"""From the first block's begin until no further one joins."""


class Together:
    """Blocks of many threads on one database."""

    def __init__(
        self,
        engine: Engine,
        begin: Callable[[], Connection],
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of an engine, and a function that begins a transaction that writes."""
        self._engine = engine
        self._begin = begin
        self._timer = timer
        self._turns = threading.Condition()
        self._busy = False
        self._waiting = 0
        self._open: _Group | None = None  # of who has the turn, or of nobody
        self.ledger: Ledger | None = None
        """Whose entries commit with the blocks that append them."""
        self.following: Following | None = None
        """Notes how much of the ledger the database reflects."""

    @contextmanager
    def block(self, *, alone: bool) -> Iterator[tuple[Connection, Settled | None]]:
        """A part of a transaction; on disk when it is left, or undone if it raises.

        Yields the connection, and what was read before of the tables that do not change in it.

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
                        "the broker's database is held by another request for too long",
                        check="database",
                        expected=f"a turn within {_TURN_SECONDS:g} s",
                    )
                self._busy = True
            finally:
                self._waiting -= 1

    def _pass_turn(self, *, commit_now: bool) -> None:
        """Let the next one go on with the group, or end the group if there is none."""
        group = self._open
        full = group is not None and (
            group.blocks >= _MOST or self._timer() - group.began > _OLDEST_SECONDS
        )
        with self._turns:
            # Who waits takes the turn: nobody gives up while it is free.
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
        """End the open group; whoever is in it learns how."""
        self._open = None
        group.commit()


class _Group:
    """One transaction, its ledger entries, and who waits for it."""

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
        """That are in it and were not undone."""
        self.lost: BaseException | None = None
        """Why nothing of it happened."""
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
            if self.blocks:  # the newest of its name counts; the commit releases all of them
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
            with suppress(SQLAlchemyError):  # of a connection that broke: how it ended is known
                self.connection.close()  # undoes what is not committed
            if self._pending is not None and error is None:
                self._pending.written()
            elif self._pending is not None:
                self._pending.dropped()
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Return when it is on disk.

        Raises:
            Unreachable: It is not.
            LedgerInconsistent: Entries are gone that were there before.
        """
        if not self._ended.wait(_COMMIT_SECONDS):
            raise Unreachable(
                "the broker's database does not commit",
                check="database",
                expected=f"a commit within {_COMMIT_SECONDS:g} s",
            )
        if isinstance(self.lost, SealtrainError):
            # Another one for each thread: raising writes the thread's frames into the object.
            raise self.lost.restated(self.lost.message) from self.lost
        if self.lost is not None:
            raise Unreachable(
                "the broker's database undid the request with others",
                check="database",
                got=type(self.lost).__name__,
                hint="ask again: what the ledger took of it is found there",
            ) from self.lost
