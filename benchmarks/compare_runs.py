"""How long does ``sealtrain run compare`` take for twenty runs?

    python benchmarks/compare_runs.py

Makes manifests of simulated runs with long curves, and compares them by the command, a whole
process each time: read alone, verified under their trust file, and with the page. Ends with 1 where
the median of one of these takes longer than the aim.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from measured_on import machine

SUPPORT: Final = Path(__file__).resolve().parents[1] / "tests/support"
AIM_SECONDS: Final = 1.0


def main() -> int:
    """Measure, print and judge."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--runs", type=int, default=20)
    asked.add_argument("--points", type=int, default=1000)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = make_runs(folder, given.runs, given.points)
        trust = ["--trust", str(folder / "trust.yaml")]
        ways = {
            "read": [*places],
            "verified": [*places, *trust],
            "page": [*places, *trust, "--out", str(folder / "page.html")],
        }
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(given.rounds + 1):
            for way, words in ways.items():
                taken[way].append(seconds_of(words))
    rows = {
        way: {
            "wall_s": round(statistics.median(wall for wall, _ in times[1:]), 3),
            "processor_s": round(statistics.median(used for _, used in times[1:]), 3),
        }
        for way, times in taken.items()
    }
    if given.json:
        print(json.dumps({"machine": machine(), "runs": given.runs, "aim": AIM_SECONDS, **rows}))
    else:
        for way, row in rows.items():
            print(f"{way:10}{row['wall_s']:8.2f} s{row['processor_s']:8.2f} s of processor")
    return int(any(row["wall_s"] > AIM_SECONDS for row in rows.values()))


def make_runs(folder: Path, count: int, points: int) -> list[str]:
    """Folders of runs, and the trust file of all of them."""
    sys.path.insert(0, str(SUPPORT))
    from manifest_world import make_world

    from sealtrain.base.yamltext import yaml_text

    world = make_world(folder / "world")
    (folder / "trust.yaml").write_text(yaml_text(world.trust_document()))
    steps = world.facts["run"]["steps"]
    places = []
    for number in range(count):

        def draw(predicate: dict[str, Any], number: int = number) -> None:
            drawn = sorted({round(index * steps / points) for index in range(points + 1)})
            predicate["run"]["history"] = [
                {"step": step, "values": {"loss": round(4 / (1 + step + number), 4)}}
                for step in drawn
            ]
            predicate["run"]["metrics"]["loss"] = round(0.1 + number / 1000, 4)

        place = folder / f"run-{number}"
        place.mkdir()
        (place / "manifest.json").write_bytes(world.manifest(draw))
        places.append(str(place))
    return places


def seconds_of(words: list[str]) -> tuple[float, float]:
    """Wall and processor time of one comparison."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "sealtrain", "run", "compare", *words, "--json"]
    # An installed package has its modules compiled: a first round may write them here.
    surroundings = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, capture_output=True, env=surroundings)
    wall, after = time.perf_counter() - began, os.times()
    used = after.children_user - before.children_user
    return wall, used + after.children_system - before.children_system


if __name__ == "__main__":
    sys.exit(main())
