"""Flower's own processes for a rehearsal: SuperLink, SuperNodes, and the run of the relay's app.

They get an environment and a home of their own in the rehearsal's folder, with everything off that
would tell somebody that they run.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from sealtrain.base.extras import extra_missing
from sealtrain.cli.programs import end
from sealtrain.errors import Unreachable
from sealtrain_collab.federated.app import write_app

__all__ = ["Flower"]

_STARTS_WITHIN_S = 90.0
_POLL_S = 0.1
_LINK = "rehearsal"


class Flower:
    """Use as a context: it ends what it started.

    Args:
        folder: For logs, the app and Flower's home.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._port = _free_port()
        self._environment = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            # Its daemons start each other by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> Self:
        require_flower()
        home = self._folder / "home"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_LINK}"\n\n[superlink.{_LINK}]\n'
            f'address = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open_link(self) -> None:
        """Start the SuperLink; nodes wait for it, and ``run_app`` does."""
        self._link = self._start(
            "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1",
            "--port", str(self._port), "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def add_node(self, name: str, relay: Path) -> None:
        """Start a SuperNode.

        Args:
            name: Of its log.
            relay: Socket of the party beside it.
        """
        self._start(
            name, "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._port}",
            "--port", str(_free_port()), "--node-config", f'relay="{relay}"',
        )  # fmt: skip

    def run_app(self, relay: Path) -> None:
        """Have the SuperLink run the relay's app.

        Args:
            relay: Socket of the lead.

        Raises:
            Unreachable: It does not answer, or does not take it.
        """
        self._await_link()
        app = self._folder / "app"
        write_app(app)
        done = subprocess.run(  # noqa: S603  # Flower's own program with our own words
            [
                sys.executable, "-m", "flwr.cli.app", "run", str(app), _LINK,
                "--run-config", f'relay="{relay}"', "--format", "json",
            ],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_STARTS_WITHIN_S,
        )  # fmt: skip
        if done.returncode:
            raise Unreachable(
                "Flower did not take the relay's app",
                got=f"status {done.returncode}",
                hint=f"see {self._folder / 'superlink.log'}",
            )

    def _await_link(self) -> None:
        until = time.monotonic() + _STARTS_WITHIN_S
        while not _answers(self._port):
            if self._link.poll() is not None or time.monotonic() > until:
                raise Unreachable(
                    "Flower's SuperLink did not start",
                    got=f"status {self._link.poll()}",
                    expected=f"an answer within {_STARTS_WITHIN_S:.0f} s",
                    hint=f"see {self._folder / 'superlink.log'}",
                )
            time.sleep(_POLL_S)

    def _start(self, name: str, program: str, *words: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(  # noqa: S603  # Flower's own program with our own words
            [str(Path(sys.executable).parent / program), *words],
            env=self._environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(end, process)
        return process


def require_flower() -> None:
    """Flower is installed.

    Raises:
        ExtraMissing: It is not.
    """
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise extra_missing("The rehearsal of a federation", "federated", error) from error


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1):
            return True
    except urllib.error.HTTPError:
        return True  # it says what it does not know
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
