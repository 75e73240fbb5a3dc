"""The files of ``deploy/``: their words are our options, and their programs read them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cli_tree import all_commands
from docker_world import Docker, docker
from owner_acts import BROKER, approval
from polling import wait_until
from ports import free_port
from private_network import Authority
from programs import need
from release_world import served_world
from world import identity

from sealtrain.base.outbound import Outbound, reach_by
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.signing.dsse import Envelope

pytestmark = pytest.mark.long

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = DEPLOY / "compose/compose.yaml"
MOST_EXPOSED = 20
"""Of 100, as ``systemd-analyze security`` counts."""


def words_of(unit: Path) -> list[str]:
    """What a unit starts, after the program."""
    text = unit.read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    program, *words = shlex.split(line.removeprefix("ExecStart="))
    assert program == "/opt/sealtrain/bin/sealtrain"
    return words


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def are_taken(words: list[str]) -> dict[str, Any]:
    """The parameters of the command that these words are for; every option is one of its own."""
    commands = {path: command for path, command in all_commands() if path}
    length = max(n for n in range(1, len(words)) if tuple(words[:n]) in commands)
    command = commands[tuple(words[:length])]
    assert isinstance(command, click.Command)
    context = command.make_context(words[length - 1], words[length:])
    return dict(context.params)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_with_options_that_it_has(unit: Path) -> None:
    assert are_taken(words_of(unit))


def test_compose_starts_a_broker_with_options_that_it_has_and_with_nothing_to_spare() -> None:
    services = compose()["services"]
    assert are_taken(services["broker"]["command"])
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service
        assert service.get("network_mode") != "host"
    assert "ports" not in services["broker"]  # nginx alone is reached from outside


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_a_unit_and_finds_it_closed(unit: Path, tmp_path: Path) -> None:
    there = tmp_path / unit.name
    there.write_text(unit.read_text().replace("/opt/sealtrain/bin/sealtrain", "/bin/true"))
    analyze = str(need("systemd")["systemd-analyze"])
    for words in (
        ["verify", "--man=no", str(there)],
        ["security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", str(there)],
    ):
        done = subprocess.run([analyze, *words], capture_output=True, text=True, timeout=60)
        if "Failed to connect to bus" in done.stderr:
            pytest.skip("systemd-analyze reads no unit here")
        assert done.returncode == 0, done.stdout[-400:] + done.stderr
        assert "Unknown key" not in done.stderr


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with docker(tmp_path_factory.mktemp("docker")) as running:
        yield running


@pytest.mark.nightly
def test_dockers_compose_reads_the_file(engine: Docker, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        f"SEALTRAIN_BROKER_IMAGE=broker@sha256:{'0' * 64}\nNGINX_IMAGE=nginx@sha256:{'1' * 64}\n"
    )
    (tmp_path / "compose.yaml").write_text(COMPOSE.read_text())
    words = ("docker-compose", "--project-directory", tmp_path, "-f", tmp_path / "compose.yaml")
    done = engine.run(*words, "config")
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]["broker"]
    assert read["command"] == compose()["services"]["broker"]["command"]
    (tmp_path / ".env").unlink()
    assert engine.run(*words, "config").returncode != 0  # no image is assumed


@pytest.mark.nightly
@pytest.mark.needs("nginx")
def test_a_broker_is_reached_behind_nginx_by_the_example(tmp_path: Path) -> None:
    name, port = "broker.example", free_port()
    authority = Authority(tmp_path / "ca")
    certificate = authority.server(name, "localhost")
    (tmp_path / "broker").mkdir()
    url = f"https://localhost:{port}"
    with served_world(tmp_path / "broker", public_urls=(url,), proxies=("127.0.0.1",)) as (
        world,
        broker,
    ):
        text = (DEPLOY / "nginx/broker.conf").read_text()
        for old, new in {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "server 127.0.0.1:8470": f"server {broker.removeprefix('http://')}",
            "server_name broker.example": "server_name localhost",
            "/etc/nginx/tls/broker.pem": str(certificate),
            "/etc/nginx/tls/broker.key": str(certificate),
            "proxy_set_header Host $host;": f"proxy_set_header Host localhost:{port};",
        }.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / "broker.conf").write_text(text)
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;\n"
            f"events {{}}\nhttp {{\n"
            + "".join(
                f"  {kind}_temp_path {tmp_path}/{kind};\n"
                for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            + f"  include {tmp_path}/broker.conf;\n}}\n"
        )
        program = str(need("nginx")["nginx"])
        words = [program, "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")]
        tried = subprocess.run([*words, "-t"], capture_output=True, text=True, timeout=60)
        assert tried.returncode == 0, tried.stderr
        with subprocess.Popen(words) as ran:
            before = reach_by(lambda: Outbound(authorities=authority.pem.decode()))
            try:
                wait_until((tmp_path / "nginx.pid").exists, 20)
                size, signer = world.ledger.size, identity("hospital-a").signer
                with BrokerClient(url, signer=signer, broker=BROKER, clock=world.clock) as owner:
                    assert owner.health().consortium_id == world.consortium.consortium_id
                    assert owner.submit_decision(Envelope.from_bytes(approval(world))) == size
                reach_by(before)
                with BrokerClient(url) as stranger, pytest.raises(BrokerUnreachable):
                    stranger.health()
            finally:
                reach_by(before)
                ran.terminate()
