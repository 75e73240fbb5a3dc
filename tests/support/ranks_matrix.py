"""Phases, adapters and backends in two ranks: what each does, and the table that says so.

    python tests/support/ranks_matrix.py [--check]

A row is a play of ``ranks_world``, or a recipe that every backend refuses. The recipe's schema says
whether a cell is refused; ``test_ranks_phases`` plays all others and compares them with one rank as
closely as ``agreement`` says. Run as a program it writes the table's section of
``docs/reference/ranks.md``; with ``--check`` nothing is written, and a stale section exits 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from ranks_world import (
    ADAPTER,
    FOUR_BITS,
    JUDGE,
    QLORA,
    Play,
    classify,
    evaluation,
    image_classifier,
    image_reader,
    of,
    recipe_of,
)

from sealtrain.recipe.errors import RecipeInvalid

BACKENDS: Final[dict[str, dict[str, Any]]] = {
    "DDP": {"name": "trl", "ranks": 2},
    "FSDP2": {"name": "fsdp", "ranks": 2},
    "ZeRO 1": {"name": "deepspeed", "zero_stage": 1, "ranks": 2},
    "ZeRO 2": {"name": "deepspeed", "zero_stage": 2, "ranks": 2},
    "ZeRO 3": {"name": "deepspeed", "zero_stage": 3, "ranks": 2},
}
_LORA: Final = {"peft": ADAPTER}
_FOUR_BITS: Final = {"peft": ADAPTER | FOUR_BITS}
ROWS: Final[dict[tuple[str, str], str | Play]] = {
    ("classify of numbers", "full"): "classify",
    ("classify of numbers", "LoRA"): of(classify, **_LORA),
    ("classify of numbers", "QLoRA"): of(classify, model=JUDGE, **_FOUR_BITS),
    ("classify of text", "full"): "classify-text",
    ("classify of text", "LoRA"): "classify-text-lora",
    ("classify of text", "QLoRA"): "classify-text-qlora",
    ("classify of images", "full"): "classify-image",
    ("classify of images", "LoRA"): "classify-image-lora",
    ("classify of images", "QLoRA"): of(
        image_classifier, model={"path": "base", "tokenizer": None}, **_FOUR_BITS
    ),
    ("cpt", "full"): "cpt",
    ("cpt", "LoRA"): "cpt-lora",
    ("cpt", "QLoRA"): "cpt-qlora",
    ("sft", "full"): "sft",
    ("sft", "LoRA"): "sft-lora",
    ("sft", "QLoRA"): "sft-qlora",
    ("dpo", "full"): "dpo",
    ("dpo", "LoRA"): "dpo-lora",
    ("dpo", "QLoRA"): "dpo-qlora",
    ("dpo by KTO", "full"): "kto",
    ("dpo by KTO", "LoRA"): "kto-lora",
    ("dpo by KTO", "QLoRA"): "kto-qlora",
    ("dpo by ORPO", "full"): "orpo",
    ("dpo by ORPO", "LoRA"): "orpo-lora",
    ("dpo by ORPO", "QLoRA"): "orpo-qlora",
    ("reward", "full"): "reward",
    ("reward", "LoRA"): "reward-lora",
    ("reward", "QLoRA"): "reward-qlora",
    ("embed", "full"): "embed",
    ("embed", "LoRA"): "embed-lora",
    ("embed", "QLoRA"): "embed-qlora",
    ("vlm", "full"): "vlm",
    ("vlm", "LoRA"): "vlm-lora",
    ("vlm", "QLoRA"): of(image_reader, **QLORA),
    ("rlhf by GRPO", "full"): "grpo",
    ("rlhf by GRPO", "LoRA"): "grpo-lora",
    ("rlhf by GRPO", "QLoRA"): "grpo-qlora",
    ("rlhf by RLOO", "full"): "rloo",
    ("rlhf by RLOO", "LoRA"): "rloo-lora",
    ("rlhf by RLOO", "QLoRA"): "rloo-qlora",
    ("rlhf by PPO", "full"): "ppo",
    ("rlhf by PPO", "LoRA"): "ppo-lora",
    ("rlhf by PPO", "QLoRA"): "ppo-qlora",
    ("evaluate", "full"): "evaluate",
    ("evaluate", "LoRA"): of(evaluation, **_LORA),
    ("evaluate", "QLoRA"): of(evaluation, **_FOUR_BITS),
}

# Each rank draws its own answers; pairs of unmatched answers are those of a rank's batch.
_OWN = {"grpo", "grpo-lora", "grpo-qlora", "rloo", "rloo-lora", "rloo-qlora"}
_OWN |= {"kto", "kto-lora", "kto-qlora"}
# Sums over all ranks' embeddings have another order than sums over one batch. With float16 two
# copies were measured to differ from one rank by 5e-6 at most, the same in every repetition.
_ROUNDED = {"embed", "embed-cached", "embed-lora", "embed-qlora", "sft-fp16"}
# DeepSpeed adds gradients up in bfloat16 where they are computed in it; beside a base in four bits
# TRL holds the adapter itself in bfloat16. A gradient that is nearly zero may have either sign
# then, and Adam makes a step (0.01) of it: few weights differ much, and all by little on average.
NEAR: Final = {"sft-bf16": 1e-3, "sft-qlora": 1e-3, "dpo-qlora": 1e-3, "reward-qlora": 4e-3}
"""By how much, on average. A fresh head's first scores are of the size of that rounding."""
# Gathered weights lie elsewhere in memory, which changes last bits of some products.
_GATHERED = {"sft-bf16", "vlm-qwen"}

MEANS: Final = {
    "same": "weights, losses and metrics of one rank, weights to the last bit",
    "rounded": "the same up to rounding: losses within 1 in 10,000, no weight 0.0005 apart",
    "near": "losses within 1 in 10,000, other metrics within 0.0002; single weights may be steps "
    "of the optimizer apart, and all are within 0.001 on average (`reward`: 0.004)",
    "own": "each rank draws or compares for itself: the records, steps and names of files of one "
    "rank, and other weights",
}


def agreement(name: str, backend: str) -> str:
    """How closely a play in two ranks agrees with one rank: a key of ``MEANS``."""
    if name in _OWN:
        return "own"
    if backend == "deepspeed":
        return "near" if name in NEAR else "rounded"
    rounded = name in _ROUNDED or (backend == "fsdp" and name in _GATHERED)
    return "rounded" if rounded else "same"


def refusal(play: str | Play, backend: dict[str, Any]) -> str | None:
    """What the schema answers to a play on a backend that it refuses."""
    try:
        recipe_of(play, backend)
    except RecipeInvalid as error:
        return error.message.removeprefix("recipe: ")
    return None


HEADING: Final = "## Every phase and adapter\n"
_INTRO: Final = f"""\
{HEADING}
Written by `python tests/support/ranks_matrix.py`. Every cell without a letter is played in two
ranks by `pytest -m nightly tests/equivalence/test_ranks_phases.py`, which compares the result with
that of one rank: small models, four steps, on two processors, without dropout and without clipping.
A letter is a refusal below.

"""

_UNDEALT: Final = "the loader does not deal the rows of a step out to the ranks"
_UNLIKE: Final = "the ranks of this training did not end with one model"
_SCRIPTS: Final = (
    ("Transformers' `Trainer`, TRL's trainers", "same"),
    ("a loop with `SealedLoop` over a loader that Accelerate prepared", "rounded"),
    ("a loop over columns of `SealedLoop`, in `DistributedDataParallel`", "rounded"),
    ("a loader that deals nothing out, or `dispatch_batches: true`", f"`usage`: {_UNDEALT}"),
    ("ranks whose gradients nothing joins, a model shared out", f"`usage`: {_UNLIKE}"),
    ("Lightning's trainer with `SealedLightning`", "`usage`: it starts ranks of its own"),
    ("`backend: fsdp`, `deepspeed`", "`recipe-invalid`: it does not reach into a script"),
    ("`resume_ranks`", "`recipe-invalid`: a script divides its steps by itself"),
)
_OF_SCRIPTS: Final = """\
## Scripts of your own

Each rank of `backend: {name: trl, ranks: R}` runs the script. The tests in
`tests/integration/test_scripts_in_ranks.py` play all but the last three in two ranks.

| script | in two ranks |
|---|---|
"""


def section() -> str:
    """The table, what its words mean, and the refusals."""
    reasons: dict[str, str] = {}

    def cell(play: str | Play, backend: dict[str, Any]) -> str:
        answer = refusal(play, backend)
        if answer is not None:
            return f"({reasons.setdefault(answer, chr(ord('a') + len(reasons)))})"
        assert isinstance(play, str), "what a backend accepts is played by name"
        return agreement(play, backend["name"])

    lines = [f"| phase | adapter | {' | '.join(BACKENDS)} |"]
    lines.append("|---|---|" + "---|" * len(BACKENDS))
    for (phase, adapter), play in ROWS.items():
        cells = [cell(play, backend) for backend in BACKENDS.values()]
        lines.append(f"| {phase} | {adapter} | {' | '.join(cells)} |")
    lines += ["", *(f"- *{word}*: {meaning}" for word, meaning in MEANS.items()), ""]
    lines += [f"- ({letter}) {answer}" for answer, letter in reasons.items()]
    lines += ["", *_OF_SCRIPTS.splitlines()]
    lines += [f"| {script} | {result} |" for script, result in _SCRIPTS]
    return _INTRO + "\n".join(lines) + "\n"


PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "ranks.md"


def main() -> None:
    """Write the section, or check it."""
    page = PAGE.read_text("utf-8")
    written = page.partition(HEADING)[0].rstrip("\n") + "\n\n" + section()
    if sys.argv[1:] == ["--check"]:
        sys.exit(page != written)
    PAGE.write_text(written, "utf-8")


if __name__ == "__main__":
    main()
