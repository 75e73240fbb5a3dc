"""A broker's database and its ledger, as one memory that is true after every crash.

1. Every change is a transaction that begins with the write lock (``store.database``); changes that
   come at once commit together (``store.group_commit``).
2. The ledger is the truth. A transaction first records the entries whose change is missing from
   the database (``store.following``).
3. Reading takes no lock and shows at least the state of the ledger when it began.
4. The ledger is another file or schema (``ledger.ledger``): a migration of the tables cannot touch
   it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection

from sealtrain.base.secret import Random
from sealtrain.broker.store.database import begin, begin_transaction, commit, engine_of, failures
from sealtrain.broker.store.following import LedgerFollower
from sealtrain.broker.store.group_commit import CommitLimits, GroupCommit
from sealtrain.broker.store.incarnation import begin_anew, incarnation_of, move_in
from sealtrain.broker.store.schema import check
from sealtrain.broker.store.transaction import Transaction
from sealtrain.ledger.backend import Place
from sealtrain.ledger.ledger import Ledger


class Store:
    """One database, safe to use from many threads."""

    def __init__(
        self,
        where: Place,
        *,
        random: Random = os.urandom,
        limits: CommitLimits | None = None,
    ) -> None:
        """Open or create.

        Args:
            where: File, whose folder must exist; or a database on a server.
            random: Source of what tells one memory from another.
            limits: Of transactions that commit together; the defaults when ``None``.

        Raises:
            ConfigError: It was written by another version, is not a broker's, or was copied.
            Unreachable: It cannot be opened.
        """
        self._engine = engine_of(where)
        self._random = random
        self._following: LedgerFollower | None = None
        self.group_commit = GroupCommit(self._engine, self._begin, limits=limits)
        try:
            with begin_transaction(self._engine) as connection:
                check(connection)
                move_in(connection)
                if incarnation_of(connection) is None:
                    begin_anew(connection, random, began_at=0)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self, *, alone: bool = True) -> Iterator[Transaction]:
        """Everything inside happens, or nothing if the block raises.

        Args:
            alone: Commit apart from others. A block that reads the ledger asks for it; other blocks
                may share the sync of the disk.

        Raises:
            Unreachable: The database cannot be read or written. Nothing happened; unless the
                connection to a server broke during the commit, or the ledger took the entries and
                the database did not: then the next transaction records them.
        """
        with self.group_commit.block(alone=alone) as (connection, settled):
            yield Transaction(connection, settled)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Read the committed state, without waiting for writers.

        Raises:
            Unreachable: The database cannot be read.
        """
        size = 0 if self._following is None else self._following.size
        with failures(self._engine), begin(self._engine, reading=True) as connection:
            if self._following is None or self._following.holds(connection, size):
                yield Transaction(connection)
                return
        # A writer is between its two commits, or failed there: the next turn completes them.
        with self.transaction(alone=False) as transaction:
            yield transaction

    def join(self, ledger: Ledger, *, now: int) -> int:
        """Follow a ledger from now on: entries commit with the transaction that appends them.

        Entries missing from the database are recorded. The database may then be an old copy, or
        new: leases in those entries end, and no earlier challenge or nonce is valid again.

        Args:
            ledger: Of the same database; or a file, which commits by itself.
            now: Seconds since the epoch.

        Returns:
            How many entries were missing from the database.

        Raises:
            LedgerInconsistent: An entry that the database reflects is missing from this ledger: it
                was set back or replaced; or an entry cannot be recorded.
            Unreachable: The database cannot be written.
        """
        following = LedgerFollower(ledger.stored, ledger.origin)
        with begin_transaction(self._engine) as connection:
            following.verify(connection)
            missing = following.catch_up(connection)
            if missing:
                begin_anew(connection, self._random, began_at=now)
        self._following = self.group_commit.following = following
        self.group_commit.ledger = ledger
        return missing

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _begin(self) -> Connection:
        """Begin a transaction, with the database in step with the ledger."""
        connection = begin(self._engine)
        try:
            while self._following is not None and self._following.catch_up(connection):
                commit(connection)
                connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection
