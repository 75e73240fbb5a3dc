"""``broker token``: make, list and remove the tokens by which operators see how a broker is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.ownfiles import require_own
from sealtrain.cli.broker_database import Database, State, tables_at
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, table
from sealtrain.errors import KeyFileInvalid
from sealtrain.keys.keyfile import read_secret_file, write_secret_file

if TYPE_CHECKING:
    from sealtrain.broker.store.memory import Store
    from sealtrain.broker.store.tokens import TokenState


def create(
    name: Annotated[str, typer.Argument(help="What the token is called.")],
    scope: Annotated[str, typer.Option(help="metrics or status: what it shows.")],
    out: Annotated[Path, typer.Option(help="File to write the token to, for its user alone.")],
    state: State = None,
    database: Database = None,
    days: Annotated[
        int,
        typer.Option(
            "--valid-for", click_type=Duration("d", least=1, most=3650), help="How long it holds."
        ),
    ] = 365,
    as_json: Json = False,
) -> None:
    """Make a token. The broker keeps its hash only: where the file is lost, make another token."""
    from sealtrain.broker.store.tokens import TokenState, make_token, name_of, scope_of

    now = system_clock()
    made = TokenState(
        name=name_of(name), scope=scope_of(scope), made_at=now, not_after=now + days * 86400
    )
    token = make_token(os.urandom)
    store = _store(state, database)
    try:
        with store.transaction() as transaction:
            transaction.tokens.add(token, made)
            write_secret_file(out, f"{token}\n".encode())
    finally:
        store.close()
    emit(as_json, {**_show(made), "token": str(out)}, [f"token  {out}, scope {scope}"])


def list_tokens(state: State = None, database: Database = None, as_json: Json = False) -> None:
    """Show every token's name, scope and end."""
    store = _store(state, database)
    try:
        with store.transaction() as transaction:
            found = [_show(token) for token in transaction.tokens.all()]
    finally:
        store.close()
    rows = [(token["name"], token["scope"], token["not_after"]) for token in found]
    emit(as_json, {"tokens": found}, table(rows, header=("name", "scope", "good until")))


def remove(
    name: Annotated[str, typer.Argument(help="What the token is called.")],
    state: State = None,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Remove a token: a running broker refuses it from now on."""
    store = _store(state, database)
    try:
        with store.transaction() as transaction:
            transaction.tokens.remove(name)
    finally:
        store.close()
    emit(as_json, {"removed": name}, [f"removed  {name}"])


def read_token(path: Path) -> str:
    """Read a token from a file that only its user can read.

    Raises:
        KeyFileInvalid: No such file, readable by others, or no token.
    """
    token = read_secret_file(path, max_bytes=256).strip()
    require_own(path, KeyFileInvalid, check="key file")
    if not token.isascii() or len(token.split()) != 1:
        raise KeyFileInvalid(f"{path} is not the file of a token", check="token")
    return token.decode("ascii")


def _store(state: Path | None, database: str | None) -> Store:
    where = tables_at(state, database)
    from sealtrain.broker.store.memory import Store

    return Store(where)


def _show(state: TokenState) -> dict[str, str]:
    return {
        "name": state.name,
        "scope": state.scope,
        "made_at": to_rfc3339(state.made_at),
        "not_after": to_rfc3339(state.not_after),
    }
