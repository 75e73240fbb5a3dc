"""A process that pre-trains, trains encoders and adapts: python language_victim.py FOLDER.

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
    from language_world import ADAPTERS, cpt, embed, write_base
    from training_world import (
        checkpoint_store,
        run,
        seal_records,
        sft,
        sources_of,
        write_records,
    )

    (folder / "owner").mkdir()
    (folder / "sealed").mkdir()
    sealed = dict(seal_records(write_records(folder / "owner"), folder / "sealed"))
    write_base(folder / "base")
    short = {"max_steps": 3, "save_steps": 2}
    recipes = {
        "cpt": cpt(trainer=short | {"eval_steps": 2}),
        "embed": embed(trainer=short | {"eval_steps": 2}),
        "embed-cached": embed(trainer=short | {"mini_batch_size": 2}),
        "sft-qlora": sft(
            model={"path": "base"}, peft=ADAPTERS["qlora"] | {"merge": True}, trainer=short
        ),
        "sft-packed": sft(
            model={"path": "base"},
            columns={"messages": "messages"},
            trainer=short | {"packing": True, "assistant_only_loss": True, "max_length": 256},
        ),
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
