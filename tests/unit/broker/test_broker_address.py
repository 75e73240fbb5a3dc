"""Where a broker's databases are, as operators say it and as owners see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.broker.address import database_of, is_address, places
from sealtrain.errors import KeyFileInvalid, UsageError

ADDRESS = "postgresql+psycopg://broker@127.0.0.1:5433/memory"


def test_without_an_address_both_are_files_of_the_state_folder(tmp_path: Path) -> None:
    assert places(tmp_path, None) == (tmp_path / "broker.sqlite", tmp_path / "ledger.sqlite")


@pytest.mark.parametrize("form", ["{}", "{}\n", "  {}  \n"])
def test_an_address_with_its_password_is_read_from_a_private_file(
    tmp_path: Path, form: str
) -> None:
    file = tmp_path / "database"
    file.write_text(form.format(ADDRESS.replace("broker@", "broker:word@")))
    file.chmod(0o600)
    for uri in (f"file:{file}", f"file://{file}"):
        tables, ledger = places(tmp_path, uri)
        assert tables == ledger == database_of(uri)
        assert not isinstance(tables, Path)
        assert (tables.name, tables.has_password) == ("memory at 127.0.0.1", True)


def test_an_address_without_a_password_may_stand_on_the_command_line() -> None:
    assert database_of(ADDRESS).name == "memory at 127.0.0.1"
    assert not database_of(ADDRESS.replace("+psycopg", "")).has_password


@pytest.mark.parametrize(
    "address",
    ["", "memory", "sqlite:///x", "postgresql+asyncpg://127.0.0.1/x", "http://127.0.0.1/x",
     "postgresql://127.0.0.1", ADDRESS.replace("broker@", "broker:word@")],
)  # fmt: skip
def test_other_addresses_are_refused_with_what_is_expected(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        database_of(address)
    assert "postgresql+psycopg://" in str(caught.value.expected) or "file:PATH" in str(
        caught.value.expected
    )


def test_a_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "database"
    file.write_bytes(b"\xff\xfe")
    file.chmod(0o600)
    with pytest.raises(KeyFileInvalid, check=carries(check="database")):
        database_of(f"file:{file}")
    with pytest.raises(KeyFileInvalid):
        database_of(f"file:{tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [(ADDRESS, True), ("file:database", True), ("state/ledger.sqlite", False), ("filed", False)],
)
def test_an_option_names_a_server_or_a_file_of_sqlite(text: str, expected: bool) -> None:
    assert is_address(text) is expected


def test_a_broker_on_files_imports_no_driver_of_postgresql(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from sealtrain.broker.store.memory import Store\n"
        "Store(Path(sys.argv[1])).close()\n"
        "sys.exit('psycopg' in sys.modules)\n"
    )
    path = str(tmp_path / "broker.sqlite")
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == 0
