"""How long a guest takes from its start to its first step, and to the end of a run of two steps.

    python benchmarks/start.py [RECIPE] [--json] [--rounds 3]

Five ways in turn:

- **document**: ``sealtrain deploy run`` starts what the measured document says;
- **by hand**: the same guest agent, and ``sealtrain train`` typed with the same files; its end
  counts from the start of the agent, as the document's does, its first step from the command;
- **resume**: ``sealtrain resume`` of such a run that was killed after its first checkpoint;
- **plain**: a Python process that trains the same steps on the same records in the clear; to have
  them in the same shape, it seals and opens them first, which takes some hundredths of a second;
- **libraries**: a Python process that imports PyTorch, Transformers, TRL and PEFT, and no more.

The first three prove the guest, get keys from a broker, open sealed records, train, seal the model
and write the manifest. Every round uses a new folder; a figure is the best of its rounds. The line
of the first step on stderr counts as the first step; for ``libraries``, that they are loaded.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from measured_on import machine
from sealtrain.cli.programs import program

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "every_phase")]
WITHIN_S = 300

PLAIN = """
import sys
from pathlib import Path
from sealtrain.recipe.schema import load_recipe
from twosided import PlainRecords, PlainStore, run, seal
path, folder, *pairs = map(Path, sys.argv[1:])
recipe = load_recipe(path)
sealed = {}
for key, file in zip(pairs[::2], pairs[1::2], strict=True):
    owner, name = str(key).split(".")
    sealed[str(key)] = PlainRecords(seal(file, folder / str(key), owner=owner, name=name).open())
run(recipe, path.parent, sealed, PlainStore(folder / "checkpoints"), sys.stderr)
"""
LIBRARIES = """
import sys
import torch, transformers, trl, peft
print("step 0", file=sys.stderr, flush=True)
"""
_STEP = re.compile(rb"^step \d", re.MULTILINE)

Times = tuple[float, float]
"""Seconds to the first step, and to the end."""


def measure(recipe: str, out: Path, rounds: int) -> dict[str, Times]:
    """Times of each way, the best of its rounds."""
    from run import prepare

    from staging import Stage

    with Stage(out) as stage, redirect_stdout(sys.stderr):
        path, data, seal_as = prepare(recipe, out)
        shortened(path)
        given = arranged(stage, path, data, seal_as)
        ways = {
            "document": by_document,
            "by hand": by_hand,
            "resume": resumed,
            "plain": plain,
            "libraries": libraries,
        }
        taken: dict[str, list[Times]] = {name: [] for name in ways}
        for turn in range(rounds + 1):  # the first fills the caches of files
            for name, way in ways.items():
                folder = out / f"{name.replace(' ', '-')}-{turn}"
                folder.mkdir()
                times = way(stage, folder, given)
                if turn:
                    taken[name].append(times)
    return {
        name: (min(first for first, _ in some), min(end for _, end in some))
        for name, some in taken.items()
    }


def timed(words: Sequence[str | Path], until: Callable[[], bool] | None = None) -> Times:
    """Run a program and listen for its first step.

    Args:
        words: The program and its words.
        until: Kill it once this is so.
    """
    began, first, said = time.perf_counter(), math.nan, b""
    with subprocess.Popen(
        [str(word) for word in words],
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        while True:
            ended = process.poll() is not None
            heard = process.stderr.read() or b""
            said += heard
            if math.isnan(first) and _STEP.search(said):
                first = time.perf_counter() - began
            if until is not None and until():
                process.kill()
                return first, math.nan
            if ended and not heard:
                break
            if time.perf_counter() - began > WITHIN_S:
                process.kill()
                raise SystemExit(f"not done within {WITHIN_S} s: {words[0]}")
            time.sleep(0.002)
        end = time.perf_counter() - began
    if process.returncode or math.isnan(first):
        raise SystemExit(f"status {process.returncode}: {said.decode(errors='replace')}")
    return first, end


def shortened(path: Path) -> None:
    """Train for two steps, with a checkpoint after each."""
    import yaml

    recipe = yaml.safe_load(path.read_text("utf-8"))
    recipe["trainer"] |= {"max_steps": 2, "save_steps": 1}
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")


def arranged(
    stage: Any, path: Path, data: dict[str, Path], seal_as: dict[str, str]
) -> dict[str, Any]:
    """Found, lock, seal and approve; what the ways need."""
    out: Path = stage.out
    owners = sorted({key.split(".")[0] for key in data})
    for owner in owners:
        stage.run("keygen", owner, "--out", out)
    stage.run(
        "consortium", "create", "start", "--approve", str(len(owners)), "--out",
        out / "consortium.json",
        *(word for owner in owners for word in ("--owner", out / f"{owner}.public.json")),
    )  # fmt: skip
    root, policy, broker = out / "root", out / "policy.yaml", out / "broker.yaml"
    stage.run("simulator", "serve", "--simulator", root, "--write-policy", policy)
    document = out / "broker-compose.json"
    stage.run(
        "broker", "deployment", "--consortium", out / "consortium.json", "--policy", policy,
        "--out", document,
    )  # fmt: skip
    stage.run(
        "deploy", "ticket", "--role", "broker", "--listen", "127.0.0.1:0",
        "--out", out / "broker-ticket.json",
    )  # fmt: skip
    _, url = stage.server(
        "broker ready", "deploy", "run", "--deployment", document,
        "--ticket", out / "broker-ticket.json",
        "--folder", out / "broker", "--simulator", root,
    )  # fmt: skip
    stage.run(
        "broker", "pin", "--url", url, "--broker-deployment", document, "--policy", policy,
        "--out", broker,
    )  # fmt: skip
    stage.run(
        "lock", path, "--consortium", out / "consortium.json", "--broker", broker,
        "--out", path.parent,
    )  # fmt: skip
    deployment, sealed = path.parent / "app-compose.json", out / "sealed"
    sealed.mkdir()
    for key, file in data.items():
        owner, name = key.split(".")
        stage.run(
            "seal", file, "--name", name, "--identity", out / f"{owner}.identity.json",
            "--deployment", deployment, "--broker", broker, "--out", sealed / f"{key}.sealed",
            *seal_as.get(key, "").split(),
        )  # fmt: skip
    for owner in owners:
        stage.run(
            "approve", "--deployment", deployment, "--identity", out / f"{owner}.identity.json",
            "--broker", broker, "--consortium", out / "consortium.json", "--yes",
            *(word for path in sorted(sealed.glob(f"{owner}.*")) for word in ("--data", path)),
        )  # fmt: skip
    ticket = out / "ticket.json"
    stage.run(
        "deploy", "ticket", "--role", "train", "--broker", broker, "--data", sealed,
        "--base", path.parent, "--out", ticket,
    )  # fmt: skip
    return {
        "path": path, "data": data, "root": root, "broker": broker, "deployment": deployment,
        "sealed": sealed, "ticket": ticket,
    }  # fmt: skip


def by_document(_stage: Any, folder: Path, given: dict[str, Any]) -> Times:
    """What the measured document starts."""
    words = [
        "deploy", "run", "--deployment", given["deployment"], "--ticket", given["ticket"],
        "--folder", folder, "--simulator", given["root"],
    ]  # fmt: skip
    return timed(program(words))


def by_hand(stage: Any, folder: Path, given: dict[str, Any]) -> Times:
    """A guest agent and the command, as a person types them."""
    began = time.perf_counter()
    agent, words = typed(stage, folder, given)
    before = time.perf_counter() - began
    first, end = timed(words)
    agent.end()
    return first, before + end


def resumed(stage: Any, folder: Path, given: dict[str, Any]) -> Times:
    """The command that continues a run which was killed."""
    agent, words = typed(stage, folder, given)
    kept = folder / "out" / "journal"
    timed(words, until=lambda: kept.is_dir() and any(kept.glob("*.sealed")))
    times = timed(program(["resume", str(folder / "out")]))
    agent.end()
    return times


def typed(stage: Any, folder: Path, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """A guest agent, and the words of ``train`` there."""
    socket = Path(tempfile.mkdtemp(), "guest.sock")
    agent, _ = stage.server(
        "guest API", "simulator", "serve", "--deployment", given["deployment"], "--socket", socket,
        "--simulator", given["root"],
    )  # fmt: skip
    words = [
        "train", given["path"].parent / "recipe.lock.json", "--platform", "simulator",
        "--guest", socket, "--collateral", f"file:{given['root'] / 'collateral.json'}",
        "--broker", given["broker"], "--data", given["sealed"], "--base", given["path"].parent,
        "--out", folder / "out",
    ]  # fmt: skip
    return agent, program(words)


def plain(_stage: Any, folder: Path, given: dict[str, Any]) -> Times:
    """The same steps on records in the clear."""
    pairs = [str(word) for pair in given["data"].items() for word in pair]
    return timed([sys.executable, "-c", PLAIN, given["path"], folder, *pairs])


def libraries(_stage: Any, _folder: Path, _given: dict[str, Any]) -> Times:
    """The libraries alone."""
    return timed([sys.executable, "-c", LIBRARIES])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="sft-lora")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        best = measure(given.recipe, Path(folder), given.rounds)
    ratios = {name: first / best["plain"][0] for name, (first, _) in best.items()}
    if given.json:
        result = {
            "recipe": given.recipe,
            "machine": machine("torch", "transformers", "trl", "peft"),
            "rounds": given.rounds,
            "first_step_s": {name: first for name, (first, _) in best.items()},
            "end_s": {name: end for name, (_, end) in best.items()},
            "first_step_to_plain": ratios,
        }
        print(json.dumps(result, indent=2))
        return
    print(f"{given.recipe:10}  first step  of plain       end")
    for name, (first, end) in best.items():
        print(f"{name:10}{first:10.2f} s{ratios[name]:10.2f}{end:8.2f} s")


if __name__ == "__main__":
    main()
