"""An identity under a passphrase opens with that passphrase alone, at a cost its reader accepts."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cli_tree import all_commands
from typer.testing import CliRunner

from sealtrain.base.secret import Secret
from sealtrain.cli import app
from sealtrain.errors import KeyFileInvalid, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.keys.passphrase import PASSPHRASES

pytestmark = [pytest.mark.long, pytest.mark.claim("C147")]

WORD = b"correct horse battery"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An identity's file; locking one takes as long as the cost says."""
    path = tmp_path_factory.mktemp("locked") / "a.identity.json"
    Identity.generate("hospital-a", post_quantum=True).save(path, Secret(WORD))
    return path


@pytest.fixture
def path(locked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(locked, tmp_path))


def given(word: bytes) -> None:
    PASSPHRASES.use(lambda _path: Secret(word))


def altered(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_it_opens_with_its_passphrase_and_no_other(path: Path) -> None:
    given(WORD)
    assert Identity.load(path).name == "hospital-a"
    for wrong in (b"", WORD + b" ", WORD[:-1], WORD.upper(), b"x" * 2000, b"\xff\xfe"):
        given(wrong)
        with pytest.raises(KeyFileInvalid, check=carries(check="passphrase")):
            Identity.load(path)


def test_the_seed_is_not_in_the_file_and_two_files_share_nothing(tmp_path: Path) -> None:
    identity = Identity.generate("a", random=lambda size: b"Z" * size)
    for name in ("one", "two"):
        identity.save(tmp_path / name, Secret(WORD))
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert one["scrypt"]["salt"] != two["scrypt"]["salt"]
    assert one["seed"] != two["seed"]
    assert "Wlpa" not in one["seed"]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "hospital-b"},
        {"witness": None},
        {"type": "sealtrain/identity/v1"},
        {"type": "sealtrain/identity/v3"},
        {"scrypt": None},
        {"scrypt": {"log_n": 16, "salt": "AAAAAAAAAAAAAAAAAAAAAA=="}},
        {"comment": "mine"},
    ],
)
def test_an_altered_file_is_refused(path: Path, changes: dict[str, Any]) -> None:
    altered(path, **changes)
    given(WORD)
    with pytest.raises(KeyFileInvalid):
        Identity.load(path)


@pytest.mark.parametrize("log_n", [-1, 0, 14, 19, 30, 63, 10**9])
def test_an_excessive_cost_is_refused_before_anybody_is_asked(path: Path, log_n: int) -> None:
    salt = json.loads(path.read_text())["scrypt"]["salt"]
    altered(path, scrypt={"log_n": log_n, "salt": salt})

    def ask(_path: Path) -> Secret:
        raise AssertionError("asked for a passphrase")

    PASSPHRASES.use(ask)
    begun = time.monotonic()
    with pytest.raises(KeyFileInvalid, check=carries(check="cost")):
        Identity.load(path)
    assert time.monotonic() - begun < 1


def test_a_short_passphrase_locks_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyFileInvalid, check=carries(check="passphrase")):
        Identity.generate("a").save(tmp_path / "a", Secret(b"short"))
    assert list(tmp_path.iterdir()) == []


def opening(path: Path, *words: str) -> tuple[int, BaseException | None]:
    """A command that reads the identity, and then finds nothing sealed."""
    found = CliRunner().invoke(app, ["open", "none", "--identity", str(path), "--out", "x", *words])
    return found.exit_code, found.exception


def test_every_command_with_an_identity_takes_a_private_file_and_no_word(path: Path) -> None:
    for _, command in all_commands():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--passphrase-file" in options) >= ("--identity" in options), command.name
    word = path.parent / "word"
    word.write_bytes(WORD + b"\n")
    word.chmod(0o644)
    _, error = opening(path, "--passphrase-file", str(word))
    assert isinstance(error, KeyFileInvalid)


def keygen(folder: Path, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sealtrain", "keygen", "a", "--json", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        **settings,
    )


def test_a_file_that_others_can_read_is_refused_and_a_descriptor_is_taken(tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.write_bytes(WORD)
    word.chmod(0o644)
    refused = keygen(tmp_path, "--passphrase-file", "word")
    assert json.loads(refused.stdout)["error"]["code"] == "key-file-invalid"
    assert not (tmp_path / "a.identity.json").exists()

    reading, writing = os.pipe()
    os.write(writing, WORD + b"\n")
    os.close(writing)
    done = keygen(tmp_path, "--passphrase-file", f"/dev/fd/{reading}", pass_fds=(reading,))
    os.close(reading)
    assert done.returncode == 0, done.stderr
    given(WORD)
    assert Identity.load(tmp_path / "a.identity.json").name == "a"
    assert WORD.decode() not in done.stdout + done.stderr


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    done = keygen(tmp_path, "--with-passphrase", stdin=subprocess.DEVNULL)
    assert json.loads(done.stdout)["error"]["code"] == UsageError.code
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_is_asked_twice_and_not_shown(tmp_path: Path) -> None:
    shown, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sealtrain", "keygen", "a", "--with-passphrase"],
        cwd=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    seen = b""
    for question in (b"New passphrase: ", b"Again: "):
        while question not in seen:
            seen += os.read(shown, 1000)
        os.write(shown, WORD + b"\n")
    assert process.wait(30) == 0
    os.close(shown)
    assert WORD not in seen
    given(WORD)
    assert Identity.load(tmp_path / "a.identity.json").name == "a"
