"""A deployed run: six hospitals, three brokers, and guests that come and go.

Sealed data lies in S3 and behind HTTP, results go to S3, and nobody watches the run. Guests live in
network namespaces with a way to brokers and stores and to nothing else; everything that runs is
started from its measured document. One guest is killed and its disk deleted; another continues the
run from the store alone. Needs Linux with namespaces, and the packages of the extra dev (moto plays
S3).

    python examples/deployed/run.py [--out deployed-out]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "consortium"), str(HERE)]

from demo import HOLDERS, Story  # noqa: E402 - lies beside this story
from network import BROKERS as BROKERS_AT  # noqa: E402
from network import ELSEWHERE, STORES, Guest, inside  # noqa: E402

from sealtrain.manifest import form  # noqa: E402
from staging import Stage, emptied  # noqa: E402

LENT = {
    "AWS_ACCESS_KEY_ID": "lent-to-guests",
    "AWS_SECRET_ACCESS_KEY": "canary-of-the-lender",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_SOON = 600.0


class Deployed(Story):
    """The consortium of the other story, with a run that nobody watches."""

    listen = f"{BROKERS_AT}:0"

    def play(self) -> None:
        """The whole story."""
        self.found()
        self.start()
        self.lock()
        self.seal()
        with self.stores() as port:
            self.publish(port)
            self.write_ticket(port)
            self.lose_a_guest()
            self.continue_on_another()
            self.fetch_results()
        self.look_at_traffic()

    @contextmanager
    def stores(self) -> Iterator[int]:
        """An object store, and its port."""
        self.stage.title("S3 and a web server with the same objects")
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        server = ThreadedMotoServer(ip_address=STORES, port=0, verbose=False)
        server.start()
        try:
            _host, port = server.get_host_and_port()
            os.environ.update(LENT | {"AWS_ENDPOINT_URL_S3": f"http://{STORES}:{port}"})
            import boto3

            self.s3 = boto3.client("s3")
            for bucket in ("sealed", "results"):
                self.s3.create_bucket(Bucket=bucket)
            yield int(port)
        finally:
            server.stop()

    def publish(self, port: int) -> None:
        """Send what was sealed to the store."""
        self.stage.title("Each holder publishes what it sealed; ciphertext is all that leaves")
        self.data: list[str] = []
        for number, folder in enumerate(sorted((self.out / "sealed").iterdir())):
            self.stage.run("publish", folder, f"s3://sealed/{folder.name}")
            for file in folder.iterdir():  # the web server asks nobody who they are
                key = f"{folder.name}/{file.name}"
                self.s3.put_object_acl(Bucket="sealed", Key=key, ACL="public-read")
            web = f"http://{STORES}:{port}/sealed/{folder.name}"
            self.data.append(web if number % 2 else f"s3://sealed/{folder.name}")

    def write_ticket(self, port: int) -> None:
        """Lend credentials, and write the ticket."""
        self.stage.title("The engineer lends credentials to guests that prove what they run")
        lent = self.out / "credentials.json"
        lent.write_text(json.dumps(LENT | {"AWS_ENDPOINT_URL_S3": f"http://{STORES}:{port}"}))
        _lender, url = self.stage.server(
            "lender ready", "deploy", "credentials", lent, "--deployment", self.deployment,
            "--policy", self.policy, "--listen", f"{STORES}:0",
        )  # fmt: skip
        self.stage.run(
            "deploy", "ticket", "--role", "train", *self.brokers(),
            *(word for url in self.data for word in ("--data", url)),
            "--store", "s3://results/run", "--credentials", url,
            "--wait", "600", "--restarts", "3", "--out", self.ticket,
        )  # fmt: skip
        if LENT["AWS_SECRET_ACCESS_KEY"] in self.ticket.read_text():
            raise SystemExit("the ticket holds a credential")

    def lose_a_guest(self) -> None:
        """Start a guest, let it train a while, and destroy it."""
        self.stage.title("A guest starts before anybody approved, and waits")
        with Guest(1, self.out / "traffic-1") as guest:
            self.show_walls(guest)
            process = self.start_guest(guest, "first")
            try:
                self.wait_for(lambda index: index["code"] == "approvals-missing", process)
                print("  the store says: waiting, approvals-missing")
                self.stage.title("The owners approve; it trains, and its states go to the store")
                for owner in HOLDERS:
                    self.decide("approve", owner)
                index = self.wait_for(lambda index: len(_checkpoints(index)) > 1, process)
                print(f"  stored: {', '.join(_checkpoints(index))}")
            finally:
                process.kill()
                process.wait()
        shutil.rmtree(self.out / "first")
        print("  killed with -9, and its disk deleted")

    def continue_on_another(self) -> None:
        """Start another guest with the same document and ticket."""
        self.stage.title("Another guest continues the run from the store alone")
        with Guest(2, self.out / "traffic-2") as guest:
            process = self.start_guest(guest, "second")
            if process.wait(timeout=_SOON) != 0:
                print((self.out / "second.log").read_text()[-2000:], file=sys.stderr)
                raise SystemExit("the second guest did not finish the run")
        index = self.wait_for(lambda index: index["state"] == "completed")
        print(f"  run {index['run_id']}: {index['state']}")

    def fetch_results(self) -> None:
        """As a recipient does it."""
        stage, out = self.stage, self.out
        stage.title("A hospital fetches model and manifest from the store, verifies and opens them")
        results = out / "results"
        listed = self.s3.list_objects_v2(Bucket="results", Prefix="run/")["Contents"]
        for listing in listed:
            target = results / listing["Key"].removeprefix("run/")
            target.parent.mkdir(parents=True, exist_ok=True)
            self.s3.download_file("results", listing["Key"], str(target))
        trust = out / "trust.yaml"
        stage.run(
            "trust", "new", "--consortium", self.consortium, "--deployment", self.deployment,
            "--policy", self.policy, *self.brokers(), "--threshold", "2", "--out", trust,
        )  # fmt: skip
        manifest = results / "manifest.json"
        stage.run("verify", manifest, "--trust", trust)
        stage.run(
            "open", results / "model", "--identity", self.identity("hospital-a"),
            "--trust", trust, "--out", out / "hospital-a" / "model",
        )  # fmt: skip
        proved = form.read(manifest.read_bytes()).predicate
        print(f"  measured document  {proved.deployment.compose_hash}")
        print(f"  continued          {len(proved.run.resumes)} times")

    def look_at_traffic(self) -> None:
        """Search what was captured."""
        self.stage.title("Everything that went over the guests' lines, searched for records")
        needles = [LENT["AWS_SECRET_ACCESS_KEY"].encode()]
        for source in self.out.glob("hospital-*/*.jsonl"):
            for line in source.read_text().splitlines():
                needles.append(json.loads(line)["prompt"][40:64].encode())
        heard = 0
        for path in sorted(self.out.glob("traffic-*")):
            data = path.read_bytes()
            heard += len(data)
            if any(needle in data for needle in needles):
                raise SystemExit(f"{path.name} holds a record or a credential in the clear")
        print(f"  {heard / 1e6:.1f} MB, {len(needles)} records and secrets looked for, none found")
        self.stage.title("Done")
        print("  SIMULATED — NOT ATTESTED: no hardware protected this run.")

    def show_walls(self, guest: Guest) -> None:
        """Try to reach something else from inside."""
        knock = f"import socket; socket.create_connection(({ELSEWHERE!r}, 9), 2)"
        done = subprocess.run(  # noqa: S603 - our own program with our own words
            guest.words([sys.executable, "-c", knock]), capture_output=True, text=True, check=False
        )
        if "unreachable" not in done.stderr:
            raise SystemExit("the guest reaches more than brokers and stores")
        print("  it reaches brokers and stores; elsewhere: Network is unreachable")

    def start_guest(self, guest: Guest, name: str) -> subprocess.Popen[bytes]:
        """Start the measured document inside."""
        words = [
            sys.executable, "-m", "sealtrain", "deploy", "run",
            "--deployment", str(self.deployment),
            "--ticket", str(self.ticket), "--folder", str(self.out / name),
            "--simulator", str(self.root),
        ]  # fmt: skip
        print(f"  $ sealtrain {' '.join(words[3:])}".replace(f"{self.out}/", ""), flush=True)
        with (self.out / f"{name}.log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own program with our own words
                guest.words(words), stdout=subprocess.DEVNULL, stderr=log
            )

    def wait_for(self, wanted: Any, guest: subprocess.Popen[bytes] | None = None) -> Any:
        """The store's index, once it is as wanted."""
        deadline = time.monotonic() + _SOON
        while time.monotonic() < deadline:
            if guest is not None and guest.poll() is not None:
                raise SystemExit("the guest ended; its log says why")
            try:
                data = self.s3.get_object(Bucket="results", Key="run/index.json")["Body"].read()
            except self.s3.exceptions.NoSuchKey:
                data = b""
            if data and wanted(index := json.loads(data)):
                return index
            time.sleep(0.2)
        raise SystemExit("waited in vain for the run")


def _checkpoints(index: Any) -> list[str]:
    return [name.split("/")[1] for name in index["files"] if name.startswith("checkpoints/")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("deployed-out"))
    chosen: Path = parser.parse_args().out.resolve()
    inside()
    with Stage(emptied(chosen, "consortium.json")) as stage:
        Deployed(stage).play()
