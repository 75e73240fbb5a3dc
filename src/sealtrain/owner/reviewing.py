"""What a recipe does, as labelled facts: the one derivation behind every page that an owner reads.

``sealtrain approve`` lays them out on a terminal (``cli.review``), the console in a browser
(``web.consortium``), and the agent that signs shows them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sealtrain.attest.open_values import open_values
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.tiers import TIERS, WORDS
from sealtrain.consortium.series import block_of, members_read
from sealtrain.owner.standing import describe_apart, words_of_chain
from sealtrain.recipe.epochs import steps_in_words

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.verifications import SignedImageVerification
    from sealtrain.owner.approving import Intent
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import PhaseRecipe

_PHASES: Final = {
    "classify": "a classifier",
    "cpt": "a language model by continued pre-training",
    "dpo": "a language model from preferences",
    "embed": "an encoder of texts",
    "evaluate": "nothing: it measures a model",
    "reward": "a model that scores answers",
    "rlhf": "a language model by reinforcement",
    "sft": "a language model on examples",
    "vlm": "a language model that reads images",
}


def facts(
    lock: Lock,
    registered: Sequence[DatasetManifest],
    verified: Sequence[SignedImageVerification],
) -> Iterator[tuple[str, str]]:
    """What a lock does: a label and a sentence each; an empty label continues the one before.

    Args:
        lock: Of the recipe.
        registered: Datasets of its owners, verified; without them no records are counted.
        verified: Records of owners who accounted for the image, verified.
    """
    recipe: Any = lock.recipe
    yield "recipe", recipe.name + (f": {recipe.description}" if recipe.description else "")
    yield from uses(lock.recipe, registered)
    if recipe.schedule is not None:
        yield "schedule", recipe.schedule.in_words
    counts = _count_records(recipe, registered)
    trained = [
        count
        for count, dataset in zip(counts, recipe.datasets, strict=True)
        if dataset.role == "train"
    ]
    yield "trains", _training(recipe, lock, _sum_known(trained))
    for name, text in lock.origins.items():
        yield ("base" if name == "model" else name), text
    if lock.scripts:
        yield (
            "script",
            f"{', '.join(lock.recipe.scripts)}: the engineer's own code trains, and need not keep "
            "to the settings above; its text is below"
            + (f"; packages {', '.join(recipe.packages)}" if recipe.packages else ""),
        )
    yield from _data(recipe, registered)
    yield "privacy", _privacy(recipe)
    yield "model", _destination(lock)
    yield "leaves", _leaving(recipe)
    if recipe.monitoring is not None and recipe.monitoring.webhook is not None:
        yield "alerts", f"go to {recipe.monitoring.webhook}: name, step and threshold of each"
    if recipe.collaboration is not None:
        yield "together", _flat(recipe.collaboration.to_dict())
        if recipe.collaboration.lead_sees is not None:
            yield "aggregator", recipe.collaboration.lead_sees
        if recipe.collaboration.accelerator_sees is not None:
            yield "accelerator", recipe.collaboration.accelerator_sees
    if recipe.validation is not None:
        yield "rules", "every record is held against the recipe's rules first: sealtrain validate"
    yield "runs on", machines(lock, verified)
    yield "you accept", describe_tier(lock)
    yield from describe_open(lock)
    count = len(lock.environment.packages)
    yield (
        "code",
        f"{', '.join(f'{pin.name} {pin.version}' for pin in lock.code)}, "
        f"{count} package{'' if count == 1 else 's'}, Python "
        f"{lock.environment.python}, all pinned by digest",
    )


def uses(recipe: PhaseRecipe, registered: Sequence[DatasetManifest]) -> Iterator[tuple[str, str]]:
    """Purpose and legal basis of the recipe, beside what each owner says of its data."""
    stated = [(dataset, dataset.data_use) for dataset in registered if dataset.data_use is not None]
    if recipe.purpose is not None or stated:
        yield "purpose", recipe.purpose or "NOT STATED by the recipe"
    if recipe.legal_basis is not None:
        yield "legal basis", recipe.legal_basis
    for manifest, use in stated:
        words = "; ".join(f"{name}: {text}" for name, text in use.in_words().items())
        yield "", f"{manifest.owner} says of {manifest.name}: {words}"
        if not use.allows(recipe.purpose):
            refused = "brokers refuse it the keys" if use.purposes_bind else "no broker refuses it"
            yield "WARNING", f"this purpose is none of those for {manifest.name}; {refused}"


def _training(recipe: Any, lock: Lock, records: int | None) -> str:
    how = "whole" if recipe.peft is None else f"by {recipe.peft.title}"
    what = _PHASES[recipe.phase]
    model = recipe.model
    base = {
        "folder": f"the weights in {getattr(model, 'path', '')}",
        "config": f"random weights of a {getattr(model, 'config', {}).get('model_type')}",
        "sealed": f"the sealed model {getattr(model, 'sealed', '')}",
    }[model.kind]
    pinned = "" if lock.model.sha256 is None else f" ({lock.model.sha256[:16]}…)"
    if recipe.phase == "evaluate":
        return f"{what}, {base}{pinned}"
    merged = " and merged into it" if getattr(recipe.peft, "merge", False) else ""
    return f"{what}, {how}{merged}, from {base}{pinned}; {steps_in_words(recipe, records)}"


def _data(recipe: PhaseRecipe, registered: Sequence[DatasetManifest]) -> Iterator[tuple[str, str]]:
    columns = ", ".join(recipe.columns.names)
    counts, label = _count_records(recipe, registered), "reads"
    for dataset, records in zip(recipe.datasets, counts, strict=True):
        told = f"{records} records" if records is not None else "records not told"
        if registered and not _find_registered(dataset, registered):
            told = "not registered yet"
        if not registered:
            told = ""
        parts = [dataset.role, "series" if dataset.series is not None else "", told]
        if dataset.weight != 1:
            parts.append(f"weight {dataset.weight:g}")
        if dataset.max_records is not None:
            parts.append(f"at most {dataset.max_records} in an epoch")
        if dataset.columns:
            parts.append(_flat(dataset.columns))
        yield label, f"{dataset.owner}/{dataset.name} ({', '.join(filter(None, parts))})"
        label = ""
    known = _sum_known(counts)
    total = "" if known is None else f"; {known} records in all"
    yield "columns", f"{columns} of each, and no other{total}"


def _count_records(recipe: PhaseRecipe, registered: Sequence[DatasetManifest]) -> list[int | None]:
    """Records of each dataset of a recipe, as registered; ``None`` where they are not known."""
    counts: list[int | None] = []
    for dataset in recipe.datasets:
        there = _find_registered(dataset, registered)
        each = [manifest.records for manifest in there if manifest.records is not None]
        single = len(there) == 1 or (dataset.series is not None and there)
        counts.append(sum(each) if single and len(each) == len(there) else None)
    return counts


def _sum_known(counts: Sequence[int | None]) -> int | None:
    """All records, where the records of each dataset are known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _find_registered(dataset: Any, registered: Sequence[DatasetManifest]) -> list[DatasetManifest]:
    """What is registered under a dataset's name; of a series the members that a run would read."""
    there = [
        manifest
        for manifest in registered
        if (manifest.owner, manifest.name) == (dataset.owner, dataset.name)
    ]
    return there if dataset.series is None else _read_of_series(there)


def _read_of_series(members: list[DatasetManifest]) -> list[DatasetManifest]:
    """The members that a run would read now, of those that are registered."""
    known = [member for member in members if member.series is not None]
    known.sort(key=lambda dataset: block_of(dataset).number)
    return list(members_read(known))


def _privacy(recipe: Any) -> str:
    privacy = recipe.privacy
    if privacy.dp == "none":
        return "no differential privacy: the model may give single records away to its users"
    delta = f", delta {privacy.delta:g}" if privacy.dp == "sgd" else ""
    return (
        f"differential privacy ({privacy.dp}) with epsilon {privacy.target_epsilon:g}{delta} for "
        f"one {privacy.unit}"
    )


def _destination(lock: Lock) -> str:
    release = lock.recipe.release_policy.model
    if not lock.recipe.exports_model:
        return "no model leaves"
    if lock.handed_on is not None:
        return (
            f"goes to no person: to guests of recipe {lock.handed_on.recipe_hash[:16]}…, as the "
            f"dataset {lock.handed_on.dataset} of {lock.handed_on.owner}; read that recipe too"
        )
    return f"goes, sealed, to {', '.join(release.recipients)}"


def _leaving(recipe: PhaseRecipe) -> str:
    policy = recipe.release_policy
    metrics = ", ".join(policy.metrics) or "no metric"
    logs = {
        "none": "no logs",
        "error-summary": "and the code of an error",
        "structured": "and named events, with file and line of the recipe's scripts",
    }[policy.logs]
    often = "" if policy.every_n_steps == 1 else f", every {policy.every_n_steps} steps at most"
    return f"{metrics}, rounded to {policy.round_to} places{often}; {logs}"


def machines(lock: Lock, verified: Sequence[SignedImageVerification]) -> str:
    """Where it runs, in which image, and which owners verified that."""
    hardware = lock.recipe.hardware
    named = ", ".join(hardware.platforms)
    if hardware.platforms == ("simulator",):
        return "the simulator: NOT ATTESTED, it protects nothing"
    image = f"; image {hardware.image}, {_name_verifiers(verified)}"
    keys = "" if hardware.key_provider == "none" else f"; keys by {hardware.key_provider}"
    unpinned = ", which is not pinned" if keys and hardware.key_provider_id is None else ""
    gpu = f"; {hardware.gpu} accelerators" if hardware.gpu else ""
    simulated = ", which protects nothing" if "simulator" in hardware.platforms else ""
    script = hardware.launch_script
    first = f"; A SCRIPT OF THE PLATFORM RUNS AS ROOT FIRST, SHA-256 {script}" if script else ""
    enclave = hardware.enclave
    size = (
        f"; an enclave of {enclave.processors} processors and {enclave.memory_mib} MiB"
        if enclave
        else ""
    )
    return f"{named}{simulated}{gpu}{size}{keys}{unpinned}{first}{image}"


def describe_tier(lock: Lock) -> str:
    """What a machine must prove at least, and by whose word, in plain words."""
    lowest = lock.recipe.hardware.tier
    if lock.recipe.hardware.platforms == ("simulator",):
        return f"no machine: the simulator plays tier {lowest} and proves nothing"
    weaker = "" if lowest == TIERS[0] else ", or a stronger machine"
    return f"tier {lowest}: {WORDS[lowest]}{weaker}"


def describe_open(lock: Lock) -> Iterator[tuple[str, str]]:
    """What the recipe leaves open of machines, and what the policy among its parties does."""
    hardware = lock.recipe.hardware
    if hardware.key_provider != "none" and hardware.key_provider_id is None:
        yield "LEFT OPEN", f"key_provider_id: any {hardware.key_provider} may give the guest keys"
    if lock.appraisal is not None:
        for field, words in open_values(lock.appraisal):
            yield "LEFT OPEN", f"{field} between the parties: any {words}"


def _name_verifiers(verified: Sequence[SignedImageVerification]) -> str:
    if not verified:
        return (
            "NOT VERIFIED by any owner whose record lies here: account for every file of it with "
            "sealtrain image verify --source … --lock … --identity …"
        )
    signers = [
        f"{verification.owner.name} on {verification.document.signed_at[:10]}"
        for verification in verified
    ]
    return f"verified by {', '.join(signers)}"


def approval_lines(intent: Intent) -> Iterator[str]:
    """What an approval says besides the recipe: pins, limits, series, revocations taken back."""
    for manifest in intent.pinned:
        records = "records not told" if manifest.records is None else f"{manifest.records} records"
        yield (
            f"  you pin {manifest.name}: {records}, sealed {manifest.sealed_at}, "
            f"root {manifest.root[:16]}…"
        )
    if intent.loose and intent.pinned:
        yield f"  you do not pin {', '.join(intent.loose)}: the recipe cannot read it"
    elif intent.loose:
        yield (
            f"  you pin nothing: whatever you register as {', '.join(intent.loose)} counts, later "
            "datasets too"
        )
    if intent.standing is not None:
        terms = intent.standing
        budget = "" if terms.epsilon is None else f", within epsilon {terms.epsilon:g} in all"
        apart = describe_apart(len(intent.brokers))
        yield f"  standing: at most {terms.runs} run{'' if terms.runs == 1 else 's'}{budget}{apart}"
    for chain in intent.chains.values():
        yield f"  series {words_of_chain(chain)}"
    if intent.lifts:
        yield f"  you take back {len(intent.lifts)} revocation(s) of this recipe"


def name_outlasted(registered: Sequence[DatasetManifest], ends: int) -> Iterator[str]:
    """The dataset that a recipe reads whose retention ends first, where an approval lasts longer.

    Args:
        registered: Datasets of the recipe, verified.
        ends: Last second of the approval.
    """
    before = [
        (manifest.last_second, manifest)
        for manifest in registered
        if manifest.last_second is not None and manifest.last_second < ends
    ]
    if before:
        last, manifest = min(before, key=lambda found: found[0])
        also = "" if len(before) == 1 else f", and {len(before) - 1} more end before your approval"
        yield (
            f"it outlasts the data: no key of {manifest.owner}/{manifest.name} is released after "
            f"{to_rfc3339(last)}, when its retention ends{also}"
        )


def _flat(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {shorten(item)}" for key, item in value.items() if not is_empty(item))


def is_empty(value: object) -> bool:
    """Whether a value of a recipe says nothing."""
    return value is None or value in ((), [], {}, "")


def text_of(value: object) -> str:
    """A value of a recipe, whole."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def shorten(value: object) -> str:
    """A value of a recipe in at most 72 characters."""
    text = text_of(value)
    if "\n" in text:
        text = f"{text.count(chr(10))} lines, below"
    return text if len(text) <= 72 else f"{text[:69]}..."
