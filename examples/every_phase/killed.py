"""Kill every ready recipe's run at a random step, let it go on, and compare what comes out.

    python examples/every_phase/killed.py [RECIPE ...] [--out DIR] [--json] [--seed N]

Each recipe is trained twice on the simulator, with the stories of ``run.py``: once without a break,
once ended with SIGKILL at a random moment between its first and its last checkpoint, and resumed.
The manifest of the resumed run is verified. Both opened models must be the same files, bit for bit,
and both runs must have released the same metrics; otherwise this exits with 1. Left out unless
named: recipes that train nothing, and those with privacy, whose runs draw noise of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from run import playable, prepare

from sealtrain.base.digests import sha256_hex
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.cli.programs import SideProgram
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import load_recipe
from sealtrain_rehearsal.rehearsal import Rehearsal

POLL_S = 0.01
WITHIN_S = 600.0


class Killed(Rehearsal):
    """A rehearsal whose run ends in the middle.

    Args:
        out: New folder for everything that is made.
        moment: When to kill: a part of the time between first and last checkpoint, from 0 to 1.
    """

    def __init__(self, out: Path, moment: float) -> None:
        super().__init__(out, lambda line: print(line, file=sys.stderr))
        self._moment = moment

    def _train(self, path: Path) -> dict[str, Any]:
        ticket = self._training(path)
        with self._part("whole-run", *self._prepare_start("whole", ticket)) as whole:
            moments = self._moments(whole, "whole")
            answer = whole.wait_for_end(within=WITHIN_S)
        with self._part("killed-run", *self._prepare_start("guest", ticket)) as victim:
            if not self._moments(victim, "guest", most=1):
                victim.wait_for_end(within=WITHIN_S)
            time.sleep(self._moment * (moments[-1] - moments[0]))
            late = victim.gone
            victim.kill()
        step = self._newest("guest")
        again = victim.answer() if late else self._run(*self._prepare_start("guest", ticket))
        return {"whole": answer, "trained": again, "step": step}

    def same(self, done: Mapping[str, Any], recipient: str) -> bool:
        """Whether both runs came to the same model and metrics."""
        opened = self.out / recipient / "whole"
        trust = self.out / "trust.yaml"
        words = ("--identity", self._identity(recipient), "--trust", trust, "--out", opened)
        self._run("open", self.out / "whole" / "out" / "model", *words)
        metrics = (done["trained"]["metrics"], done["whole"]["metrics"])
        return metrics[0] == metrics[1] and files(Path(done["model"])) == files(opened)

    def _moments(self, part: SideProgram, run: str, most: int | None = None) -> list[float]:
        """When each checkpoint was there, until the run ends or there are so many."""
        found: list[float] = []
        newest, until = 0, time.monotonic() + WITHIN_S
        while not part.gone and len(found) != most and time.monotonic() < until:
            if (step := self._newest(run)) != newest:
                newest = step
                found.append(time.monotonic())
            time.sleep(POLL_S)
        return found

    def _newest(self, run: str) -> int:
        """Step of the newest checkpoint; 0 for none."""
        found = (self.out / run / "out" / "checkpoints").glob("checkpoint-*.sealed")
        return max((int(re.split(r"[-.]", path.name)[2]) for path in found), default=0)


def files(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by its path inside ``folder``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256_hex(path.read_bytes()) for path in paths}


def comparable(recipe: Mapping[str, Any]) -> bool:
    """Whether two runs of a recipe must end alike."""
    return recipe["phase"] != "evaluate" and recipe["privacy"]["dp"] == "none"


def play(name: str, folder: Path, moment: float) -> dict[str, Any]:
    """One recipe: at which step it was killed, and whether it came to the same end."""
    path, data, seal_as = prepare(name, folder)
    text = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
    text["trainer"]["save_steps"] = max(1, text["trainer"]["max_steps"] // 5)
    path.write_text(yaml_text(text), "utf-8")
    recipe = load_recipe(path)
    with Killed(folder / "rehearsal", moment) as stage:
        done = stage.play(path, recipe, {key: str(item) for key, item in data.items()}, seal_as)
        same = stage.same(done, recipe.release_policy.model.recipients[0])
    return {"recipe": name, "after_step": done["step"], "same": same}


def main() -> None:
    """Play the recipes asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--out", type=Path, default=Path("every-phase-killed"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seed", type=int, default=None, help="of the moments; default: any")
    given = parser.parse_args()
    drawn = random.Random(given.seed)  # noqa: S311 - no secret
    results = []
    for name in given.recipes or playable(comparable):
        print(f"\n{name}", file=sys.stderr)
        folder = given.out.resolve() / name
        folder.mkdir(parents=True)
        results.append(one := play(name, folder, drawn.random()))
        if not given.json:
            verdict = "same" if one["same"] else "DIFFERS"
            print(f"{name:20}killed after step {one['after_step']:<6}{verdict}", flush=True)
    if given.json:
        print(json.dumps({"simulated": True, "results": results}, indent=2))
    if not all(result["same"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
