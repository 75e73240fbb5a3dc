"""Six banks: brokers behind nginx with certificates of a private CA, reached through a proxy.

A project file names the CA and the proxy; no package's file is edited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from owner_acts import BROKER, approval
from polling import wait_until
from ports import free_port
from private_network import Authority, proxy
from programs import need, need_namespaces
from release_world import ReleaseWorld, served_world
from world import identity

from sealtrain.base.outbound import reach_by
from sealtrain.cli.outbound import settle_outbound
from sealtrain.cli.project import NAME
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.signing.dsse import Envelope

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

BANKS = 6
PLAYER = Path(__file__).resolve().parents[1] / "support/banks_player.py"
_SERVER = """
server {{
  listen 127.0.0.1:{port} ssl;
  server_name {name};
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  location / {{ proxy_pass {broker}; proxy_set_header Host $host; }}
}}
"""
_WHOLE = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; client_max_body_size 32m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {servers}
}}
"""


@contextmanager
def nginx(folder: Path, servers: list[str]) -> Iterator[None]:
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(_WHOLE.format(folder=folder, servers="".join(servers)))
    with subprocess.Popen(
        [need("nginx")["nginx"], "-c", str(file), "-e", str(folder / "error.log")]
    ) as ran:
        try:
            wait_until((folder / "nginx.pid").exists, 20)
            yield
        finally:
            ran.terminate()


def test_six_banks_behind_nginx_with_a_private_ca_and_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("nginx")
    for name in list(os.environ):
        if name.startswith("SEALTRAIN_") or name.lower() in ("https_proxy", "no_proxy"):
            monkeypatch.delenv(name)
    bank = Authority(tmp_path / "ca")
    names = [f"broker.bank-{number}.example" for number in range(1, BANKS + 1)]
    worlds: list[ReleaseWorld] = []
    servers, places = [], {}
    with ExitStack() as parts:
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            served = served_world(folder, public_urls=(f"https://{name}",), proxies=("127.0.0.1",))
            world, url = parts.enter_context(served)
            worlds.append(world)
            port = free_port()
            places[f"{name}:443"] = f"127.0.0.1:{port}"
            servers.append(
                _SERVER.format(port=port, name=name, certificate=bank.server(name), broker=url)
            )
        parts.enter_context(nginx(tmp_path / "nginx", servers))
        made = parts.enter_context(proxy(names=places))
        (tmp_path / NAME).write_text(
            f'version = 1\nca_file = "ca/Bank CA.pem"\nproxy = "{made.url}"\n'
        )
        monkeypatch.chdir(tmp_path)
        before = reach_by(settle_outbound)
        parts.callback(reach_by, before)
        for name, world in zip(names, worlds, strict=True):
            size = world.ledger.size
            signer = identity("hospital-a").signer
            with BrokerClient(
                f"https://{name}", signer=signer, broker=BROKER, clock=world.clock
            ) as owner:
                assert owner.health().consortium_id == world.consortium.consortium_id
                decided = Envelope.from_bytes(approval(world))
                assert owner.hand_in("approval", decided) == size
        assert len(made.asked) == BANKS
        reach_by(before)
        with BrokerClient(f"https://{names[0]}") as bare, pytest.raises(BrokerUnreachable):
            bare.health()


def test_six_banks_in_namespaces_are_reached_through_the_proxy_alone(tmp_path: Path) -> None:
    """The command line of owners who have no other way, and no package of theirs is edited."""
    need_namespaces()
    program = need("nginx", "iproute2")["nginx"]
    words = [sys.executable, str(PLAYER), str(tmp_path), str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert [bank["exit"] for bank in told["banks"]] == [0] * BANKS
    assert len(told["tunnels"]) == BANKS
    assert told["no proxy"]["exit"] == 4
    assert (told["no authority"]["exit"], told["no authority"]["check"]) == (4, "tls")
    assert told["asked on the line"] >= BANKS
    assert told["plain on the line"] == []
