"""The table of databases. Another one is a module with a ``BACKEND``, and a line here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from sealtrain.errors import UsageError
from sealtrain.ledger.backend import Backend, DatabaseServer, Place

_MODULES: Final = (
    "sealtrain.ledger.sqlite_backend",
    "sealtrain.ledger.postgres_backend",
)

BACKENDS: Final[tuple[Backend[Any], ...]] = tuple(
    import_module(module).BACKEND for module in _MODULES
)
_BY_SCHEME: Final = {scheme: backend for backend in BACKENDS for scheme in backend.schemes}

SCHEMES: Final = tuple(_BY_SCHEME)
"""Of the addresses of databases on servers."""
_MAX_PRINTED: Final = 20


def backend_of(where: Place) -> Backend[Any]:
    """The backend that opens a place.

    Raises:
        UsageError: None does.
    """
    for backend in BACKENDS:
        if isinstance(where, backend.place):
            return backend
    raise UsageError(
        "no backend opens this place",
        check="database",
        got=type(where).__name__,
        expected=" or ".join(backend.place.__name__ for backend in BACKENDS),
    )


def server_at(address: str) -> DatabaseServer:
    """The place that an address names.

    Raises:
        UsageError: It is no address of a backend, or incomplete or unsafe.
        ExtraMissing: The backend's extra is not installed.
    """
    scheme, separator, _ = address.strip().partition("://")
    if not separator or scheme not in _BY_SCHEME:
        raise UsageError(
            "the value is not an address of a database",
            check="database",
            got=f"{scheme[:_MAX_PRINTED]}…" if separator else "no scheme",
            expected=", ".join(f"{scheme_name}://…" for scheme_name in SCHEMES),
        )
    place: DatabaseServer = _BY_SCHEME[scheme].parse(address)
    return place
