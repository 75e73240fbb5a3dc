"""Run every ready recipe in two ranks on this machine's processors, and write what happened.

    python examples/every_phase/ranks.py [RECIPE ...] [--out DIR]
    python examples/every_phase/ranks.py --check

RECIPE is as for ``run.py``; its row of ``docs/reference/ranks.md`` is made anew, the others stay.
Each is played by ``sealtrain rehearse`` for two steps, from sealing to a verified manifest, which
states the number of ranks. What cannot, and why, is what the recipe's schema answers. With
``--check`` nothing runs: a page that says something else than the schema ends with 1.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from run import RECIPES, prepare, rehearsed

from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

PAGE: Final = RECIPES.parent / "docs" / "reference" / "ranks.md"
ELSEWHERE: Final = "## Every phase and adapter\n"
FEW: Final = {"max_steps": 2, "save_steps": 1, "logging_steps": 1, "warmup_steps": 0}
BACKENDS: Final[dict[str, dict[str, Any]]] = {
    "trl": {"name": "trl"},
    "fsdp": {"name": "fsdp"},
    "deepspeed": {"name": "deepspeed", "zero_stage": 2},
}
_ROW: Final = re.compile(r"^\| ([a-z0-9-]+) \| [a-z]+ \| ([a-z]+) \| 2 \| (\d+) \|", re.MULTILINE)
_INTRO: Final = """\
# Ready recipes in two ranks

Written by `python examples/every_phase/ranks.py`, which plays each ready recipe in two ranks of one
guest: `sealtrain rehearse` with `backend.ranks: 2` on small data and two steps, on the simulator,
on two processors without an accelerator. *Ran* names the backend; the signed manifest of each run
states two ranks. *Seconds* are those of the whole rehearsal, sealing and verification included, on
a machine with other work, and compare nothing. The columns of backends say whether the recipe may
name them with two ranks; a number is a refusal below. What two ranks change in a phase is in the
[specification](../../spec/recipe.md#213-backends).

"""


def document(name: str) -> dict[str, Any]:
    """A ready recipe as its file has it."""
    path = RECIPES / f"{name}.yaml"
    read: dict[str, Any] = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
    return read


def in_two_ranks(recipe: Mapping[str, Any], backend: Mapping[str, Any] | None) -> dict[str, Any]:
    """The recipe with two ranks of a backend; of its own, if none is given."""
    chosen = recipe.get("backend", BACKENDS["trl"]) if backend is None else backend
    return {**recipe, "backend": {**chosen, "ranks": 2}}


def refusal(recipe: Mapping[str, Any]) -> str | None:
    """What the schema answers to a recipe that it refuses."""
    try:
        parse_recipe(dict(recipe))
    except RecipeInvalid as error:
        return error.message.removeprefix("recipe: ")
    return None


def played(name: str, folder: Path) -> tuple[str, int]:
    """Rehearse a recipe in two ranks.

    Args:
        name: Of the recipe.
        folder: Empty.

    Returns:
        Backend and seconds.
    """
    began = time.monotonic()
    path, data, seal_as = prepare(name, folder)
    recipe = in_two_ranks(parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe"), None)
    if "max_steps" in recipe["trainer"]:
        often = {"eval_steps": 1} if "eval_steps" in recipe["trainer"] else {}
        recipe["trainer"] |= FEW | often
    path.write_text(yaml_text(recipe), "utf-8")
    answer = rehearsed(name, path, data, seal_as, folder)
    envelope = json.loads(Path(answer["trained"]["manifest"]).read_text())
    statement = json.loads(base64.b64decode(envelope["bundle"]["dsseEnvelope"]["payload"]))
    ranks = statement["predicate"]["run"]["environment"]["world_size"]
    if ranks != "2":
        raise SystemExit(f"{name}: the manifest states {ranks} ranks")
    return recipe["backend"]["name"], round(time.monotonic() - began)


def rendered(ran: Mapping[str, tuple[str, int]], rest: str) -> str:
    """The page.

    Args:
        ran: Backend and seconds by recipe.
        rest: The sections after the ready recipes, which are written elsewhere.
    """
    reasons: dict[str, int] = {}

    def allowed(answer: str | None) -> str:
        return "yes" if answer is None else f"({reasons.setdefault(answer, len(reasons) + 1)})"

    lines = [f"| recipe | phase | ran | ranks | seconds | {' | '.join(BACKENDS)} |"]
    lines.append(f"|---|---|---|---:|---:|{'---|' * len(BACKENDS)}")
    for path in sorted(RECIPES.glob("*.yaml")):
        recipe = document(path.stem)
        own = refusal(in_two_ranks(recipe, None))
        backend, seconds = ran.get(path.stem, ("not yet", ""))
        done = f"{backend} | 2 | {seconds}" if own is None else f"{allowed(own)} | |"
        others = [allowed(refusal(in_two_ranks(recipe, backend))) for backend in BACKENDS.values()]
        lines.append(f"| {path.stem} | {recipe['phase']} | {done} | {' | '.join(others)} |")
    lines += ["", "## What cannot, and why", ""]
    lines += [f"{number}. {answer}" for answer, number in reasons.items()]
    return _INTRO + "\n".join(lines) + "\n\n" + rest


def written_elsewhere(page: str) -> str:
    """The sections of a page after the ready recipes."""
    return "".join(page.partition(ELSEWHERE)[1:])


def recorded(page: str) -> dict[str, tuple[str, int]]:
    """What a page says that ran."""
    return {name: (backend, int(seconds)) for name, backend, seconds in _ROW.findall(page)}


def main() -> None:
    """Run the recipes asked for and write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--out", type=Path, default=Path("ranks-out"))
    parser.add_argument("--check", action="store_true", help="run nothing")
    given = parser.parse_args()
    page = PAGE.read_text("utf-8") if PAGE.exists() else ""
    ran = recorded(page)
    if given.check:
        sys.exit(page != rendered(ran, written_elsewhere(page)))
    able = [
        path.stem
        for path in sorted(RECIPES.glob("*.yaml"))
        if refusal(in_two_ranks(document(path.stem), None)) is None
    ]
    if unable := set(given.recipes) - set(able):
        parser.error(f"not in two ranks: {', '.join(sorted(unable))}")
    for name in given.recipes or able:
        folder = given.out.resolve() / name
        if folder.exists():
            if not (folder / "recipes").is_dir():
                parser.error(f"{folder} was not made here; choose another --out")
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        print(f"\n{name}", file=sys.stderr)
        ran[name] = played(name, folder)
        page = PAGE.read_text("utf-8") if PAGE.exists() else ""
        PAGE.write_text(rendered(ran, written_elsewhere(page)), "utf-8")


if __name__ == "__main__":
    main()
