"""How soon does a page of the console paint, and what does a live page of a long run cost?

Pages over a real broker on loopback, in headless Chromium: the first contentful paint of each, the
median of several visits after one that is not counted. Then the page of 1,000 runs, ten of which
go on: processor time of its first answer and of a later one, and its first paint in a browser. Then
a run of 100,000 released points that goes on: one update on the server (read what was appended,
thin, encode) and in the page (fetch, draw), as the page measures it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from console_world import PAGES, ConsoleWorld, console_world, live_run, measured, visited
from programs import found

from measured_on import give_up, machine
from sealtrain_console.web.app import console_app
from sealtrain_console.web.curves import CurveFile, Curves
from sealtrain_console.web.serving import serving
from sealtrain_console.web.sources import Sources

RUN: Final = "1f" * 16
BARS: Final = {"first paint": 300.0, "update": 50.0}


def paints(world: ConsoleWorld, visits: int) -> dict[str, float]:
    """Milliseconds to the first contentful paint of each page, by its path."""
    pages = [url for url in world.pages() for _ in range(visits + 1)]
    found: dict[str, list[float]] = {}
    for answer in visited([{"url": url, "width": 1280, "dark": False} for url in pages]):
        path = answer["url"].removeprefix(world.url)
        told = path.replace(world.compose_hash, "RECIPE")
        found.setdefault(told, []).append(answer["paint"] or float("inf"))
    return {path: statistics.median(each[1:]) for path, each in found.items()}


def on_the_server(path: Path, updates: int) -> tuple[float, float, int]:
    """Milliseconds of the first reading, of an update in the median, and bytes of an answer."""
    curves = CurveFile(path)
    began = time.perf_counter()
    curves.update()
    first = time.perf_counter() - began
    each, size = [], 0
    for number in range(updates):
        append(path, 100_001 + number)
        began = time.perf_counter()
        curves.update()
        size = len(json.dumps(curves.to_dict()))
        each.append(time.perf_counter() - began)
    return first * 1000, statistics.median(each) * 1000, size


def in_the_page(world: ConsoleWorld, folder: Path, updates: int) -> float:
    """Milliseconds of an update in the page, from asking the console to the drawn chart; median."""
    sources = Sources(consortium=world.sources.consortium, runs=(folder,))
    steps: list[dict[str, Any]] = []
    for _ in range(updates):
        steps += [
            {"get": "delete document.getElementById('live').dataset.whole"},
            {"until": "document.getElementById('live').dataset.whole"},
            {"get": "Number(document.getElementById('live').dataset.whole)"},
        ]
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        page = {"url": f"{url}/runs/{RUN}", "width": 1280, "dark": False, "steps": steps}
        [answer] = visited([page])
    return statistics.median(answer["got"][2::3])


def many_runs(world: ConsoleWorld, folder: Path, count: int) -> tuple[float, float, float]:
    """Milliseconds of the page of many runs: processor time of two answers, then its paint."""
    manifest = world.audited.manifest()
    for number in range(count - 10):
        there = folder / f"{number:06}"
        there.mkdir(parents=True)
        (there / "manifest.json").write_bytes(manifest)
    for number in range(10):
        live_run(folder / f"live-{number}", points=50, run_id=f"{number:032x}")
    sources = Sources(consortium=world.sources.consortium, runs=(folder,))
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        answers = []
        for _ in range(2):
            began = time.process_time()
            with urlopen(f"{url}/runs", timeout=60) as answer:  # noqa: S310  # on loopback
                answer.read()
            answers.append((time.process_time() - began) * 1000)
        visits = [{"url": f"{url}/runs", "width": 1280, "dark": False}] * 3
        painted = [visit["paint"] or float("inf") for visit in visited(visits)]
    return answers[0], answers[1], statistics.median(painted[1:])


def append(path: Path, step: int) -> None:
    """One more released point."""
    with path.open("a") as file:
        file.write(json.dumps({"step": step, "values": measured(step)}) + "\n")


def main() -> None:
    """Measure, and say whether the bars hold."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--visits", type=int, default=5)
    asked.add_argument("--updates", type=int, default=7)
    asked.add_argument("--points", type=int, default=100_000)
    asked.add_argument("--runs", type=int, default=1000)
    given = asked.parse_args()
    if found("node") is None or found("chromium") is None:
        give_up("node and chromium: apt-get install nodejs chromium")
    with tempfile.TemporaryDirectory() as folder, console_world(Path(folder)) as world:
        long = live_run(Path(folder) / "long", points=given.points, run_id=RUN)
        painted = paints(world, given.visits)
        cold, warm, many = many_runs(world, Path(folder) / "many", given.runs)
        first, update, size = on_the_server(long / "metrics.jsonl", given.updates)
        page = in_the_page(world, long, given.updates)
    print(machine())
    for path, milliseconds in painted.items():
        print(f"first paint {milliseconds:6.0f} ms  {path}")
    print(f"{given.runs:,} runs: first answer {cold:.0f} ms of processor, then {warm:.0f} ms")
    print(f"first paint {many:6.0f} ms  /runs, {given.runs:,} of them")
    print(f"{given.points:,} points: first reading {first:.0f} ms, answer {size} bytes")
    print(f"update on the server {update:.1f} ms; from the page and back, drawn, {page:.1f} ms")
    held = max(*painted.values(), many) < BARS["first paint"] and page < BARS["update"]
    print("bars hold" if held else "BARS DO NOT HOLD")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
