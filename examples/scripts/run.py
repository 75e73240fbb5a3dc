"""Rehearse a script of one's own on sealed records, of five libraries, or an Axolotl file.

    python examples/scripts/run.py transformers_trainer [--out scripts-out] [--plain]

Each folder has ``before.py``, an ordinary script, and ``train.py``, the same with at most four
changed lines; ``diff before.py train.py`` shows them. ``sealtrain recipe import`` makes the recipe
of folder ``axolotl``. Here a small base model and the records of
two hospitals are made: scikit-learn's biopsies, each described in words. Then ``sealtrain
rehearse`` plays the whole run; with ``--plain``, ``before.py`` trains on the records in the clear.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OWNERS = ("hospital-a", "hospital-b")
SCRIPTS = (
    "transformers_trainer",
    "accelerate_loop",
    "lightning_fit",
    "sentence_transformers_pairs",
    "trl_dpo",
)
AXOLOTL = "axolotl"
MEASURES = ("radius", "texture", "concave points", "smoothness")
DIAGNOSES = (" malignant", " benign")


def descriptions() -> list[tuple[str, int]]:
    """Every biopsy in words, with the number of its diagnosis."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    columns = [list(data.feature_names).index(f"worst {name}") for name in MEASURES]
    low, high = data.data[:, columns].min(axis=0), data.data[:, columns].max(axis=0)
    digits = ((data.data[:, columns] - low) / (high - low) * 9).round().astype(int)
    return [
        (
            ", ".join(f"{name} {digit}" for name, digit in zip(MEASURES, row, strict=True)),
            int(right),
        )
        for row, right in zip(digits, data.target, strict=True)
    ]


def records(script: str) -> list[dict[str, Any]]:
    """All records in the columns that a script reads."""
    known = descriptions()
    if script in ("transformers_trainer", "lightning_fit"):
        return [{"text": text, "label": right} for text, right in known]
    if script == "accelerate_loop":
        return [{"prompt": f"{text}:", "completion": DIAGNOSES[right]} for text, right in known]
    if script == AXOLOTL:
        return [{"text": f"{text}:{DIAGNOSES[right]}"} for text, right in known]
    if script == "trl_dpo":
        return [
            {"prompt": f"{text}:", "chosen": DIAGNOSES[right], "rejected": DIAGNOSES[1 - right]}
            for text, right in known
        ]
    groups = [[text for text, right in known if right == number] for number in (0, 1)]
    return [
        {"anchor": text, "positive": other} for group in groups for text, other in pairwise(group)
    ]


def write_records(script: str, folder: Path) -> dict[str, Path]:
    """JSONL of each owner in a folder, by ``owner.name`` of the recipe's datasets."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, paths = records(script), {}
    for number, owner in enumerate(OWNERS):
        path = paths[f"{owner}.records"] = folder / f"{owner}.jsonl"
        lines = (json.dumps(row) + "\n" for row in rows[number :: len(OWNERS)])
        path.write_text("".join(lines), "utf-8")
    return paths


def base_models(folder: Path) -> None:
    """An encoder and a decoder of one layer, with random weights, that read bytes."""
    import torch
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models.base import byte_tokenizer

    tokenizer = byte_tokenizer()
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
    }
    torch.manual_seed(7)
    made = {
        "encoder": BertModel(BertConfig(**shape)),
        "decoder": LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=2)),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def import_words(folder: Path, data: Iterable[str]) -> list[str]:
    """The command that makes a recipe of Axolotl's file.

    Args:
        folder: Where the file and the model lie, and the recipe is written.
        data: ``owner.name`` of the datasets.
    """
    return [
        *("recipe", "import", str(folder / "axolotl.yaml"), "--out", str(folder / "recipe.yaml")),
        *(word for key in data for word in ("--dataset", key)),
        *("--record-count", str(len(records(AXOLOTL)))),
    ]


def main() -> None:
    """Lay everything out, then rehearse, or train in the clear."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("script", choices=(*SCRIPTS, AXOLOTL))
    parser.add_argument("--out", type=Path, default=Path("scripts-out"))
    parser.add_argument("--plain", action="store_true", help="run before.py, without sealtrain")
    given = parser.parse_args()
    out: Path = given.out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"{out} is not empty; choose another --out")
    shutil.copytree(HERE / given.script, out / "engineer")
    base_models(out / "engineer")
    data = write_records(given.script, out / "engineer" / "records")
    if given.script == AXOLOTL:
        subprocess.run(  # noqa: S603
            [sys.executable, "-m", "sealtrain", *import_words(out / "engineer", data)], check=True
        )
    if given.plain:
        words = [str(out / "engineer" / "before.py")]
    else:
        words = ["-m", "sealtrain", "rehearse", str(out / "engineer" / "recipe.yaml")]
        words += [word for key, path in data.items() for word in ("--records", f"{key}={path}")]
        words += ["--out", str(out / "rehearsal")]
    done = subprocess.run([sys.executable, *words], cwd=out)  # noqa: S603
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
