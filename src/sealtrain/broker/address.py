"""Where an operator keeps a broker's databases. Works without the ``broker`` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sealtrain.errors import KeyFileInvalid, UsageError
from sealtrain.keys.keyfile import read_secret_file
from sealtrain.ledger.backend import DatabaseServer, Place
from sealtrain.ledger.backends import SCHEMES, server_at

DATABASE: Final = "broker.sqlite"
LEDGER: Final = "ledger.sqlite"
_FILE: Final = "file:"
_MAX_ADDRESS: Final = 4096


def is_address(text: str) -> bool:
    """Whether an option names a database on a server and not a file."""
    return text.startswith((_FILE, *(f"{scheme}:" for scheme in SCHEMES)))


def ledger_at(text: str) -> Place:
    """The ledger that an option names: in a file, or in a database on a server.

    Raises:
        UsageError, KeyFileInvalid, ExtraMissing: As ``database_of``.
    """
    return database_of(text) if is_address(text) else Path(text)


def database_of(address: str) -> DatabaseServer:
    """The database that an option names.

    Args:
        address: ``postgresql+psycopg://…`` without a password, or ``file:PATH`` of a file of mode
            0600 that holds the address, with its password.

    Raises:
        UsageError: It is no such address, or holds a password that other users could read.
        KeyFileInvalid: The file cannot be read, or others may read it too.
        ExtraMissing: The extra of its backend is not installed.
    """
    scheme, separator, rest = address.partition(":")
    if separator and scheme == "file":
        data = read_secret_file(Path(rest.removeprefix("//")), max_bytes=_MAX_ADDRESS)
        try:
            return server_at(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise KeyFileInvalid(
                f"the file {rest} holds no address of a database", check="database"
            ) from None
    found = server_at(address)
    if found.has_password:
        raise UsageError(
            "a password on a command line is read by every user of the machine",
            check="database",
            expected="file:PATH of a file with mode 0600 that holds the address",
        )
    return found


def places(state: Path, address: str | None) -> tuple[Place, Place]:
    """Locate a broker's tables and its ledger.

    Args:
        state: Folder of its state.
        address: As of ``database_of``, with its errors; ``None`` for files in the folder.
    """
    if address is None:
        return state / DATABASE, state / LEDGER
    found = database_of(address)
    return found, found
