"""What a database must offer to hold a broker's tables and its ledger.

A backend is one descriptor: how its ledger is opened and read, how its tables are reached, and what
its failures mean. ``ledger.backends`` has the table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from sealtrain.errors import SealtrainError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from sealtrain.ledger.tree import Growth

TURN_SECONDS = 20.0
"""How long a transaction on the tables waits for another."""
BUSY_SECONDS = 30.0
"""How long a writer of a ledger waits for another."""

Rows = Callable[[str, Sequence[Any]], Iterable[Any]]


class DatabaseServer(Protocol):
    """Where a database on a server is. Printed, it is its name alone."""

    @property
    def name(self) -> str:
        """Database and host, for messages."""

    @property
    def has_password(self) -> bool:
        """Whether the address itself holds one."""


Place: TypeAlias = Path | DatabaseServer
"""Where a database is: a file, or on a server."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Reading:
    """A database that is read and not changed, as of one moment.

    Attributes:
        name: For messages.
        rows: Rows of a query, ``?`` for each parameter.
        part: Surrounds what may fail; ``failed`` is raised there, and reading goes on after it.
        failed: What it raises.
        form: Says what is wrong with a ledger's tables and triggers, in lines.
    """

    name: str
    rows: Rows
    part: Callable[[], Any]
    failed: type[Exception]
    form: Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDatabase:
    """What the store must know of a database. Functions take the driver's connection.

    Attributes:
        name: For messages.
        engine: Makes connections, which begin no transaction; parameters have names.
        schema: Of the ledger's tables; ``None`` for the database's own.
        is_empty: Whether there is no ledger yet.
        make: Makes tables and triggers.
        faults: Says what is wrong with tables and triggers, in lines.
        insert: Writes new entries and roots.
        stream: Rows of a query that may be longer than memory, to be closed.
        begin: Begins a transaction with the lock of all that append.
        lock: Takes that lock in a transaction of the broker's tables, to which entries may belong;
            ``None`` where the ledger has a database of its own.
        begin_snapshot: Begins a long transaction that reads one state.
        failure: Ours, for an error of the driver or of waiting too long.
        patience: Seconds that a writer waits for the turn of another thread.
    """

    name: str
    engine: Engine
    schema: str | None
    is_empty: Callable[[Any], bool]
    make: Callable[[Any], object]
    faults: Callable[[Any], Iterable[str]]
    insert: Callable[[Any, Growth], None]
    stream: Callable[[Any, str], Any]
    begin: str
    lock: str | None
    begin_snapshot: str
    failure: Callable[[Exception], SealtrainError]
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Generic[P]):
    """One kind of database.

    Attributes:
        place: Type of its places.
        schemes: Of its addresses; none for files, which an option names by their path.
        parse: Address → place; raises ``UsageError`` or ``ExtraMissing``.
        ledger: Place, seconds to wait for another writer → the ledger's database, made where there
            is no file; as ``Ledger.open`` raises.
        reading: Place → the database for an audit, so that nothing can change it.
        engine: Place, whether tables are migrated → connections, which begin no transaction.
        writing: Begins a transaction with the one lock of all that write.
        only_reads: Begins one without a lock, of what was committed when it began.
        failure: Place, the driver's error, whether it came of waiting too long → ours, or ``None``
            for a bug of ours.
        broken: Query for rows whose references broke in a migration; ``None`` where the database
            enforces them all the time.
        identity: Query for what tells the database from its copies; ``None`` for a file, which only
            ``store.backup`` restores.
    """

    place: type[P]
    schemes: tuple[str, ...]
    parse: Callable[[str], P]
    ledger: Callable[[P, float], LedgerDatabase]
    reading: Callable[[P], AbstractContextManager[Reading]]
    engine: Callable[[P, bool], Engine]
    writing: str
    only_reads: str
    failure: Callable[[P, Exception, bool], SealtrainError | None]
    broken: str | None
    identity: str | None
