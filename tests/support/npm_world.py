"""Node packages that some tests drive: installed once, in a cache folder outside the repository.

Nothing of them is kept in the repository or shipped. Without Node, or where npm cannot reach its
packages in time, those tests are skipped and say so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import need

AXE = ("axe-core@4.14.1",)
AZURITE = ("azurite@3.37.0",)
PACKAGES = ("@foundry-rs/anvil@1.7.1", "@safe-global/safe-contracts@1.4.1", "solc@0.8.24")
_INSTALL_SECONDS = 240
_START_SECONDS = 30
_failed: list[str] = []


def node_modules(packages: tuple[str, ...] = PACKAGES) -> Path:
    """The folder with some packages; skips the test where it cannot be had."""
    need("node", "npm")
    if _failed:
        pytest.skip(_failed[0])
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:16]
    folder = root / "sealtrain-tests" / f"npm-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, packages)
            (folder / "complete").touch()
    return folder / "node_modules"


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    words = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit"]
    words += ["--no-fund", "--no-package-lock", *packages]
    try:
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, timeout=_INSTALL_SECONDS
        )
        problem = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired:
        problem = [f"not within {_INSTALL_SECONDS} s"]
    if problem:
        _failed.append(f"npm cannot install what this test drives: {problem[0][:200]}")
        pytest.skip(_failed[0])


@contextmanager
def anvil() -> Iterator[str]:
    """A chain of its own on this machine; yields its URL."""
    found = sorted(node_modules().glob("@foundry-rs/anvil-*/bin/anvil"))
    if not found:
        pytest.skip("npm has no anvil for this machine")
    # Finality within two blocks, so that a broker that waits for it can be tried.
    words = [str(found[0]), "--host", "127.0.0.1", "--port", "0", "--slots-in-an-epoch", "1"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "anvil.log"  # not a pipe: it says much, and nobody reads along
        with log.open("wb") as said:
            program = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield f"http://127.0.0.1:{_port_of(program, log)}"
        finally:
            program.terminate()
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def _port_of(program: subprocess.Popen[bytes], log: Path) -> int:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and program.poll() is None:
        if found := re.search(rb"Listening on 127\.0\.0\.1:(\d+)", log.read_bytes()):
            return int(found[1])
        time.sleep(0.02)
    raise AssertionError(f"anvil did not start: {log.read_bytes()[-500:]!r}")
