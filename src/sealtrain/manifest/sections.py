"""The sections of a report on the contents of a manifest, a function for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sealtrain.base.tiers import WORDS
from sealtrain.consortium.approvals import Decision
from sealtrain.manifest.checks.counts import Counts, counts_of
from sealtrain.manifest.checks.served import rows_of
from sealtrain.manifest.curve import draw_curve
from sealtrain.manifest.form import Manifest
from sealtrain.manifest.markup import Html, Part, join, tag
from sealtrain.manifest.predicate import (
    PatientTraining,
    Predicate,
    PrivateCounting,
    PrivateTraining,
)
from sealtrain.manifest.trainedrecords import records_in_words
from sealtrain.manifest.verify import Facts
from sealtrain.recipe.lockfile import Lock, ModelPin, SealedModelPin, TokenizerPin
from sealtrain.recipe.modelspec import ModelFromConfig, SealedModel
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.signing.needs import reasons_in_words

BaseList = Mapping[str, Mapping[str, str]]
"""Name of each file of a base model → ``state`` and ``reason``."""
_MAX_CURVES = 6
_UNVERIFIED = "Not shown: the check that establishes it did not pass."


def summary(predicate: Predicate, facts: Facts) -> Html:
    """The run in numbers."""
    run, compute = predicate.run, predicate.compute
    records = [dataset.records for dataset in facts.datasets or ()]
    numbers = [
        *((_number(value), name) for name, value in sorted(run.metrics.items())),
        (f"{run.steps:,}", "steps"),
        (f"{run.tokens:,}" if run.tokens is not None else None, "tokens"),
        (
            f"{sum(record or 0 for record in records):,}"
            if records and None not in records
            else None,
            "records",
        ),
        (_duration(compute.wall_s), "wall time"),
    ]
    tiles = [tag("li", tag("b", value), tag("span", name)) for value, name in numbers if value]
    return tag(
        "section",
        tag("h2", "What was trained"),
        tag("ul", *tiles, class_="numbers"),
        _list(_recipe_facts(facts.lock)) if facts.lock is not None else missing(),
    )


def training(predicate: Predicate, facts: Facts) -> Html | None:
    """A curve for each metric that the run released."""
    run = predicate.run
    names = sorted({name for point in run.history for name in point.values}, key=_loss_first)
    figures = []
    for name in names[:_MAX_CURVES]:
        points = [(point.step, point.values[name]) for point in run.history if name in point.values]
        curve = draw_curve(points, label=name, marks=[resume.step for resume in run.resumes])
        if curve is not None:
            caption = f"{name} by step, as the release policy lets it out"
            if run.resumes:
                caption += "; dashed: continued from a sealed checkpoint"
            figures.append(tag("figure", curve, tag("figcaption", caption)))
    return tag("section", tag("h2", "Training"), *figures) if figures else None


def privacy(predicate: Predicate) -> Html | None:
    """The privacy cost of the run, dataset by dataset."""
    claimed = predicate.privacy
    if isinstance(claimed, PrivateTraining):
        lead = (
            f"epsilon {claimed.epsilon:.4g} at delta {claimed.delta:g} for one record, by the "
            f"{claimed.accountant} accountant: {claimed.steps:,} noised steps, noise multiplier "
            f"{claimed.noise_multiplier:.4g}, gradients cut to {claimed.max_grad_norm:g}, "
            f"{claimed.batch:,} records a step on average"
        )
        rows = [
            (
                dataset.owner,
                dataset.name,
                f"{dataset.records:,}",
                f"{dataset.sample_rate:.4g}",
                f"{dataset.epsilon:.4g}",
            )
            for dataset in claimed.datasets
        ]
        columns = ("Owner", "Dataset", "Records", "Chance of a record a step", "Epsilon spent")
        spent = table(columns, rows, numbers=(2, 3, 4))
        return tag("section", tag("h2", "Differential privacy"), tag("p", lead), spent)
    if isinstance(claimed, PatientTraining):
        return _of_patients(claimed)
    if isinstance(claimed, PrivateCounting):
        lead = (
            f"Metrics come from one histogram with noise: epsilon {claimed.epsilon:g} for a record."
        )
        return tag("section", tag("h2", "Differential privacy"), tag("p", lead))
    return None


def _of_patients(claimed: PatientTraining) -> Html:
    lead = (
        f"epsilon {claimed.epsilon:.4g} at delta {claimed.delta:g} for one patient of one party, "
        f"by the {claimed.accountant} accountant: {claimed.rounds:,} noised rounds, noise "
        f"multiplier {claimed.noise_multiplier:.4g}, each patient's gradient cut to "
        f"{claimed.max_patient_norm:g} and made of {claimed.records_a_patient:,} records at most, "
        f"chance of a patient a round {claimed.sample_rate:.4g}"
    )
    rows = [(party.name, f"{party.patients:,}") for party in claimed.parties]
    held = table(("Party", "Patients"), rows, numbers=(1,))
    return tag("section", tag("h2", "Differential privacy"), tag("p", lead), held)


def what_ran(predicate: Predicate, facts: Facts) -> Html:
    """Code, packages, base model and every setting, by digest."""
    deployment, lock = predicate.deployment, facts.lock
    pairs: list[tuple[str, Part]] = [
        ("Recipe hash", tag("code", predicate.recipe.recipe_hash)),
        ("Compose hash", tag("code", deployment.compose_hash)),
        ("App id", tag("code", deployment.app_id)),
    ]
    if predicate.run.tokens_sha256 is not None:
        pairs.append(("Tokens trained on, SHA-256", tag("code", predicate.run.tokens_sha256)))
    parts: list[Part] = [tag("h2", "What ran")]
    if lock is not None:
        pairs += [
            *(
                ("Script that trained", join((name, " ", tag("code", digest))))
                for name, digest in lock.script_digests.items()
            ),
            *((pin.name, join((pin.version, " ", tag("code", pin.sha256)))) for pin in lock.code),
            ("Base model", _pin(lock.model)),
            ("Tokenizer", _pin(lock.tokenizer)),
        ]
        for name, further in lock.models.items():
            pairs += [
                (f"{name.capitalize()} model", _pin(further.model)),
                (f"{name.capitalize()} model's tokenizer", _pin(further.tokenizer)),
            ]
        pairs += [
            (
                "Packages",
                f"{len(lock.environment.packages)} pinned, Python {lock.environment.python}",
            ),
        ]
    reported = ", ".join(f"{key} {value}" for key, value in predicate.run.environment.items())
    compute = predicate.compute
    pairs += [
        ("Reported by the run", reported or "nothing"),
        ("Processors", "not measured" if compute.processors is None else compute.processors),
        ("Accelerators", ", ".join(compute.accelerators) or "none"),
    ]
    parts.append(_list(pairs))
    if lock is not None:
        parts += [_settings(lock), _packages(lock)]
    return tag("section", *parts)


_SUBMODULES = {"cpu": "Processor", "gpu": "Accelerator", "switch": "Switch"}
_EAT = {
    "ueid": "Identity (ueid)",
    "oemid": "Vendor (oemid)",
    "hwmodel": "Model (hwmodel)",
    "hwversion": "Hardware version (hwversion)",
    "swname": "Software (swname)",
    "swversion": "Software version (swversion)",
    "dbgstat": "Debugging (dbgstat)",
}
"""Titles of RFC 9711 claims."""


def evidence(predicate: Predicate, facts: Facts) -> Html:
    """The claims of the final quote."""
    heading = tag("h2", "Evidence")
    verified, verdict = facts.verified, facts.verdict
    if verified is None:
        return tag("section", heading, missing())
    pairs: list[tuple[str, Part]] = [
        ("Platform", verified.platform),
        ("Tier", f"{verified.tier}: {WORDS[verified.tier]}"),
        ("Verified as of", predicate.run.finished_at),
    ]
    if verdict is None:
        return tag("section", heading, _list(pairs), missing())
    parts: list[Part] = [heading, _list(pairs)]
    for name, submodule in verdict.submods.items():
        parts.append(tag("h3", _SUBMODULES.get(name.rstrip("0123456789"), name), f" ({name})"))
        parts.append(_list([(_EAT[key], tag("code", text)) for key, text in submodule.eat.items()]))
        rows = [
            (
                claim.name,
                tag("code", claim.got),
                claim.expected if claim.outcome != "equal" else "",
                claim.source,
                claim.outcome,
            )
            for claim in submodule.claims
        ]
        parts.append(table(("Claim", "Measured", "Accepted", "Source", "Outcome"), rows))
    return tag("section", *parts)


def timeline(predicate: Predicate, facts: Facts) -> Html:
    """Start, releases, resumes and end in order of time."""
    run = predicate.run
    moments: list[tuple[str, str, str]] = [(run.started_at, "started", "guest's clock")]
    brokers = facts.brokers or ()
    for receipt, broker in zip(facts.receipts or (), brokers, strict=True):
        what = "lease renewed" if receipt.kind == "renewal" else "keys released"
        what += " again for a resume" if receipt.resume else ""
        note = f"{len(receipt.datasets)} datasets; " if receipt.datasets else ""
        note += (
            f"approved by {', '.join(receipt.approved_by)}; lease until {receipt.lease.not_after}"
        )
        clock = "broker's clock"
        if len(set(brokers)) > 1:
            clock = f"clock of broker {broker[:8]}"
        moments.append((receipt.released_at, what, f"{note}; {clock}"))
    for resume in run.resumes:
        moments.append((resume.at, "continued", f"from step {resume.step:,}; guest's clock"))
    moments.append((run.finished_at, "finished", f"{run.steps:,} steps; guest's clock"))
    items = [
        tag("li", tag("time", at), tag("strong", what), " ", tag("span", note, class_="soft"))
        for at, what, note in sorted(moments, key=lambda moment: moment[0])
    ]
    unknown = None if facts.receipts is not None else missing()
    return tag("section", tag("h2", "Key releases"), unknown, tag("ol", *items, class_="timeline"))


def outputs(manifest: Manifest) -> Html:
    """The sealed files and the recipients that can open them."""
    sizes = {file.name: file.size for file in manifest.predicate.outputs.files}
    rows = [
        (tag("code", subject.name), f"{sizes[subject.name]:,}", tag("code", subject.sha256))
        for subject in manifest.subjects
    ]
    stated = manifest.predicate.outputs
    recipients = ", ".join(stated.recipients)
    if stated.dataset is not None:
        recipients = (
            f"the guests of {stated.dataset.compose_hash}, as {stated.dataset.owner}'s sealed "
            f"model {stated.dataset.name}, and to no person"
        )
    return tag(
        "section",
        tag("h2", "Outputs"),
        tag("p", f"Sealed to {recipients}. Digests are of the sealed files."),
        table(("Sealed file", "Bytes", "SHA-256"), rows, numbers=(1,)),
    )


def base_list(files: BaseList) -> Html:
    """The files of the base model beside those of the trained one, from the opened model.

    Args:
        files: Name → its ``state`` and ``reason`` (spec/recipe.md §2.17).
    """
    rows = [
        (tag("code", name), entry["state"], entry["reason"].replace("-", " "))
        for name, entry in sorted(files.items())
    ]
    return tag(
        "section",
        tag("h2", "Files of the base model"),
        tag(
            "p",
            "From base_files.json of the model that the recipient opened: inside the sealed "
            "outputs, so none of the checks of this page covers this list.",
        ),
        table(("File", "In the model", "Why"), rows),
    )


def _pin(pin: ModelPin | SealedModelPin | TokenizerPin) -> Html:
    return join((pin.kind, " ", tag("code", pin.sha256) if pin.sha256 else None))


def _recipe_facts(lock: Lock) -> list[tuple[str, Part]]:
    recipe = lock.recipe
    model = recipe.model
    if isinstance(model, ModelFromConfig):
        base = f"{model.config['model_type']} from random weights, seed {model.init_seed}"
    elif isinstance(model, SealedModel):
        base = f"the sealed model {model.sealed}, whose root is among the datasets"
    else:
        base = lock.origins.get("model", model.path)
    peft = recipe.peft
    method = "all weights" if peft is None else peft.title
    return [
        ("Phase", recipe.phase),
        ("Base model", base),
        ("Trained", method),
        ("Privacy", _promise_of(recipe)),
        ("May leave the guest", ", ".join(recipe.release_policy.metrics) or "no metric"),
        ("Model goes to", _destination(lock)),
    ]


def _destination(lock: Lock) -> str:
    """Where the model of a recipe goes, in a few words."""
    pin = lock.handed_on
    if pin is not None:
        return f"guests of {pin.compose_hash[:16]}…, as {pin.owner}/{pin.dataset}"
    return ", ".join(lock.recipe.release_policy.model.recipients)


def _promise_of(recipe: PhaseRecipe) -> str:
    """What a recipe promises of privacy, in a few words."""
    how = recipe.collaboration
    promise = None if how is None else how.privacy_promise
    if promise is not None:
        return promise.text
    privacy = recipe.privacy
    if privacy.dp == "none":
        return "no differential privacy"
    return f"at most epsilon {privacy.target_epsilon:g}"


def _settings(lock: Lock) -> Html:
    settings = lock.recipe.trainer.model_dump(mode="json")
    rows = [(tag("code", name), str(value)) for name, value in sorted(settings.items())]
    scripted = bool(lock.script_digests)
    note = "Of the recipe. The script that trained need not have used them." if scripted else None
    return tag(
        "details",
        tag("summary", "Trainer settings of the recipe" if scripted else "Trainer settings"),
        tag("p", note) if note else None,
        table(("Setting", "Value"), rows),
    )


def _packages(lock: Lock) -> Html:
    rows = [
        (name, pin.version, tag("code", pin.record_sha256))
        for name, pin in sorted(lock.environment.packages.items())
    ]
    return tag(
        "details",
        tag("summary", "1 package" if len(rows) == 1 else f"{len(rows)} packages"),
        table(("Package", "Version", "Digest of its record"), rows),
    )


def _list(pairs: Iterable[tuple[str, Part]]) -> Html:
    return tag(
        "dl",
        *(part for name, value in pairs for part in (tag("dt", name), tag("dd", value))),
        class_="facts",
    )


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Part]],
    *,
    numbers: Sequence[int] = (),
    label: str | None = None,
) -> Html:
    """A table whose rows stack on a phone.

    Args:
        columns: Their heads.
        rows: A cell for each column.
        numbers: Columns to align right.
        label: What a table is called that may be wider than its page: a keyboard scrolls it.
    """

    def kind(index: int, cell: Part = None) -> str | None:
        if index in numbers:
            return "number"
        short = isinstance(cell, str) and not isinstance(cell, Html) and len(cell) <= 24
        return "short" if short else None

    head = tag("tr", *(tag("th", name, class_=kind(i)) for i, name in enumerate(columns)))
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=kind(i, cell), data_label=columns[i])
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    reached: dict[str, Part] = (
        {} if label is None else {"tabindex": 0, "role": "region", "aria_label": label}
    )
    whole = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll", **reached)


def missing() -> Html:
    """The section in place of facts that no check established."""
    return tag("p", _UNVERIFIED, class_="soft")


def _loss_first(name: str) -> tuple[bool, str]:
    return ("loss" not in name, name)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {left:02} s" if minutes else f"{seconds:.3g} s"


def approvals(predicate: Predicate, facts: Facts) -> Html:
    """The owners that had approved this exact recipe."""
    consortium = predicate.consortium
    heading = tag("h2", "Who approved")
    thresholds = consortium.thresholds
    stop = f"any {thresholds.revoke} of them"
    if consortium.own_data_consent:
        stop += ", and each owner whose data is read,"
    lead = f"{thresholds.approve} of {len(consortium.owners)} owners must approve; {stop} "
    lead += "can stop it."
    rule = tag("p", _own_data(consortium.own_data_consent, facts.unasked))
    if facts.decisions is None:
        return tag("section", heading, tag("p", lead), rule, missing())
    counted = set() if facts.tally is None else set(facts.tally.approved_by)
    rows: list[tuple[str, ...]] = []
    for owner in consortium.owners:
        decided = [
            decision.decision for decision in facts.decisions if decision.owner.name == owner.name
        ]
        rows += [_decision(owner.name, decision, owner.name in counted) for decision in decided]
        if not decided:
            rows.append((owner.name, "no decision in this manifest", "", "", ""))
    if facts.tally is not None:
        lead = f"{facts.tally.progress} of {facts.tally.owners} owners had approved, "
        reasons = reasons_in_words(facts.tally.demanded_by)
        lead += f"{facts.tally.threshold} had to, because {reasons}; "
        lead += f"{stop} could have stopped it."
    columns = ("Owner", "Decision", "Signed", "Valid until", "Datasets pinned")
    return tag("section", heading, tag("p", lead), rule, table(columns, rows, numbers=(4,)))


def _own_data(consent: bool, unasked: tuple[str, ...] | None) -> Part:
    if consent:
        return "Data is used only while its owner approves."
    rule = "The consortium lets data be used without its owner's approval. "
    if unasked is None:
        return rule + "Whose data was used so is not established."
    if not unasked:
        return rule + "Every owner whose data was used had approved."
    used = f"Data of {', '.join(unasked)} was used without approval."
    return join((rule, tag("strong", used)))


def datasets(facts: Facts) -> Html:
    """The datasets and their owners."""
    heading = tag("h2", "Datasets and owners")
    if facts.datasets is None or facts.lock is None:
        return tag("section", heading, missing())
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in facts.lock.recipe.datasets}
    unasked = facts.unasked
    counted = counts_of(facts.log or ())
    served = dict(rows_of(facts.log or ()))
    rows = [
        (
            dataset.owner,
            "not established" if unasked is None else "no" if dataset.owner in unasked else "yes",
            dataset.name,
            role,
            "withheld" if dataset.records is None else f"{dataset.records:,}",
            _count_trained(counted, dataset.dataset_id, role)
            + _count_served(served, dataset.dataset_id),
            "" if dataset.tokens is None else f"{dataset.tokens:,}",
            dataset.sealed_at,
            tag("code", dataset.root),
        )
        for dataset in facts.datasets
        for role in [roles.get((dataset.owner, dataset.name), "")]
    ]
    columns = (
        "Owner",
        "Approved",
        "Dataset",
        "Role",
        "Records",
        "Trained",
        "Tokens",
        "Sealed",
        "Root of the ciphertext",
    )
    return tag("section", heading, table(columns, rows, numbers=(4, 6)), *_data_use(facts))


def _count_served(served: Mapping[str, int | None], dataset_id: str) -> str:
    """How many rows of a dataset the recipe's code was given, as the run log says."""
    if dataset_id not in served:
        return ""
    rows = served[dataset_id]
    return " rows served not public" if rows is None else f" {rows:,} rows served"


def _count_trained(counted: Mapping[str, Counts | None], dataset_id: str, role: str) -> str:
    """What became of a dataset's records, as the run log counts them."""
    if role != "train" and dataset_id not in counted:
        return ""
    return records_in_words(counted, dataset_id)


def _data_use(facts: Facts) -> list[Html]:
    """What the recipe and the owners state about the use of the data; nothing where none does."""
    recipe = None if facts.lock is None else facts.lock.recipe
    asked = {} if recipe is None else {"purpose": recipe.purpose, "legal basis": recipe.legal_basis}
    rows = [("the recipe", "", name, text) for name, text in asked.items() if text]
    rows += [
        (dataset.owner, dataset.name, name, text)
        for dataset in facts.datasets or ()
        if dataset.data_use is not None
        for name, text in dataset.data_use.in_words().items()
    ]
    if not rows:
        return []
    lead = (
        "What the recipe and the owners state about purpose and law is theirs to answer for. "
        "Brokers and this check hold the run to the end of a retention, and to purposes that bind."
    )
    return [tag("p", lead), table(("Stated by", "Dataset", "What", "Statement"), rows)]


def _decision(owner: str, decision: Decision, counted: bool) -> tuple[str, ...]:
    word = "revoked" if decision.decision == "revoke" else "approved"
    if decision.decision == "approve" and not counted:
        word += ", not counted"
    until = decision.not_after or "for good"
    return (owner, word, decision.signed_at, until, str(len(decision.datasets)))
