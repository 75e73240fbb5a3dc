"""How long does each verifier take for the manifest of ``sealtrain demo``?

    python benchmarks/verifiers.py --write

Makes the demo, or takes the folder of one (``--demo``), and verifies its manifest under its trust
file in turns with the JavaScript verifier, in Node and in headless Chromium, and with ``sealtrain
verify``. Every process runs where there is no network: in a namespace with none, where the kernel
lets users make one; Chromium is told to be offline besides, opens the page from the disk, and must
ask for no other address. A verdict other than *verified* ends the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from measured_on import give_up, machine
from sealtrain.manifest.second_verifier import join_page

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs/reference/benchmarks/verifiers.md"
DRIVER = REPOSITORY / "tests/support/in_chromium.mjs"
BAR_MS: Final = 500.0
_PROGRAMS = ("node", "chromium")
_NO_NETWORK = ("unshare", "--map-root-user", "--net", "--")
_INSIDE_NODE = """
import { readFile } from "node:fs/promises";
const [verifier, manifest, trust, again] = process.argv.slice(1);
const { readTrust, verify } = await import(verifier);
const files = [await readFile(manifest), await readFile(trust)];
const each = [];
for (let i = 0; i <= Number(again); i++) {
  const began = performance.now();
  const now = Math.floor(Date.now() / 1000);
  const { verdict } = await verify(files[0], readTrust(files[1]), { now });
  each.push(performance.now() - began);
  if (verdict !== "verified") throw new Error(verdict);
}
console.log(JSON.stringify(each));
"""
_INSIDE_PYTHON = """
import json, sys, time
from pathlib import Path
from sealtrain.manifest.trust import load_trust
from sealtrain.manifest.verify import examine
manifest, trust, each = Path(sys.argv[1]), Path(sys.argv[2]), []
for _ in range(1 + int(sys.argv[3])):
    began = time.perf_counter()
    report = examine(manifest.read_bytes(), load_trust(trust), artefacts=None, now=int(time.time()))
    each.append((time.perf_counter() - began) * 1000)
    assert report.accepted
print(json.dumps(each))
"""
_TITLES = {
    "chromium": "Chromium, `verify.html`, a new browser each time: "
    "from both files to the rows on the page",
    "report": "Chromium, the report of `sealtrain report`, which verifies itself: the same",
    "node": "Node, `node verify/node.js`, the whole process",
    "node first": "Node, the function, the first call of a process",
    "node again": "Node, the function, later calls",
    "node outputs": "Node, the whole process, output files read as well",
    "python": "Python, `sealtrain verify`, the whole process",
    "python first": "Python, the function, the first call of a process, imports done",
    "python again": "Python, the function, later calls",
    "python outputs": "Python, the whole process, output files read as well",
}
_BARRED = ("chromium", "report", "node")


def page(found: dict[str, Any]) -> str:
    """The page as Markdown."""
    facts, size = found["machine"], found["manifest"]
    versions = ", ".join(
        f"{name} {value}"
        for name, value in facts.items()
        if name not in ("processor", "processors", "load")
    )
    rows = [
        f"| {title} | {len(times)} | {statistics.median(times):.0f} | {max(times):.0f} |"
        for name, title in _TITLES.items()
        for times in [found["milliseconds"][name]]
    ]
    slow = [_TITLES[name] for name in _BARRED if max(found["milliseconds"][name]) >= BAR_MS]
    return (
        "\n".join(
            [
                "# Two verifiers on the demo's manifest",
                "",
                f"Made by `{found['command']}` in {found['seconds']:.0f} s.",
                f"{facts['processor']}, {facts['processors']} processors; {versions}. "
                f"Load of the machine when it began: {facts['load']:.1f}.",
                "",
                f"The manifest that `sealtrain demo` leaves ({size['bytes']:,} bytes, "
                f"{size['files']} output files of {size['output_bytes'] / 1e6:.1f} MB), under its "
                "trust file. All",
                f"ways in turn within each of {found['rounds']} rounds, each verdict *verified*, "
                f"{found['network']}. Chromium opens the page from the disk and asks",
                "for no other address; without *output files* a row leaves them out.",
                "",
                "| way | times | median, ms | worst, ms |",
                "|---|---:|---:|---:|",
                *rows,
                "",
                f"Aim: under {BAR_MS:.0f} ms in Chromium and in Node, each time. "
                f"Missed: {'; '.join(slow) or 'nothing'}.",
            ]
        )
        + "\n"
    )


def said(words: list[Any], **settings: str) -> str:
    """What a program says on stdout; it ends this one where it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **settings},
    )
    if done.returncode:
        told = done.stdout[-800:] + done.stderr[-800:]
        sys.exit(f"{words[0]} ended with {done.returncode}: {told}")
    return done.stdout


def timed(words: list[Any]) -> list[float]:
    """Milliseconds of a whole process."""
    began = time.perf_counter()
    said(words)
    return [(time.perf_counter() - began) * 1000]


def sealtrain(*words: Any) -> list[Any]:
    """The words of one of our commands."""
    return [sys.executable, "-m", "sealtrain", *words]


def isolated() -> tuple[str, ...]:
    """The words before a command that take the network from it; none where no user may."""
    allowed = (
        shutil.which("unshare")
        and not subprocess.run([*_NO_NETWORK, "true"], capture_output=True, check=False).returncode
    )
    return _NO_NETWORK if allowed else ()


def in_chromium(file: Path, *given: Path, network: tuple[str, ...]) -> list[float]:
    """Milliseconds that a page says of itself, in a browser of its own."""
    found = [shutil.which(name) for name in _PROGRAMS]
    answer = json.loads(said([*network, found[0], DRIVER, found[1], file, *given]))
    if answer["verdict"] != "verified" or answer["asked"] != [file.as_uri()] or answer["faults"]:
        sys.exit(f"{file.name}: {answer}")
    return [float(answer["milliseconds"])]


def prepared(demo: Path) -> dict[str, Path]:
    """Manifest, trust file and report of a demo's folder, and the page that verifies them."""
    manifest, trust = demo / "guest/out/manifest.json", demo / "trust.yaml"
    report = demo / "measured-report.html"
    report.unlink(missing_ok=True)
    page = demo / "verify.html"
    page.write_text(join_page(), "utf-8")
    said(sealtrain("report", manifest, "--trust", trust, "--without-artefacts", "--out", report))
    return {"manifest": manifest, "trust": trust, "report": report, "page": page}


def measured(demo: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds of each way, in turn within each round."""
    files = prepared(demo)
    manifest, trust = files["manifest"], files["trust"]
    network = isolated()
    node, verify = shutil.which("node"), REPOSITORY / "verify"
    verified = sealtrain("verify", manifest, "--trust", trust, "--json")
    inside_node = [node, "--no-warnings", "--input-type=module", "-e", _INSIDE_NODE, "--"]
    inside_node += [(verify / "verify.js").as_uri(), manifest, trust]
    inside_python = [sys.executable, "-c", _INSIDE_PYTHON, manifest, trust]
    whole = [node, "--no-warnings", verify / "node.js", manifest, trust]

    def calls(words: list[Any]) -> list[float]:
        each: list[float] = json.loads(said([*network, *words, 3]))
        return each

    ways: dict[str, Callable[[], list[float]]] = {
        "chromium": lambda: in_chromium(files["page"], manifest, trust, network=network),
        "report": lambda: in_chromium(files["report"], network=network),
        "node": lambda: timed([*network, *whole]),
        "node outputs": lambda: timed([*network, *whole, "--artefacts", manifest.parent]),
        "node function": lambda: calls(inside_node),
        "python": lambda: timed([*network, *verified, "--without-artefacts"]),
        "python outputs": lambda: timed([*network, *verified]),
        "python function": lambda: calls(inside_python),
    }
    found: dict[str, list[float]] = {name: [] for name in _TITLES}
    for _ in range(rounds):
        for name, way in ways.items():
            times = way()
            kind = name.removesuffix(" function")
            if kind != name:
                found[f"{kind} first"] += times[:1]
                found[f"{kind} again"] += times[1:]
            else:
                found[name] += times
    outputs = [path for path in (manifest.parent / "model").rglob("*") if path.is_file()]
    return {
        "milliseconds": found,
        "rounds": rounds,
        "network": "in a network namespace with nothing in it"
        if network
        else "offline in Chromium",
        "manifest": {
            "bytes": manifest.stat().st_size,
            "files": len(outputs),
            "output_bytes": sum(path.stat().st_size for path in outputs),
        },
    }


def main() -> None:
    """Measure, print, and say whether the bar holds."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--demo", type=Path, help="folder that sealtrain demo made before")
    asked.add_argument("--write", action="store_true", help="write the page")
    asked.add_argument("--json", action="store_true", help="print one JSON object")
    given = asked.parse_args()
    if not all(map(shutil.which, _PROGRAMS)):
        give_up("node and chromium: apt-get install nodejs chromium")
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        demo = given.demo or Path(folder) / "demo"
        if given.demo is None:
            said(sealtrain("demo", "--out", demo))
        found = measured(demo, given.rounds)
    browser = said([shutil.which("chromium"), "--version"]).split()[1]
    found |= {
        "command": f"python benchmarks/verifiers.py --rounds {given.rounds}"
        f"{' --demo FOLDER' if given.demo else ''} --write",
        "seconds": time.monotonic() - began,
        "machine": machine("cryptography", load=load)
        | {"node": said(["node", "--version"]).strip().lstrip("v"), "chromium": browser},
    }
    text = page(found)
    if given.write:
        PAGE.write_text(text, "utf-8")
    print(json.dumps(found) if given.json else text)
    sys.exit(any(max(found["milliseconds"][name]) >= BAR_MS for name in _BARRED))


if __name__ == "__main__":
    main()
