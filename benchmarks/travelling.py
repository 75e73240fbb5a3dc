"""What it costs to train on data of several holders: an accelerator travels, or something else.

    python benchmarks/travelling.py [--quick] [--json] [--write] [--kilobytes 2048]
    python benchmarks/travelling.py --part real --row 0 --write
    python benchmarks/travelling.py --part gpu [--row 0] --write

GPT-2 on shards of llm.c, two holders, one thread, the same batches in the same order:

==============  ====================================================================================
``travelling``  holders write into the accelerator's buffer under one-shot capabilities
``own``         data sharing over the attested channel alone, with the records of travelling
``own+bus``     the same in two hops, through a guest
``tls``         data sharing: persistent TLS 1.3 sessions that end in the accelerator's own memory
``tls+bus``     data sharing as on hardware: the sessions end in a guest, and each chunk crosses an
                encrypted bus to the accelerator from there, as it does for ``travelling``
``model``       the model goes from holder to holder, each has an accelerator of its own
``gradient``    each holder computes its part of each step, gradients are added up
==============  ====================================================================================

All ways keep their sessions open; where data come to the model one half of the buffer is filled
while the other is trained on, and requests are sent one chunk ahead. Its parts:
*Trained* trains for real, with caps in the proportion to the data that the paper's have to its
512 MiB, so that there are as many trips. *Trips* moves chunks of the paper's own sizes and trains
on nothing, so that what a trip costs by itself is seen, and split into latency and bandwidth.
*State* and *real* measure and train GPT-2 of 124 million parameters, whose state has 1.5 GB, with
chunks of one, two and four steps; a chunk of the paper's smallest cap has 1024 steps of that size,
which part *gpu* trains on a GPU, eight sequences a step.

Emulated: one process stands for the accelerator, loopback for link and bus. Every party is a
process of its own; all share this machine's processors. Proofs are by Ed25519 keys, not by
evidence: they are made once a run, outside of what is measured. Shards are read in plaintext.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from measured_on import give_up, machine
from sealtrain.base.digests import file_sha256
from sealtrain_together.travelling.program import ProgramSettings
from sealtrain_together.travelling.schedule import HolderPlan, TravelPlan
from sharing.training import turns
from travelling_page import ON_GPU, PARTS, page, printed
from travelling_runs import HOLDERS, WAYS, Stage, Told, write_shard

MEBIBYTE = 1 << 20
PAPER_BYTES = 512 * MEBIBYTE
"""What work (B) trained on."""
CAPS = {"4M": 4, "20M": 20, "100M": 100, "500M": 500, "uncapped": None}
"""Caps of the buffer, MiB."""
FED = ("travelling", "own", "own+bus", "tls", "tls+bus")
PROGRAM = ProgramSettings(
    n_layer=1, n_head=2, n_embd=32, vocab_size=256, seq_len=128, batch_size=4,
    learning_rate=1e-3, seed=0,
)  # fmt: skip
REAL = ProgramSettings(
    n_layer=12, n_head=12, n_embd=768, vocab_size=50257, seq_len=1024, batch_size=1,
    learning_rate=3e-4, seed=0,
)  # fmt: skip
REAL_ROWS = (
    (1, "travelling", "float32"), (1, "own", "float32"), (1, "own+bus", "float32"),
    (1, "tls", "float32"), (1, "tls+bus", "float32"), (2, "travelling", "float32"),
    (4, "travelling", "float32"), (1, "travelling", "bfloat16"), (1, "own", "bfloat16"),
    (4, "travelling", "bfloat16"),
)  # fmt: skip
"""Steps of a chunk, the way, and the type of the weights."""
GPU_BATCH = 8
GPU_ROWS = (
    (128, "travelling", "float32"), (128, "travelling", "bfloat16"), (128, "own", "bfloat16"),
    (128, "own", "float32"),
)  # fmt: skip
"""The same on a GPU, in steps that fill it: a chunk of the paper's smallest cap has 128 of them."""
Row = tuple[int, str, str]
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks"


def plan_of(program: ProgramSettings, size: int, cap: int | None) -> TravelPlan:
    """A run over so many bytes of all holders, with a buffer of at most ``cap`` bytes."""
    tokens = size // 2 // len(HOLDERS)
    whole = 2 * (size // len(HOLDERS))  # two halves, each as long as one holder's data
    return TravelPlan(
        program=program,
        holders=tuple(HolderPlan(name=name, tokens=tokens, max_tokens=tokens) for name in HOLDERS),
        buffer_bytes=whole if cap is None else min(cap, whole),
        seal_every=1,
    )


def trained(stage: Stage, size: int, caps: dict[str, int | None], ways: tuple[str, ...]) -> Told:
    """Train for real: every way at every cap."""
    scale = size / PAPER_BYTES
    stage.pooled(plan_of(PROGRAM, size // 8, None))  # the first training of a process is slow
    alone = stage.pooled(plan_of(PROGRAM, size, None))
    rows = []
    for name, cap in caps.items():
        plan = plan_of(PROGRAM, size, None if cap is None else int(cap * MEBIBYTE * scale))
        row: Told = {
            "cap": name,
            "buffer_bytes": plan.buffer_bytes,
            "trips": sum(1 for _ in turns(plan)),
            "ways": {},
        }
        for way in ways:
            if way == "gradient":
                continue
            row["ways"][way] = shares(stage.run(way, plan))
        models = {way.pop("model") for way in row["ways"].values()}
        if len(models | ({alone["model"]} if cap is None else set())) != 1:
            raise SystemExit(f"the ways end with different models at {name}")
        rows.append(row)
    told: Told = {
        "bytes": size,
        "scale": 1 / scale,
        "pooled_seconds": alone["training"],
        "microseconds_a_byte": 1e6 * alone["training"] / size,
        "rows": rows,
    }
    if "gradient" in ways:
        run = stage.run("gradient", plan_of(PROGRAM, size, None))
        told["gradient"] = shares(run) | {"steps": run["trips"]}
        told["gradient"].pop("model")
    return told


def real(stage: Stage, table: tuple[Row, ...], rows: tuple[int, ...], **change: Any) -> Told:
    """Train GPT-2 of its real size: four trips for chunks of one step, else two."""
    settings = REAL.to_dict() | change
    told: Told = {"program": settings, "rows": {}}
    for number in rows:
        steps, way, dtype = table[number]
        program = ProgramSettings.from_dict(settings | {"dtype": dtype})
        chunk = steps * program.step_bytes
        plan = plan_of(program, (4 if steps == 1 else 2) * chunk, 2 * chunk)
        run = stage.run(way, plan)
        told["rows"][str(number)] = {
            "steps": steps,
            "way": way,
            "dtype": dtype,
            "chunk_bytes": plan.chunk_bytes,
            "load": round(os.getloadavg()[0], 1),
            **shares(run),
        }
        print(json.dumps({number: told["rows"][str(number)]}), file=sys.stderr, flush=True)
    return told


def state(stage: Stage) -> Told:
    """Measure the state of GPT-2 of its real size."""
    plan = plan_of(REAL, 4 * REAL.step_bytes, None)
    return {"program": REAL.to_dict(), **stage.measured(plan, times=5)}


def shares(run: Told) -> Told:
    """A run with what it is made of: shares of the total, milliseconds a trip."""
    rest = run["total"] - run["training"] - run["transfer"]
    trips = run["trips"]
    return run | {
        "transfer_share": run["transfer"] / run["total"],
        "rest": rest,
        "beside_training_share": (run["transfer"] + rest) / run["total"],
        "beside_training_ms_a_trip": 1e3 * (run["transfer"] + rest) / trips,
        "timers_ms_a_trip": {
            name: 1e3 * seconds / trips for name, seconds in run["timers"].items()
        },
    }


def trips(stage: Stage, caps: dict[str, int | None], most: int) -> Told:
    """Move chunks of the paper's sizes and train on nothing: every way of data at every cap."""
    program = PROGRAM.model_copy(update={"batch_size": 1})
    rows = []
    for name in HOLDERS:
        file_sha256(stage.shard(name))  # the first reading of a file is slow, whoever comes first
    for way in FED:  # and so is the first run of a process
        stage.run(way, plan_of(program, 4 * MEBIBYTE, MEBIBYTE), idle=True)
    for name, cap in caps.items():
        chunk = (PAPER_BYTES if cap is None else cap * MEBIBYTE) // 2
        many = len(HOLDERS) * max(1, min(16, most // chunk // len(HOLDERS)))
        plan = plan_of(program, many * chunk, None if cap is None else cap * MEBIBYTE)
        row: Told = {"cap": name, "chunk_bytes": plan.chunk_bytes, "ways": {}}
        for way in FED:
            run = stage.run(way, plan, idle=True)
            row["trips"] = run["trips"]
            row["ways"][way] = {
                "ms_a_trip": 1e3 * run["total"] / run["trips"],
                "processor_ms_a_trip": 1e3 * run["processor"] / run["trips"],
                "timers_ms_a_trip": {
                    part: 1e3 * seconds / run["trips"] for part, seconds in run["timers"].items()
                },
            }
        rows.append(row)
    return {"rows": rows, "fit": {way: fitted(rows, way) for way in FED}}


def fitted(rows: list[Told], way: str) -> Told:
    """Latency and bandwidth of a way: least squares of relative errors over the caps."""
    sizes = np.array([row["chunk_bytes"] for row in rows], dtype=float)
    spent = np.array([row["ways"][way]["ms_a_trip"] for row in rows])
    weighted = np.stack([1 / spent, sizes / spent], axis=1)
    (latency, a_byte), *_ = np.linalg.lstsq(weighted, np.ones(len(rows)), rcond=None)
    return {"latency_ms": float(latency), "megabytes_a_second": float(1e-3 / a_byte)}


def measured(given: argparse.Namespace) -> Told:
    """The parts that are asked for."""
    caps: dict[str, Any] = {"4M": 4, "uncapped": None} if given.quick else CAPS
    size = (256 if given.quick else given.kilobytes) << 10
    largest = 200 * MEBIBYTE if given.quick else PAPER_BYTES
    told: Told = {
        "given": {"quick": given.quick, "holders": len(HOLDERS)},
        "program": PROGRAM.to_dict(),
    }
    parts = PARTS if given.part is None else (given.part,)
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate(HOLDERS):
            path = Path(folder) / f"{name}.bin"
            write_shard(path, largest // 4, vocabulary=PROGRAM.vocab_size, seed=seed)
        with Stage(Path(folder), WAYS if "trained" in parts else FED) as stage:
            if "trained" in parts:
                told["trained"] = trained(stage, size, caps, WAYS)
            if "trips" in parts:
                quick = {"4M": 4, "20M": 20}
                told["trips"] = trips(stage, quick if given.quick else caps, 200 * MEBIBYTE)
            if "state" in parts and not given.quick:
                told["state"] = state(stage)
            if "real" in parts and not given.quick:
                rows = tuple(given.row or range(len(REAL_ROWS)))
                told["real"] = real(stage, REAL_ROWS, rows)
            if ON_GPU in parts:
                rows = tuple(given.row or range(len(GPU_ROWS)))
                told[ON_GPU] = real(stage, GPU_ROWS, rows, device="cuda", batch_size=GPU_BATCH)
    return told


def main() -> None:
    """Measure, then print or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}/travelling.*")
    parser.add_argument("--quick", action="store_true", help="two caps, little data: does it run")
    parser.add_argument("--kilobytes", type=int, default=2048, help="data of all holders, KiB")
    parser.add_argument(
        "--part", choices=(*PARTS, ON_GPU),
        help="measure one part, keep what is written of others; without, all that need no GPU",
    )  # fmt: skip
    parser.add_argument(
        "--row", type=int, action="append", choices=range(len(REAL_ROWS)),
        help="of part real or gpu, this row alone; may be repeated",
    )  # fmt: skip
    given = parser.parse_args()
    most = len(GPU_ROWS if given.part == ON_GPU else REAL_ROWS)
    if given.row and max(given.row) >= most:
        parser.error(f"part {given.part} has rows 0 to {most - 1}")
    load = round(os.getloadavg()[0], 1)  # of others: on a busy machine no figure is worth much
    found = machine("torch", "transformers", "cryptography", load=load)
    if given.part == ON_GPU:
        import torch

        if not torch.cuda.is_available():
            give_up("a GPU that PyTorch can use")
        results: Told = measured(given)
        results[ON_GPU]["machine"] = found | {"gpu": torch.cuda.get_device_name()}
    else:
        results = {"machine": found, **measured(given)}
    for part in PARTS:
        if part in results:
            results[part]["load"] = load
    written = PAGE / "travelling.json"
    if given.write:
        before = json.loads(written.read_text()) if written.exists() else {}
        if given.part is not None:
            if given.row:
                rows = before.get(given.part, {}).get("rows", {})
                results[given.part]["rows"] = rows | results[given.part]["rows"]
            results = before | results
        elif ON_GPU in before:
            results[ON_GPU] = before[ON_GPU]
        PAGE.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(results, indent=2) + "\n")
        (PAGE / "travelling.md").write_text(page(results))
    print(json.dumps(results, indent=2) if given.json else printed(results))


if __name__ == "__main__":
    main()
