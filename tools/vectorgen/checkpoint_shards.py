"""Vectors of a checkpoint in shards, made without sealtrain and torch.

Writes ``vectors/checkpoint/shards.json``: the sealed files of a checkpoint that two ranks made, the
tensors that follow, and folders in which a shard is another one. Everything follows from the labels
below, so a second run writes the same bytes. Run:
``python tools/vectorgen/checkpoint_shards.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

from sealed_format import Made, core_of, derive, flip

OUT = Path(__file__).resolve().parents[2] / "vectors" / "checkpoint"
KEY = hashlib.shake_256(b"sealtrain checkpoint shards vectors").digest(32)
RUN, OTHER_RUN = "5a" * 16, "a5" * 16
LENGTH, SHARD_LENGTH = "fixed:4096", "fixed:128"
"""Of the plaintext of checkpoint and shards, which are far longer in a real run."""
COUNTER, STEP, BEFORE = 2, 40, hashlib.sha256(b"the checkpoint before").hexdigest()
WEIGHT = [[float(10 * row + column) for column in range(2)] for row in range(5)]
"""Five rows: three in the first rank and two in the second."""
MOMENT = [[-value / 2 for value in row] for row in WEIGHT]


def floats(rows: list[list[float]]) -> bytes:
    """Rows of float32, in little-endian order."""
    values = [value for row in rows for value in row]
    return struct.pack(f"<{len(values)}f", *values)


def halves(values: list[float]) -> bytes:
    """bfloat16: the upper half of a float32."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


GAIN = [1.0, -2.0, 0.5]
STEPS = struct.pack("<f", 40.0)
FIRST = floats(WEIGHT[:3]) + floats(MOMENT[:3]) + STEPS + halves(GAIN[:2])
SECOND = floats(WEIGHT[3:]) + floats(MOMENT[3:]) + halves(GAIN[2:])


def blob(name: str, binding: dict[str, Any], content: bytes, padding: str, run: str) -> Made:
    """A sealed blob of a run's checkpoints."""
    core = core_of(
        dataset_id="", owner_id="", name=f"{run}/{name}", kind="blob", binding=binding,
        padding=padding,
    )  # fmt: skip
    return Made(content, key=derive(KEY, "store", run), core=core, salt=name)


def shard(
    number: int, content: bytes, *, step: int = STEP, run: str = RUN, bound_to: str = BEFORE,
    named: int | None = None,
) -> Made:  # fmt: skip
    """A shard as its rank seals it."""
    place = number if named is None else named
    binding = {
        "run_id": run, "counter": COUNTER, "step": step, "previous": bound_to, "shard": number,
        "shards": 2,
    }  # fmt: skip
    return blob(path(place, step).removesuffix(".sealed"), binding, content, SHARD_LENGTH, run)


def path(number: int, step: int = STEP) -> str:
    """Where a shard lies."""
    return f"rank-{number:04d}/shard-{COUNTER:08d}-{step:010d}-of-0002.sealed"


def pairs(value: Any) -> Any:
    """Dicts in the form of a state's outline."""
    if isinstance(value, dict):
        return {"dict": [[key, pairs(inner)] for key, inner in value.items()]}
    return [pairs(inner) for inner in value] if isinstance(value, list) else value


def index(shards: list[Made], **changed: Any) -> dict[str, Any]:
    """The index of the two shards."""
    tensors = {
        "model.weight": ["F32", [5, 2], [[[0, 0], [3, 2], 0, 0], [[3, 0], [2, 2], 1, 0]]],
        "optimizer.state.weight.exp_avg": [
            "F32", [5, 2], [[[0, 0], [3, 2], 0, 24], [[3, 0], [2, 2], 1, 16]],
        ],
        "optimizer.state.weight.step": ["F32", [], [[[], [], 0, 48]]],
        "model.gain": ["BF16", [3], [[[0], [2], 0, 52], [[2], [1], 1, 32]]],
    }  # fmt: skip
    tensor = {name: {"tensor": name} for name in tensors}
    outline = {
        "dict": [
            ["model", {"dict": [
                ["weight", tensor["model.weight"]],
                ["tied", tensor["model.weight"]],
                ["gain", tensor["model.gain"]],
            ]}],
            ["optimizer", {"dict": [
                ["state", {"dict": [["weight", {"dict": [
                    ["exp_avg", tensor["optimizer.state.weight.exp_avg"]],
                    ["step", tensor["optimizer.state.weight.step"]],
                ]}]]}],
                ["param_groups", [{"dict": [["lr", 0.25], ["params", ["weight"]]]}]],
            ]}],
        ]
    }  # fmt: skip
    files = [[made.root().hex(), len(made.content)] for made in shards]
    return {"ranks": 2, "files": files, "tensors": tensors, "outline": outline} | changed


def checkpoint(kept: dict[str, Any]) -> Made:
    """The checkpoint that has this index."""
    outline = {"dict": [["step", STEP], ["shards", pairs(kept)]]}
    text = json.dumps({"__metadata__": {"state": json.dumps(outline)}}, separators=(",", ":"))
    data = text.encode() + b" " * (-len(text.encode()) % 8)
    binding = {"run_id": RUN, "counter": COUNTER, "step": STEP, "previous": BEFORE}
    name = f"checkpoint-{COUNTER:08d}-{STEP:010d}"
    return blob(name, binding, struct.pack("<Q", len(data)) + data, LENGTH, RUN)


def cases() -> list[dict[str, Any]]:
    """One folder that holds, and folders that do not."""
    own = [shard(0, FIRST), shard(1, SECOND)]
    files = [made.file() for made in own]
    good = index(own)
    older = shard(1, SECOND, step=STEP - 10)
    other_run = shard(1, SECOND, run=OTHER_RUN)
    branch = shard(1, SECOND, bound_to=hashlib.sha256(b"another branch").hexdigest())
    changed = shard(1, floats([[9.0, 9.0]] * 2) + SECOND[16:])
    hole = json.loads(json.dumps(good))
    del hole["tensors"]["model.weight"][2][1]
    overlap = json.loads(json.dumps(good))
    overlap["tensors"]["model.weight"][2][1][0] = [2, 0]
    gap = json.loads(json.dumps(good))
    gap["tensors"]["model.gain"][2][0][3] = 54
    listed: list[tuple[str, dict[str, Any], list[bytes | None], str]] = [
        ("two shards", good, [*files], "ok"),
        ("a shard is missing", good, [files[0], None], "checkpoint-refused"),
        ("two shards swapped", good, [files[1], files[0]], "wrong-context"),
        ("a shard of an older step", good, [files[0], older.file()], "wrong-context"),
        ("a shard of another run", good, [files[0], other_run.file()], "wrong-key"),
        ("a shard of another branch", good, [files[0], branch.file()], "wrong-context"),
        ("another shard of this name", good, [files[0], changed.file()], "root-mismatch"),
        ("a shard with a flipped bit", good, [files[0], flip(files[1], -200)], "root-mismatch"),
        ("a piece is missing", hole, [*files], "checkpoint-refused"),
        ("two pieces overlap", overlap, [*files], "checkpoint-refused"),
        ("a shard with a gap", gap, [*files], "checkpoint-refused"),
    ]
    made = []
    for name, kept, held, outcome in listed:
        sealed = checkpoint(kept)
        folder = {f"checkpoint-{COUNTER:08d}-{STEP:010d}.sealed": sealed.file()}
        folder |= {path(number): data for number, data in enumerate(held) if data is not None}
        made.append(
            {
                "name": name,
                "digest": sealed.root().hex(),
                "files": {at: base64.b64encode(data).decode() for at, data in folder.items()},
                "outcome": outcome,
            }
        )
    return made


def main(folder: Path) -> None:
    """Write the file."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "spec": "spec/checkpoint.md",
        "key": KEY.hex(),
        "run_id": RUN,
        "counter": COUNTER,
        "step": STEP,
        "previous": BEFORE,
        "tensors": {
            "model.weight": (floats(WEIGHT)).hex(),
            "model.tied": (floats(WEIGHT)).hex(),
            "model.gain": halves(GAIN).hex(),
            "optimizer.state.weight.exp_avg": floats(MOMENT).hex(),
            "optimizer.state.weight.step": STEPS.hex(),
        },
        "cases": cases(),
    }
    (folder / "shards.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
