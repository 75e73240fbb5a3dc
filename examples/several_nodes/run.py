"""Two guests of two ranks train one model; one is killed, and smaller guests take its place.

The guests live in network namespaces of their own, on lines on which every byte is recorded. Each
is started from the measured document and proves itself to the brokers and to the first node. The
two ranks of a guest share the model out (FSDP2's hybrid sharding), and each seals a shard of every
checkpoint. One guest is killed with -9, with both its ranks. Two others of one rank each take its
place: the run goes on from the sealed shards as three nodes of one rank, which the recipe names,
and ends with the weights of a run that nothing interrupted, but for rounding. Needs Linux with
namespaces.

    python examples/several_nodes/run.py [--out nodes-out]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("", "consortium", "deployed")]

from demo import HERE as STORY  # noqa: E402 - lies in another story
from demo import HOLDERS, Story  # noqa: E402
from network import BROKERS as BROKERS_AT  # noqa: E402
from network import Guest, inside  # noqa: E402

from sealtrain.recipe.compose import GUEST_PORTS  # noqa: E402
from staging import Stage, emptied  # noqa: E402

NODES, RANKS = 2, 2
"""Guests that begin, and the ranks of each."""
AFTER_NODES, AFTER_RANKS = 3, 1
"""Those that go on once one was killed."""
STEPS = 16
_ROUNDING = 1e-4
"""How far a weight may be from that of the other run: sums are added up in another order."""
_SOON = 1500.0
_JOIN = GUEST_PORTS[0]


class SeveralNodes(Story):
    """The consortium of the other stories, with a run of four guests."""

    listen = f"{BROKERS_AT}:0"

    def play(self) -> None:
        """The whole story."""
        self.found()
        self.start()
        self.lock()
        self.seal()
        for owner in HOLDERS:
            self.decide("approve", owner)
        self.train_whole()
        self.lose_a_node()
        self.verify()
        self.compare()
        self.look_at_traffic()

    def lock(self) -> None:
        """Lock the recipe for two nodes of two ranks, or three of one if it is interrupted."""
        self.stage.title(
            "The engineer locks the recipe: two nodes of two ranks; interrupted, three of one"
        )
        recipe = yaml.safe_load((STORY / "recipe.yaml").read_text())
        recipe["trainer"] |= {
            "max_steps": STEPS,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 3,  # twelve parts of a step: for four ranks or three
            "max_grad_norm": 0.0,
            "logging_steps": 4,
            "save_steps": 4,
        }
        recipe["backend"] = {"name": "fsdp", "ranks": RANKS, "resume_ranks": [AFTER_RANKS]}
        recipe["collaboration"] = {
            "kind": "nodes",
            "nodes": NODES,
            "resume_nodes": [AFTER_NODES],
            "policy": "policy.yaml",
        }
        self.lock_folder.mkdir()
        shutil.copy(self.policy, self.lock_folder / "policy.yaml")
        (self.lock_folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        locked = self.stage.run(
            "lock", self.lock_folder / "recipe.yaml", "--consortium", self.consortium,
            *self.brokers(), "--out", self.lock_folder,
        )  # fmt: skip
        print(f"  recipe hash {locked['recipe_hash']}")

    def train_whole(self) -> None:
        """Train once without any interruption."""
        self.stage.title("Two guests of two ranks train; nothing interrupts them")
        with ExitStack() as stack:
            guests = self.guests(stack, range(1, NODES + 1))
            running = [self.node(stack, "whole", guests, number) for number in range(NODES)]
            self.see_end(running)

    def lose_a_node(self) -> None:
        """Train again, kill a node, and put smaller guests in its place."""
        self.stage.title("Again; one guest is killed with -9 in the middle")
        with ExitStack() as stack:
            guests = self.guests(stack, range(11, NODES + 11))
            running = [self.node(stack, "again", guests, number) for number in range(NODES)]
            checkpoints = self.out / "again-0" / "out" / "checkpoints"
            self.wait(lambda: len(list(checkpoints.glob("*.sealed*"))) > 1, running)
            shards = sorted(checkpoints.glob("rank-*/shard-*.sealed"))
            print(f"  node 0 holds a checkpoint and its {len(shards)} sealed shards")
            running[1].kill()
            running[1].wait()
            shutil.rmtree(self.out / "again-1")
            print("  node 1 is killed with both its ranks, its disk deleted; node 0 waits")
            time.sleep(2)
            print("  two guests at other addresses join; all go on with one rank each")
            smaller = self.guests(stack, range(20, AFTER_NODES + 19))
            running[1:] = [
                self.node(stack, "again", [guests[0], *smaller], number)
                for number in range(1, AFTER_NODES)
            ]
            self.see_end(running)
            last = sorted(checkpoints.glob("rank-*/shard-*.sealed"))
            print(f"  node 0 holds {len(last)} sealed shards of the checkpoints that it keeps")

    def guests(self, stack: ExitStack, numbers: range) -> list[Guest]:
        """Namespaces that reach brokers and each other."""
        return [
            stack.enter_context(Guest(number, self.out / f"traffic-{number}", fellows=True))
            for number in numbers
        ]

    def node(
        self, stack: ExitStack, name: str, guests: list[Guest], number: int
    ) -> subprocess.Popen[bytes]:
        """Start one node from the measured document, with its ticket."""
        ticket = self.out / f"{name}-{number}.ticket.json"
        after = ["--nodes", str(AFTER_NODES), "--ranks", str(AFTER_RANKS)]
        role = ["--role", "node", "--node", str(number)] if number else ["--role", "train", *after]
        peer = ["--peer", f"lead={guests[0].address}:{_JOIN}"] if number else []
        self.stage.run(
            "deploy", "ticket", *role, *peer, *self.brokers(), "--data", self.out / "sealed",
            "--listen", f"{guests[number].address}:{_JOIN}", "--wait", "900", "--restarts", "3",
            "--out", ticket,
        )  # fmt: skip
        words = [
            sys.executable, "-m", "sealtrain", "deploy", "run", "--deployment",
            str(self.deployment), "--ticket", str(ticket),
            "--folder", str(self.out / f"{name}-{number}"), "--simulator", str(self.root),
        ]  # fmt: skip
        print(f"  $ sealtrain {' '.join(words[3:])}".replace(f"{self.out}/", ""), flush=True)
        with (self.out / f"{name}-{number}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program with our own words
                guests[number].words(words), stdout=subprocess.DEVNULL, stderr=log
            )
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    def wait(self, done: Any, running: list[subprocess.Popen[bytes]]) -> None:
        """Until ``done``, while every node runs."""
        deadline = time.monotonic() + _SOON
        while not done():
            ended = [number for number, process in enumerate(running) if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise SystemExit(f"nodes {ended} ended too early, or nothing came; see the logs")
            time.sleep(0.1)

    def see_end(self, running: list[subprocess.Popen[bytes]]) -> None:
        """Every node ends well."""
        deadline = time.monotonic() + _SOON
        for number, process in enumerate(running):
            if process.wait(timeout=max(1.0, deadline - time.monotonic())) != 0:
                raise SystemExit(f"node {number} failed; its log says why")
        print(f"  all {len(running)} guests ended well")

    def verify(self) -> None:
        """Verify the manifest of the interrupted run."""
        stage, out = self.stage, self.out
        stage.title("The auditor verifies the manifest; it lists every node of every meeting")
        trust = out / "trust.yaml"
        stage.run(
            "trust", "new", "--consortium", self.consortium, "--deployment", self.deployment,
            "--policy", self.policy, *self.brokers(), "--threshold", "2", "--out", trust,
        )  # fmt: skip
        for name in ("whole", "again"):
            manifest = out / f"{name}-0" / "out" / "manifest.json"
            verified = stage.run("verify", manifest, "--trust", trust)
            for check in verified["checks"]:
                if check["name"] == "collaboration":
                    print(f"  {name}: {check['detail']}")
            for node in verified["guests"]:
                print(
                    f"  meeting {node['meeting']}  node {node['node']}  "
                    f"evidence {node['evidence'][:16]}…  key {node['key'][:16]}…  "
                    f"asked for keys as {node['run_id'][:16]}…"
                )

    def compare(self) -> None:
        """Open both models and compare every weight."""
        self.stage.title("A hospital opens both models: are the weights the same?")
        from safetensors.torch import load_file

        models = []
        for name in ("whole", "again"):
            plain = self.out / "hospital-a" / name
            self.stage.run(
                "open", self.out / f"{name}-0" / "out", "--identity", self.identity("hospital-a"),
                "--out", plain,
            )  # fmt: skip
            models.append(load_file(plain / "model.safetensors"))
        whole, again = models
        if whole.keys() != again.keys():
            raise SystemExit("the models have other tensors")
        apart = {name: (whole[name] - again[name]).abs().max().item() for name in whole}
        if max(apart.values()) > _ROUNDING:
            raise SystemExit(f"a weight is {max(apart.values()):.2e} apart")
        equal = sum(not distance for distance in apart.values())
        print(f"  {len(apart)} tensors, {equal} equal to the last bit; no weight of the others is")
        print(f"  further apart than {max(apart.values()):.1e}: sums are added in another order")

    def look_at_traffic(self) -> None:
        """Search what was captured."""
        self.stage.title("Everything that went over the guests' lines, searched for records")
        sources = sorted(self.out.glob("hospital-*/*.jsonl"))
        needles = [
            json.loads(line)["prompt"][40:64]
            for source in sources
            for line in source.read_text().splitlines()
        ]
        words = self.out / "looked-for"
        words.write_text("\n".join(needles))
        lines = sorted(self.out.glob("traffic-*"))
        if not all(holds(words, source) for source in sources):
            raise SystemExit("the search does not find a record where records are")
        for line in lines:
            if holds(words, line):
                raise SystemExit(f"{line.name} holds a record in the clear")
        heard = sum(line.stat().st_size for line in lines)
        print(f"  {heard / 1e6:.1f} MB, {len(needles)} records looked for, none found")
        self.stage.title("Done")
        print("  SIMULATED — NOT ATTESTED: no hardware protected this run.")


def holds(words: Path, path: Path) -> bool:
    """Whether a file holds one of many words; grep reads it once for all of them."""
    code = subprocess.run(  # noqa: S603 - our own words
        ["grep", "-aqFf", str(words), str(path)],  # noqa: S607 - of the system
        env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
    ).returncode
    if code > 1:
        raise SystemExit(f"grep could not read {path.name}")
    return code == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("nodes-out"))
    chosen: Path = parser.parse_args().out.resolve()
    inside()
    with Stage(emptied(chosen, "consortium.json")) as stage:
        SeveralNodes(stage).play()
