"""Play every ready recipe, and compare the modules that its run loaded with its lock.

    python examples/every_phase/imported.py [RECIPE ...] [--out DIR] [--json] [--unguarded]

Each recipe is rehearsed on the simulator with the stories of ``run.py``. When its run ends, the
modules that its keeper and its workload have loaded are looked up in the records of all installed
packages, whatever the lock says. Each module must be Python's, sealtrain's, or of a package that
the lock pins; otherwise this exits with 1. ``--unguarded`` leaves out what keeps other packages
from being found (``sealtrain.guest.sandbox.imports``), and shows what would be loaded without it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from run import playable, prepare

import sealtrain
from sealtrain.cli.programs import read_answer
from sealtrain.guest.sandbox.rehearsal import INSECURE_SHOW
from sealtrain.recipe.installation import normalise_name
from sealtrain.recipe.lock import load_lock
from sealtrain.recipe.schema import load_recipe
from sealtrain_rehearsal.rehearsal import Rehearsal

LOADED = "LOADED "
"""Before what a workload has loaded, on a line of standard error."""
WORKLOAD = f"""\
from sealtrain.guest import workload_life as life
ended = life.Ended
def tell():
    files = {{name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}
    found = {{name: file for name, file in files.items() if file and file[0] == "/"}}
    with open(2, "w", closefd=False) as errors:
        errors.write("\\n{LOADED}" + json.dumps(found) + "\\n")
    return ended()
life.Ended = tell
"""
"""What a workload does besides: at its end it says what it has loaded."""
UNGUARDED = "life.import_only_pinned = lambda importable: None\n"
WATCHED = """\
import json, os, sys
path, out, guarded, besides = json.loads(sys.argv.pop(1))
sys.path += path
from sealtrain.guest.workload import new_interpreter
begin = "from {module} import begin_anew\\n"
assert begin in new_interpreter._BEGIN
besides = besides.replace("{", "{{").replace("}", "}}")
new_interpreter._BEGIN = new_interpreter._BEGIN.replace(begin, besides + begin)
if not guarded:
    import sealtrain.guest.admission
    sealtrain.guest.admission.import_only_pinned = lambda importable: None
from sealtrain.cli import main
parent = os.getpid()
try:
    main()
finally:
    if os.getpid() == parent:
        files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
        with open(out, "w") as file:
            # Modules that are made in memory have no file, or the name of none.
            json.dump({name: file for name, file in files.items() if file and file[0] == "/"}, file)
"""
"""Begins as ``sealtrain.cli.run_process`` does, and writes down at the end what was loaded."""


class Watched(Rehearsal):
    """A rehearsal that learns what its run has loaded.

    Args:
        out: New folder for everything that is made.
        guarded: Whether the run finds pinned packages only.
    """

    def __init__(self, out: Path, *, guarded: bool) -> None:
        super().__init__(out, lambda line: print(line, file=sys.stderr))
        self._guarded = guarded
        self.modules: dict[str, str] = {}

    def _train(self, path: Path) -> dict[str, Any]:
        loaded = self.out / "run" / "loaded.json"
        besides = WORKLOAD + ("" if self._guarded else UNGUARDED)
        given = json.dumps([sys.path[1:], str(loaded), self._guarded, besides])
        # Not from the document: the program that watches is another one than was measured.
        guest = self._sockets / "guest.sock"
        self.serve(
            "guest API", "simulator", "serve", "--deployment", self._deployment,
            "--socket", guest, "--simulator", self._root, *self._machine,
        )  # fmt: skip
        words = [
            str(word)
            for word in (
                "train", self._deployment.with_name("recipe.lock.json"), *self._brokers,
                "--platform", "simulator", "--guest", guest,
                "--collateral", f"file:{self._root / 'collateral.json'}",
                "--gpu-collateral", f"file:{self._root / 'gpu-collateral.json'}",
                "--base", path.resolve().parent, "--data", self._sealed,
                "--out", self.out / "run", "--json",
            )
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - our own program with our own words
            [sys.executable, "-I", "-S", "-c", WATCHED, given, *words],
            capture_output=True,
            text=True,
            env=os.environ | INSECURE_SHOW,
        )
        lines = done.stderr.splitlines()
        told = [line.removeprefix(LOADED) for line in lines if line.startswith(LOADED)]
        print(*(line for line in lines if not line.startswith(LOADED)), sep="\n", file=sys.stderr)
        answer = read_answer("train", done.returncode, done.stdout)
        [of_workload] = map(json.loads, told)
        self.modules = json.loads(loaded.read_text()) | of_workload
        loaded.write_text(json.dumps(self.modules))
        return {"trained": answer}


def owners_of(modules: dict[str, str]) -> dict[str, str]:
    """Package of each module that is neither Python's nor sealtrain's: by all installed records."""
    files: dict[str, str] = {}
    for package in distributions():
        name = normalise_name(package.metadata["Name"])
        for file in package.files or ():
            files.setdefault(str(package.locate_file(file)), name)
    own = str(Path(sealtrain.__file__).parent)
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    found = {}
    for name, file in modules.items():
        of_python = file.startswith(library) and "-packages" not in file
        if not of_python and not file.startswith(own):
            found[name] = files.get(file, f"no package: {file}")
    return found


def play(
    path: Path, data: Mapping[str, Path], seal_as: Mapping[str, str], out: Path, *, guarded: bool
) -> dict[str, Any]:
    """One recipe: how much it loaded, and of which packages that its lock does not pin.

    Args:
        path: The recipe.
        data: ``owner.name`` → file to seal.
        seal_as: ``owner.name`` → further words for ``sealtrain seal``.
        out: New folder for the rehearsal.
        guarded: Whether the run finds pinned packages only.
    """
    recipe = load_recipe(path)
    with Watched(out, guarded=guarded) as stage:
        stage.play(path, recipe, {key: str(item) for key, item in data.items()}, seal_as)
        lock = load_lock(out / "engineer" / "recipe.lock.json")
    loaded = owners_of(stage.modules)
    pinned = lock.environment.packages.keys()
    return {
        "recipe": recipe.name,
        "modules": len(loaded),
        "packages": len(set(loaded.values())),
        "pinned": len(pinned),
        "unpinned": sorted(set(loaded.values()) - pinned),
    }


def main() -> None:
    """Play the recipes asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--out", type=Path, default=Path("every-phase-imported"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--unguarded", action="store_true", help="find other packages too")
    given = parser.parse_args()
    results = []
    for name in given.recipes or playable():
        print(f"\n{name}", file=sys.stderr)
        folder = given.out.resolve() / name
        folder.mkdir(parents=True)
        out, guarded = folder / "rehearsal", not given.unguarded
        results.append(one := play(*prepare(name, folder), out, guarded=guarded))
        if not given.json:
            told = ", ".join(one["unpinned"]) or "all pinned"
            print(
                f"{name:20}{one['modules']:>6} modules of {one['packages']:>3} packages, "
                f"{one['pinned']} in the lock: {told}",
                flush=True,
            )
    if given.json:
        print(json.dumps({"simulated": True, "results": results}, indent=2))
    if any(result["unpinned"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
