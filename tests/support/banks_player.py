"""Six banks behind nginx in one network namespace, and their owners in another.

``banks_player.py FOLDER NGINX``. The owners' namespace has a route to the proxy alone.
In it the command line asks each bank's broker, with a project file that names the banks' CA and the
proxy, then without either. Prints as JSON how each command ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from polling import wait_until
from private_network import Authority, proxy
from release_world import served_world

from sealtrain.attest.policy import policy_from_dict
from sealtrain.base.encoding import to_base64
from sealtrain.cli.project import NAME
from sealtrain.client.pin import new_pin

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples/deployed"))
from network import BROKERS, ELSEWHERE, Guest, inside
from policies import intel

BANKS: Final = [f"broker.bank-{number}.example" for number in range(1, 7)]
_SERVER: Final = """
server {{
  listen {place}:443 ssl;
  server_name {name};
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  location / {{ proxy_pass {broker}; proxy_set_header Host $host; }}
}}
"""
_WHOLE: Final = """
daemon off; master_process off; user root root; pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {servers}
}}
"""


def serve_banks(folder: Path, program: str, bank: Authority, parts: ExitStack) -> None:
    """Start six brokers, and nginx with a certificate for each."""
    servers = []
    for name in BANKS:
        (folder / name).mkdir()
        _, url = parts.enter_context(
            served_world(folder / name, public_urls=(f"https://{name}",), proxies=("127.0.0.1",))
        )
        servers.append(
            _SERVER.format(place=ELSEWHERE, name=name, certificate=bank.server(name), broker=url)
        )
        pin = new_pin(
            f"https://{name}",
            to_base64(bytes(32)),
            compose_hash="ab" * 32,
            appraisal=policy_from_dict(intel()),
        )
        (folder / f"{name}.yaml").write_text(pin.to_yaml())
    there = folder / "nginx"
    there.mkdir()
    (there / "nginx.conf").write_text(_WHOLE.format(folder=there, servers="".join(servers)))
    words = [program, "-c", str(there / "nginx.conf"), "-e", str(there / "error.log")]
    ran = parts.enter_context(subprocess.Popen(words))
    parts.callback(ran.terminate)
    wait_until((there / "nginx.pid").exists, 20)


def ask(owner: Guest, folder: Path, name: str, **variables: str) -> dict[str, Any]:
    """How ``sealtrain broker status`` ends in the owners' namespace."""
    words = [sys.executable, "-m", "sealtrain", "broker", "status", "--broker", f"{name}.yaml"]
    kept = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    done = subprocess.run(
        owner.words([*words, "--json"]),
        cwd=folder, env=kept | variables, capture_output=True, text=True,
    )  # fmt: skip
    error = json.loads(done.stdout).get("error") or {}
    return {"exit": done.returncode, "check": error.get("check")}


def main() -> None:
    folder, program = Path(sys.argv[1]), sys.argv[2]
    inside()
    bank = Authority(folder / "ca")
    with ExitStack() as parts:
        serve_banks(folder, program, bank, parts)
        names = {f"{name}:443": f"{ELSEWHERE}:443" for name in BANKS}
        made = parts.enter_context(proxy(names=names, host=BROKERS))
        owner = parts.enter_context(Guest(1, folder / "traffic"))
        settings = folder / NAME
        settings.write_text(f'version = 1\nca_file = "ca/Bank CA.pem"\nproxy = "{made.url}"\n')
        told: dict[str, Any] = {"banks": [ask(owner, folder, name) for name in BANKS]}
        told["tunnels"] = sorted({head.split(b" ")[1].decode() for head in made.asked})
        told["no proxy"] = ask(owner, folder, BANKS[0], SEALTRAIN_PROXY="none")
        settings.write_text(f'version = 1\nproxy = "{made.url}"\n')
        told["no authority"] = ask(owner, folder, BANKS[0])
    line = (folder / "traffic").read_bytes()
    told["asked on the line"] = line.count(b"CONNECT broker.bank-")
    told["plain on the line"] = [word for word in ("entries", "/v1/") if word.encode() in line]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
