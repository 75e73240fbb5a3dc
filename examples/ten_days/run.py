"""Ten days of a recipe that runs every night: data grows, an owner stops it, a guest crashes.

A scheduler submits each night's run, a runner starts its guest, and nobody types a command for it.
Two hospitals approved the recipe to run several times, within a budget of privacy, on series of
data that grow. On day 5 a hospital revokes and on day 6 it approves anew; on day 7 the training is
killed with -9; on day 9 the budget is spent. The first run begins with the recipe's model, and each
later one with the model of the run before, which no person hands over. All processes are real. The
days pass in minutes, because the scheduler alone reads its due times from a file.

    python examples/ten_days/run.py [--out ten-days-out]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sealtrain.base.clock import from_rfc3339, to_rfc3339  # noqa: E402
from sealtrain.client.broker_api import BrokerClient  # noqa: E402
from sealtrain.recipe.duetimes import name_of  # noqa: E402
from staging import Stage, emptied  # noqa: E402

HOSPITALS = ("hospital-a", "hospital-b")
SCHEDULER, RUNNER = "scheduler-s", "runner-r"
FIRST = from_rfc3339("2027-01-04T03:00:00Z")
DAY = 86_400
DAYS = 10
EPSILON = 2.0
FEATURES = {"mean radius": [6, 28], "mean texture": [9, 40], "mean area": [140, 2500]}
ENDED = frozenset({"completed", "failed", "stopped", "skipped", "expired"})
_SOON = 900.0
RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "nightly",
    "description": "Benign or malignant, trained every night on what was registered.",
    "phase": "classify",
    "model": {
        "config": {"model_type": "sealtrain-tabular", "hidden_size": 16, "num_hidden_layers": 1},
        "init_seed": 11,
    },
    "datasets": [
        *({"owner": owner, "series": "biopsies", "role": "train"} for owner in HOSPITALS),
        {"owner": "hospital-a", "name": "held-out", "role": "test"},
    ],
    "columns": {"features": list(FEATURES), "label": "diagnosis"},
    "labels": ["malignant", "benign"],
    "trainer": {
        "max_steps": 100,
        "per_device_train_batch_size": 32,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "seed": 11,
        "logging_steps": 20,
        "save_steps": 20,
    },
    "peft": None,
    "privacy": {
        "dp": "sgd",
        "target_epsilon": EPSILON,
        "delta": 1e-3,
        "accountant": "rdp",
        "feature_ranges": FEATURES,
    },
    "schedule": {
        "when": "cron",
        "cron": "0 3 * * *",
        "continue": "last",
        "runs": DAYS,
        "starts_at": to_rfc3339(FIRST),
        "ends_at": to_rfc3339(FIRST + (DAYS - 1) * DAY),
    },
    "release_policy": {
        "metrics": ["accuracy"],
        "round_to": 3,
        "logs": "error-summary",
        "model": {"recipients": list(HOSPITALS)},
    },
    "hardware": {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}
EXPECTED = {
    **dict.fromkeys((1, 2, 3, 4, 6, 7, 8), ("completed", None)),
    5: ("skipped", "approval-revoked"),
    9: ("skipped", "budget-spent"),
    10: ("skipped", "budget-spent"),
}
"""How each day ends."""


class TenDays:
    """The story, in a folder."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.out = stage.out
        self.consortium = self.out / "consortium.json"
        self.policy = self.out / "policy.yaml"
        self.broker = self.out / "broker.yaml"
        self.deployment = self.out / "engineer" / "app-compose.json"
        self.clock = self.out / "insecure-simulated-clock.txt"
        self.sealed = self.out / "sealed"
        self.root = self.out / "simulated-root"
        self.url = ""
        self.recipe_hash = ""
        self.rows = self._records()
        self.members: dict[str, int] = dict.fromkeys(HOSPITALS, 0)
        self.table: list[dict[str, Any]] = []

    def play(self) -> None:
        """From keys to a verified chain."""
        self.found()
        self.lock()
        for owner in HOSPITALS:
            self.grow(owner)
        self.hold_out()
        self.approve("hospital-a", runs=20, budget=20 * EPSILON)
        self.approve("hospital-b", runs=20, budget=20 * EPSILON)
        self.clock.write_text(to_rfc3339(FIRST - 3600))
        self.start_services()
        grows = {2: "hospital-a", 3: "hospital-b", 4: "hospital-a"}
        for day in range(1, DAYS + 1):
            self.stage.title(f"Day {day}")
            if day in grows:
                self.grow(grows[day])
            if day == 5:
                self.revoke("hospital-b")
            if day == 6:
                self.approve("hospital-b", "--lift-revocation", runs=20, budget=3 * EPSILON)
            self.night(day, crash=day == 7)
        self.verify()
        self.show()

    def found(self) -> None:
        """Identities, consortium, broker."""
        stage, out = self.stage, self.out
        stage.title("SIMULATED — NOT ATTESTED: two hospitals, a broker, a scheduler and a runner")
        for name in (*HOSPITALS, SCHEDULER, RUNNER):
            stage.run("keygen", name, "--out", out / name)
        owners = [("--owner", out / name / f"{name}.public.json") for name in HOSPITALS]
        stage.run(
            "consortium", "create", "two-hospitals", *(word for pair in owners for word in pair),
            "--approve", "2", "--out", self.consortium,
        )  # fmt: skip
        stage.run("simulator", "serve", "--simulator", self.root, "--write-policy", self.policy)
        document = out / "broker-compose.json"
        stage.run(
            "broker", "deployment", "--consortium", self.consortium, "--policy", self.policy,
            "--out", document,
        )  # fmt: skip
        keys = {
            name: json.loads((out / name / f"{name}.public.json").read_text())["signing_key"]
            for name in (SCHEDULER, RUNNER)
        }
        stage.run(
            "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0",
            "--submitter", f"{SCHEDULER}={keys[SCHEDULER]}",
            "--runner", f"{SCHEDULER}={keys[SCHEDULER]}", "--runner", f"{RUNNER}={keys[RUNNER]}",
            "--out", out / "broker-ticket.json",
        )  # fmt: skip
        _, self.url = stage.server(
            "broker ready", "deploy", "run", "--deployment", document, "--ticket",
            out / "broker-ticket.json", "--folder", out / "broker", "--simulator", self.root,
        )  # fmt: skip
        stage.run(
            "broker", "pin", "--url", self.url, "--broker-deployment", document,
            "--policy", self.policy, "--out", self.broker,
        )  # fmt: skip

    def lock(self) -> None:
        """Lock the recipe with its schedule."""
        self.stage.title("The engineer locks a recipe with a schedule: every night at three")
        folder = self.deployment.parent
        folder.mkdir()
        (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
        locked = self.stage.run(
            "lock", folder / "recipe.yaml", "--consortium", self.consortium,
            "--broker", self.broker, "--out", folder,
        )  # fmt: skip
        self.recipe_hash = locked["recipe_hash"]

    def grow(self, owner: str) -> None:
        """Seal the next part of an owner's records as a member of its series."""
        number = self.members[owner] = self.members[owner] + 1
        source = self._written(owner, f"biopsies-{number}", 120 if number == 1 else 40)
        answer = self.stage.run(
            "seal", source, "--series", "biopsies", *self._as(owner),
            "--deployment", self.deployment, "--out", self.sealed / f"{source.stem}.{owner}.sealed",
        )  # fmt: skip
        print(f"  {owner}: member {number}, {answer['records']} records")

    def hold_out(self) -> None:
        """Seal the records that measure each night's model."""
        source = self._written("hospital-a", "held-out", 60)
        self.stage.run(
            "seal", source, "--name", "held-out", *self._as("hospital-a"),
            "--deployment", self.deployment, "--out", self.sealed / "held-out.sealed",
        )  # fmt: skip

    def approve(self, owner: str, *more: str, runs: int, budget: float) -> None:
        """Approve several runs, within a budget."""
        pins = ("--data", self.sealed / "held-out.sealed") if owner == "hospital-a" else ()
        self.stage.run(
            "approve", "--deployment", self.deployment, *self._as(owner),
            "--consortium", self.consortium, "--runs", str(runs), "--budget", f"{budget:g}",
            "--series", "biopsies", *pins, *more, "--yes",
        )  # fmt: skip

    def revoke(self, owner: str) -> None:
        """Stop the recipe."""
        self.stage.run(
            "revoke", "--deployment", self.deployment, *self._as(owner),
            "--consortium", self.consortium, "--yes",
        )  # fmt: skip

    def start_services(self) -> None:
        """The runner, and the scheduler under the simulated clock."""
        stage, out = self.stage, self.out
        stage.title("A runner and a scheduler start; nobody types a command for a run from here on")
        ticket = out / "ticket.json"
        stage.run(
            "deploy", "ticket", "--role", "train", "--broker", self.broker, "--data", self.sealed,
            "--wait", "60", "--restarts", "3", "--out", ticket,
        )  # fmt: skip
        self.runner, _ = stage.server(
            "runner ready", "run", "serve", "--broker", self.broker, "--identity",
            out / RUNNER / f"{RUNNER}.identity.json", "--deployment", self.deployment,
            "--folder", out / "runner", "--allow", self.sealed, "--allow", out / "runner",
            "--simulator", self.root,
        )  # fmt: skip
        stage.server(
            "scheduler ready", "run", "schedule", self.deployment, "--broker", self.broker,
            "--identity", out / SCHEDULER / f"{SCHEDULER}.identity.json", "--ticket", ticket,
            "--folder", out / "runner", "--insecure-simulated-clock", self.clock,
        )  # fmt: skip

    def night(self, day: int, *, crash: bool) -> None:
        """Let a due time come, and see how it ends."""
        due = FIRST + (day - 1) * DAY
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(to_rfc3339(due))
        fresh.replace(self.clock)
        name = name_of(self.recipe_hash, due)
        killed = 0
        until = time.monotonic() + _SOON
        with BrokerClient(self.url) as client:
            while True:
                found = client.submissions(name=name)
                if crash and not killed and found and found[0].state == "started":
                    killed = self.kill_training(found[0].submission_id)
                if found and found[0].state in ENDED:
                    break
                if time.monotonic() > until:
                    raise SystemExit(f"day {day} did not end")
                time.sleep(0.3)
        [ended] = found
        code = None if ended.runner is None else ended.runner.code
        if (ended.state, code) != EXPECTED[day]:
            raise SystemExit(f"day {day}: {ended.state} {code}, not {EXPECTED[day]}")
        if crash and not killed:
            raise SystemExit("nothing was killed on the day of the crash")
        self.table.append(
            {"day": day, "due": to_rfc3339(due), "state": ended.state, "code": code}
            | {"killed": killed, "submission_id": ended.submission_id}
        )
        print(f"  {ended.state}{f': {code}' if code else ''}")

    def kill_training(self, submission_id: str) -> int:
        """Kill -9 the process that trains, once it has sealed a checkpoint; 0 before that."""
        sealed = self.out / "runner" / submission_id / "guest" / "out" / "checkpoints"
        if not list(sealed.glob("checkpoint-*.sealed")):
            return 0
        inner = psutil.Process(self.runner.pid).children(recursive=True)
        leaves = [
            process for process in inner if not process.children() and "guest" in process.cmdline()
        ]
        for leaf in leaves:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leaf.pid, signal.SIGKILL)
                print(f"  kill -9 of process {leaf.pid}, which trained")
        return len(leaves)

    def verify(self) -> None:
        """As an auditor who has the manifests and asks the broker for its ledger."""
        stage, out = self.stage, self.out
        stage.title("An auditor verifies the chain of all manifests beside the ledger")
        trust = out / "trust.yaml"
        stage.run(
            "trust", "new", "--consortium", self.consortium, "--deployment", self.deployment,
            "--policy", self.policy, "--broker", self.broker, "--out", trust,
        )  # fmt: skip
        self.chain = stage.run(
            "verify", "--chain", out / "runner", "--trust", trust, "--broker", self.broker
        )
        ledger = out / "broker" / "state" / "ledger.sqlite"
        words = ("verify", "--chain", out / "runner", "--trust", trust, "--database", ledger)
        if stage.run(*words)["due"] != self.chain["due"]:
            raise SystemExit("the broker shows another ledger than it has")
        resumed = 0
        for row in self.table:
            manifest = out / "runner" / row["submission_id"] / "guest" / "out" / "manifest.json"
            if row["state"] == "completed":
                alone = stage.run("verify", manifest, "--trust", trust)
                resumed += row["killed"] > 0 and alone["accepted"]
        dues = [(due["state"], due["code"]) for due in self.chain["due"]]
        if dues != [EXPECTED[day] for day in range(1, DAYS + 1)] or resumed != 1:
            raise SystemExit(f"the ledger tells another story: {dues}")
        if self.chain["begins_with"] != "last":
            raise SystemExit("the runs did not begin with each other's models")

    def show(self) -> None:
        """A table of the days."""
        runs = {run["number"]: run for run in self.chain["runs"]}
        self.stage.title("Ten days")
        print(f"  {'day':>3}  {'due':<20}  {'run':>3}  {'members':>7}  how it ended")
        for row, due in zip(self.table, self.chain["due"], strict=True):
            run = runs.get(due["number"])
            members = "" if run is None else sum(d["name"] == "biopsies" for d in run["datasets"])
            how = row["state"] + (f": {row['code']}" if row["code"] else "")
            how += ", after a crash" if row["killed"] else ""
            print(f"  {row['day']:>3}  {row['due']}  {due['number'] or '':>3}  {members:>7}  {how}")
        for share in self.chain["privacy"]:
            epsilon = "no bound" if share["epsilon"] is None else f"epsilon {share['epsilon']:.2f}"
            print(f"  {share['owner']}/{share['name']}: {epsilon} by {share['runs']} runs")
        print("  SIMULATED — NOT ATTESTED: no hardware protected these runs.")

    def _as(self, owner: str) -> tuple[str | Path, ...]:
        identity = self.out / owner / f"{owner}.identity.json"
        return ("--identity", identity, "--broker", self.broker)

    def _records(self) -> list[dict[str, Any]]:
        from sklearn.datasets import load_breast_cancer

        found = load_breast_cancer()
        places = [list(found.feature_names).index(name) for name in FEATURES]
        labels = ("malignant", "benign")
        return [
            {name: float(row[place]) for name, place in zip(FEATURES, places, strict=True)}
            | {"diagnosis": labels[target]}
            for row, target in zip(found.data, found.target, strict=True)
        ]

    def _written(self, owner: str, stem: str, count: int) -> Path:
        """The next records as a file of an owner."""
        part, self.rows = self.rows[:count], self.rows[count:]
        path = self.out / owner / f"{stem}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
        self.sealed.mkdir(exist_ok=True)
        return path


def play(out: Path) -> list[dict[str, Any]]:
    """The whole story; the rows of its table."""
    with Stage(out) as stage:
        story = TenDays(stage)
        story.play()
        return story.table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("ten-days-out"))
    chosen: Path = parser.parse_args().out.resolve()
    play(emptied(chosen, "consortium.json"))
