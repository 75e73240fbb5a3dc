"""What sealing costs where a GPU trains: tokens/s, waiting for data, checkpoints; or its CPU twin.

    python benchmarks/gpu.py [--rounds 3] [--ways lora qlora full] [--ranks N] [--json] [--write]

Supervised fine-tuning of a Llama with random weights: of 1.2 billion parameters on a GPU, of a few
hundred thousand without. Both sides run the same steps on the same records in one process, in turn,
in changing order, locked down as ``sealtrain train`` locks a guest (``gpu_inside``). Sealed:
records from a sealed folder, checkpoints into a sealed store. Plain: the same records in memory,
and the same checkpoints as plain files, copied and written behind training by the same code. The
first steps of each run are not counted, nor is its beginning.

=================  ================================================================================
``tokens/s``       of all ranks; every text fills its row; both sides are compared turn by turn
``waiting``        share of the time in which the trainer waits for records
``checkpoint``     seconds that a checkpoint keeps the trainer from its next step
``busy``           utilisation of the GPU by NVML, sampled ten times a second
``memory``         most memory of the GPU that tensors took at once
``ranks``          where there are several GPUs, or with ``--ranks``: LoRA on all of them, NCCL
                   between them (gloo without GPUs)
=================  ================================================================================
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measured_on import machine
from sealtrain.base.yamltext import yaml_text
from sealtrain.training.telemetry.gauges import SystemGauges
from twosided import seal

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks"
INSIDE = Path(__file__).with_name("gpu_inside.py")
OWNERS = ("owner-a", "owner-b")
BUSY_BAR = 0.98
RATIO_BAR = 0.98
MOST_APART = 2e-4
"""Of losses on a GPU, where not every kernel gives the same bits twice; a processor's are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is trained on a kind of machine.

    Attributes:
        model: Settings of ``LlamaConfig``.
        tokens: Of a row.
        rows: Of a step on each rank.
        steps: Of a run.
        warm: Of these, not counted.
        save: Steps between two checkpoints.
        megabytes: Of records of each owner.
        bf16: Compute in bfloat16.
    """

    model: dict[str, int]
    tokens: int
    rows: int
    steps: int
    warm: int
    save: int
    megabytes: int
    bf16: bool


LARGE = Size(
    model={
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    tokens=2048,
    rows=8,
    steps=24,
    warm=9,
    save=5,
    megabytes=64,
    bf16=True,
)
SMALL = Size(
    model={
        "vocab_size": 320,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    tokens=256,
    rows=4,
    steps=120,
    warm=80,
    save=15,
    megabytes=36,
    bf16=False,
)
QUANTIZATION = {
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
}
ADAPTER = {"method": "lora", "r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
WAYS: dict[str, dict[str, Any] | None] = {
    "lora": ADAPTER,
    "qlora": ADAPTER | {"quantization": QUANTIZATION},
    "full": None,
}


def devices() -> list[str]:
    """Names of the GPUs, asked in a process that ends: this one forks nothing that used one."""
    code = (
        "import torch, json; print(json.dumps([torch.cuda.get_device_name(n)"
        " for n in range(torch.cuda.device_count())]))"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(asked.stdout)
    return found


def write_model(folder: Path, size: Size) -> None:
    """A Llama with random weights, and the tokenizer of bytes."""
    code = (
        "import json, sys, torch\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "from sealtrain.training.models.base import byte_tokenizer\n"
        "torch.manual_seed(1)\n"
        "if torch.cuda.is_available(): torch.set_default_device('cuda')\n"
        "config = LlamaConfig(**json.loads(sys.argv[2]), tie_word_embeddings=True)\n"
        "model = LlamaForCausalLM(config).to(torch.bfloat16 if sys.argv[3] == '1' else None)\n"
        "model.save_pretrained(sys.argv[1])\n"
        "byte_tokenizer().save_pretrained(sys.argv[1])\n"
    )
    shape = json.dumps(size.model | {"max_position_embeddings": size.tokens})
    words = [sys.executable, "-c", code, str(folder), shape, str(int(size.bf16))]
    subprocess.run(words, check=True, capture_output=True)


def write_records(folder: Path, size: Size) -> dict[str, dict[str, str]]:
    """Sealed records of both owners: texts that fill a row; what opens them."""
    found = {}
    for owner in OWNERS:
        source = random.Random(owner)  # noqa: S311 - filler, not a secret
        words = [f"w{number:04d}" for number in range(5000)]
        path = folder / f"{owner}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for _ in range((size.megabytes << 20) // size.tokens):
                text = " ".join(source.choices(words, k=size.tokens // 6 + 2))
                row = {"prompt": text[:16], "completion": text[16 : size.tokens + 8]}
                file.write(json.dumps(row) + "\n")
        sealed = seal(path, folder / f"{owner}.sealed", owner=owner, name="texts")
        path.unlink()
        found[f"{owner}.texts"] = {
            "folder": str(sealed.folder),
            "key": sealed.key.reveal().hex(),
            "root": sealed.root,
        }
    return found


def recipe_of(way: str, size: Size, ranks: int) -> dict[str, Any]:
    """The recipe of one way."""
    recipe: dict[str, Any] = {
        "version": 1,
        "name": f"gpu-{way}",
        "phase": "sft",
        "model": {"path": "../models/base", "dtype": "bfloat16" if size.bf16 else "float32"},
        "datasets": [{"owner": owner, "name": "texts", "role": "train"} for owner in OWNERS],
        "columns": {"prompt": "prompt", "completion": "completion"},
        "trainer": {
            "max_steps": size.steps,
            "per_device_train_batch_size": size.rows,
            "learning_rate": 1e-5,
            "max_length": size.tokens,
            "seed": 1,
            "logging_steps": 1,
            "save_steps": size.save,
            "bf16": size.bf16,
            "activation_checkpointing": size.bf16 and WAYS[way] is None,
        },
        "peft": WAYS[way],
        "privacy": {"dp": "none"},
        "release_policy": {
            "metrics": ["loss"],
            "round_to": 8,
            "every_n_steps": 1,
            "model": {"recipients": [OWNERS[0]]},
        },
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    }
    if ranks > 1:
        recipe["backend"] = {"name": "trl", "ranks": ranks}
    return recipe


class Sampled:
    """Utilisation of the GPUs, and when it was read."""

    def __init__(self) -> None:
        self._read: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._gauges = SystemGauges()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read ten times a second while inside."""
        thread = threading.Thread(target=self._sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def mean(self, began: float, ended: float) -> float | None:
        """Percent between two moments of ``time.monotonic``; ``None`` without a GPU."""
        found = [value for at, value in self._read if began <= at <= ended]
        return statistics.mean(found) if found else None

    def _sample(self) -> None:
        while not self._over.wait(0.1):
            value = self._gauges.read().get("gpu_utilization_percent")
            if value is not None:
                self._read.append((time.monotonic(), value))


def trained(
    folder: Path, way: str, size: Size, datasets: dict[str, Any], sides: list[str], ranks: int = 1
) -> dict[str, Any]:
    """Have a locked-down process train these sides one after the other; its answer."""
    recipe = folder / "recipes" / f"{way}.yaml"
    recipe.parent.mkdir(exist_ok=True)
    recipe.write_text(yaml_text(recipe_of(way, size, ranks)), "utf-8")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        task = Path(place) / "task.json"
        task.write_text(
            json.dumps(
                {
                    "folder": place,
                    "recipe": str(recipe),
                    "datasets": datasets,
                    "sides": sides,
                    "warm": size.warm,
                }
            )
        )
        done = subprocess.run([sys.executable, str(INSIDE), str(task)], capture_output=True)
        answer = Path(place) / "answer.json"
        if not answer.exists():
            raise SystemExit(f"{way}: the process ended with status {done.returncode}")
        found: dict[str, Any] = json.loads(answer.read_text())
    if "failed" in found:
        raise SystemExit(f"{way}: {found['failed']}")
    return found


def compared(
    turns: list[dict[str, Any]], size: Size, ranks: int, sampled: Sampled
) -> dict[str, Any]:
    """Both sides of one way: medians of their rounds, and ratios.

    Raises:
        SystemExit: They did not train the same: rows differ, or losses do.
    """
    if len({json.dumps(turn["rows"]) for turn in turns}) > 1:
        raise SystemExit("the sides did not train on the same rows")
    off = apart([turn["losses"] for turn in turns])
    if off > (MOST_APART if size.bf16 else 0):
        raise SystemExit(f"sealed and plaintext losses differ, by {off:.1e}")
    tokens = size.tokens * size.rows * ranks
    found: dict[str, Any] = {"apart": off}
    for side in ("plain", "sealed"):
        mine = [turn for turn in turns if turn["side"] == side]
        spans = [turn["ended"] - turn["began"] for turn in mine]
        rates = [tokens * turn["steps"] / span for turn, span in zip(mine, spans, strict=True)]
        waits = [turn["waited"] / span for turn, span in zip(mine, spans, strict=True)]
        busy = [sampled.mean(turn["began"], turn["ended"]) for turn in mine]
        found[side] = {
            "tokens_s": statistics.median(rates),
            "waiting": statistics.median(waits),
            "checkpoint_s": statistics.median(value for turn in mine for value in turn["stalled"]),
            "peak_bytes": max((turn["peak_bytes"] or 0 for turn in mine), default=0) or None,
            "busy": None if None in busy else statistics.median(share for share in busy if share),
        }
    # What else the machine does moves both runs of a turn alike: compared one turn at a time.
    found["ratios"] = [
        _span(next(turn for turn in pair if turn["side"] == "plain"))
        / _span(next(turn for turn in pair if turn["side"] == "sealed"))
        for pair in zip(turns[::2], turns[1::2], strict=True)
    ]
    found["ratio"] = statistics.median(found["ratios"])
    if found["plain"]["busy"]:
        found["busy_ratio"] = found["sealed"]["busy"] / found["plain"]["busy"]
    return found


def apart(losses: list[list[float]]) -> float:
    """How far losses of the same steps lie apart at most, as a share of them.

    Raises:
        SystemExit: Those of the first step do, which no training came before; or one is no number.
    """
    steps = list(zip(*losses, strict=True))
    if not all(map(math.isfinite, itertools.chain(*steps))):
        raise SystemExit("a loss is no number")
    if len(set(steps[0])) > 1:
        raise SystemExit("sealed and plaintext losses differ from the first step on")
    return max((max(step) - min(step)) / max(step) for step in steps)


def _span(turn: dict[str, Any]) -> float:
    """Seconds of a counted step."""
    return (turn["ended"] - turn["began"]) / turn["steps"]


def measure(folder: Path, ways: list[str], rounds: int, ranks: int | None) -> dict[str, Any]:
    """Every figure.

    Args:
        folder: Where to write models, records and checkpoints.
        ways: Of ``WAYS``.
        rounds: Counted runs of each side.
        ranks: Processes that train together at the end; as many as there are GPUs when ``None``.
    """
    gpus = devices()
    size = LARGE if gpus else SMALL
    _say("a model with random weights, and sealed records")
    write_model(folder / "models" / "base", size)
    datasets = write_records(folder, size)
    sampled, held = Sampled(), {}
    found: dict[str, Any] = {}
    with sampled.running():
        for way in ways:
            sides = [side for turn in range(rounds) for side in _order(turn)]
            _say(f"{way}: {len(sides)} runs of {size.steps} steps")
            answer = trained(folder, way, size, datasets, sides)
            held = answer["held"]
            found[way] = compared(answer["turns"], size, 1, sampled)
            _say(f"{way}: sealed ÷ plain {found[way]['ratio']:.3f}")
        together = len(gpus) if ranks is None else ranks
        if together > 1:
            turns = [
                trained(folder, "lora", size, datasets, [side], together)["turns"][0]
                for turn in range(rounds)
                for side in _order(turn)
            ]
            found[f"lora, {together} ranks"] = compared(turns, size, together, sampled)
    return {
        "machine": machine("torch", "transformers", "trl", "peft", "bitsandbytes"),
        "gpus": gpus,
        "size": asdict(size),
        "rounds": rounds,
        "held": held,
        "ways": found,
    }


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _order(turn: int) -> list[str]:
    return ["plain", "sealed"] if turn % 2 else ["sealed", "plain"]


def page(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    facts, size, held = found["machine"], found["size"], found["held"]
    versions = ", ".join(f"{name} {facts[name]}" for name in list(facts)[2:])
    where = f"{facts['processor']}, {facts['processors']} processors; {versions}"
    title = "GPU" if found["gpus"] else "GPU: the CPU twin"
    what = f"{len(found['gpus'])} times {found['gpus'][0]}; {where}.\n" if found["gpus"] else ""
    twin = (
        f"{where}.\n\n**No GPU was at hand: this is the CPU twin**, the same code with a small "
        "model. It says what sealing costs\na processor that trains and decrypts; it says nothing "
        "of how busy a GPU is kept, nor of NCCL. On a machine\nwith a CUDA device the same command "
        "trains 1.2 billion parameters and writes `gpu.md`; what ran on one so far is in "
        "[platforms](../platforms.md).\n"
    )
    shape = ", ".join(f"{name} {value}" for name, value in size["model"].items())
    lines = [
        f"# {title}\n",
        f"Made by `{found['command']}` in {found['seconds']:.0f} s.\n{what or twin}",
        f"A Llama with random weights ({shape}), in {'bfloat16' if size['bf16'] else 'float32'};",
        f"{size['tokens']} tokens a row, {size['rows']} rows a step, "
        f"{size['steps']} steps a run, of "
        f"which the first {size['warm']} are not",
        f"counted, a checkpoint every {size['save']} steps. Medians of {found['rounds']} runs of "
        "each side, in turn;",
        "sealed ÷ plain is the median over turns, each one run of both sides, in changing order.",
        "In the steps that are not counted the sealed side decrypts ahead, until 64 record batches",
        "wait; a process of its own does that, on processors that the CPU twin also trains on. "
        f"{_equal(found)} So the counted steps "
        "read rows that were decrypted before: what decryption itself costs is in the table of "
        "`loader.py`.\n",
        "The process that trains is locked down as a guest's: Landlock "
        f"{held['landlock'] or 'not in this kernel'}, "
        f"seccomp {'on' if held['seccomp'] else 'off'}, memory {held['memory']}.",
        "There is no broker: keys are given, and no lease is renewed.\n",
        "| way | plain, tokens/s | sealed, tokens/s | sealed ÷ plain | of single turns "
        "| waiting for data, plain "
        "| sealed | step waits for a checkpoint, plain | sealed | busy, plain | sealed "
        "| memory, plain | sealed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for way, pair in found["ways"].items():
        plain, sealed = pair["plain"], pair["sealed"]
        lines.append(
            f"| {way} | {plain['tokens_s']:,.0f} | {sealed['tokens_s']:,.0f} | {pair['ratio']:.3f} "
            f"| {min(pair['ratios']):.3f} to {max(pair['ratios']):.3f} "
            f"| {100 * plain['waiting']:.2f} % | {100 * sealed['waiting']:.2f} % "
            f"| {1000 * plain['checkpoint_s']:.1f} ms | {1000 * sealed['checkpoint_s']:.1f} ms "
            f"| {_percent(plain['busy'])} | {_percent(sealed['busy'])} "
            f"| {_gibibytes(plain['peak_bytes'])} | {_gibibytes(sealed['peak_bytes'])} |"
        )
    missed = missing(found)
    lines += [
        "",
        f"Aims: sealed ÷ plain at least {RATIO_BAR}; GPU at least {BUSY_BAR} times as busy. "
        f"Missed: {', '.join(missed) or 'nothing'}.",
    ]
    return "\n".join(lines) + "\n"


def missing(found: dict[str, Any]) -> list[str]:
    """Ways that miss an aim."""
    slow = [
        f"tokens/s of {way}" for way, pair in found["ways"].items() if pair["ratio"] < RATIO_BAR
    ]
    idle = [
        f"busy in {way}"
        for way, pair in found["ways"].items()
        if pair.get("busy_ratio", 1.0) < BUSY_BAR
    ]
    return slow + idle


def _equal(found: dict[str, Any]) -> str:
    """What is true of the losses."""
    off = max(way["apart"] for way in found["ways"].values())
    if not off:
        return "The losses of all steps were equal on both sides."
    return (
        f"The losses of the first step were equal on both sides, those of later steps within "
        f"{100 * off:.1g} %."
    )


def _percent(value: float | None) -> str:
    return "no GPU" if value is None else f"{value:.1f} %"


def _gibibytes(value: int | None) -> str:
    return "no GPU" if value is None else f"{value / 2**30:.2f} GiB"


def main() -> None:
    """Measure and print, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--ranks", type=int, help="train in so many ranks too")
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary files)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        found = measure(Path(folder), given.ways, given.rounds, given.ranks)
    found["seconds"] = time.monotonic() - began
    found["command"] = " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]])
    if given.json:
        print(json.dumps(found, indent=2))
    elif given.write:
        name = "gpu.md" if found["gpus"] else "gpu-twin.md"
        (PAGES / name).write_text(page(found), "utf-8")
    else:
        print(page(found))


if __name__ == "__main__":
    main()
