"""A model card: Markdown under the YAML header that model hubs read."""

from __future__ import annotations

from typing import Any

import yaml

from sealtrain.manifest.exports.model_facts import ModelFacts, plain, statements

_PIPELINES = {
    "classify": "text-classification",
    "cpt": "text-generation",
    "dpo": "text-generation",
    "embed": "sentence-similarity",
    "rlhf": "text-generation",
    "sft": "text-generation",
    "vlm": "image-text-to-text",
}


def model_card(facts: ModelFacts) -> bytes:
    """``README.md`` of the trained model, UTF-8."""
    recipe, run = facts.lock.recipe, facts.predicate.run
    lines = [
        *_header(facts),
        f"# {plain(facts.name)}",
        "",
        *([f"> **{facts.marker}**", ""] if facts.marker else []),
        plain(recipe.description) or "No description.",
        "",
        "## How it was trained",
        "",
        f"- Phase: {plain(recipe.phase)}, {run.steps} steps",
        f"- Started from: {plain(facts.base)}",
        f"- Trained part: {plain(recipe.peft.method) if recipe.peft else 'all weights'}",
        *(
            f"- Trained by the script {plain(name)}, SHA-256 `{digest}`: the recipe's trainer "
            "settings need not be those it used"
            for name, digest in facts.scripts.items()
        ),
        *([f"- Together: {plain(facts.collaboration)}"] if facts.collaboration else []),
        f"- Privacy: {plain(facts.privacy)}",
        *(f"- {name.capitalize()}: {plain(text)}" for name, text in facts.intended.items()),
        f"- Approved by: {plain(', '.join(facts.approved_by))}",
        f"- Finished: {run.finished_at}",
        "",
        "## Training data",
        "",
        "The data stayed sealed; its owners are named, its contents are not public.",
        "",
        "| owner | dataset | role | records |",
        "|---|---|---|---|",
        *(
            f"| {plain(dataset.owner)} | {plain(dataset.name)} | {dataset.role} | "
            f"{'withheld' if dataset.records is None else dataset.records} |"
            for dataset in facts.datasets
        ),
        "",
        *statements(facts.datasets),
        "## Evaluation",
        "",
        "As the release policy lets it out, rounded.",
        "",
        "| metric | value |",
        "|---|---|",
        *(
            f"| {plain(name)} | {'not finite' if value is None else value} |"
            for name, value in sorted(run.metrics.items())
        ),
        "",
        "## Limits",
        "",
        *(f"- {plain(limit)}" for limit in facts.limits),
        "",
        "## Provenance",
        "",
        f"Run `{run.run_id}`, recipe `{facts.predicate.recipe.recipe_hash}`, manifest SHA-256",
        f"`{facts.digest}`. This card is a rendering; verify the manifest with `sealtrain",
        "verify`.",
        "",
    ]
    return "\n".join(lines).encode()


def _header(facts: ModelFacts) -> list[str]:
    recipe = facts.lock.recipe
    fields: dict[str, Any] = {
        "library_name": "peft" if recipe.peft is not None else "transformers",
        "tags": ["sealtrain", f"phase-{recipe.phase}"],
    }
    if facts.marker:
        fields["tags"].append("simulated-not-attested")
    tabular = recipe.columns.kind == "tabular"
    pipeline = "tabular-classification" if tabular else _PIPELINES.get(recipe.phase)
    if pipeline is not None:
        fields["pipeline_tag"] = pipeline
    if facts.predicate.privacy.dp != "none":
        fields["tags"].append("differential-privacy")
    return ["---", yaml.safe_dump(fields, sort_keys=False).rstrip(), "---", ""]
