"""The table of databases finds a backend for each place and address, and refuses the rest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from carrying import carries

from sealtrain.errors import ConfigError, UsageError
from sealtrain.ledger.backends import BACKENDS, SCHEMES, backend_of, server_at
from sealtrain.ledger.reading import meta_of


def test_each_place_has_one_backend_and_no_scheme_has_two(tmp_path: Path) -> None:
    server = server_at("postgresql:///memory?user=broker")
    assert backend_of(tmp_path) is not backend_of(server)
    assert len(set(SCHEMES)) == sum(len(backend.schemes) for backend in BACKENDS)


@pytest.mark.parametrize("address", ["mysql://broker@host/memory", "memory", "", "://memory"])
def test_an_address_of_no_backend_is_refused(address: str) -> None:
    with pytest.raises(UsageError, check=carries(check="database")):
        server_at(address)


def test_a_place_of_no_backend_is_refused() -> None:
    with pytest.raises(UsageError, check=carries(check="database", got="SimpleNamespace")):
        backend_of(SimpleNamespace(name="toy", has_password=False))


def test_a_file_that_is_no_ledger_says_nothing_of_itself(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    file.touch()
    with pytest.raises(ConfigError, check=carries(check="database")):
        meta_of(file)
