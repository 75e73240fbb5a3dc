"""Take pictures of every page: console, walk, report, verify.html, the site: ``make shots``.

    python tests/support/console_shots.py [--out dist/shots] [--guide] [--site dist/site]

A console over a real broker, output stores and the folders of a completed, a live and a forged run,
in Debian's Chromium, without anything from the network: each page at 1280 and 390 pixels, light and
dark. ``--guide`` writes the few that ``docs/guides/console.md`` shows, in fewer colours, into its
folder. ``--site`` names the site that ``make docs`` made; without it none of its pages is taken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from console_world import FORGED_ID, LIVE_ID, ConsoleWorld, compared_path, console_world, visited
from manifest_world import NOW, RUN_ID

from sealtrain.manifest.report import render
from sealtrain.manifest.second_verifier import join_page
from sealtrain.manifest.verify import examine
from sealtrain_console.walk_run import prepare_run
from sealtrain_console.web.app import console_app
from sealtrain_console.web.serving import serving
from sealtrain_console.web.walk import WALK

REPOSITORY = Path(__file__).resolve().parents[2]

GUIDE = REPOSITORY / "docs" / "guides" / "console"
WIDTHS = (1280, 390)
_COLOURS = 48
GUIDE_PICTURES = (
    "consortium-1280-light",
    "recipe-1280-light",
    "run-completed-1280-light",
    "run-live-1280-dark",
)
_SWITCHED_OFF = [
    {"click": "button[role=switch]"},
    {"until": "document.querySelector('.verdict[data-code]')", "patience": 30000},
]
"""The first switch of the walk, and what refused."""


def places(world: ConsoleWorld) -> dict[str, str]:
    """Address of each page of the console by the name of its picture."""
    paths = {
        "consortium": "/consortium",
        "recipe": f"/consortium/{world.compose_hash}",
        "runs": "/runs",
        "runs-compared": compared_path(),
        "run-completed": f"/runs/{RUN_ID}",
        "run-live": f"/runs/{LIVE_ID}",
        "run-forged": f"/runs/{FORGED_ID}",
        "refusal": "/nowhere",
    }
    return {name: world.url + path for name, path in paths.items()}


def report_of(world: ConsoleWorld, folder: Path) -> str:
    """Address of the report of the completed run, a page on the disk."""
    made = world.audited
    found = examine(made.manifest(), made.trust(), artefacts=made.artefacts, now=NOW)
    file = folder / "report.html"
    file.write_text(render(found), encoding="utf-8")
    return file.as_uri()


def verifier_steps(world: ConsoleWorld, folder: Path) -> list[dict[str, Any]]:
    """What gives a manifest, a trust file and a third file to the second verifier's page."""
    made = world.audited
    files = {
        "manifest.json": made.manifest(),
        "trust.yaml": made.trust().to_yaml(),
        "recipe.lock.json": made.locked.lock_bytes,
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [
        {"of": "#files", "files": [str(folder / name) for name in files]},
        {"until": "document.body.dataset.verdict"},
    ]


def taken(
    urls: Mapping[str, str], out: Path, steps: Mapping[str, list[dict[str, Any]]] | None = None
) -> list[Path]:
    """Pictures of pages, each after its steps; returns their files."""
    visits: list[dict[str, Any]] = [
        {
            "url": url,
            "width": width,
            "dark": dark,
            "steps": (steps or {}).get(name, []),
            "shot": str(out / f"{name}-{width}-{'dark' if dark else 'light'}.png"),
        }
        for name, url in urls.items()
        for width in WIDTHS
        for dark in (False, True)
    ]
    unsettled = [link["url"] for link in visited(visits) if not link["settled"]]
    if unsettled:
        sys.exit(f"pages did not come to rest: {', '.join(unsettled)}")
    return [Path(visit["shot"]) for visit in visits]


def to_guide(folder: Path) -> None:
    """Write the pictures of the guide, in so few colours that the repository stays small."""
    from PIL import Image

    GUIDE.mkdir(exist_ok=True)
    for name in GUIDE_PICTURES:
        with Image.open(folder / f"{name}.png") as picture:
            small = picture.convert("RGB").quantize(_COLOURS)
            small.save(GUIDE / f"{name}.png", optimize=True)
            print(GUIDE / f"{name}.png")


def main() -> None:
    """Take them."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--out", type=Path, default=REPOSITORY / "dist" / "shots")
    asked.add_argument("--site", type=Path, help="the site that make docs made")
    asked.add_argument("--guide", action="store_true", help="write those of the guide too")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []
    with tempfile.TemporaryDirectory() as folder, console_world(Path(folder) / "world") as world:
        pictures += taken(places(world), given.out)
        checked = {"until": "document.getElementById('self-check').dataset.verdict"}
        report = {"report": report_of(world, Path(folder))}
        pictures += taken(report, given.out, {"report": [checked]})
        joined = Path(folder) / "verify.html"
        joined.write_text(join_page(), "utf-8")
        verifier = {name: joined.as_uri() for name in ("verify", "verify-empty")}
        steps = {"verify": verifier_steps(world, Path(folder))}
        pictures += taken(verifier, given.out, steps)
    with tempfile.TemporaryDirectory() as folder:
        run = prepare_run(Path(folder) / "walk")
        with serving(console_app([WALK], {"walk": run})) as url:
            pictures += taken({"walk": f"{url}/walk"}, given.out, {"walk": _SWITCHED_OFF})
    if given.site is not None and (given.site / "index.html").is_file():
        site = given.site.resolve()
        pages = {
            "site": "index",
            "site-error": "errors/signature-invalid",
            "site-guide": "docs/guides/console",
        }
        urls = {name: (site / f"{page}.html").as_uri() for name, page in pages.items()}
        pictures += taken(urls, given.out)
    for path in pictures:
        print(path)
    if given.guide:
        to_guide(given.out)


if __name__ == "__main__":
    main()
