"""The broker as a process: it starts, answers, stops on SIGTERM, and its log tells no secret."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from manifest_world import OWNERS, identity
from release_world import BROKER_COMPOSE, lock_changed

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.simulator.server import running as simulated_guest
from sealtrain.attest.simulator.state import ensure
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.members import Consortium
from sealtrain.errors import BrokerUnreachable
from sealtrain.release.client import BrokerClient, fetch_keys
from sealtrain.release.pin import BrokerPin

PROGRAM = """
import json, sys
from pathlib import Path
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.serve import serve
fields = json.loads(sys.argv[1])
for name in ("consortium", "policy", "state"):
    fields[name] = Path(fields[name])
serve(BrokerConfig(**fields), ready=lambda url: print(url, flush=True))
"""


@pytest.fixture
def fields(tmp_path: Path) -> Iterator[dict[str, object]]:
    simulator = ensure(tmp_path / "simulator", system_clock())
    policy = insecure_simulator_policy(simulator.root_path.read_bytes())
    (tmp_path / "policy.yaml").write_text(json.dumps(policy.to_dict()))
    consortium = Consortium.found(
        name="three", owners=[identity(name).public for name in OWNERS], approve=2
    )
    (tmp_path / "consortium.json").write_bytes(consortium.to_bytes())
    (tmp_path / "compose.json").write_bytes(BROKER_COMPOSE)
    socket = tmp_path / "broker.sock"
    with simulated_guest(socket, tmp_path / "compose.json", tmp_path / "simulator"):
        yield {
            "consortium": str(tmp_path / "consortium.json"),
            "policy": str(tmp_path / "policy.yaml"),
            "root_secret": f"dstack:{socket}",
            "state": str(tmp_path / "state"),
            "guest": str(socket),
            "collateral": f"file:{simulator.collateral_path}",
            "platform": "simulator",
            "port": 0,
        }


def start(fields: dict[str, object], log: Path) -> tuple[subprocess.Popen[str], str]:
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(fields)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    code = process.wait(20)
    assert process.stdout is not None
    process.stdout.close()
    return code


def test_it_starts_answers_and_stops_gracefully(fields: dict[str, object], tmp_path: Path) -> None:
    log = tmp_path / "log"
    process, url = start(fields, log)
    consortium = Consortium.load(Path(str(fields["consortium"])))
    locked = lock_changed(consortium.consortium_id)
    try:
        assert url.startswith("http://127.0.0.1:")
        with BrokerClient(url) as client:
            policy = insecure_simulator_policy((tmp_path / "simulator" / "root.der").read_bytes())
            attested = fetch_keys(
                client,
                BrokerPin(url=url, compose_hash=sha256_hex(BROKER_COMPOSE), appraisal=policy),
                consortium,
                app_id=locked.app_id,
                compose_hash=locked.compose_hash,
                now=system_clock(),
            )
            assert attested.simulated
            assert set(attested.keys) == set(OWNERS)
    finally:
        assert stop(process) == 0
    with BrokerClient(url, timeout=2.0) as client, pytest.raises(BrokerUnreachable):
        client.health()
    assert "Traceback" not in log.read_text()
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_a_broker_that_cannot_reach_its_guest_does_not_start(
    fields: dict[str, object], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process, url = start(fields | {"root_secret": f"dstack:{tmp_path / 'none.sock'}"}, log)
    assert url == ""
    assert process.wait(20) != 0
    assert process.stdout is not None
    process.stdout.close()
    assert "GuestApiUnreachable" in log.read_text()
