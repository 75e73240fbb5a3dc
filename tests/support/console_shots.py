"""Take pictures of every page of the console: ``make shots``.

    python tests/support/console_shots.py [--out dist/shots] [--guide]

A console over a real broker and the folders of a completed and a live run, in Debian's Chromium,
without anything from the network: each page at 1280 and 390 pixels, light and dark. ``--guide``
writes the few that ``docs/guides/console.md`` shows, in fewer colours, into its folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from console_world import LIVE_ID, ConsoleWorld, console_world, visited
from manifest_world import RUN_ID

REPOSITORY = Path(__file__).resolve().parents[2]

GUIDE = REPOSITORY / "docs" / "guides" / "console"
WIDTHS = (1280, 390)
_COLOURS = 48


def places(world: ConsoleWorld) -> dict[str, str]:
    """Address of each page by the name of its picture."""
    return {
        "consortium": "/consortium",
        "recipe": f"/consortium/{world.compose_hash}",
        "runs": "/runs",
        "run-completed": f"/runs/{RUN_ID}",
        "run-live": f"/runs/{LIVE_ID}",
        "refusal": "/nowhere",
    }


def taken(world: ConsoleWorld, out: Path) -> list[Path]:
    """Pictures of every page; returns their files."""
    visits: list[dict[str, Any]] = [
        {
            "url": world.url + path,
            "width": width,
            "dark": dark,
            "shot": str(out / f"{name}-{width}-{'dark' if dark else 'light'}.png"),
        }
        for name, path in places(world).items()
        for width in WIDTHS
        for dark in (False, True)
    ]
    unsettled = [one["url"] for one in visited(visits) if not one["settled"]]
    if unsettled:
        sys.exit(f"pages did not come to rest: {', '.join(unsettled)}")
    return [Path(visit["shot"]) for visit in visits]


def to_guide(folder: Path) -> None:
    """Write the pictures of the guide, in so few colours that the repository stays small."""
    from PIL import Image

    GUIDE.mkdir(exist_ok=True)
    for name in ("consortium-1280-light", "recipe-1280-light", "run-live-1280-dark"):
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
    asked.add_argument("--guide", action="store_true", help="write those of the guide too")
    given = asked.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, console_world(Path(folder)) as world:
        for path in taken(world, given.out):
            print(path)
    if given.guide:
        to_guide(given.out)


if __name__ == "__main__":
    main()
