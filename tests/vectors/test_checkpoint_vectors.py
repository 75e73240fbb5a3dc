"""A checkpoint in shards against vectors made without sealtrain (tools/vectorgen)."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from rank_threads import in_ranks

from sealtrain.errors import SealtrainError
from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.sealing.datakey import DataKey
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef

if not COLLECTING:
    import torch

    from sealtrain.training.checkpoints.shardsaver import ShardSaver
    from sealtrain.training.checkpoints.statefile import bytes_of

FILE = Path(__file__).resolve().parents[2] / "vectors" / "checkpoint" / "shards.json"
VECTORS: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


def blank() -> dict[str, Any]:
    """A state of the same model, of which nothing is known."""
    weight = torch.full((5, 2), 7.0)
    moments = {"exp_avg": torch.full((5, 2), 7.0), "step": torch.tensor(7.0)}
    return {
        "model": {"weight": weight, "tied": weight, "gain": torch.full((3,), 7.0).bfloat16()},
        "optimizer": {"state": {"weight": moments}, "param_groups": []},
    }


@pytest.mark.claim("C732")
@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_a_folder_is_read_or_refused(case: dict[str, Any], tmp_path: Path) -> None:
    for name, data in case["files"].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(base64.b64decode(data))
    run_id = VECTORS["run_id"]
    store = CheckpointStore(tmp_path, DataKey(bytes.fromhex(VECTORS["key"])), label=run_id)
    ref = CheckpointRef(
        counter=VECTORS["counter"],
        step=VECTORS["step"],
        digest=case["digest"],
        previous=VECTORS["previous"],
    )

    def work(_rank: int) -> dict[str, Any]:
        saver = ShardSaver(store, run_id)
        try:
            kept = checkpoint.load(store, run_id, ref)["shards"]
            return saver.load(ref, kept, blank())
        finally:
            saver.close()

    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as refused:
            in_ranks(1, work)
        assert refused.value.code == case["outcome"]
        return
    (found,) = in_ranks(1, work)
    moments = found["optimizer"]["state"]["weight"]
    tensors = {f"model.{name}": tensor for name, tensor in found["model"].items()}
    tensors |= {f"optimizer.state.weight.{name}": tensor for name, tensor in moments.items()}
    assert {name: bytes(bytes_of(tensor)).hex() for name, tensor in tensors.items()} == VECTORS[
        "tensors"
    ]
    assert found["optimizer"]["param_groups"] == [{"lr": 0.25, "params": ["weight"]}]


def test_a_second_run_of_the_generator_writes_the_same(repository: Path, tmp_path: Path) -> None:
    generator = repository / "tools/vectorgen/checkpoint_shards.py"
    subprocess.run([sys.executable, generator, tmp_path], check=True, timeout=60)
    assert (tmp_path / "shards.json").read_bytes() == FILE.read_bytes()
