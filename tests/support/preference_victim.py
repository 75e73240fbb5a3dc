"""A process that trains every way of learning from preferences: python preference_victim.py FOLDER.

It prints one JSON line when it is done: digests of the weights, every path that Python opened for
writing, and every address it tried to reach.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from watching import CALLED, OPENED, watch


def main() -> None:
    folder = Path(sys.argv[1])
    sys.addaudithook(watch)
    from preference_world import kto, merging_tokenizer, preferring, write_preferences
    from training_world import LORA, checkpoint_store, run, seal_records, sources_of

    records = folder / "owner"
    records.mkdir()
    (folder / "sealed").mkdir()
    sealed = dict(seal_records(write_preferences(records), folder / "sealed"))
    merging_tokenizer(folder / "tokenizer")
    short = {"max_steps": 3, "save_steps": 2}
    merging = preferring("dpo").to_dict()["model"] | {"tokenizer": {"path": "tokenizer"}}
    recipes = {
        "dpo": preferring("dpo", trainer=short | {"eval_steps": 2}),
        "dpo-merging": preferring("dpo", trainer=short, model=merging),
        "kto-lora": kto(trainer=short, peft=LORA),
        "orpo": preferring("dpo", trainer=short | {"loss_type": "orpo"}),
        "reward": preferring("reward", trainer=short),
    }
    weights = {
        name: run(
            recipe,
            sources_of(recipe, sealed),
            checkpoint_store(folder / "checkpoints" / name),
            base_dir=folder,
        ).weights
        for name, recipe in recipes.items()
    }
    print(json.dumps({"weights": weights, "opened": OPENED, "called": CALLED}))


if __name__ == "__main__":
    main()
