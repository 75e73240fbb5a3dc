"""Run every ready recipe from sealing to a verified manifest, on small data, on one machine.

    python examples/every_phase/run.py [RECIPE ...] [--out DIR] [--json]

RECIPE is a name from ``recipes/`` without ``.yaml``; when left out, all whose backend is installed
here (tools/backends). A story in ``stories/`` makes the data that a recipe needs: real records that
scikit-learn ships, or data with a structure to be learned. Each recipe is played by ``sealtrain
rehearse`` on the simulator.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.recipe.errors import RecipeInvalid

HERE = Path(__file__).resolve().parent
RECIPES = HERE.parents[1] / "recipes"
OF_THEIR_OWN = ("axolotl", "unsloth")
"""Backends that need an environment of their own."""
# What a recipe for hardware pins, image and key provider, the simulator does not have.
SIMULATED = {
    "platforms": ["simulator"],
    "tier": "processor",
    "image": None,
    "key_provider": "none",
    "key_provider_id": None,
}


def story_of(recipe: str) -> ModuleType:
    """The module that makes a recipe's data.

    It has ``prepare(folder) -> {"owner.name": path}`` and may have ``TRAINER`` (settings that make
    the run short), ``RECIPE`` (other fields that its small model needs) and ``SEAL_AS``
    (``owner.name`` → further options of ``sealtrain seal``).
    """
    path = HERE / "stories" / f"{recipe.replace('-', '_')}.py"
    if not path.exists():
        raise SystemExit(f"recipe {recipe} has no story: {path}")
    if str(HERE) not in sys.path:  # this file was not started but loaded
        sys.path.insert(0, str(HERE))
    return importlib.import_module(f"stories.{path.stem}")


def playable(wanted: Callable[[dict[str, Any]], bool] = lambda _recipe: True) -> list[str]:
    """Ready recipes whose backend is installed here, sorted.

    Args:
        wanted: Which of them, by what is in the recipe's file.
    """
    found = []
    for path in sorted(RECIPES.glob("*.yaml")):
        recipe = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
        backend = recipe.get("backend", {}).get("name")
        here = backend not in OF_THEIR_OWN or importlib.util.find_spec(backend)
        if here and wanted(recipe):
            found.append(path.stem)
    return found


def prepare(recipe: str, folder: Path) -> tuple[Path, dict[str, Path], dict[str, str]]:
    """Lay out a story.

    Returns:
        The recipe, shortened and for the simulator; files to seal by ``owner.name``; options of
        ``sealtrain seal``.
    """
    story = story_of(recipe)
    data: dict[str, Path] = story.prepare(folder)
    text = parse_yaml((RECIPES / f"{recipe}.yaml").read_bytes(), error=RecipeInvalid, what="recipe")
    text |= getattr(story, "RECIPE", {})
    text["hardware"] = SIMULATED
    text["trainer"] = text.get("trainer", {}) | getattr(story, "TRAINER", {})
    written = folder / "recipes" / f"{recipe}.yaml"
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(yaml_text(text), "utf-8")
    return written, data, getattr(story, "SEAL_AS", {})


def rehearsed(
    name: str, path: Path, data: Mapping[str, Path], seal_as: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """What ``sealtrain rehearse`` answers for a recipe.

    Args:
        name: Of the recipe, for errors.
        path: The recipe.
        data: Files of records, by ``owner/name``.
        seal_as: How a file is read where its suffix does not say it, by ``owner/name``.
        folder: The rehearsal's folder is made in it.

    Raises:
        SystemExit: The rehearsal did not end well.
    """
    words = [word for key, file in data.items() for word in ("--records", f"{key}={file}")]
    words += [word for key, text in seal_as.items() for word in ("--seal-as", f"{key}={text}")]
    words += ["--out", str(folder / "rehearsal"), "--json"]
    done = subprocess.run(  # noqa: S603 - our own program with our own words
        [sys.executable, "-m", "sealtrain", "rehearse", str(path), *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def play(recipe: str, folder: Path) -> dict[str, Any]:
    """One recipe from sealing to verification; its metrics and how long it took."""
    began = time.monotonic()
    path, data, seal_as = prepare(recipe, folder)
    answer = rehearsed(recipe, path, data, seal_as, folder)
    return {
        "recipe": recipe,
        "seconds": round(time.monotonic() - began, 1),
        "metrics": answer["trained"]["metrics"],
        "checks": len(answer["verified"]["checks"]),
        "manifest": answer["trained"]["manifest"],
        "model": answer["model"],
    }


def _lines(results: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(result["recipe"]) for result in results)
    for result in results:
        metrics = "  ".join(f"{name} {value}" for name, value in result["metrics"].items())
        yield f"{result['recipe']:<{width}}  {result['seconds']:>6} s  {metrics}"


def main() -> None:
    """Play the recipes asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--out", type=Path, default=Path("every-phase-out"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    known = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    wanted = given.recipes or playable()
    if unknown := set(wanted) - set(known):
        parser.error(f"no such recipe: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    results = []
    for recipe in wanted:
        folder = given.out.resolve() / recipe
        if folder.exists():
            if not (folder / "recipes").is_dir():
                parser.error(f"{folder} was not made here; choose another --out")
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        print(f"\n{recipe}", file=sys.stderr)
        results.append(play(recipe, folder))
    if given.json:
        print(json.dumps({"simulated": True, "results": results}, indent=2))
    else:
        print("\nSIMULATED — NOT ATTESTED", *_lines(results), sep="\n")


if __name__ == "__main__":
    main()
