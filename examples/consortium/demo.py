"""Six hospitals, three brokers: nobody can act alone, and every one of them can stop it.

Four hospitals give data and each must agree to its use; keys are shared so that two of three
brokers open them. One hospital revokes in the middle of the training, which ends with a sealed
checkpoint; it takes the revocation back, and the run goes on while one broker is switched off.
Then everybody audits, and a doctored ledger is found.

    python examples/consortium/demo.py [--out consortium-out]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "three_hospitals")]

from records import write_records  # noqa: E402 - lies beside the other story

from sealtrain.cli.programs import SideProgram  # noqa: E402
from staging import Stage, emptied  # noqa: E402 - lies beside the stories

HOLDERS = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
HOSPITALS = (*HOLDERS, "hospital-e", "hospital-f")
BROKERS = ("north", "south", "west")
LEASE_SECONDS = 60
_SOON = 600.0


def play(out: Path) -> None:
    """The whole story."""
    with Stage(out) as stage:
        Story(stage).play()


class Story:
    """The consortium and what it does.

    Attributes:
        listen: Where each broker listens.
    """

    listen = "127.0.0.1:0"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.out = out = stage.out
        self.consortium = out / "consortium.json"
        self.lock_folder = out / "engineer"
        self.deployment = self.lock_folder / "app-compose.json"
        self.policy = out / "policy.yaml"
        self.root = out / "simulated-root"
        self.guest = out / "guest"
        self.ticket = out / "ticket.json"
        self.servers: dict[str, SideProgram] = {}

    def play(self) -> None:
        """The whole story."""
        self.found()
        self.start()
        self.lock()
        self.seal()
        self.approve()
        interrupted = self.train_until_revoked()
        self.go_on()
        self.check(interrupted)
        self.doctor()

    def found(self) -> None:
        """Write records and make keys; found the consortium."""
        stage, out = self.stage, self.out
        stage.title("Six hospitals found a consortium: 4 of 6 must approve, any one may stop")
        for name, count in write_records(out, HOLDERS).items():
            print(f"  {name}: {count} patients")
        for hospital in HOSPITALS:
            stage.run("keygen", hospital, "--out", out / hospital)
        owners = [("--owner", out / name / f"{name}.public.json") for name in HOSPITALS]
        stage.run(
            "consortium", "create", "six-hospitals", *(word for pair in owners for word in pair),
            "--approve", "4", "--out", self.consortium,
        )  # fmt: skip

    def lock(self) -> None:
        """Lock the recipe."""
        self.stage.title("The engineer locks the recipe")
        self.lock_folder.mkdir()
        shutil.copy(HERE / "recipe.yaml", self.lock_folder / "recipe.yaml")
        locked = self.stage.run(
            "lock", self.lock_folder / "recipe.yaml", "--consortium", self.consortium,
            *self.brokers(), "--out", self.lock_folder,
        )  # fmt: skip
        print(f"  recipe hash {locked['recipe_hash']}")

    def start(self) -> None:
        """Start the brokers."""
        stage, out = self.stage, self.out
        stage.title("SIMULATED — NOT ATTESTED: three brokers, each with a root secret of its own")
        stage.run("simulator", "serve", "--simulator", self.root, "--write-policy", self.policy)
        compose = out / "broker-compose.json"
        stage.run(
            "broker", "deployment", "--consortium", self.consortium, "--policy", self.policy,
            "--lease-seconds", str(LEASE_SECONDS), "--out", compose,
        )  # fmt: skip
        ticket = out / "broker-ticket.json"
        stage.run("deploy", "ticket", "--role", "broker", "--listen", self.listen, "--out", ticket)
        for name in BROKERS:
            self.servers[name], url = stage.server(
                "broker ready", "deploy", "run", "--deployment", compose, "--ticket", ticket,
                "--folder", out / name, "--simulator", self.root,
            )  # fmt: skip
            stage.run(
                "broker", "pin", "--url", url, "--broker-deployment", compose,
                "--policy", self.policy, "--out", self.pin(name),
            )  # fmt: skip

    def seal(self) -> None:
        """Seal every holder's records."""
        self.stage.title("Each holder seals at home; two of three brokers open it, none alone")
        (self.out / "sealed").mkdir()
        for source in sorted(self.out.glob("hospital-*/*.jsonl")):
            owner = source.parent.name
            if source.stem == "biopsies-test" and owner not in HOLDERS[:2]:
                continue
            self.stage.run(
                "seal", source, "--name", source.stem, "--identity", self.identity(owner),
                "--deployment", self.deployment, *self.brokers(), "--threshold", "2",
                "--out", self.out / "sealed" / f"{owner}.{source.stem}.sealed",
            )  # fmt: skip

    def approve(self) -> None:
        """Approve, and see what is refused until everybody has."""
        self.stage.title("Three approve, one holder is missing: refused")
        for owner in ("hospital-a", "hospital-b", "hospital-c"):
            self.decide("approve", owner)
        self.stage.run(
            "deploy", "ticket", "--role", "train", *self.brokers(), "--data", self.out / "sealed",
            "--out", self.ticket,
        )  # fmt: skip
        refused = self.stage.run(*self.train(), expect=3)["error"]
        print(f"  refused [{refused['code']}]: {refused['message']}")
        self.decide("approve", "hospital-e")
        refused = self.stage.run(*self.train(), expect=3)["error"]
        print(f"  four approve, but not hospital-d, whose data it reads: {refused['message']}")
        self.decide("approve", "hospital-d")

    def train_until_revoked(self) -> dict[str, Any]:
        """Train, and revoke in the middle."""
        stage = self.stage
        stage.title("Training; in the middle of it hospital-b revokes")
        training = stage.beside(*self.train())
        for step in self.checkpoints(training):
            print(f"  sealed checkpoint after step {step}")
            break
        self.decide("revoke", "hospital-b")
        error: dict[str, Any] = stage.ended(training, expect=3)["error"]
        print(f"  the run ended [{error['code']}]: {error['message']}")
        kept = stage.run("checkpoints", self.guest / "out")["checkpoints"]
        print(f"  newest sealed checkpoint: step {max(state['step'] for state in kept)}")
        refused = stage.run(*self.train(), expect=3)["error"]
        print(f"  to resume is refused [{refused['code']}]: {refused['message']}")
        return error

    def go_on(self) -> None:
        """Take the revocation back, and continue without one broker."""
        self.stage.title("hospital-b takes it back; one broker is switched off; the run goes on")
        self.decide("approve", "hospital-b", "--lift-revocation")
        self.servers["west"].end()
        finished = self.stage.run(*self.train())
        accuracy, majority = (finished["metrics"][name] for name in ("accuracy", "majority"))
        print(
            f"  accuracy {accuracy:.4f} on sealed test records (the larger class: {majority:.4f})"
        )

    def check(self, interrupted: dict[str, Any]) -> None:
        """Verify the manifest and the ledgers."""
        stage, out = self.stage, self.out
        stage.title("The auditor verifies the manifest: two brokers released every key")
        trust, alive = out / "trust.yaml", BROKERS[:2]
        stage.run(
            "trust", "new", "--consortium", self.consortium, "--deployment", self.deployment,
            "--policy", self.policy, *self.brokers(alive), "--threshold", "2", "--out", trust,
        )  # fmt: skip
        verified = stage.run("verify", self.guest / "out" / "manifest.json", "--trust", trust)
        for check in verified["checks"]:
            print(f"  {'✓' if check['outcome'] == 'passed' else '·'} {check['title']}")
        stage.title("Every owner's client witnesses the ledgers; anybody audits them")
        for name in alive:
            for owner in HOSPITALS:
                stage.run(
                    "log", "witness", "--identity", self.identity(owner),
                    "--broker", self.pin(name), "--consortium", self.consortium,
                    "--memory", self.memory(owner, name),
                )  # fmt: skip
            audited = stage.run(
                "log", "audit", "--broker", self.pin(name), "--consortium", self.consortium,
                "--memory", self.memory("hospital-f", name), "--quorum", "4",
            )  # fmt: skip
            print(f"  {name}: {audited['size']} entries, findings: {len(audited['findings'])}")
        if interrupted["code"] not in json.dumps(self.entries("north")):
            raise SystemExit("the ledger does not say why the run ended")

    def doctor(self) -> None:
        """Alter a ledger, and audit it."""
        self.stage.title("Attack: whoever runs a broker takes hospital-b's revocation out")
        self.servers["north"].end()
        doctored = self.out / "doctored"
        shutil.copytree(self.out / "north" / "state", doctored)
        with sqlite3.connect(doctored / "ledger.sqlite") as ledger:
            wanted = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            triggers = ledger.execute(wanted).fetchall()
            for name, _sql in triggers:
                ledger.execute(f'DROP TRIGGER "{name}"')
            ledger.execute(
                "UPDATE entry SET data = CAST(replace(CAST(data AS TEXT), 'revoke', 'reword') "
                'AS BLOB) WHERE CAST(data AS TEXT) LIKE \'%"kind":"revocation"%\''
            )
            for _name, sql in triggers:
                ledger.execute(sql)
        ledger.close()
        audited = self.stage.run(
            "log", "audit", "--database", doctored / "ledger.sqlite",
            "--memory", self.memory("hospital-f", "north"), "--consortium", self.consortium,
            expect=3,
        )  # fmt: skip
        for finding in audited["findings"][:3]:
            print(f"  found: {finding['problem']}")
        self.stage.title("Done")
        print("  SIMULATED — NOT ATTESTED: no hardware protected this run.")

    def decide(self, word: str, owner: str, *more: str) -> None:
        """Approve or revoke as one owner."""
        pins = []
        if word == "approve":
            folders = sorted((self.out / "sealed").glob(f"{owner}.*.sealed"))
            pins = [item for folder in folders for item in ("--data", folder)]
        tally = self.stage.run(
            word, "--deployment", self.deployment, "--identity", self.identity(owner),
            *self.brokers(), "--consortium", self.consortium, *pins, *more, "--yes",
        )  # fmt: skip
        print(f"  progress {tally['progress']}/{tally['threshold']}, sealed: {tally['sealed']}")

    def train(self) -> list[str | Path]:
        """Words that start the guest: a run that was interrupted goes on."""
        return [
            "deploy", "run", "--deployment", self.deployment, "--ticket", self.ticket,
            "--folder", self.guest, "--simulator", self.root,
        ]  # fmt: skip

    def checkpoints(self, training: SideProgram) -> Iterator[int]:
        """Steps of the sealed checkpoints of the run, as they appear."""
        deadline, seen = time.monotonic() + _SOON, 0
        while not training.gone and time.monotonic() < deadline:
            for path in sorted((self.guest / "out" / "checkpoints").glob("*"))[seen:]:
                seen += 1
                yield int(path.name.split("-")[-1].partition(".")[0])
            time.sleep(0.2)
        raise SystemExit("training ended before it sealed a checkpoint")

    def entries(self, broker: str) -> list[dict[str, Any]]:
        """Entries of a broker's ledger."""
        shown: list[dict[str, Any]] = self.stage.run(
            "log", "--broker", self.pin(broker), "--limit", "1000"
        )["entries"]
        return shown

    def brokers(self, names: tuple[str, ...] = BROKERS) -> list[str | Path]:
        """Words that name brokers."""
        return [word for name in names for word in ("--broker", self.pin(name))]

    def memory(self, owner: str, broker: str) -> Path:
        """What an owner remembers of a broker's ledger."""
        return self.out / owner / f"{broker}.ledger.json"

    def pin(self, broker: str) -> Path:
        """A broker's file."""
        return self.out / f"{broker}.yaml"

    def identity(self, owner: str) -> Path:
        """An owner's keys."""
        return self.out / owner / f"{owner}.identity.json"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("consortium-out"))
    chosen: Path = parser.parse_args().out.resolve()
    play(emptied(chosen, "consortium.json"))
