"""A store of Azure, by ``abfs``, against Azurite: its own emulator, installed by npm.

adlfs is installed by ``tools/azure/pins.txt`` in front of the libraries that run this test. Where
npm or the package index is out of reach, or Node is missing, the test skips.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from node_judges import node
from npm_world import AZURITE, node_modules
from ports import free_port
from private_network import Authority

from sealtrain.base.tunnel import EXPIRED, INTERCEPTED, PROXY_SILENT, WRONG_NAME

pytestmark = [pytest.mark.long, pytest.mark.nightly, pytest.mark.claim("C706")]

REPOSITORY = Path(__file__).resolve().parents[2]
PINS = REPOSITORY / "tools/azure/pins.txt"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the emulator's one account, which its documentation publishes."""
SECONDS = 120


@contextmanager
def azurite(folder: Path, certificate: Path | None = None) -> Iterator[str]:
    """The emulator on loopback; yields the connection string of its account.

    Args:
        folder: For what it stores.
        certificate: It speaks TLS with this key and certificate.
    """
    main = node_modules(AZURITE) / "azurite/dist/src/blob/main.js"
    port = free_port()
    words = [node(), str(main), "--location", str(folder), "--blobHost", "127.0.0.1"]
    words += ["--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"]
    words += ["--disableProductStyleUrl"]
    if certificate is not None:
        words += ["--cert", str(certificate), "--key", str(certificate)]
    log = folder / "azurite.log"
    with log.open("wb") as said:
        program = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + SECONDS
        while b"successfully listens" not in log.read_bytes():
            assert program.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        scheme, host = ("http", "127.0.0.1") if certificate is None else ("https", "localhost")
        yield (
            f"DefaultEndpointsProtocol={scheme};AccountName=devstoreaccount1;AccountKey={KEY};"
            f"BlobEndpoint={scheme}://{host}:{port}/devstoreaccount1;"
        )
    finally:
        program.terminate()
        program.wait(10)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("azure")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = str(folder / "venv/bin/python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    done = subprocess.run([*install, "--no-deps", "-r", str(PINS)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no adlfs here: {done.stderr.strip().splitlines()[-1][:200]}")
    lent = [path for path in sys.path if path.endswith("site-packages")]
    packages = next((folder / "venv/lib").glob("python*/site-packages"))
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in lent)
    (packages / "zz-lent.pth").write_text(lines)
    for name in ("store", "secured"):
        (folder / name).mkdir()
    bank = Authority(folder)
    bank.server("store.bank.example", days=(-9, -2), file="expired")
    bank.server("another.bank.example", file="wrong name")
    shown = bank.server("store.bank.example", "localhost")
    player = str(REPOSITORY / "tests/support/azure_player.py")
    with azurite(folder / "store") as account, azurite(folder / "secured", shown) as secured:
        done = subprocess.run(
            [python, player, str(folder), str(bank.file), secured],
            env={**os.environ, "AZURE_STORAGE_CONNECTION_STRING": account},
            capture_output=True, text=True, timeout=SECONDS * 4,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_what_is_published_is_read_with_its_key(told: dict[str, Any]) -> None:
    data = told["data"]
    assert data["same"]
    assert data["sent"] == data["files"] > 2
    assert data["sent_again"] == 0


def test_what_a_guest_leaves_another_takes(told: dict[str, Any]) -> None:
    assert told["run"] == {"attempts": 2, "same": True}


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("wrong key, write", "storage-refused"),
        ("wrong key, read", "storage-refused"),
        ("no key, write", "storage-refused"),
        ("no key, read", "storage-refused"),
        ("no account", "usage"),
        ("no container, write", "storage-refused"),
        ("no container, read", "data-invalid"),
        ("no file", "data-invalid"),
    ],
)
def test_what_never_works_is_told_and_not_tried_again(
    told: dict[str, Any], fault: str, code: str
) -> None:
    found = told["faults"][fault]
    assert (found["code"], found["again"]) == (code, 0)


def test_a_store_that_is_away_is_asked_again(told: dict[str, Any]) -> None:
    found = told["faults"]["no server"]
    assert (found["code"], found["again"]) == ("storage-unreachable", 5)


@pytest.mark.claim("C745")
def test_a_store_behind_a_private_authority_is_reached_through_the_proxy_that_is_named(
    told: dict[str, Any],
) -> None:
    """Whatever the environment says of proxies and authorities."""
    behind = told["behind"]
    assert behind["same"]
    assert behind["heads"]
    for head in behind["heads"]:
        assert head.startswith("CONNECT store.bank.example:443 HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic bWU6aHVudGVyMg==\r\n" in head
        assert "SharedKey" not in head


@pytest.mark.claim("C745")
@pytest.mark.parametrize(
    ("fault", "check", "got"),
    [
        ("no authority", "tls", INTERCEPTED),
        ("expired", "tls", EXPIRED),
        ("wrong name", "tls", WRONG_NAME),
        ("proxy refuses", "proxy", "HTTP 407: it wants a user and a password"),
    ],
)
def test_a_fault_of_the_network_is_told_as_that_of_every_store_and_not_tried_again(
    told: dict[str, Any], fault: str, check: str, got: str
) -> None:
    found = told["behind"][fault]
    assert (found["code"], found["check"], found["got"]) == ("storage-unreachable", check, got)
    assert found["again"] == 0


def test_a_proxy_that_is_away_is_asked_again(told: dict[str, Any]) -> None:
    found = told["behind"]["no proxy there"]
    assert (found["code"], found["again"]) == ("storage-unreachable", 5)
    assert PROXY_SILENT in found["got"]
