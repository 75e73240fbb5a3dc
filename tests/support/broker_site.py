"""Brokers as processes over one simulated guest, with owners that have identity files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from broker_process import documented, start
from manifest_world import OWNERS, identity, target_of
from release_world import lock_changed

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.serve import running
from sealtrain.client.api import BrokerClient
from sealtrain.client.attested import pinned_identity
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.approvals import Decision, Target, sign_decision
from sealtrain.consortium.members import Consortium
from sealtrain.keys.derive import signing_key
from sealtrain.keys.uris import root_secret
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of
from sealtrain.signing.identity import broker_id
from sealtrain.signing.needs import Needs
from sealtrain_simulator.server import running as simulated_guest
from sealtrain_simulator.state import ensure


@dataclass(kw_only=True)
class BrokerSite:
    """One consortium; any number of brokers with the same root secret."""

    folder: Path
    fields: dict[str, Any]
    pin: BrokerPin
    consortium: Consortium
    locked: LockedRecipe

    @property
    def target(self) -> Target:
        return target_of(self.locked)

    @property
    def needs(self) -> Needs:
        return needs_of(self.locked.lock.recipe)

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
        fields = self.settings(state, port)
        for name in ("consortium", "policy", "state"):
            fields[name] = Path(fields[name])
        return BrokerConfig(**fields)

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
        return lambda: pinned_identity(client, self.pin, consortium_id, now=now).signing_key

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
        now = system_clock()
        fields = {
            "consortium_id": self.consortium.consortium_id,
            "target": self.target,
            "signed_at": now,
        }
        made = (
            Decision.approve(**fields, needs=self.needs, not_after=now + 86400)
            if decision == "approve"
            else Decision.revoke(**fields)
        )
        with self.owner(client, owner) as mine:
            return mine.submit_decision(sign_decision(made, identity(owner).signer))


@contextmanager
def broker_site(folder: Path) -> Iterator[BrokerSite]:
    simulator = ensure(folder / "simulator", system_clock())
    policy = insecure_simulator_policy(simulator.root_path.read_bytes())
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    consortium = Consortium.found(
        name="three",
        owners=[identity(name).public for name in OWNERS],
        approve=2,
        own_data_consent=False,
    )
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
