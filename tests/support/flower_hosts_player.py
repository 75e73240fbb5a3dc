"""Flower's processes on three hosts, started with the words and the config.toml of the guide.

    flower_hosts_player.py FOLDER

Run under ``unshare --map-root-user --net``: makes a namespace for each host, on a line of its own
on which every byte is recorded. SuperLink and ``flwr run`` are on the first host, a SuperNode on
each other one. Prints a JSON line: which parties each round was merged of, the state, and what was
on each line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "examples" / "deployed"), str(REPOSITORY / "tests" / "support")]

from federated_world import START, FederatedWorld, rounds, values  # noqa: E402
from network import Guest  # noqa: E402

from sealtrain.cli.programs import end  # noqa: E402
from sealtrain.signing.runlog import RunLog  # noqa: E402
from sealtrain_together.federated.app import write_app  # noqa: E402
from sealtrain_together.federated.carrier import Carrier  # noqa: E402
from sealtrain_together.federated.flower import CERTIFICATE, KEY, write_certificate  # noqa: E402

PLACES = ("clinic-a", "clinic-b")
GUIDE = REPOSITORY / "docs" / "guides" / "federated.md"
_HOST = "link.example.org"
_LINK, _NODE = "flower-superlink", "flower-supernode"


def command_of(guide: str, program: str) -> str:
    """The indented block of the guide that begins with a program, as one line."""
    (block,) = re.findall(rf"^    {program} (?:.*\\\n)*.*$", guide, re.MULTILINE)
    return textwrap.dedent(block).replace("\\\n", " ")


def config_of(guide: str) -> str:
    """The guide's config.toml."""
    (block,) = re.findall(r"^```toml\n(\[superlink\].*?)^```$", guide, re.MULTILINE | re.DOTALL)
    return str(block)


def main() -> None:
    out, guide = Path(sys.argv[1]), GUIDE.read_text("utf-8")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with ExitStack() as stack:
        # A socket's path is short, wherever the tests lie.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fed-")))
        hosts = [
            stack.enter_context(Guest(number, out / f"line-{number}", fellows=True))
            for number in (1, 2, 3)
        ]
        write_certificate(folder, hosts[0].address)
        carrier = stack.enter_context(Carrier(folder / "lead.sock"))
        carrier.serve()
        world = FederatedWorld(
            folder=folder, stack=stack, log=RunLog("4f" * 16), carrier=carrier, relay=None
        )

        for name, there in (("ca", CERTIFICATE), ("link", CERTIFICATE)):
            (folder / f"{name}.pem").write_bytes((folder / there).read_bytes())
        (folder / KEY).rename(folder / "link.key")

        def adapted(text: str) -> str:
            return text.replace(_HOST, hosts[0].address).replace("/etc/flower", str(folder))

        def environment(host: int) -> dict[str, str]:
            home = folder / f"home-{host}"
            home.mkdir(exist_ok=True)
            return os.environ | {
                "FLWR_HOME": str(home),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            }

        def started(host: int, line: str) -> None:
            log = stack.enter_context((out / f"host-{host}.log").open("wb"))
            process = subprocess.Popen(
                hosts[host].words(shlex.split(line)),
                env=environment(host), stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip
            stack.callback(end, process)

        started(0, adapted(command_of(guide, _LINK)))
        for number, place in enumerate(PLACES, 1):
            world.party(place, patience=900.0)
            line = adapted(command_of(guide, _NODE))
            started(number, line.replace("/run/clinic-a.relay", str(folder / f"{place}.sock")))
        home = environment(0)
        (Path(home["FLWR_HOME"]) / "config.toml").write_text(adapted(config_of(guide)))
        write_app(folder / "relay-app")
        words = ["flwr", "run", str(folder / "relay-app"), "--run-config",
                 f'relay="{folder / "lead.sock"}"']  # fmt: skip
        until = time.monotonic() + 240
        while subprocess.run(hosts[0].words(words), env=home, capture_output=True).returncode:
            if time.monotonic() > until:
                raise SystemExit("the SuperLink takes no app")
            time.sleep(1)
        plan = rounds(
            rounds=2, min_parties=2, round_seconds=240, joining_seconds=600, parties=PLACES
        )
        state = world.federation(plan).run(START).state
        merged = [event["parties"] for event in world.events("round.merged")]
    lines = [(out / f"line-{number}").read_bytes() for number in (1, 2, 3)]
    told = {
        "merged": merged,
        "state": values(state),
        "bytes": [len(line) for line in lines],
        "tls": [b"\x16\x03" in line for line in lines],
        "readable": [b"sealed" in line or b"relay" in line for line in lines],
    }
    print(json.dumps(told))


main()
