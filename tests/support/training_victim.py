"""A training process to kill, watch or resume: python training_victim.py FOLDER [slow].

It prints one JSON line when it is done: digest of the weights, loss history, and every path that
Python opened for writing. ``slow`` waits after each checkpoint, so that a test can kill in time.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from watching import OPENED, watch


def main() -> None:
    folder = Path(sys.argv[1])
    sys.addaudithook(watch)
    from training_world import (
        checkpoint_store,
        reopen_records,
        run,
        seal_records,
        sft,
        sources_of,
        write_records,
    )

    from sealtrain.training.checkpoints.checkpoint import newest

    recipe = sft(trainer={"max_steps": 12})
    records = folder / "owner"
    if not records.exists():
        records.mkdir()
        (folder / "sealed").mkdir()
        sealed = seal_records(write_records(records), folder / "sealed")
    else:
        sealed = reopen_records(folder / "sealed")
    store = checkpoint_store(folder / "checkpoints")
    pause = 0.5 if "slow" in sys.argv else 0.0
    ran = run(
        recipe,
        sources_of(recipe, sealed),
        store,
        resume=newest(store, None),
        on_checkpoint=lambda ref: time.sleep(pause),
    )
    print(json.dumps({"weights": ran.weights, "history": ran.history, "opened": OPENED}))


if __name__ == "__main__":
    main()
