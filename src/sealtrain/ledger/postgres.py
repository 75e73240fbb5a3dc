"""A PostgreSQL database: its address, connections that are safe for a ledger, its failures.

1. An address never shows its password, in no message, log or traceback.
2. Over a network the server proves its name (``sslmode=verify-full``): an impostor could otherwise
   decide what a broker remembers.
3. A connection is to a server that takes writes and makes commits durable: no standby, no
   ``fsync = off``; and every wait has a timeout.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.extras import extra_missing
from sealtrain.errors import ConfigError, SealtrainError, Unreachable, UsageError

if TYPE_CHECKING:
    from psycopg import Connection, Error

SCHEMES: Final = ("postgresql", "postgresql+psycopg")
_FORM: Final = "postgresql+psycopg://USER@HOST:PORT/DATABASE"
# Of libpq; an address may change them.
_DEFAULTS: Final = {
    "application_name": "sealtrain",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",  # of several hosts, the one that takes writes
}
# A read under the lock must be current: a snapshot older than the lock would be stale.
_SESSION: Final = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('lock_timeout', '20s', false),
       set_config('statement_timeout', '60s', false),
       set_config('idle_in_transaction_session_timeout', '60s', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
           WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""
_SERVER: Final = (
    ("fsync", "on", "it would lose what it acknowledged: set fsync = on"),
    ("full_page_writes", "on", "a power cut could damage it: set full_page_writes = on"),
    ("server_encoding", "UTF8", "make the database with ENCODING 'UTF8'"),
)
_HOSTS: Final = ("host", "hostaddr")
_READ_ONLY: Final = "25006"


@dataclass(frozen=True, slots=True)
class Postgres:
    """Where a database is. Printed, it is its name alone."""

    name: str
    """Database and host, for messages."""
    _settings: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, address: str) -> Postgres:
        """Read an address.

        Args:
            address: ``postgresql+psycopg://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?SETTING=VALUE]``;
                the settings are libpq's.

        Raises:
            UsageError: It is no address, names no database, or uses a network without TLS.
            ExtraMissing: The ``postgres`` extra is not installed.
        """
        scheme, separator, rest = address.strip().partition("://")
        if not separator or scheme not in SCHEMES:
            raise UsageError(
                "the value is not an address of a PostgreSQL database",
                check="database",
                got=f"{scheme[:20]}…" if separator else "no scheme",
                expected=_FORM,
            )
        driver = _driver()
        try:
            given = driver.conninfo.conninfo_to_dict(f"postgresql://{rest}")
        except driver.Error:  # libpq's message may quote what it could not read
            raise UsageError(
                "the address of the database cannot be read", check="database", expected=_FORM
            ) from None
        settings = {key: str(value) for key, value in given.items() if value is not None}
        if not settings.get("dbname"):
            raise UsageError("the address names no database", check="database", expected=_FORM)
        # Written out where absent, so that nothing in the environment names another server.
        settings = dict.fromkeys(_HOSTS, "") | settings
        hosts = settings["hostaddr"] or settings["host"]
        far = [host for key in _HOSTS for host in settings[key].split(",") if not _is_here(host)]
        if far and settings.get("sslmode") != "verify-full":
            raise UsageError(
                "a database over the network must prove its name",
                check="sslmode",
                got=settings.get("sslmode", "none"),
                expected="verify-full",
                hint=f"add ?sslmode=verify-full&sslrootcert=FILE to the address of {far[0]}",
            )
        return cls(f"{settings['dbname']} at {hosts or 'the local socket'}", _DEFAULTS | settings)

    @property
    def has_password(self) -> bool:
        """Whether the address itself holds one."""
        return "password" in self._settings

    def connect(self) -> Connection:
        """A connection, in autocommit.

        Raises:
            psycopg.OperationalError: The server does not answer, or does not let the broker in.
            ConfigError: The server's settings do not make commits durable.
        """
        connection: Connection = _driver().connect(autocommit=True, **self._settings)
        try:
            connection.execute(_SESSION)
            self._judge(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _judge(self, connection: Connection) -> None:
        for setting, expected, hint in _SERVER:
            row = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
            got = None if row is None else row[0]
            if got != expected:
                raise ConfigError(
                    f"the database {self.name} cannot be used",
                    check=setting,
                    got=got,
                    expected=expected,
                    hint=hint,
                )


def is_unreachable(error: Error) -> bool:
    """Whether a failure leaves open what is stored: server gone, busy, full, or a standby."""
    if isinstance(error, _driver().OperationalError):
        return True
    return error.sqlstate == _READ_ONLY or not error.sqlstate


def unreachable(name: str, error: BaseException) -> SealtrainError:
    """Our error for a failure, without the server's own text, which may hold anything."""
    return Unreachable(
        f"the database {name} cannot be read or written",
        check="database",
        got=type(error).__name__,
        hint="check that the server runs, has disk space and admits the broker; then retry",
    )


def _is_here(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise extra_missing("PostgreSQL", "postgres", error) from error
    return psycopg
