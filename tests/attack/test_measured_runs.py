"""Attacks on what a deployment document starts: other bytes, environments and folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from polling import wait_until
from stage import interpreter
from variants import variants
from world import founded

from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import system_clock
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.service.deployment import document_of
from sealtrain.cli.programs import Process, SideProgram
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = pytest.mark.long

VECTORS = json.loads(
    (Path(__file__).resolve().parents[2] / "vectors" / "recipe" / "compose.json").read_text()
)["cases"]
CANARY = "canary-51c0e6"
SECONDS = 60


@pytest.mark.claim("C132")
@pytest.mark.parametrize("places", variants([40, 150], each_time=[40]))
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_no_byte_of_a_guests_document_can_change(vector: dict[str, Any], places: int) -> None:
    """Other bytes are refused, or they are the whole document of another lock: another hash."""
    data = vector["compose"].encode()
    assert LockedRecipe.parse(data).lock_bytes.decode() == vector["lock"]
    for at in range(0, len(data), max(1, len(data) // places)):
        for changed in (
            data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
            data[:at] + data[at + 1 :],
            data[:at] + data[at : at + 1] + data[at:],
        ):
            if changed == data:
                continue
            with suppress(LockInvalid):
                assert LockedRecipe.parse(changed).lock_bytes.decode() != vector["lock"]


@pytest.mark.claim("C132")
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"runner":' * 50_000,
        b'{"runner":"bash","bash_script":"' + b"x" * (300 << 10) + b'","key_provider_id":""}',
        b'{"runner":"bash","bash_script":"x","bash_script":"y","key_provider_id":""}',
        b'{"runner":"bash","bash_script":7,"key_provider_id":""}',
        b'{"runner":"bash","key_provider_id":7}',
        b'{"runner":"docker-compose","docker_compose_file":"{}","key_provider_id":""}',
        b'{"runner":"docker-compose","docker_compose_file":"[]","key_provider_id":""}',
        canonical_json(
            {
                "runner": "docker-compose",
                "key_provider_id": "",
                "docker_compose_file": '{"services":{"guest":[]}}',
            }
        ),
    ],
)
def test_a_document_of_no_form_is_refused(data: bytes) -> None:
    with pytest.raises(LockInvalid):
        LockedRecipe.parse(data)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a broker's document and a ticket for it."""
    root = tmp_path / "root"
    policy = insecure_simulator_policy(ensure(root, system_clock()).root_path.read_bytes())
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy.to_dict()))
    consortium = founded("three")
    (tmp_path / "consortium.json").write_bytes(consortium.to_bytes())
    config = BrokerConfig(
        consortium=tmp_path / "consortium.json",
        policy=tmp_path / "policy.yaml",
        root_secret="file:root.secret",
        state=Path("state"),
        guest="guest.sock",
        collateral=None,
        platform="simulator",
    )
    (tmp_path / "broker-compose.json").write_bytes(document_of(config).to_bytes())
    (tmp_path / "ticket.json").write_text('{"version":1,"role":"broker","listen":"127.0.0.1:0"}')
    return tmp_path


COMMAND = (sys.executable, "-m", "sealtrain")


def words(site: Path, document: str = "broker-compose.json", *more: str) -> list[str]:
    return [
        "deploy", "run", "--deployment", str(site / document),
        "--ticket", str(site / "ticket.json"), "--folder", str(site / "guest"),
        "--simulator", str(site / "root"), *more,
    ]  # fmt: skip


def refused(site: Path, *given: str) -> str:
    command = [interpreter(trains=False), "-m", "sealtrain", *words(site, *given), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode in (2, 3, 5), done.stderr
    return str(json.loads(done.stdout)["error"]["code"])


@contextmanager
def started(site: Path, **variables: str) -> Iterator[SideProgram]:
    def begin(asked: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
        env = os.environ | variables
        return subprocess.Popen([*COMMAND, *asked], stdout=stdout, stderr=stderr, env=env, cwd=site)

    with SideProgram("started", site, words(site), answers=False, start=begin) as part:
        part.place("broker ready", within=SECONDS)
        yield part


def _told(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda document: document.update(name=name)


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "script": lambda document: document.update(
        bash_script=document["bash_script"].replace("exec sealtrain", "touch evil; exec sealtrain")
    ),
    "option": lambda document: document.update(
        bash_script=document["bash_script"].replace("--port 8470", "--port 8470 --boot-auth")
    ),
    "field": lambda document: document.update(init_script="touch evil"),
    "name": _told("other"),
    "command": lambda document: document.update(
        bash_script=document["bash_script"].replace("broker serve", "broker status")
    ),
}


@pytest.mark.claim("C130")
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_altered_document_starts_nothing(
    site: Path, edit: Callable[[dict[str, Any]], Any]
) -> None:
    document = json.loads((site / "broker-compose.json").read_bytes())
    edit(document)
    (site / "altered.json").write_bytes(canonical_json(document))
    assert refused(site, "altered.json") == "lock-invalid"
    assert not (site / "guest").exists()
    assert not (site / "evil").exists()


@pytest.mark.claim("C130")
def test_a_ticket_for_something_else_starts_nothing(site: Path) -> None:
    (site / "ticket.json").write_text('{"version":1,"role":"dealer"}')
    assert refused(site) == "ticket-invalid"
    (site / "ticket.json").unlink()
    assert refused(site) == "ticket-invalid"
    (site / "ticket.json").mkdir()
    assert refused(site) == "ticket-invalid"
    assert not (site / "guest").exists()


@pytest.mark.claim("C130")
def test_what_runs_is_the_measured_script_without_the_executors_environment(site: Path) -> None:
    (site / "guest").mkdir()
    (site / "guest" / "sealtrain.py").write_text("raise SystemExit('a module of the folder')")
    with started(site, CANARY=CANARY, DSTACK_SIMULATOR_ENDPOINT=CANARY) as process:
        document = json.loads((site / "broker-compose.json").read_bytes())
        assert (site / "guest" / "start.sh").read_text() == document["bash_script"]
        proc = Path(f"/proc/{process.pid}")
        assert CANARY.encode() not in (proc / "environ").read_bytes()
        ran = (proc / "cmdline").read_bytes().split(b"\0")
        measured = document["bash_script"].rsplit("exec sealtrain ", 1)[1].split()
        assert [word.decode() for word in ran if word][-len(measured) :] == measured
        agents = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if (path / "cmdline").exists()
            and b"--until-exit\0" + str(process.pid).encode() in (path / "cmdline").read_bytes()
        ]
        assert len(agents) == 1
        process.kill()
        words = Path(f"/proc/{agents[0]}/cmdline")  # without any: it ended and is not reaped yet
        wait_until(lambda: not words.exists() or not words.read_bytes(), 20)


@pytest.mark.claim("C130")
def test_the_folder_of_another_document_is_refused(site: Path) -> None:
    (site / "guest").mkdir()
    (site / "guest" / "app-compose.json").write_bytes(b"{}")
    assert refused(site) == "already-exists"
    assert not (site / "guest" / "start.sh").exists()


@pytest.mark.claim("C131")
def test_files_that_are_swapped_after_the_start_are_refused(site: Path) -> None:
    """The operator changes what the script wrote, and types the broker's command again."""
    with started(site):
        folder = site / "guest"
        other = founded("three", approve=1)
        (folder / "consortium.json").write_bytes(other.to_bytes())
        document = json.loads((folder / "app-compose.json").read_bytes())
        command = document["bash_script"].rsplit("exec sealtrain ", 1)[1].split()
        done = subprocess.run(
            [sys.executable, "-m", "sealtrain", *command],
            capture_output=True, text=True, cwd=folder, timeout=SECONDS,
        )  # fmt: skip
        assert done.returncode == 3
        assert "document-mismatch" in done.stderr
