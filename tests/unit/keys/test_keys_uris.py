from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.attest.dstack import client
from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.base.secret import Secret
from sealtrain.errors import KeyFileInvalid, UsageError
from sealtrain.keys.uris import root_secret


def test_a_file_secret_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "root"
    made = root_secret(f"file:{path}", create=True)
    assert len(made) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert root_secret(f"file:{path}", create=True) == made
    assert root_secret(f"file://{path}") == made


def test_a_relative_path_starts_where_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = root_secret("file:root", create=True, random=lambda size: b"\x07" * size)
    assert (tmp_path / "root").read_text() == "07" * 32 + "\n"
    assert made == Secret(b"\x07" * 32)


def test_nothing_is_made_unasked(tmp_path: Path) -> None:
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        root_secret(f"file:{tmp_path}/root")
    assert list(tmp_path.iterdir()) == []


def test_a_loose_or_linked_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "root"
    root_secret(f"file:{path}", create=True)
    path.chmod(0o640)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file", got="mode 0640")):
        root_secret(f"file:{path}", create=True)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        root_secret(f"file:{tmp_path}/link", create=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeyFileInvalid, check=carries(check="key file")):
        root_secret(f"file:{tmp_path}/dangling", create=True)
    assert not (tmp_path / "nowhere").exists()


def test_brokers_that_start_together_agree_on_one_secret(tmp_path: Path) -> None:
    found: list[bytes] = []
    start = threading.Barrier(4)

    def begin() -> None:
        start.wait()
        found.append(root_secret(f"file:{tmp_path}/root", create=True).reveal())

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize(
    "uri",
    [
        *("", "root", "env:ROOT", "http://x/y", "FILE:root", "dstak:/s", "file", "dstack"),
        *("file:", "file:/tmp/", "file://host/root", "file:a\0b"),
        *("dstack:", "dstack:?path=x", "dstack:/s?path=", "dstack:/s?other=x"),
        *("dstack:/s?path=a&path=b", "dstack:/s?path", "dstack:/s?path=a&x=1"),
    ],
)
def test_another_uri_is_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        root_secret(uri, create=True)


def test_an_unknown_scheme_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError) as refusal:
        root_secret("vault:secret/root")
    assert "file:PATH" in (refusal.value.expected or "")
    assert "dstack:SOCKET" in (refusal.value.expected or "")


def test_a_guests_key_provider_gives_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Guest:
        def __init__(self, socket: str) -> None:
            self.socket = socket

        def get_key(self, path: str, *, purpose: str) -> Secret:
            asked.append((self.socket, path))
            return Secret(b"k" * 32)

    monkeypatch.setattr(client, "DstackClient", Guest)
    assert root_secret("dstack:/run/s.sock") == Secret(b"k" * 32)
    assert root_secret("dstack:run/s.sock?path=other/v2") == Secret(b"k" * 32)
    assert asked == [("/run/s.sock", "sealtrain/broker-root/v1"), ("run/s.sock", "other/v2")]


def test_a_silent_guest_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(GuestApiUnreachable):
        root_secret(f"dstack:{tmp_path}/none.sock")
