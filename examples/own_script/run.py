"""Rehearse a training script of one's own on sealed records.

    python examples/own_script/run.py [--out own-script-out]

``before.py`` is an ordinary TRL script. ``train.py`` is the same with an import and three changed
lines; ``diff before.py train.py`` shows them. Here a small base model and the records of three
hospitals are made, and ``sealtrain rehearse`` plays the whole run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")


def base_model(folder: Path) -> None:
    """A one-layer Llama with random weights that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    torch.manual_seed(7)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Lay everything out and rehearse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("own-script-out"))
    out: Path = parser.parse_args().out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"{out} is not empty; choose another --out")
    sys.path.insert(0, str(HERE.parent / "three_hospitals"))
    from records import write_records

    write_records(out / "records")
    engineer = out / "engineer"
    engineer.mkdir()
    for name in ("recipe.yaml", "train.py"):
        shutil.copy(HERE / name, engineer / name)
    base_model(engineer / "model")
    data = [f"{name}.biopsies={out}/records/{name}/biopsies.jsonl" for name in HOSPITALS]
    words = [word for pair in data for word in ("--records", pair)]
    command = [sys.executable, "-m", "sealtrain", "rehearse", str(engineer / "recipe.yaml")]
    done = subprocess.run([*command, *words, "--out", str(out / "rehearsal")])  # noqa: S603
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
