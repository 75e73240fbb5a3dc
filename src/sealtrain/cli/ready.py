"""``explain``, ``recipes`` and ``demo``: error pages, ready recipes and a story, all shipped."""

from __future__ import annotations

import re
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.extras import require_extras
from sealtrain.base.processes import end_with_starter
from sealtrain.base.shipped import find_shipped
from sealtrain.cli.output import Json, emit, table
from sealtrain.errors import UsageError
from sealtrain.recipe.schema import load_recipe
from sealtrain.sealing.trainedmodel import RUN_MANIFEST


def explain(
    code: Annotated[str, typer.Argument(help="Code of an error, as it stands in brackets.")],
    as_json: Json = False,
) -> None:
    """Say what an error means and what to do about it."""
    page = find_shipped("docs/reference/errors.md").read_text("utf-8")
    sections = re.split(r"^#{2,3} ", page, flags=re.MULTILINE)[1:]
    found = {
        head.strip(): text.strip()
        for head, _, text in (section.partition("\n") for section in sections)
    }
    if code not in found:
        near = get_close_matches(code, found, n=3)
        raise UsageError("there is no error of this code", got=code, expected=" or ".join(near))
    emit(as_json, {"code": code, "text": found[code]}, [found[code]])


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this one; without it, list them all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the ready recipes, or print one to start from."""
    found = {path.stem: path for path in sorted(find_shipped("recipes").glob("*.yaml"))}
    if name is None:
        loaded = {stem: load_recipe(path) for stem, path in found.items()}
        listed = [
            {"name": stem, "phase": recipe.phase, "description": recipe.description}
            for stem, recipe in loaded.items()
        ]
        rows = [[recipe["name"], recipe["phase"], recipe["description"]] for recipe in listed]
        lines = table(rows, header=("name", "phase", "description"))
        emit(as_json, {"recipes": listed}, lines)
        return
    if name not in found:
        raise UsageError("no ready recipe has this name", got=name, expected=" or ".join(found))
    text = found[name].read_text("utf-8")
    emit(as_json, {"name": name, "recipe": text}, [text.rstrip("\n")])


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo makes.")] = Path(
        "demo-out"
    ),
    as_json: Json = False,
) -> None:
    """Play three hospitals that train one model together, on the simulator (about 3 minutes)."""
    require_extras("the demo", "train", "broker", "simulator")
    story = find_shipped("examples/three_hospitals") / "demo.py"
    words = [sys.executable, str(story), "--out", str(out)]
    shown = sys.stderr if as_json else None
    played = subprocess.run(  # noqa: S603  # our own program, our own words
        words, stdout=shown, preexec_fn=end_with_starter()
    )
    if played.returncode != 0:
        raise typer.Exit(played.returncode)
    emit(as_json, {"out": str(out), "manifest": str(out / "run" / RUN_MANIFEST)})
