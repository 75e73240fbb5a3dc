"""The facts of a run that all exports state, gathered once from an accepted report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sealtrain.base.visible_text import escape_hidden
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.manifest.joint_sections import say_where_decrypted, summary_of
from sealtrain.manifest.predicate import (
    SIMULATED_MARKER,
    PatientTraining,
    Predicate,
    PrivateTraining,
)
from sealtrain.manifest.verify import Report
from sealtrain.recipe.lockfile import Lock
from sealtrain.recipe.modelspec import ModelFromConfig, SealedModel
from sealtrain.signing.statement import Subject

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~$&@-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A dataset. ``records`` and ``tokens`` are ``None`` where its owner withheld them.

    ``data_use`` is what its owner states about its use, by the name that people read.
    """

    owner: str
    name: str
    role: str
    records: int | None
    tokens: int | None
    root: str
    sealed_at: str
    data_use: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts of a verified run.

    Attributes:
        digest: SHA-256 of the manifest file.
        marker: Marker of a simulated run; ``None`` for hardware.
        base: The model it started from, in words.
        privacy: Formal privacy in one sentence.
        scripts: Digests of the engineer's scripts, by path; empty for sealtrain's own training.
        collaboration: How several parties trained, in one sentence; ``None`` for one guest.
        decrypted: Where records were in clear, in one sentence.
        limits: The facts that the manifest does not prove.
    """

    digest: str
    marker: str | None
    lock: Lock
    predicate: Predicate
    subjects: tuple[Subject, ...]
    datasets: tuple[Data, ...]
    base: str
    privacy: str
    scripts: Mapping[str, str]
    collaboration: str | None
    decrypted: str
    approved_by: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.lock.recipe.name

    @property
    def intended(self) -> dict[str, str]:
        """Purpose and legal basis that the recipe states, by name."""
        recipe = self.lock.recipe
        stated = {"purpose": recipe.purpose, "legal basis": recipe.legal_basis}
        return {name: text for name, text in stated.items() if text is not None}


def model_facts_of(report: Report) -> ModelFacts:
    """Gather the facts of a report.

    Args:
        report: From ``manifest.verify.examine``.

    Raises:
        Refused: The report's refusal: sealtrain exports only an accepted manifest.
    """
    if report.refusal is not None:
        raise report.refusal
    manifest, facts = report.manifest, report.facts
    if manifest is None or facts.lock is None or facts.datasets is None or facts.tally is None:
        raise ManifestMalformed("run manifest was not examined", check="form")
    recipe = facts.lock.recipe
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in recipe.datasets}
    model = recipe.model
    if isinstance(model, ModelFromConfig):
        base = f"{model.config['model_type']} with random weights, seed {model.init_seed}"
    elif isinstance(model, SealedModel):
        base = f"the sealed model {model.sealed}"
    else:
        folder = f"{model.path}, SHA-256 {facts.lock.model.sha256}"
        base = facts.lock.origins.get("model", folder)
    return ModelFacts(
        digest=report.digest,
        marker=SIMULATED_MARKER if report.simulated else None,
        lock=facts.lock,
        predicate=manifest.predicate,
        subjects=manifest.subjects,
        datasets=tuple(
            Data(
                owner=dataset.owner,
                name=dataset.name,
                role=roles[dataset.owner, dataset.name],
                records=dataset.records,
                tokens=dataset.tokens,
                root=dataset.root,
                sealed_at=dataset.sealed_at,
                data_use={} if dataset.data_use is None else dataset.data_use.in_words(),
            )
            for dataset in facts.datasets
        ),
        base=base,
        privacy=_privacy(manifest.predicate),
        scripts=facts.lock.script_digests,
        collaboration=_collaboration(manifest.predicate),
        decrypted=_describe_decryption(manifest.predicate),
        approved_by=facts.tally.approved_by,
        limits=report.limits,
    )


def plain(text: str) -> str:
    """``text`` for Markdown: what no reader sees is shown by number, what is markup is escaped."""
    return _MARKUP.sub(r"\\\1", escape_hidden(text))


def statements(datasets: Iterable[Data]) -> list[str]:
    """What owners state about the use of their data: items of a Markdown list and an empty line.

    Nothing where no owner states anything.
    """
    lines = [
        f"- {plain(dataset.owner)} states of {plain(dataset.name)}: {name}: {plain(text)}"
        for dataset in datasets
        for name, text in dataset.data_use.items()
    ]
    return [*lines, ""] if lines else []


def _collaboration(predicate: Predicate) -> str | None:
    how = predicate.collaboration
    if how is None:
        return None
    named = ", ".join(party.name for party in how.parties)
    return summary_of(how.kind) + (f" Parties: {named}." if named else "")


def _describe_decryption(predicate: Predicate) -> str:
    how = predicate.collaboration
    return say_where_decrypted(None if how is None else how.kind)


def _privacy(predicate: Predicate) -> str:
    privacy = predicate.privacy
    if isinstance(privacy, PrivateTraining):
        return (
            f"Differentially private training (DP-SGD): epsilon {privacy.epsilon:.4g} at delta "
            f"{privacy.delta:g} for one record, by the {privacy.accountant} accountant."
        )
    if isinstance(privacy, PatientTraining):
        return (
            f"Differentially private rounds: epsilon {privacy.epsilon:.4g} at delta "
            f"{privacy.delta:g} for one patient of one party, by the {privacy.accountant} "
            "accountant."
        )
    if privacy.dp == "counts":
        return f"Metrics come from counts with noise, epsilon {privacy.epsilon:g} for one record."
    return "No differential privacy."
