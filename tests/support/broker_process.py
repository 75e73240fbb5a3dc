"""Brokers as programs of their own: over any state, killed, starved, stopped."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from release_world import NOW, ROOT, ReleaseWorld, release_world

from sealtrain.base.clock import system_clock
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.service.deployment import document_of
from sealtrain.cli.programs import Part, Process
from sealtrain.client.attested import AttestedBroker
from sealtrain.ledger.postgres import Postgres
from sealtrain_simulator.server import running as simulated_guest
from sealtrain_simulator.state import ensure

READY = "broker ready"
PROGRAM = f"""
import json, sys
from pathlib import Path
from sealtrain.base.clock import system_clock
from sealtrain.broker.config import BrokerConfig, BrokerLimits
from sealtrain.broker.serve import serve
fields = json.loads(sys.argv[1])
for name in ("consortium", "policy", "state"):
    fields[name] = Path(fields[name])
limits = BrokerLimits(**fields.pop("limits", {{}}))
now = fields.pop("now", None)
serve(
    BrokerConfig(**fields, limits=limits),
    ready=lambda url: print("{READY}", url, file=sys.stderr, flush=True),
    clock=system_clock if now is None else lambda: now,
)
"""
_STARTS_WITHIN_S = 120


def documented(fields: Mapping[str, Any]) -> bytes:
    """The deployment document of a broker with these settings."""
    given = dict(fields)
    for name in ("consortium", "policy"):
        given[name] = Path(given[name])
    for name in ("limits", "now"):
        given.pop(name, None)
    return document_of(BrokerConfig(**given | {"state": Path("state")})).to_bytes()


def start(
    fields: Mapping[str, Any],
    folder: Path,
    *,
    before: Callable[[], None] | None = None,
    prelude: str = "",
) -> tuple[Part, str]:
    """A process with these settings, and its URL.

    Args:
        fields: Of ``BrokerConfig``; ``limits`` and a clock that stands at ``now`` may be among
            them.
        folder: Where its log lies.
        before: Runs in the new process first.
        prelude: Program text that runs next.

    Raises:
        Unreachable: It ended instead of serving.
    """

    def begin(_words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
        command = [sys.executable, "-c", prelude + PROGRAM, json.dumps(fields)]
        # One thread starts it.
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, preexec_fn=before)

    name = next(f"broker-{one}" for one in count() if not (folder / f"broker-{one}.log").exists())
    part = Part(name, folder, (), answers=False, start=begin)
    try:
        return part, part.place(READY, within=_STARTS_WITHIN_S)
    except BaseException:
        part.end()
        raise


def newest_log(folder: Path) -> str:
    """What the broker that was started last in a folder has said."""
    logs = folder.glob("broker-*.log")
    return max(logs, key=lambda path: path.stat().st_mtime_ns).read_text("utf-8")


@dataclass(kw_only=True)
class ProcessSite:
    """A consortium whose owners sealed and approved, and how to serve it in another process."""

    world: ReleaseWorld
    attested: AttestedBroker
    folder: Path
    state: Path
    fields: dict[str, Any]

    def start(self, *, max_file: int | None = None, prelude: str = "") -> tuple[Part, str]:
        """A broker process and its URL, always the same."""

        def starve() -> None:
            if max_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file, max_file))

        return start(self.fields, self.folder, before=starve, prelude=prelude)


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
