"""A scheduler that waits for its next due time: memory, and processor time.

The scheduler is the command ``sealtrain run schedule`` on a clock of its own, beside a real broker
of the ten days' example; its first due time lies in the future. Prints JSON.

    python benchmarks/scheduler_rest.py [--seconds 90]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "ten_days")]

from run import FIRST, SCHEDULER, TenDays  # noqa: E402

from measured_on import machine  # noqa: E402
from staging import Stage  # noqa: E402


def measured(folder: Path, seconds: float) -> dict[str, float]:
    """What a scheduler at rest uses.

    Args:
        folder: Empty.
        seconds: How long it is watched.
    """
    with Stage(folder) as stage:
        story = TenDays(stage)
        story.found()
        story.lock()
        ticket = folder / "ticket.json"
        stage.run(
            "deploy", "ticket", "--role", "train", "--broker", story.broker, "--data", folder,
            "--out", ticket,
        )  # fmt: skip
        part, _ = stage.server(
            "scheduler ready", "run", "schedule", story.deployment, "--broker", story.broker,
            "--identity", folder / SCHEDULER / f"{SCHEDULER}.identity.json", "--ticket", ticket,
            "--folder", folder / "runner",
        )  # fmt: skip
        process = psutil.Process(part.pid)
        time.sleep(2)
        used = process.cpu_times()
        begun = time.monotonic()
        time.sleep(seconds)
        after, memory = process.cpu_times(), process.memory_full_info()
        return {
            "processes": 1 + len(process.children(recursive=True)),
            "rss_mb": round(memory.rss / 1e6, 1),
            "own_mb": round(memory.uss / 1e6, 1),
            "cpu_s": round(after.user + after.system - used.user - used.system, 3),
            "seconds": round(time.monotonic() - begun, 1),
        }


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seconds", type=float, default=90.0)
    chosen = words.parse_args()
    if time.time() > FIRST:
        raise SystemExit("the example's first due time has passed: set FIRST to a later one")
    with tempfile.TemporaryDirectory(prefix="sealtrain-rest-") as place:
        print(json.dumps({"machine": machine(), **measured(Path(place), chosen.seconds)}, indent=2))
