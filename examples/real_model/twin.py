"""A recipe trained once more, on plaintext: set beside the sealed run, it must give the same.

    python examples/real_model/twin.py RECIPE RECORDS

RECORDS is a folder with one JSONL file a dataset, ``OWNER.NAME.jsonl``. Prints one JSON object: the
losses by step, the metrics at the end, the SHA-256 of the weights, and seconds of processor time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "three_hospitals"))


def twin(path: Path, records: Path) -> dict[str, Any]:
    """Train a recipe on plaintext.

    Args:
        path: The recipe; its paths start from its folder.
        records: Folder of its records.
    """
    from plaintext import ForgetfulStore, PlainRecords  # the demo's

    from sealtrain.recipe.schema import load_recipe
    from sealtrain.training.data.sources import Source
    from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

    recipe = load_recipe(path)
    history: list[dict[str, Any]] = []
    sources = [
        Source(
            role=dataset.role,
            owner=dataset.owner,
            name=dataset.name,
            weight=dataset.weight,
            dataset=PlainRecords(records / f"{dataset.owner}.{dataset.name}.jsonl"),
        )
        for dataset in recipe.datasets
    ]
    trained = train(
        recipe,
        run_id="0" * 32,
        inputs=Inputs(base_dir=path.resolve().parent, sources=sources),
        checkpoints=Checkpoints(store=ForgetfulStore()),
        reporting=Reporting(
            on_metrics=lambda step, values: history.append({"step": step, **values})
        ),
    )
    return {
        "history": history,
        "metrics": dict(trained.metrics),
        "weights": hashlib.sha256(trained.files["model.safetensors"]).hexdigest(),
        "processor_s": round(sum(os.times()[:4]), 1),
    }


if __name__ == "__main__":
    print(json.dumps(twin(Path(sys.argv[1]), Path(sys.argv[2]))))
