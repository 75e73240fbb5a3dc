"""The store of a rehearsal: files of its folder, and nothing beside it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sealtrain_rehearsal.rehearsed_store import store_served


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    (tmp_path / "secret").write_text("of the machine")
    with store_served(tmp_path / "store") as url:
        yield url, tmp_path / "store"


def asked(
    url: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_what_was_put_is_got_whole_in_part_and_anew(store: tuple[str, Path]) -> None:
    url, folder = store
    assert asked(url, "GET", "/run/a.sealed")[0] == 404
    assert asked(url, "PUT", "/run/a.sealed", b"0123456789")[0] == 201
    assert asked(url, "GET", "/run/a.sealed") == (200, b"0123456789")
    assert asked(url, "GET", "/run/a.sealed", Range="bytes=2-4") == (206, b"234")
    assert asked(url, "GET", "/run/a.sealed", Range="bytes=8-99") == (206, b"89")
    assert asked(url, "GET", "/run/a.sealed", Range="bytes=10-11")[0] == 416
    assert asked(url, "PUT", "/run/a.sealed", b"new")[0] == 201
    assert asked(url, "GET", "/run/a.sealed") == (200, b"new")
    assert [path.name for path in (folder / "run").iterdir()] == ["a.sealed"]
    assert asked(url, "DELETE", "/run/a.sealed")[0] == 204
    assert asked(url, "DELETE", "/run/a.sealed")[0] == 404


@pytest.mark.parametrize(
    "path",
    ["/../secret", "/%2e%2e/secret", "/run/..%2f..%2fsecret", "//secret/..", "/", "/.hidden"],
)
def test_no_path_leads_out_of_it(store: tuple[str, Path], path: str) -> None:
    url, folder = store
    assert asked(url, "GET", path)[0] == 404
    assert asked(url, "PUT", path, b"x")[0] == 400
    assert (folder.parent / "secret").read_text() == "of the machine"
    assert list(folder.iterdir()) == []
