"""The real Docker Engine and Docker Compose of Debian 13, which create containers and start none.

Their packages are fetched once into a cache folder outside the repository, checked by apt and
unpacked, not installed. The engine runs in a network namespace of its own with a folder of its own,
and goes with the test. Where Debian's archive cannot be reached, or this user may make no such
namespace, the tests that ask for it are skipped and say so.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from archive import lists_of, missing_for_debian, unpack
from polling import wait_until
from programs import need, need_namespaces

SUITE = "trixie"
PACKAGES = ("docker.io", "docker-cli", "docker-compose", "containerd", "runc")
IMAGE = "probe:1"
"""An image without a file in it: nothing of it is ever started."""
_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Docker:
    """A running engine.

    Attributes:
        programs: Folder that Debian's packages were unpacked into.
        folder: Of the engine, for the test alone.
    """

    programs: Path
    folder: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A command of ``docker`` or ``docker-compose``, against this engine alone."""
        program, *rest = words
        return subprocess.run(
            [self.programs / "usr/bin" / program, *rest],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.folder),
                "DOCKER_HOST": f"unix://{self.folder / 'sock'}",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )

    def create(self, name: str, compose: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Have Compose create what a file asks for; nothing of it is started."""
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(compose))
        return self.run("docker-compose", "--project-name", name, "--file", file, "create")

    def created(self) -> dict[str, dict[str, Any]]:
        """What the engine holds of every container, by its project."""
        found = self.run("docker", "ps", "--all", "--quiet").stdout.split()
        answers = json.loads(self.run("docker", "inspect", *found).stdout)
        return {
            answer["Config"]["Labels"]["com.docker.compose.project"]: answer for answer in answers
        }


@contextmanager
def docker(folder: Path) -> Iterator[Docker]:
    """An engine that keeps everything in ``folder``, with ``IMAGE`` in it."""
    need_namespaces()
    if os.geteuid() != 0:
        pytest.skip("Docker's engine wants to be root")
    programs = _unpacked()
    here = Docker(programs=programs, folder=folder)
    words = [need("util-linux")["unshare"], "--net", "--mount", "--", programs / "usr/sbin/dockerd"]
    words += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"]
    words += ["--default-address-pool", "base=10.0.0.0/8,size=28"]  # a network for each document
    words += ["--data-root", folder / "data", "--exec-root", folder / "exec"]
    words += ["--pidfile", folder / "pid", "--host", f"unix://{folder / 'sock'}"]
    path = f"{programs}/usr/bin:{programs}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(words, stdout=log, stderr=log, env={"PATH": path, "HOME": folder})
    try:
        wait_until(lambda: engine.poll() or _answers(here), seconds=_SECONDS)
        assert engine.poll() is None, (folder / "log").read_text()[-2000:]
        empty = folder / "empty.tar"
        empty.write_bytes(bytes(10240))
        assert here.run("docker", "import", empty, IMAGE).returncode == 0
        yield here
    finally:
        engine.terminate()
        try:
            engine.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def _answers(engine: Docker) -> bool:
    return engine.run("docker", "version").returncode == 0


def _unpacked() -> Path:
    if (problem := missing_for_debian()) is not None:
        pytest.skip(problem)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sealtrain-tests"
    root.mkdir(parents=True, exist_ok=True)
    folder = root / "docker" / SUITE
    folder.parent.mkdir(exist_ok=True)
    with (root / "docker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                lists_of(SUITE, folder)
                unpack(folder, PACKAGES)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"Debian's archive gives no Docker here: status {error.returncode}")
            (folder / "complete").touch()
    return folder / "files"
