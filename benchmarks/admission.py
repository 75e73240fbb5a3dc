"""What it costs that a guest runs exactly what was approved: at its start, and in memory.

    python benchmarks/admission.py [--megabytes 512] [--rounds 5] [--json]

Side by side, each in processes of its own, the best of the rounds:

1. a model folder that is hashed, and one that is hashed and taken along, seconds;
2. the training libraries imported with Python's finders, and with pinned packages only, seconds;
3. an interpreter that loads the command line, once and begun anew for a run, seconds;
4. memory when a process has loaded a model and used every weight, read from its folder and from the
   copy: frozen as with an adapter, and changed as in full training. Counted are pages of the
   process and of the copy; not those of the folder's file, which the kernel keeps while weights are
   read from it, and may drop where they were changed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measured_on import machine

_TIMED = """
import sys, time
from pathlib import Path
from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.recipe.modelfolder import measure_folder
folder, taken = Path(sys.argv[1]), PrivateFolder()
began = time.perf_counter()
measure_folder(folder, copies=taken.writer if sys.argv[2] == "copied" else None)
print(time.perf_counter() - began)
"""
_IMPORTED = """
import sys, time
from pathlib import Path
from sealtrain.recipe.installation import measure_installation
from sealtrain.recipe.schema import load_recipe
from sealtrain.guest.sandbox.imports import import_only_pinned
here = measure_installation(load_recipe(Path(sys.argv[1])))
began = time.perf_counter()
if sys.argv[2] == "pinned":
    import_only_pinned(here.importable)
import sealtrain.training.phases.sft, sealtrain.training.run
print(time.perf_counter() - began)
"""
_LOADED = """
import os, sys, torch
from pathlib import Path
from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.recipe.modelfolder import measure_folder
from transformers import AutoModelForCausalLM
folder, taken = Path(sys.argv[1]), PrivateFolder()
def own():
    rows = [line.split() for line in open("/proc/self/smaps_rollup")]
    private = next(int(row[1]) for row in rows if row[0] == "Anonymous:") / 1024
    return private + sum(path.stat().st_blocks for path in taken.path.iterdir()) / 2048
before = own()
if sys.argv[2] == "copied":
    measure_folder(folder, copies=taken.writer)
    folder = taken.path
model = AutoModelForCausalLM.from_pretrained(folder)
with torch.no_grad():
    for value in model.parameters():
        value.add_(1) if sys.argv[3] == "changed" else value.sum()
print(own() - before)
"""
_COMMAND = (
    "import sys; sys.argv = ['sealtrain', '--version']; from sealtrain.cli import main; main()"
)
_ANEW = f"""
import os, sys, json
import sealtrain.cli
places = json.dumps(sys.path[1:])
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c",
    "import json, sys; sys.path += json.loads(sys.argv.pop()); " + {_COMMAND!r}, places])
"""


def said(program: str, *words: str | Path) -> float:
    """The number that a program prints last, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def lasted(program: str) -> float:
    """Seconds from the start of a process to its end."""
    import time

    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return time.perf_counter() - began


def model_folder(folder: Path, megabytes: int) -> Path:
    """A Llama of random weights of about that size."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    width = 1024
    layers = max(1, megabytes * (1 << 20) // (4 * 16 * width * width))
    config = LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=8,
    )  # fmt: skip
    with torch.device("cpu"):
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def measured(folder: Path, recipe: Path, rounds: int) -> dict[str, Any]:
    """The best of the rounds, both sides of each question in turn."""
    folders: dict[str, list[float]] = {"hashed": [], "copied": []}
    imports: dict[str, list[float]] = {"python": [], "pinned": []}
    starts: dict[str, list[float]] = {"once": [], "anew": []}
    for _ in range(rounds):
        for how, times in folders.items():
            times.append(said(_TIMED, folder, how))
        for how, times in imports.items():
            times.append(said(_IMPORTED, recipe, how))
        for how, times in starts.items():
            times.append(lasted(_COMMAND if how == "once" else _ANEW))
    size = sum(path.stat().st_size for path in folder.iterdir()) / (1 << 20)
    memory = {
        use: {how: said(_LOADED, folder, how, use) for how in ("read", "copied")}
        for use in ("frozen", "changed")
    }
    return {
        "megabytes": round(size),
        "folder_s": {how: min(times) for how, times in folders.items()},
        "imports_s": {how: min(times) for how, times in imports.items()},
        "start_s": {how: min(times) for how, times in starts.items()},
        "memory_mb": memory,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    recipe = Path(__file__).resolve().parents[1] / "recipes" / "sft-lora.yaml"
    with tempfile.TemporaryDirectory() as place:
        found = measured(model_folder(Path(place) / "m", given.megabytes), recipe, given.rounds)
    if given.json:
        print(json.dumps(machine() | found, indent=2))
        return
    folders, imports, starts = found["folder_s"], found["imports_s"], found["start_s"]
    print(f"model of {found['megabytes']} MB hashed {folders['hashed']:.2f} s, ", end="")
    print(f"and taken along {folders['copied'] / folders['hashed']:.2f} times as long")
    print(f"imports {imports['python']:.2f} s, pinned {imports['pinned'] / imports['python']:.2f}")
    print(f"start {starts['once']:.3f} s, anew {starts['anew'] - starts['once']:.3f} s more")
    for use, each in found["memory_mb"].items():
        print(
            f"memory of a {use} model: {each['read']:.0f} MB read, {each['copied']:.0f} MB copied"
        )


if __name__ == "__main__":
    main()
