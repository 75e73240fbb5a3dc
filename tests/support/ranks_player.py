"""Trains small recipes one after the other in several ranks: ranks_player.py FOLDER BACKEND NAME...

As ``ranks_victim``: hushed, confined, ranks forked, locked down. FOLDER holds what
``ranks_world.seal_all`` left. Prints a JSON line for each recipe: digests of its files, history,
metrics and counts. A name with ``+resumed`` is trained to its end and then once more from the
first checkpoint, whose result is the line. Weights go to the folder ``out``, for comparison.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
BACKEND = json.loads(sys.argv[2])
NAMES = sys.argv[3:]


def main() -> None:
    from ranks_world import recipe_of, reopened, summary
    from training_world import RUN_ID, Ran, checkpoint_store, sources_of

    from sealtrain.guest.sandbox.border import Ways, enclose
    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.recipe.backends import needs_group
    from sealtrain.training.distributed.machinery import connect_backend
    from sealtrain.training.distributed.ranks import gather_ranks
    from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

    out = FOLDER / "out"
    out.mkdir(exist_ok=True)
    plays = {}
    for name in NAMES:
        recipe = recipe_of(name.removesuffix("+resumed"), BACKEND)
        sources = sources_of(recipe, reopened(FOLDER, name.removesuffix("+resumed")))
        plays[name] = recipe, sources, checkpoint_store(out / f"{name}-{BACKEND['name']}")
    backend = plays[NAMES[0]][0].backend

    def once(name: str, resume: Any = None) -> Ran:
        recipe, sources, store = plays[name]
        ran = Ran()
        ran.trained = train(
            recipe,
            run_id=RUN_ID,
            inputs=Inputs(base_dir=FOLDER, sources=sources),
            checkpoints=Checkpoints(
                store=store, resume=resume, on_checkpoint=ran.checkpoints.append
            ),
            reporting=Reporting(on_metrics=lambda *given: ran.history.append(given)),
        )
        return ran

    def played(name: str) -> Ran:
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        from sealtrain.training.distributed.agreement import same_for_all

        unset_hf_deepspeed_config()  # lasts as long as a process, which trains once in a run
        ran = once(name)
        if not name.endswith("+resumed"):
            return ran
        first = same_for_all(ran.checkpoints[0] if ran.checkpoints else None)
        begun = [logged for logged in ran.history if logged[0] <= first.step]
        ran = once(name, first)
        ran.history[:0] = begun
        return ran

    def other(_: Any) -> None:
        for name in NAMES:
            played(name)

    ways = Ways(urls=["http://127.0.0.1:1"], folders=[out])
    said: list[dict[str, Any]] = []
    try:
        with (
            enclose(OutputTally(), alone=True) as room,
            room.confine(ways),
            gather_ranks(
                backend.ranks,
                group=needs_group(backend),
                prepare=lambda: connect_backend(backend.name),
                secure=lambda: room.lock(Ways(folders=[out])),  # each rank seals its shards
                work=other,
            ) as ranks,
        ):
            room.lock(ways)
            with ranks.lead(None):
                for name in NAMES:
                    ran = played(name)
                    said.append({"name": name, **summary(ran)})
                    for key, data in ran.trained.files.items():
                        if key.endswith(".safetensors"):
                            (out / f"{name}-{backend.name}.weights").write_bytes(data)
    finally:  # also those before one that failed
        for line in said:
            print(json.dumps(line))


if __name__ == "__main__":
    main()
