"""Draft of the public summary of training content that the EU AI Act asks of model providers.

It has the headings of the Commission's template (Article 53(1)(d) of Regulation (EU) 2024/1689).
The draft states the facts that the manifest establishes and marks all other fields for the
provider, who alone can answer for them. It says that it is a draft.
"""

from __future__ import annotations

from sealtrain.manifest.exports.model_facts import ModelFacts, plain, statements

_ASK = "**To be completed by the provider.**"
_NOT_HERE = "None by this run. The base model's own training is not known to the manifest: "
_MODALITIES = {"image": "Image", "tabular": "Tabular (numbers)", "vlm": "Image, Text"}


def training_summary(facts: ModelFacts) -> bytes:
    """The draft, Markdown in UTF-8."""
    recipe, run = facts.lock.recipe, facts.predicate.run
    trained = [dataset for dataset in facts.datasets if dataset.role == "train"]
    records = [dataset.records for dataset in trained]
    total = sum(record or 0 for record in records)
    size = "withheld by owners" if None in records else f"{total} records"
    tokens = "not counted" if run.tokens is None else f"{run.tokens} tokens processed"
    lines = [
        "# Public summary of training content (DRAFT)",
        "",
        *([f"> **{facts.marker}**", ""] if facts.marker else []),
        "> Draft made from a run manifest: no legal advice and no finished summary. What is marked",
        "> for the provider is missing, and the provider answers for all of it.",
        "",
        "## 1. General information",
        "",
        "### 1.1 Provider identification",
        "",
        f"{_ASK} Name, contact details, authorised representative.",
        "",
        "### 1.2 Model identification",
        "",
        f"- Model: {plain(facts.name)}, run `{run.run_id}`",
        f"- Model dependencies: modified from {plain(facts.base)}",
        f"- Date of the run's end: {run.finished_at}",
        f"- Date of placement on the Union market: {_ASK}",
        "",
        "### 1.3 Modalities, overall training data size and other characteristics",
        "",
        f"- Modality: {_MODALITIES.get(recipe.columns.kind, 'Text')}",
        f"- Size of this run's data: {size}; {tokens}",
        f"- Types of content, languages, latest date of acquisition: {_ASK}",
        "",
        "## 2. List of data sources",
        "",
        "### 2.1 Publicly available datasets",
        "",
        f"{_NOT_HERE}{_ASK}",
        "",
        "### 2.2 Private non-publicly available datasets obtained from third parties",
        "",
        "#### 2.2.1 Datasets commercially licensed by rightsholders or their representatives",
        "",
        f"{_ASK} The manifest does not know under which terms owners gave their data.",
        "",
        "#### 2.2.2 Private datasets obtained from other third parties",
        "",
        "Sealed by their owners, who approved this recipe; the provider never held them in clear.",
        "",
        "| owner | dataset | records | sealed |",
        "|---|---|---|---|",
        *(
            f"| {plain(dataset.owner)} | {plain(dataset.name)} | "
            f"{'withheld' if dataset.records is None else dataset.records} | {dataset.sealed_at} |"
            for dataset in trained
        ),
        "",
        *statements(trained),
        "### 2.3 Data crawled and scraped from online sources",
        "",
        f"{_NOT_HERE}{_ASK}",
        "",
        "### 2.4 User data",
        "",
        f"{_ASK} Whether owners' records come from users of a service.",
        "",
        "### 2.5 Synthetic data",
        "",
        f"{_ASK} Whether owners' records were made by other models.",
        "",
        "### 2.6 Other sources of data",
        "",
        f"{_ASK}",
        "",
        "## 3. Relevant data processing aspects",
        "",
        "### 3.1 Respect of reservation of rights from text and data mining exception or "
        "limitation",
        "",
        f"{_ASK}",
        "",
        "### 3.2 Removal of illegal content",
        "",
        f"{_ASK}",
        "",
        "### 3.3 Other information",
        "",
        *(f"- {name.capitalize()}: {plain(text)}" for name, text in facts.intended.items()),
        f"- {plain(facts.privacy)}",
        f"- Approved by {plain(', '.join(facts.approved_by))}.",
        f"- {plain(facts.decrypted)}",
        *(
            f"- Trained by the script {plain(name)}, SHA-256 `{digest}`."
            for name, digest in facts.scripts.items()
        ),
        *([f"- {plain(facts.collaboration)}"] if facts.collaboration else []),
        *(f"- Limit: {plain(limit)}" for limit in facts.limits),
        "",
        f"Manifest SHA-256 `{facts.digest}`; recipe `{facts.predicate.recipe.recipe_hash}`.",
        "",
    ]
    return "\n".join(lines).encode()
