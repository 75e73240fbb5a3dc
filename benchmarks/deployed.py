"""What documents, tickets and stores cost a whole run, beside the same commands by hand.

    python benchmarks/deployed.py [--json] [--rounds 3] [--steps 600]

The consortium and the recipe are those of ``examples/deployed/run.py``: six owners, three brokers,
any two of which open a key, 600 steps with a checkpoint every 60.

- **deployed**: ``sealtrain deploy run`` starts the measured document. The guest gets credentials
  from a lender and sealed data from an object store (moto, on this machine), leaves every
  checkpoint there before a broker anchors it, then the model and the manifest, and is supervised;
- **by hand**: the guest's agent, and ``sealtrain train`` typed for the same sealed files on the
  local disk, with a local folder for results.

Both take turns, and begin every other round. A figure is the median of the rounds, the ratio that
of each round's two figures: of the clock, and of processor seconds, which other programs on the
machine disturb less. The latter leave out the deployed way's simulated guest, which ends last.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "consortium")]

LENT = {
    "AWS_ACCESS_KEY_ID": "lent-to-guests",
    "AWS_SECRET_ACCESS_KEY": "of-the-lender",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def object_store() -> Iterator[str]:
    """An object store; its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _host, port = server.get_host_and_port()
        address = f"http://127.0.0.1:{port}"
        os.environ.update(LENT | {"AWS_ENDPOINT_URL_S3": address})
        import boto3

        for bucket in ("sealed", "results"):
            boto3.client("s3").create_bucket(Bucket=bucket)
        yield address
    finally:
        server.stop()


Taken = dict[str, list[tuple[float, float]]]
"""Seconds by the clock and of processors, of each round, by way."""


def measure(out: Path, rounds: int, steps: int | None) -> Taken:
    """Do it both ways in turn."""
    from demo import HOLDERS, Story

    from staging import Stage

    with Stage(out) as stage, object_store() as address, redirect_stdout(sys.stderr):
        story = Story(stage)
        story.found()
        story.start()
        if steps is not None:
            shortened(story, steps)
        story.lock()
        story.seal()
        for owner in HOLDERS:
            story.decide("approve", owner)
        urls = []
        for folder in sorted((out / "sealed").iterdir()):
            urls.append(f"s3://sealed/{folder.name}")
            stage.run("publish", folder, urls[-1])
        lent = out / "credentials.json"
        lent.write_text(json.dumps(LENT | {"AWS_ENDPOINT_URL_S3": address}), "utf-8")
        _lender, lender = stage.server(
            "lender ready", "deploy", "credentials", lent, "--deployment", story.deployment,
            "--policy", story.policy, "--listen", "127.0.0.1:0",
        )  # fmt: skip
        given = {"story": story, "urls": urls, "lender": lender}
        ways = {"deployed": deployed, "by hand": by_hand}
        taken: Taken = {name: [] for name in ways}
        for turn in range(rounds):
            for name, way in list(ways.items())[:: -1 if turn % 2 else 1]:
                began, spent = time.perf_counter(), processors()
                way(stage, out / f"{name.replace(' ', '-')}-{turn}", given)
                taken[name].append((time.perf_counter() - began, processors() - spent))
    return taken


def processors() -> float:
    """Seconds that ended child processes have spent on processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shortened(story: Any, steps: int) -> None:
    """Have the story lock a shorter run."""
    import demo
    import yaml

    recipe = yaml.safe_load((demo.HERE / "recipe.yaml").read_text("utf-8"))
    recipe["trainer"] |= {"max_steps": steps, "save_steps": max(1, steps // 10)}
    demo.HERE = story.out / "shorter"
    demo.HERE.mkdir()
    (demo.HERE / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")


def deployed(stage: Any, folder: Path, given: dict[str, Any]) -> None:
    """The measured document, with data and results in the store."""
    story, ticket = given["story"], folder.with_suffix(".ticket.json")
    stage.run(
        "deploy", "ticket", "--role", "train", *story.brokers(),
        *(word for url in given["urls"] for word in ("--data", url)),
        "--store", f"s3://results/{folder.name}", "--credentials", given["lender"],
        "--wait", "600", "--restarts", "3", "--out", ticket,
    )  # fmt: skip
    stage.run(
        "deploy", "run", "--deployment", story.deployment, "--ticket", ticket, "--folder", folder,
        "--simulator", story.root,
    )  # fmt: skip


def by_hand(stage: Any, folder: Path, given: dict[str, Any]) -> None:
    """A guest agent and the command, as a person types them."""
    story, socket = given["story"], Path(tempfile.mkdtemp(), "guest.sock")
    folder.mkdir()
    agent, _ = stage.server(
        "guest API", "simulator", "serve", "--deployment", story.deployment,
        "--socket", socket, "--simulator", story.root,
    )  # fmt: skip
    stage.run(
        "train", story.lock_folder / "recipe.lock.json", "--platform", "simulator",
        "--guest", socket, "--collateral", f"file:{story.root / 'collateral.json'}",
        *story.brokers(), "--data", story.out / "sealed", "--base", story.lock_folder,
        "--out", folder / "out",
    )  # fmt: skip
    agent.end()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="train for so many instead of the recipe's")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(Path(folder), given.rounds, given.steps)
    ratios = [
        tuple(mine / other for mine, other in zip(value, by_hand, strict=True))
        for value, by_hand in zip(taken["deployed"], taken["by hand"], strict=True)
    ]
    if given.json:
        print(json.dumps({"seconds": taken, "ratios": ratios}, indent=2))
        return
    for number, kind in enumerate(("clock", "processors")):
        for name, rounds in {**taken, "ratio": ratios}.items():
            figures = [figures[number] for figures in rounds]
            shown = "  ".join(f"{figure:7.2f}" for figure in figures)
            print(f"{kind:12}{name:10}{statistics.median(figures):8.2f}   rounds: {shown}")


if __name__ == "__main__":
    main()
