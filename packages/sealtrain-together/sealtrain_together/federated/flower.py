"""Flower's own processes for a rehearsal: SuperLink, SuperNodes, and the run of the relay's app.

They get an environment and a home of their own in the rehearsal's folder, with everything off that
would tell somebody that they run. They talk over TLS, by a certificate that is made for this
rehearsal, and the SuperLink keeps what it knows in a file. ``watch`` is their supervisor: what died
is started again, and with a SuperLink the app that died with it. No process of it outlives this
one: the kernel ends those that were started here, and their own children watch them.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from sealtrain.base.extras import extra_missing
from sealtrain.base.files import atomic_write
from sealtrain.base.processes import end_with_starter
from sealtrain.cli.programs import end
from sealtrain.errors import Unreachable
from sealtrain_together.federated.app import write_app

CERTIFICATE = "superlink.pem"
KEY = "superlink.key"

_STARTS_WITHIN_S = 90.0
_STARTS_AGAIN = 2
_POLL_S = 0.1
_LINK = "rehearsal"
_HOST = "127.0.0.1"


class Flower:
    """Use as a context: it ends what it started.

    Args:
        folder: For logs, the app and Flower's home.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._port = _free_port()
        self._nodes: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._link: subprocess.Popen[bytes] | None = None
        self._app_relay: Path | None = None
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
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
        write_certificate(self._folder, _HOST)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        self._stack.close()

    def open_link(self) -> None:
        """Start the SuperLink; nodes wait for it, and ``run_app`` does."""
        certificate = str(self._folder / CERTIFICATE)
        (self._folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{_LINK}"\n\n[superlink.{_LINK}]\n'
            f'address = "{_HOST}:{self._port}"\n'
            f'root-certificates = "{self._folder.absolute() / CERTIFICATE}"\n'
        )
        self._link = self._start(
            "superlink", "flower-superlink", "--host", _HOST, "--port", str(self._port),
            "--ssl-ca-certfile", certificate, "--ssl-certfile", certificate,
            "--ssl-keyfile", str(self._folder / KEY),
            "--database", str(self._folder / "superlink.db"),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def add_node(self, name: str, relay: Path) -> None:
        """Start a SuperNode, or start it again.

        Args:
            name: Of its log.
            relay: Socket of the party beside it.
        """
        process = self._start(
            name, "flower-supernode", "--superlink", f"{_HOST}:{self._port}",
            "--root-certificates", str(self._folder / CERTIFICATE),
            "--port", str(_free_port()), "--node-config", f'relay="{relay}"',
        )  # fmt: skip
        self._nodes[name] = process, relay

    def kill_node(self, name: str) -> None:
        """Kill a SuperNode and what it started, as the end of its machine does."""
        _kill(self._nodes[name][0])

    def kill_link(self, *, moves: bool = False) -> None:
        """Kill the SuperLink and what it started, the relay's app too.

        Args:
            moves: It gets another address when it is started again.
        """
        if self._link is None:
            raise AssertionError("no SuperLink was started")
        if moves:
            self._port = _free_port()
        _kill(self._link)

    def watch(self) -> None:
        """Start again what dies from now on, until the block ends. After ``run_app``."""
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        address = self._port
        while not self._over.wait(_POLL_S):
            if self._link is not None and self._link.poll() is not None:
                self._link_again()
            for name, (process, relay) in tuple(self._nodes.items()):
                if address != self._port:
                    _kill(process)
                if process.poll() is not None:
                    self.add_node(name, relay)
            address = self._port

    def _link_again(self) -> None:
        """Start the SuperLink with what it kept, and the app; at another address if it must."""
        try:
            self.open_link()
            if self._app_relay is not None:
                self.run_app(self._app_relay)
        except (Unreachable, subprocess.TimeoutExpired):
            if self._link is not None:
                _kill(self._link)
            self._port = _free_port()

    def run_app(self, relay: Path) -> None:
        """Have the SuperLink run the relay's app.

        Args:
            relay: Socket of the lead.

        Raises:
            Unreachable: It does not answer, or does not take it.
        """
        self._app_relay = relay
        self._await_link()
        app = self._folder / "app"
        if not app.exists():
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
            preexec_fn=end_with_starter(),
        )  # fmt: skip
        if done.returncode:
            raise Unreachable(
                "Flower did not take the relay's app",
                got=f"status {done.returncode}",
                hint=f"see {self._folder / 'superlink.log'}",
            )

    def _await_link(self) -> None:
        """Wait for the SuperLink; one that ends before it was needed is started again."""
        until, starts = time.monotonic() + _STARTS_WITHIN_S, 0
        while not _answers(self._port, self._folder / CERTIFICATE):
            status = None if self._link is None else self._link.poll()
            if status is not None and starts < _STARTS_AGAIN and not self._over.is_set():
                starts += 1
                self.open_link()
            elif status is not None or self._over.is_set() or time.monotonic() > until:
                raise Unreachable(
                    "Flower's SuperLink did not start",
                    got=f"status {status}",
                    expected=f"an answer within {_STARTS_WITHIN_S:.0f} s",
                    hint=f"see {self._folder / 'superlink.log'}",
                )
            time.sleep(_POLL_S)

    def _start(self, name: str, program: str, *words: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(  # noqa: S603  # Flower's own program with our own words
            [str(Path(sys.executable).parent / program), *words],
            env=self._environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_starter(),
        )
        self._stack.callback(end, process)
        return process


def write_certificate(folder: Path, host: str, *, days: int = 7) -> None:
    """Write ``CERTIFICATE``, its own authority, and ``KEY`` for a SuperLink.

    Args:
        folder: Where they are made.
        host: Address that nodes and ``flwr`` reach it by.
        days: For which it holds.
    """
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "SuperLink")])
    now = dt.datetime.now(dt.UTC)
    # What a SuperLink starts calls it at the second one.
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in sorted({host, _HOST})]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    atomic_write(folder / KEY, encoded, mode=0o600)
    atomic_write(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    if process.poll() is None:
        for identity in (process.pid, *_list_children(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(identity, signal.SIGKILL)
    process.wait()


def _list_children(parent: int) -> list[int]:
    """Processes below one, as they are now."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            above = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(stat.parent.name))
    found, pending = [], [parent]
    while pending:
        below = children.pop(pending.pop(), [])
        found += below
        pending += below
    return found


def require_flower() -> None:
    """Flower is installed.

    Raises:
        ExtraMissing: It is not.
    """
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise extra_missing("The rehearsal of a federation", "federated", error) from error


def _answers(port: int, certificate: Path) -> bool:
    try:
        trusted = ssl.create_default_context(cafile=str(certificate))
        address = f"https://{_HOST}:{port}/"
        with urllib.request.urlopen(address, timeout=1, context=trusted):
            return True
    except urllib.error.HTTPError:
        return True  # it says what it does not know
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
