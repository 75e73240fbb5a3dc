"""Trains small recipes one after the other in two nodes: nodes_player.py FOLDER BACKEND NAME...

As ``ranks_player``, in two processes that are a node each and meet over the wire, without a keeper
and without a sandbox. The first prints what ``ranks_player`` prints.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ranks_world import recipe_of, reopened, summary
from training_world import RUN_ID, Ran, checkpoint_store, sources_of
from wire_world import World

from sealtrain.training.distributed.machinery import connect_backend
from sealtrain.training.distributed.ranks import gather_ranks
from sealtrain.training.run import Checkpoints, Inputs, Reporting, train
from sealtrain_nodes.wire.joining import join, leave

FOLDER = Path(sys.argv[1])
BACKEND = json.loads(sys.argv[2])
NAMES = sys.argv[3:]
OUT = FOLDER / "out"
NODES = {"kind": "nodes", "nodes": 2, "policy": "policy.yaml"}
SECONDS = 300.0


class OverTheWire:
    """``Company`` of two nodes with a rank each."""

    world = 2

    def __init__(self, made: World, first: int) -> None:
        self.first = first
        self._made = made

    def connect(self, rank: int) -> None:
        wire = self._made.connect(rank, timeout_s=SECONDS)
        join(wire, timeout_s=SECONDS)

    def leave(self) -> None:
        leave()


def play(company: OverTheWire) -> None:
    """Train every recipe as one of the nodes."""
    with (
        gather_ranks(
            1,
            group=True,
            prepare=lambda: connect_backend(BACKEND["name"]),
            secure=lambda: None,
            work=lambda _order: None,
            company=company,
        ) as ranks,
        ranks.lead(None),
    ):
        for name in NAMES:
            ran = trained(name)
            if company.first:
                continue
            print(json.dumps({"name": name, **summary(ran)}), flush=True)
            for key, data in ran.trained.files.items():
                if key.endswith(".safetensors"):
                    (OUT / f"{name}-{BACKEND['name']}.weights").write_bytes(data)


def trained(name: str) -> Ran:
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # lasts as long as a process, which trains once in a run
    recipe = recipe_of(name, BACKEND, collaboration=NODES)
    ran = Ran()
    ran.trained = train(
        recipe,
        run_id=RUN_ID,
        inputs=Inputs(base_dir=FOLDER, sources=sources_of(recipe, reopened(FOLDER, name))),
        checkpoints=Checkpoints(
            store=checkpoint_store(OUT / f"{name}-{BACKEND['name']}-nodes"),
            on_checkpoint=ran.checkpoints.append,
        ),
        reporting=Reporting(on_metrics=lambda *given: ran.history.append(given)),
    )
    return ran


def main() -> None:
    OUT.mkdir(exist_ok=True)
    made = World.of(2)
    other = os.fork()
    company: Any = OverTheWire(made, 0 if other else 1)
    play(company)
    if not other:
        os._exit(0)
    _, status = os.waitpid(other, 0)
    sys.exit(status)


if __name__ == "__main__":
    main()
