"""A checkpoint's state made or restored in ranks: ranks_states.py FOLDER BACKEND make|restore.

Every rank learns from the same batch, so the number of ranks changes no gradient. ``make`` seals
the state after two steps; both then do the third, which needs weights and moments. Prints the
digest of the weights after it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(sys.argv[1])
BACKEND = json.loads(sys.argv[2])
ACTION = sys.argv[3]


def main() -> None:
    from ranks_world import recipe_of
    from training_world import LLAMA, RUN_ID, checkpoint_store

    from sealtrain.training.distributed.machinery import machinery_of
    from sealtrain.training.distributed.ranks import gather_ranks, place

    recipe = recipe_of("sft", BACKEND)
    store = checkpoint_store(FOLDER)

    def act(_: Any = None) -> dict[str, str]:
        import torch
        from accelerate import Accelerator
        from transformers import LlamaConfig, LlamaForCausalLM

        from sealtrain.training.checkpoints import checkpoint
        from sealtrain.training.checkpoints.shardsaver import ShardSaver
        from sealtrain.training.distributed.agreement import same_for_all
        from sealtrain.training.distributed.sharded import Sharded
        from sealtrain.training.model_files import weight_files

        torch.manual_seed(1 if ACTION == "make" else 2)
        config = {name: value for name, value in LLAMA.items() if name != "model_type"}
        model = LlamaForCausalLM(LlamaConfig(**config))
        machinery = machinery_of(recipe)
        if isinstance(machinery, Sharded):
            machinery.share_out(model)
        accelerator = Accelerator(cpu=True)
        optimizer = accelerator.prepare_optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
        ids = torch.arange(32).reshape(2, 16)

        def step() -> None:
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        saver = ShardSaver(store, RUN_ID)
        if ACTION == "make":
            step()
            step()
            kept = machinery.state(model, optimizer)
            if machinery.in_shards:
                saver.save(checkpoint.CheckpointRef(counter=1, step=2), kept)
                index = saver.settle(wait=True, make_room=lambda: None)
                kept = {"shards": index.to_state()} if index is not None else {}
            if place().leads:
                checkpoint.save(store, RUN_ID, 1, 2, kept)
        else:
            ref = same_for_all(checkpoint.newest(store, None))
            kept = checkpoint.load(store, RUN_ID, ref)
            if machinery.in_shards:
                kept = saver.load(ref, kept["shards"], machinery.state(model, optimizer))
            machinery.restore(model, optimizer, kept)
        saver.close()
        step()
        trainer = SimpleNamespace(
            model=model, accelerator=accelerator, args=SimpleNamespace(device=torch.device("cpu"))
        )
        whole = machinery.whole(trainer)
        weights = weight_files(whole)["model.safetensors"] if whole is not None else b""
        return {"weights": hashlib.sha256(weights).hexdigest()}

    with (
        gather_ranks(
            recipe.backend.ranks,
            group=True,
            prepare=lambda: None,
            secure=lambda: None,
            work=act,
        ) as ranks,
        ranks.lead(None),
    ):
        said = act()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
