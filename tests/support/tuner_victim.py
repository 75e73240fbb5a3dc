"""A process that trains with unsloth or axolotl: tuner_victim.py FOLDER BACKEND WHAT...

It prints one JSON line when it is done: for each recipe digests of weights and histories of an
uninterrupted and of a resumed run, and every path that Python opened for writing on the way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from remains import CALLED, OPENED, watch

SOCKETS: list[str] = []
PEFT = {"method": "lora", "r": 2, "lora_dropout": 0.2, "target_modules": ["q_proj", "v_proj"]}
FOUR_BITS = {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float32"}
COLUMNS = {
    "pairs": {"prompt": "prompt", "completion": "completion"},
    "text": {"text": "text"},
    "messages": {"messages": "messages"},
}
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}a: {% generation %}"
    "{{ message['content'] }}{% endgeneration %}{% else %}u: {{ message['content'] }}{% endif %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}a: {% endif %}"
)


def sockets(event: str, _arguments: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        SOCKETS.append(event)


def write_base(folder: Path) -> None:
    """A small Llama and its tokenizer, as a folder that a recipe names."""
    import torch
    from training_world import LLAMA
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    from sealtrain.training.models.base import byte_tokenizer

    logging.disable_progress_bar()
    torch.manual_seed(1)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    sizes = {"hidden_size": 64, "intermediate_size": 64, "pad_token_id": tokenizer.pad_token_id}
    LlamaForCausalLM(LlamaConfig(**{**LLAMA, **sizes})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def recipe_of(backend: str, what: str) -> Any:
    """``pairs``, ``text`` or ``messages``, each with ``-full`` or ``-qlora`` for LoRA."""
    from training_world import sft

    columns, _, kind = what.partition("-")
    quantization = {"quantization": FOUR_BITS} if kind == "qlora" else {}
    return sft(
        backend={"name": backend},
        model={"path": "base"},
        columns=COLUMNS[columns],
        peft=None if kind == "full" else PEFT | quantization,
        trainer={"max_steps": 6, "eval_steps": 6, "max_length": LONGEST}
        | ({"assistant_only_loss": True} if columns == "messages" else {}),
    )


LONGEST = 96
ODD: dict[str, list[dict[str, Any]]] = {
    "pairs": [
        {"prompt": prompt, "completion": completion}
        for prompt, completion in (
            ("a?", " yes"), ("a?", " yes" * 30), ("?" * 120, " yes"), ("?" * LONGEST, " y"),
            ("?" * (LONGEST - 1), " yes"), ("?" * (LONGEST - 3), " y"), ("", ""),
        )
    ],
    "text": [{"text": text} for text in ("a lump", "x" * 95, "x" * 96, "", " ", "a")],
    "messages": [
        {"messages": [
            {"role": "user", "content": asked}, {"role": "assistant", "content": answer},
        ]}
        for asked, answer in (("q", "a"), ("q" * 100, "a"), ("q", "a" * 100))
    ],
}  # fmt: skip
"""Records at the recipe's length, and with nothing to learn."""


def judged(recipe: Any, what: str, folder: Path) -> dict[str, list[str]]:
    """The parts of odd records by the backend's own rows, and by the judge of TRL's."""
    from sealtrain.training.backends.axolotl import row_judge
    from sealtrain.training.inputs.learnable import judge_for
    from sealtrain.training.models.base import build_tokenizer

    tokenizer = build_tokenizer(recipe, folder)
    return {
        "own": list(row_judge(recipe, folder, tokenizer)(ODD[what])),
        "trl": list(judge_for(recipe, tokenizer)(ODD[what])),
    }


def batched(recipe: Any, what: str, folder: Path, sealed: dict[str, Any]) -> dict[str, Any]:
    """Rows of one epoch as Unsloth's trainer gives them to the model, and as the judge makes them.

    Args:
        recipe: Of backend unsloth.
        what: Kind of its records.
        folder: The base lies in it.
        sealed: Datasets; the training ones hold ``ODD``.
    """
    from training_world import OWNERS, checkpoint_store, run, sources_of

    from sealtrain.training.data.hugging import once
    from sealtrain.training.inputs.learnable import judge_for, make_supervised_rows
    from sealtrain.training.models.base import build_tokenizer
    from sealtrain.training.phases import sft

    seen: list[list[list[int]]] = []

    def looked_at(work: Any, trainer: Any, _evaluation: Any) -> Any:
        once(work.context.stream)
        for batch in trainer.get_train_dataloader():
            for ids, labels, mask in zip(
                *(batch[name].tolist() for name in ("input_ids", "labels", "attention_mask")),
                strict=True,
            ):
                held = [at for at, bit in enumerate(mask) if bit]
                seen.append([[ids[at] for at in held], [labels[at] for at in held]])
        raise Looked

    trained, sft.train_and_measure = sft.train_and_measure, looked_at
    try:
        store = checkpoint_store(folder / "checkpoints" / f"odd-{what}")
        run(recipe, sources_of(recipe, sealed), store, base_dir=folder)
    except Looked:
        pass
    finally:
        sft.train_and_measure = trained
    tokenizer = build_tokenizer(recipe, folder)
    records = ODD[what] * len(OWNERS)
    parts = judge_for(recipe, tokenizer)(records)
    rows = make_supervised_rows(recipe, tokenizer)(records)
    made = [
        [row["input_ids"], row["labels"]]
        for row, part in zip(rows, parts, strict=True)
        if part in ("whole", "truncated")
    ]
    return {"own": sorted(seen), "judge": sorted(made), "left_out": parts.count("empty")}


class Looked(Exception):
    """Raised once the rows were read."""


def play(recipe: Any, name: str, folder: Path, sealed: dict[str, Any]) -> dict[str, Any]:
    """Uninterrupted, then interrupted and resumed."""
    from training_world import checkpoint_store, run, sources_of

    from sealtrain.training.checkpoints.checkpoint import newest

    sources = sources_of(recipe, sealed)
    whole = run(recipe, sources, checkpoint_store(folder / f"{name}-whole"), base_dir=folder)
    store = checkpoint_store(folder / f"{name}-parts")
    run(recipe, sources, store, stop_at=3, base_dir=folder)
    rest = run(recipe, sources, store, resume=newest(store, None), base_dir=folder)
    return {
        "weights": [whole.weights, rest.weights],
        "history": [whole.history, rest.history],
        "metrics": [whole.trained.metrics, rest.trained.metrics],
        "rows": [whole.trained.samples_seen, rest.trained.samples_seen],
        "files": sorted(whole.trained.files),
    }


def main() -> None:
    folder, backend, *wanted = Path(sys.argv[1]), *sys.argv[2:]
    from training_world import seal_records, write_records

    (folder / "owner").mkdir()
    (folder / "sealed").mkdir()
    write_base(folder / "base")
    sealed = dict(seal_records(write_records(folder / "owner"), folder / "sealed"))
    sys.addaudithook(watch)
    sys.addaudithook(sockets)
    (folder / "checkpoints").mkdir()
    answer: dict[str, Any] = {
        what: play(recipe_of(backend, what), f"checkpoints/{what}", folder, sealed)
        for what in wanted
    }
    if backend == "axolotl":
        answer["judged"] = [
            judged(recipe_of(backend, what), what, folder) for what in wanted if what in ODD
        ]
    else:
        (folder / "owner" / "odd").mkdir()
        for what in sorted(set(wanted) & ODD.keys()):
            paths = write_records(folder / "owner" / "odd", made=lambda *_, what=what: ODD[what])
            (folder / "sealed" / what).mkdir()
            odd = dict(seal_records(paths, folder / "sealed" / what))
            answer["batched"] = [
                *answer.get("batched", ()),
                batched(recipe_of(backend, what), what, folder, odd),
            ]
    answer["opened"] = OPENED
    answer["called"] = CALLED + SOCKETS
    made = {path for path in OPENED if path.startswith("/dev/shm/")}  # noqa: S108
    answer["memory"] = sorted({Path(path).parts[3] for path in made})
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
