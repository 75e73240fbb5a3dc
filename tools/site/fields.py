"""A page for each part of a recipe, out of the schema of recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alone import ALONE

Schema = dict[str, Any]
_SPEC = "../spec/recipe.md"
_FEW = 6

# What people want of a recipe, and the endings of the parts' names that have it, in reading order.
_WISHES: dict[str, tuple[str, ...]] = {
    "Say what is trained: one of these is the whole recipe": ("Recipe",),
    "Begin from a model": (
        *("ModelFromFolder", "ModelFromHub", "ModelFromConfig", "SealedModel", "Tokenizer"),
    ),
    "Name the data and its columns": ("Dataset", "Columns", "Constant"),
    "Set how long, how fast and in what batches it trains": ("Arguments",),
    "Train few weights in place of all": (
        *("Lora", "Ia3", "PTuning", "PrefixTuning", "PromptTuning", "Quantization"),
    ),
    "Reward answers": ("RewardModel", "RewardRule"),
    "Prepare and vary images and texts": ("Preparation", "Augmentation"),
    "Refuse bad records before training": ("Validation", "Rule"),
    "Protect single records and patients": ("Privacy", "PrivateSgd", "PrivateCounts"),
    "Say what may leave the guest, and who gets the model": (
        *("ReleasePolicy", "ModelRelease", "HandOn"),
    ),
    "Watch a run, and audit a model": ("Monitoring", "Alert", "Audit"),
    "Use several processors or machines": (
        *("Trl", "Fsdp", "DeepSpeed", "Unsloth", "Axolotl", "Nodes"),
    ),
    "Train on data that cannot be pooled": (
        *("Federated", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedMedian", "FedProx"),
        *("FedTrimmedAvg", "FedYogi", "Krum", "Bulyan"),
    ),
    "Use a machine that cannot be trusted": ("Pads", "ProductSettings", "Cut", "Travelling"),
    "Choose where it may run": ("Hardware", "EnclaveConfig"),
    "Run again by itself": ("Schedule",),
}
# The same of the fields of trainers, which have so many; any other field stands at the end.
_OF_TRAINERS: dict[str, tuple[str, ...]] = {
    "How long": (
        *("max_steps", "num_train_epochs", "early_stopping_patience", "early_stopping_threshold"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    ),
    "Batches": (
        *("per_device_train_batch_size", "per_device_eval_batch_size"),
        *("gradient_accumulation_steps", "max_length", "max_prompt_length", "packing"),
    ),
    "How fast it learns": (
        *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim"),
        *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    ),
    "Measure and checkpoint": ("logging_steps", "eval_steps", "save_steps", "save_total_limit"),
    "Memory and number formats": (
        *("bf16", "fp16", "activation_checkpointing", "torch_compile", "torch_compile_backend"),
        "use_liger_kernel",
    ),
    "Chance": ("seed", "data_seed"),
}


class PartUnplaced(ValueError):
    """A part of a recipe is under no heading of ``_WISHES``."""


def field_pages(schema: Path) -> dict[str, str]:
    """Pages by their name on the site.

    Args:
        schema: ``spec/schema/recipe.schema.json``.
    """
    parts: dict[str, Schema] = json.loads(schema.read_text("utf-8"))["$defs"]
    parts = {name: part for name, part in sorted(parts.items()) if "properties" in part}
    where: dict[str, list[str]] = {}
    for name, part in parts.items():
        for field in part["properties"]:
            where.setdefault(field, []).append(name)
    pages = {f"recipe-fields/{name}.md": _page(name, part, parts) for name, part in parts.items()}
    rows = [
        f"| `{field}` | {', '.join(f'[{name}]({name}.md)' for name in names)} |"
        for field, names in sorted(where.items())
    ]
    wishes: dict[str, list[str]] = {wish: [] for wish in _WISHES}
    for name in parts:
        wishes[_wish_of(name)].append(name)
    wanted = []
    for wish, names in wishes.items():
        wanted += [f"## {wish}", "", "| part | fields |", "|---|---|"]
        wanted += [f"| [{name}]({name}.md) | {_few(parts[name])} |" for name in names]
        wanted += [""]
    pages["recipe-fields/index.md"] = "\n".join(
        [
            "# Fields of a recipe",
            "",
            "By what you want to do; below, [every field by its name](#every-field-by-its-name).",
            f"[The specification]({_SPEC}) says what each does to a run, and what goes together;",
            "`sealtrain recipe check` holds a file against both.",
            "",
            *wanted,
            "## Every field by its name",
            "",
            "| field | part |",
            "|---|---|",
            *rows,
            "",
        ]
    )
    return pages


def _wish_of(part: str) -> str:
    """The heading under which people look for a part.

    Raises:
        PartUnplaced: No heading has this part.
    """
    for exact in (True, False):
        for wish, endings in _WISHES.items():
            if part in endings if exact else part.endswith(endings):
                return wish
    raise PartUnplaced(part)


def _few(part: Schema) -> str:
    """The first fields of a part, those that must be written before the others."""
    needed = set(part.get("required", ()))
    fields = sorted(part["properties"], key=lambda field: field not in needed)
    more = " …" if len(fields) > _FEW else ""
    return ", ".join(f"`{field}`" for field in fields[:_FEW]) + more


def _groups_of(name: str, part: Schema) -> dict[str, list[str]]:
    """The fields of a part under headings; those of most parts under one without words."""
    if not name.endswith("Arguments"):
        return {"": sorted(part["properties"])}
    placed = {field: heading for heading, fields in _OF_TRAINERS.items() for field in fields}
    found: dict[str, list[str]] = {heading: [] for heading in (*_OF_TRAINERS, "Of this training")}
    for field in part["properties"]:
        found[placed.get(field, "Of this training")].append(field)
    return {heading: fields for heading, fields in found.items() if fields}


def _page(name: str, part: Schema, parts: dict[str, Schema]) -> str:
    needed = set(part.get("required", ()))
    tables = []
    for heading, fields in _groups_of(name, part).items():
        tables += [f"## {heading}", ""] if heading else []
        tables += ["| field | value | when left out | |", "|---|---|---|---|"]
        for field in fields:
            of = part["properties"][field]
            usual = _usual(of, field in needed)
            tables.append(f"| `{field}` | {_kind(of, parts)} | {usual} | {_describe(of)} |")
        tables += [""]
    return "\n".join(
        [
            f"{ALONE}# {name}",
            "",
            _text(part.get("description", "")),
            "",
            *tables,
            f"More: [the specification]({_SPEC}), [all fields](index.md).",
            "",
        ]
    )


def _kind(of: Schema, parts: dict[str, Schema]) -> str:
    if "$ref" in of:
        name = of["$ref"].rsplit("/", 1)[1]
        return f"[{name}]({name}.md)" if name in parts else name
    if "const" in of:
        return f"`{of['const']}`"
    if "enum" in of:
        return ", ".join(f"`{value}`" for value in of["enum"])
    for several in ("anyOf", "oneOf"):
        if several in of:
            return " or ".join(dict.fromkeys(_kind(entry, parts) for entry in of[several]))
    if of.get("type") == "array" and isinstance(of.get("items"), dict):
        return f"list of {_kind(of['items'], parts)}"
    return " ".join([str(of.get("type", "any")), *_bounds(of)])


def _bounds(of: Schema) -> list[str]:
    signs = {
        "exclusiveMinimum": ">",
        "minimum": "≥",
        "exclusiveMaximum": "<",
        "maximum": "≤",
    }
    bounds = [f"{sign} {of[name]}" for name, sign in signs.items() if name in of]
    if "maxLength" in of:
        bounds.append(f"of {of.get('minLength', 0)} to {of['maxLength']} characters")
    return [", ".join(bounds)] if bounds else []


def _usual(of: Schema, needed: bool) -> str:
    if needed:
        return "must be written"
    return f"`{json.dumps(of['default'], ensure_ascii=False)}`" if "default" in of else ""


def _describe(of: Schema) -> str:
    return _text(of.get("description", ""))


def _text(said: str) -> str:
    """A description in the reStructuredText of docstrings as Markdown."""
    return " ".join(said.replace("``", "`").replace("|", "\\|").split())
