"""Brokers as processes over the state that a release world left: killed, starved, stopped."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_program import documented, start
from release_world import NOW, ROOT, ReleaseWorld, release_world
from warm import Process

from sealtrain.base.clock import system_clock
from sealtrain.client.attested import AttestedBroker
from sealtrain.ledger.postgres import Postgres
from sealtrain_simulator.server import running as simulated_guest
from sealtrain_simulator.state import ensure

STARVING = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
"""


@dataclass(kw_only=True)
class ProcessSite:
    """A consortium whose owners sealed and approved, and how to serve it in another process."""

    world: ReleaseWorld
    attested: AttestedBroker
    folder: Path
    state: Path
    fields: dict[str, Any]

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, *, max_file: int | None = None, prelude: str = "") -> tuple[Process, str]:
        """A broker process and its URL, always the same."""

        if max_file is not None:
            prelude = STARVING.format(most=max_file) + prelude
        # A log that grows would meet the limit too.
        log = Path("/dev/null") if max_file is not None else self.log
        process, url = start(self.fields, log, prelude=prelude)
        if not url:
            assert process.stdout is not None
            process.stdout.close()
            process.wait(20)
            raise AssertionError(f"the broker did not start: {log.read_text()[-2000:]}")
        return process, url


@contextmanager
def process_site(folder: Path, database: str | None = None) -> Iterator[ProcessSite]:
    """``database`` is the address of an empty PostgreSQL database; without it files are used."""
    kept = None if database is None else Postgres.parse(database)
    with release_world(folder, database=kept) as world:
        attested = world.attest()
        [state] = folder.glob("state-*")
    (folder / "root").write_text(ROOT.hex() + "\n")
    (folder / "root").chmod(0o600)
    (folder / "database").write_text(f"{database}\n")
    (folder / "database").chmod(0o600)
    (folder / "consortium.json").write_bytes(world.consortium.to_bytes())
    (folder / "policy.yaml").write_text(json.dumps(world.policy.to_dict()))
    collateral = json.dumps(world.pki.collateral(NOW).to_dict())
    (folder / "collateral.json").write_text(collateral)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fields = {
        "consortium": str(folder / "consortium.json"),
        "policy": str(folder / "policy.yaml"),
        "root_secret": f"file:{folder / 'root'}",
        "state": str(state),
        "guest": str(folder / "guest.sock"),
        "collateral": f"file:{folder / 'collateral.json'}",
        "platform": "simulator",
        "database": None if database is None else f"file:{folder / 'database'}",
        "port": port,
        "now": NOW,
        "limits": {"posts_per_minute": 1_000_000},
    }
    (folder / "compose.json").write_bytes(documented(fields))
    ensure(folder / "simulator", system_clock())
    with simulated_guest(folder / "guest.sock", folder / "compose.json", folder / "simulator"):
        yield ProcessSite(
            world=world,
            attested=attested,
            folder=folder,
            state=state,
            fields=fields,
        )
