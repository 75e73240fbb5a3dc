"""Sockets of lead and party: gone when they are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from sealtrain.errors import SealtrainError, UsageError
from sealtrain_together.federated.carrier import Carrier
from sealtrain_together.federated.mailbox import Mailbox


@pytest.mark.parametrize("listener", [Carrier, Mailbox])
def test_no_socket_stays_behind(listener: type[Carrier] | type[Mailbox]) -> None:
    with tempfile.TemporaryDirectory(prefix="fed-") as folder:
        path = Path(folder) / "relay.sock"
        with listener(path):
            assert path.is_socket()
        assert not path.exists()


@pytest.mark.parametrize("listener", [Carrier, Mailbox])
def test_a_file_in_the_place_of_a_socket_stays(
    listener: type[Carrier] | type[Mailbox], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("kept")
    (tmp_path / "link").symlink_to(notes)
    for place in (notes, tmp_path / "link"):
        with pytest.raises(UsageError), listener(place):
            raise AssertionError("it listens")
    assert notes.read_text() == "kept"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("listener", [Carrier, Mailbox])
def test_a_socket_below_a_file_is_refused(
    listener: type[Carrier] | type[Mailbox], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((SealtrainError, OSError)), listener(tmp_path / "file" / "relay.sock"):
        raise AssertionError("it listens")
