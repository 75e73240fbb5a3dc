"""A CycloneDX bill of materials of the model: data, base model and code, by name and digest.

Plain JSON by the published schema, 1.6 or 1.7; the same manifest gives the same bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal

from sealtrain.base.canonical import canonical_json
from sealtrain.base.version import VERSION
from sealtrain.manifest.exports.model_facts import Data, ModelFacts

_SPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""Namespace of URLs in RFC 9562."""

_TASKS = {
    "classify": "classification",
    "embed": "embedding",
    "evaluate": "classification",
    "reward": "reward-modeling",
    "vlm": "image-text-to-text",
}
_APPROACHES = {
    "classify": "supervised",
    "cpt": "self-supervised",
    "dpo": "supervised",  # a loss on pairs that people labelled; nothing is sampled
    "embed": "supervised",
    "evaluate": None,  # nothing learns
    "reward": "supervised",
    "rlhf": "reinforcement-learning",
    "sft": "supervised",
    "vlm": "supervised",
}
"""Phase → learning type of the specification."""


def cyclonedx(facts: ModelFacts, *, version: Literal["1.6", "1.7"] = "1.7") -> bytes:
    """The bill of materials as canonical JSON.

    Args:
        facts: Facts of a verified manifest.
        version: Version of the specification.
    """
    lock, run = facts.lock, facts.predicate.run
    data = [_dataset(dataset) for dataset in facts.datasets if dataset.role != "model"]
    models = [_base_model(facts), *_further_models(facts), *_adapter(facts)]
    parts = [
        *models,
        *data,
        *(
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{pin.version}",
                "name": name,
                "version": pin.version,
                "purl": f"pkg:pypi/{name}@{pin.version}",
                "properties": [_property("record-sha256", pin.record_sha256)],
            }
            for name, pin in sorted(lock.environment.packages.items())
        ),
        *(
            {
                "type": "file",
                "bom-ref": f"script:{name}",
                "name": name,
                "description": "Trained in place of sealtrain's own training.",
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for name, digest in facts.scripts.items()
        ),
        *(
            {
                "type": "file",
                "bom-ref": f"output:{subject.name}",
                "name": subject.name,
                "hashes": [{"alg": "SHA-256", "content": subject.sha256}],
            }
            for subject in facts.subjects
        ),
    ]
    document = {
        "$schema": f"http://cyclonedx.org/schema/bom-{version}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": version,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, facts.digest)}",
        "version": 1,
        "metadata": {
            "timestamp": run.finished_at,
            "tools": {
                "components": [{"type": "application", "name": "sealtrain", "version": VERSION}]
            },
            "component": _model(facts, [component["bom-ref"] for component in data]),
            "properties": _properties(facts),
        },
        "components": parts,
        "dependencies": [
            {
                "ref": "model",
                "dependsOn": sorted(
                    part["bom-ref"] for part in parts if not part["bom-ref"].startswith("output:")
                ),
            },
            *(
                {"ref": model["bom-ref"], "dependsOn": ["base-model"]}
                for model in models
                if model["bom-ref"] == "adapter"
            ),
        ],
    }
    return canonical_json(document)


def _model(facts: ModelFacts, data: list[str]) -> dict[str, Any]:
    recipe, run = facts.lock.recipe, facts.predicate.run
    return {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": facts.name,
        "version": run.run_id,
        "description": recipe.description,
        "modelCard": {
            "modelParameters": {
                **_approach(recipe.phase),
                "task": _TASKS.get(recipe.phase, "text-generation"),
                "modelArchitecture": facts.base,
                "datasets": [{"ref": reference} for reference in data],
            },
            "quantitativeAnalysis": {
                "performanceMetrics": [
                    {"type": name, "value": str(value)}
                    for name, value in sorted(run.metrics.items())
                    if value is not None
                ]
            },
            "considerations": {"technicalLimitations": list(facts.limits)},
        },
    }


def _base_model(facts: ModelFacts) -> dict[str, Any]:
    pin = facts.lock.model
    sealed = [
        _property(name, value)
        for dataset in facts.datasets
        if dataset.role == "model"
        for name, value in (("owner", dataset.owner), ("ciphertext-root", dataset.root))
    ]
    return {
        "type": "machine-learning-model",
        "bom-ref": "base-model",
        "name": facts.base[:200],
        **_hashes(pin.sha256),
        "properties": [_property("kind", pin.kind), *sealed],
    }


def _further_models(facts: ModelFacts) -> list[dict[str, Any]]:
    """Further models that training read, such as a reward model."""
    named = facts.lock.recipe.further_models
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": f"{role}-model",
            "name": named[role].path,
            **_hashes(pins.model.sha256),
            "properties": [_property("kind", pins.model.kind), _property("role", role)],
        }
        for role, pins in sorted(facts.lock.models.items())
    ]


def _adapter(facts: ModelFacts) -> list[dict[str, Any]]:
    """The adapter beside a frozen base; its files are among the outputs unless merged."""
    peft = facts.lock.recipe.peft
    if peft is None:
        return []
    merged = "true" if getattr(peft, "merge", False) else "false"
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": "adapter",
            "name": peft.title,
            "properties": [_property("method", peft.method), _property("merged", merged)],
        }
    ]


def _approach(phase: str) -> dict[str, Any]:
    kind = _APPROACHES[phase]
    return {} if kind is None else {"approach": {"type": kind}}


def _hashes(sha256: str | None) -> dict[str, Any]:
    return {} if sha256 is None else {"hashes": [{"alg": "SHA-256", "content": sha256}]}


def _dataset(dataset: Data) -> dict[str, Any]:
    records = "withheld" if dataset.records is None else str(dataset.records)
    return {
        "type": "data",
        "bom-ref": f"dataset:{dataset.owner}/{dataset.name}",
        "name": f"{dataset.owner}/{dataset.name}",
        "data": [
            {
                "type": "dataset",
                "name": dataset.name,
                "classification": "sealed",
                "governance": {"owners": [{"organization": {"name": dataset.owner}}]},
            }
        ],
        "properties": [
            _property("role", dataset.role),
            _property("records", records),
            _property("ciphertext-root", dataset.root),
            *_state_use(dataset.data_use),
        ],
    }


def _state_use(words: Mapping[str, str]) -> list[dict[str, str]]:
    """Statements about the use of data, which the specification has no fields for."""
    return [_property(name.replace(" ", "-").lower(), text) for name, text in words.items()]


def _properties(facts: ModelFacts) -> list[dict[str, str]]:
    predicate = facts.predicate
    told = {
        "manifest-sha256": facts.digest,
        "recipe-hash": predicate.recipe.recipe_hash,
        "compose-hash": predicate.deployment.compose_hash,
        "privacy": facts.privacy,
    }
    if facts.marker is not None:
        told = {"marker": facts.marker, **told}
    return [_property(name, value) for name, value in told.items()] + _state_use(facts.intended)


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"sealtrain:{name}", "value": value}
