"""A scheduler that waits for its next due time: memory, and processor time.

The scheduler is the command ``sealtrain run schedule`` on the machine's clock, beside a real broker
of the ten days' example. With ``cron`` its first due time lies in the future; with ``new-data`` it
asks the broker every 15 seconds whether data was registered, and none is. Prints JSON.

    python benchmarks/scheduler_rest.py [--when new-data] [--seconds 90]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import psutil

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "ten_days")]

from run import DAY, DAYS, RECIPE, SCHEDULER, TenDays  # noqa: E402

from measured_on import machine  # noqa: E402
from sealtrain.base.clock import system_clock, to_rfc3339  # noqa: E402
from staging import Stage  # noqa: E402


def waiting_for_data() -> dict[str, object]:
    """A schedule that has begun and has no data."""
    return {
        **{key: value for key, value in RECIPE["schedule"].items() if key != "cron"},
        "when": "new-data",
        "least_seconds": 3600,
        "starts_at": to_rfc3339(system_clock() - DAY),
        "ends_at": to_rfc3339(system_clock() + DAY),
    }


def waiting_for_night() -> dict[str, object]:
    """A schedule whose first due time is not today."""
    first = system_clock() + 2 * DAY
    return {
        **RECIPE["schedule"],
        "starts_at": to_rfc3339(first),
        "ends_at": to_rfc3339(first + DAYS * DAY),
    }


def measured(folder: Path, when: str, seconds: float) -> dict[str, float]:
    """What a scheduler at rest uses.

    Args:
        folder: Empty.
        when: ``when`` of its schedule.
        seconds: How long it is watched.
    """
    RECIPE["schedule"] = waiting_for_data() if when == "new-data" else waiting_for_night()
    with Stage(folder) as stage, redirect_stdout(sys.stderr):
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
    words.add_argument("--when", choices=["cron", "new-data"], default="cron")
    words.add_argument("--seconds", type=float, default=90.0)
    chosen = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="sealtrain-rest-") as place:
        found = measured(Path(place), chosen.when, chosen.seconds)
        print(json.dumps({"machine": machine(), "when": chosen.when, **found}, indent=2))
