"""How long a guest takes from its start to the end of a run of one step, three ways in turn.

    python benchmarks/start.py [RECIPE] [--json] [--rounds 3]

- **document**: ``sealtrain deploy run`` starts what the measured document says;
- **by hand**: the same guest agent, and ``sealtrain train`` typed with the same files;
- **plain**: a Python process that trains the same step on the same records in the clear; to have
  them in the same shape, it seals and opens them first, which takes some hundredths of a second.

The first two prove the guest, get keys from a broker, open sealed records, train, seal the model
and write the manifest; so a figure is more than the time to the first step. Every round uses a new
folder; a figure is the best of its rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

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
run(recipe, path.parent, sealed, PlainStore(folder / "checkpoints"))
"""


def measure(recipe: str, out: Path, rounds: int) -> dict[str, float]:
    """Seconds of each way, the best of its rounds."""
    from run import prepare

    from staging import Stage

    with Stage(out) as stage, redirect_stdout(sys.stderr):
        path, data, seal_as = prepare(recipe, out)
        shortened(path)
        given = arranged(stage, path, data, seal_as)
        ways = {"document": by_document, "by hand": by_hand, "plain": plain}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):  # the first fills the caches of files
            for name, way in ways.items():
                folder = out / f"{name.replace(' ', '-')}-{turn}"
                folder.mkdir()
                began = time.perf_counter()
                way(stage, folder, given)
                if turn:
                    taken[name].append(time.perf_counter() - began)
    return {name: min(some) for name, some in taken.items()}


def shortened(path: Path) -> None:
    """Train for one step."""
    import yaml

    recipe = yaml.safe_load(path.read_text("utf-8"))
    recipe["trainer"] |= {"max_steps": 1, "save_steps": 1}
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
            *(word for one in sorted(sealed.glob(f"{owner}.*")) for word in ("--data", one)),
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


def by_document(stage: Any, folder: Path, given: dict[str, Any]) -> None:
    """What the measured document starts."""
    stage.run(
        "deploy", "run", "--deployment", given["deployment"], "--ticket", given["ticket"],
        "--folder", folder, "--simulator", given["root"],
    )  # fmt: skip


def by_hand(stage: Any, folder: Path, given: dict[str, Any]) -> None:
    """A guest agent and the command, as a person types them."""
    socket = Path(tempfile.mkdtemp(), "guest.sock")
    agent, _ = stage.server(
        "guest API", "simulator", "serve", given["deployment"], "--socket", socket,
        "--simulator", given["root"],
    )  # fmt: skip
    stage.run(
        "train", given["path"].parent / "recipe.lock.json", "--platform", "simulator",
        "--guest", socket, "--collateral", f"file:{given['root'] / 'collateral.json'}",
        "--broker", given["broker"], "--data", given["sealed"], "--base", given["path"].parent,
        "--out", folder / "out",
    )  # fmt: skip
    agent.end()


def plain(_stage: Any, folder: Path, given: dict[str, Any]) -> None:
    """The same step on records in the clear."""
    pairs = [str(word) for pair in given["data"].items() for word in pair]
    subprocess.run(
        [sys.executable, "-c", PLAIN, str(given["path"]), str(folder), *pairs],
        cwd=Path(__file__).parent,
        check=True,
        timeout=WITHIN_S,
        stdout=sys.stderr,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="sft-lora")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        best = measure(given.recipe, Path(folder), given.rounds)
    ratios = {name: seconds / best["by hand"] for name, seconds in best.items()}
    if given.json:
        print(json.dumps({"recipe": given.recipe, "seconds": best, "to_by_hand": ratios}, indent=2))
        return
    for name, seconds in best.items():
        print(f"{name:10}{seconds:8.2f} s{ratios[name]:8.2f} of by hand")


if __name__ == "__main__":
    main()
