"""A real PostgreSQL server for tests: its own data, on loopback, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from polling import wait_until
from ports import free_port
from programs import need

from sealtrain.ledger.postgres import Postgres

DATABASE = "broker_1"
_WAIT = 60.0


@dataclass(kw_only=True)
class Server:
    """One server; its databases are made one for each test."""

    folder: Path
    port: int
    password: str
    process: subprocess.Popen[bytes] | None = None
    made: int = 0
    settings: list[str] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str, *, password: bool = True) -> str:
        """Address of a database, as an operator writes it."""
        secret = f":{self.password}" if password else ""
        return f"postgresql+psycopg://broker{secret}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """A further empty database; returns its name."""
        self.made += 1
        name = f"broker_{self.made}"
        with self.sql("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        return name

    def emptied(self) -> str:
        """The one database that tests use after each other, empty: cheaper than a new one."""
        if not self.made:
            return self.new_database()
        with self.sql(DATABASE) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA IF EXISTS sealtrain_ledger CASCADE")
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return DATABASE

    def database(self) -> Postgres:
        """The address of an empty database."""
        return Postgres.parse(self.url(self.emptied()))

    @contextmanager
    def sql(self, database: str) -> Iterator[psycopg.Connection]:
        """A session of the database's administrator."""
        with psycopg.connect(self.url(database).replace("+psycopg", ""), autocommit=True) as one:
            yield one

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        options = [f"-p{self.port}", *(f"-c{setting}" for setting in self.settings)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [need("postgresql")["postgres"], "-D", self.data, *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **_unprivileged(),
            )
        deadline = time.monotonic() + _WAIT
        while True:
            try:
                with self.sql("postgres"):
                    return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.folder / "log").read_text()[-2000:]
                    raise AssertionError(f"PostgreSQL did not start: {log_text}") from None
                time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it: SIGINT cuts sessions off, SIGKILL is a crash of the whole server.

        SIGQUIT crashes it too, but takes its children along.
        """
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(_WAIT)
        self.process = None
        if number != signal.SIGINT:
            self._orphans_gone()

    def _orphans_gone(self) -> None:
        """Wait for the children of a crashed server: they notice on their own."""
        wait_until(lambda: not _working_in(self.data), _WAIT)


def _working_in(folder: Path) -> list[str]:
    """Processes whose working folder it is: the server's and no others."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found


def _unprivileged() -> dict[str, object]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


@contextmanager
def postgres_server(settings: list[str] | None = None) -> Iterator[Server]:
    """A running server, gone afterwards with its data; skips the test where there is none."""
    initdb = need("postgresql")["initdb"]
    # Not under tmp_path: only root may look into that.
    folder = Path(tempfile.mkdtemp(prefix="sealtrain-postgres-"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        password = secrets.token_hex(16)
        (folder / "password").write_text(password)
        if os.geteuid() == 0:
            os.chown(folder / "password", nobody.pw_uid, nobody.pw_gid)
        made = subprocess.run(
            [
                initdb, "-D", folder / "data", "-U", "broker", "-E", "UTF8",
                "--locale=C.UTF-8", "-A", "scram-sha-256", f"--pwfile={folder / 'password'}",
                "--no-sync", "--no-instructions",
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            **_unprivileged(),
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        server = Server(
            folder=folder,
            port=free_port(),
            password=password,
            settings=[
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "shared_buffers=16MB",
                *(settings or []),
            ],
        )
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # at once: its data is not needed any more
    finally:
        shutil.rmtree(folder, ignore_errors=True)
