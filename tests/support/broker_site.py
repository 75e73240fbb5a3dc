"""Brokers of one consortium as programs or threads: over any state, killed, starved, stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import warm
import yaml
from ports import free_port
from release_world import ROOT, ReleaseWorld, release_world
from world import NOW, OWNERS, Agreement, founded, identity, lock_changed

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.serve import running
from sealtrain.broker.service.deployment import document_of
from sealtrain.cli.programs import Process, SideProgram
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker, attest_pinned_broker
from sealtrain.client.pin import BrokerPin
from sealtrain.keys.derive import signing_key
from sealtrain.keys.uris import root_secret
from sealtrain.ledger.postgres import Postgres
from sealtrain.signing.identity import broker_id
from sealtrain_rehearsal.simulator.server import running as simulated_guest
from sealtrain_rehearsal.simulator.state import ensure


@dataclass(kw_only=True)
class BrokerSite(Agreement):
    """One consortium; any number of brokers with the same root secret."""

    folder: Path
    fields: dict[str, Any]
    pin: BrokerPin

    def now(self) -> int:
        return system_clock()

    @property
    def deployment(self) -> Path:
        return self.folder / "app-compose.json"

    def state(self, name: str) -> Path:
        return self.folder / name

    def copy(self, source: str, target: str) -> None:
        shutil.rmtree(self.state(target), ignore_errors=True)
        shutil.copytree(self.state(source), self.state(target))

    def settings(self, state: str, port: int = 0) -> dict[str, Any]:
        """What a process is told to serve one state folder."""
        return self.fields | {"state": str(self.state(state)), "port": port}

    def config(self, state: str, port: int = 0) -> BrokerConfig:
        """The same for a thread."""
        return config_from(self.settings(state, port))

    @contextmanager
    def broker(self, state: str, port: int = 0) -> Iterator[BrokerClient]:
        """A process that serves one state folder; stopped at the end."""
        process, url = start(self.settings(state, port), self.folder)
        with process, BrokerClient(url) as client:
            yield client

    @contextmanager
    def serving(self, state: str, port: int = 0) -> Iterator[BrokerClient]:
        """The same in a thread of this process: starts sooner."""
        with running(self.config(state, port)) as url, BrokerClient(url) as client:
            yield client

    def key(self, client: BrokerClient) -> Callable[[], bytes]:
        now = system_clock()
        consortium_id = self.consortium.consortium_id
        return lambda: attest_pinned_broker(client, self.pin, consortium_id, now=now).signing_key

    def broker_file(self, client: BrokerClient, name: str = "broker.yaml") -> Path:
        path = self.folder / name
        pin = self.pin.model_copy(update={"url": client.url})
        path.write_text(pin.to_yaml())
        return path

    def owner(self, client: BrokerClient, name: str) -> BrokerClient:
        """A client of the same broker, of one owner."""
        me = identity(name).signer
        return BrokerClient(client.url, signer=me, broker=self.pin.broker_id)

    def decide(self, client: BrokerClient, owner: str, decision: str = "approve") -> int:
        """Hand a decision in, without looking at the ledger."""
        named = [self.pin.broker_id]
        made = self.decision(owner, revoke=decision == "revoke", brokers=named)
        with self.owner(client, owner) as mine:
            return mine.hand_in("approval", made)


@contextmanager
def broker_site(folder: Path) -> Iterator[BrokerSite]:
    simulator = ensure(folder / "simulator", system_clock())
    policy = insecure_simulator_policy(simulator.root_path.read_bytes())
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    consortium = founded("three", own_data_consent=False)
    (folder / "consortium.json").write_bytes(consortium.to_bytes())
    for name in OWNERS:
        identity(name).save(folder / f"{name}.identity.json")
    socket = folder / "broker.sock"
    fields = {
        "consortium": str(folder / "consortium.json"),
        "policy": str(folder / "policy.yaml"),
        "root_secret": f"dstack:{socket}",
        "guest": str(socket),
        "collateral": f"file:{simulator.collateral_path}",
        "platform": "simulator",
    }
    document = documented(fields)
    (folder / "compose.json").write_bytes(document)
    with simulated_guest(socket, folder / "compose.json", folder / "simulator"):
        key = signing_key(root_secret(f"dstack:{socket}"), "broker").public
        locked = lock_changed(consortium.consortium_id, (broker_id(key),))
        (folder / "app-compose.json").write_bytes(locked.compose_bytes)
        yield BrokerSite(
            folder=folder,
            fields=fields,
            pin=BrokerPin(
                url="http://127.0.0.1:1",
                signing_key=to_base64(key),
                compose_hash=sha256_hex(document),
                appraisal=policy,
            ),
            consortium=consortium,
            locked=locked,
        )


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


def config_from(fields: Mapping[str, Any], **changed: Any) -> BrokerConfig:
    """What a process is told, for a thread."""
    given = {name: value for name, value in fields.items() if name not in ("limits", "now")}
    given |= changed
    for name in ("consortium", "policy", "state"):
        given[name] = Path(given[name])
    return BrokerConfig(**given)


def documented(fields: Mapping[str, Any]) -> bytes:
    """The deployment document of a broker with these settings."""
    return document_of(config_from(fields, state="state")).to_bytes()


def start(
    fields: Mapping[str, Any],
    folder: Path,
    *,
    max_file: int | None = None,
    prelude: str = "",
) -> tuple[SideProgram, str]:
    """A process with these settings, and its URL.

    Args:
        fields: Of ``BrokerConfig``; ``limits`` and a clock that stands at ``now`` may be among
            them.
        folder: Where its log lies.
        max_file: Bytes that no file of the process may exceed.
        prelude: Program text that runs next.

    Raises:
        Unreachable: It ended instead of serving.
    """

    limit = ""
    if max_file is not None:
        limit = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, {(max_file,) * 2})\n"

    def begin(_words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
        words = ["-c", limit + prelude + PROGRAM, json.dumps(fields)]
        if warm.WARM:
            return warm.light().start(
                words, env=os.environ, cwd=Path.cwd(), stdout=stdout, stderr=stderr
            )
        return subprocess.Popen([sys.executable, *words], stdout=stdout, stderr=stderr)

    name = next(
        f"broker-{number}" for number in count() if not (folder / f"broker-{number}.log").exists()
    )
    part = SideProgram(name, folder, (), answers=False, start=begin)
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

    def start(self, *, max_file: int | None = None, prelude: str = "") -> tuple[SideProgram, str]:
        """A broker process and its URL, always the same."""
        return start(self.fields, self.folder, max_file=max_file, prelude=prelude)


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
    fields = {
        "consortium": str(folder / "consortium.json"),
        "policy": str(folder / "policy.yaml"),
        "root_secret": f"file:{folder / 'root'}",
        "state": str(state),
        "guest": str(folder / "guest.sock"),
        "collateral": f"file:{folder / 'collateral.json'}",
        "platform": "simulator",
        "database": None if database is None else f"file:{folder / 'database'}",
        "port": free_port(),
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
