"""The page that an owner reads before a signature: what a recipe does, in one screen.

It says all that decides about the owner's data: what is trained, on which columns of which owners,
what leaves, to whom, by which code, on which machines. Every other setting is counted at the end;
``--detail`` shows each. Scripts of the engineer are never left out: their text follows the page.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sealtrain.cli.output import say, table
from sealtrain.recipe.diff import diff

if TYPE_CHECKING:
    from sealtrain.client.approving import Intent
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.recipe.diff import Change
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import Recipe
    from sealtrain.signing.needs import Needs

__all__ = ["change_lines", "page", "review"]

_WIDTH: Final = 100
_LABEL: Final = 12
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


def review(
    lock: Lock,
    needs: Needs,
    before: Lock | None = None,
    *,
    known: Mapping[str, str],
    quiet: bool,
    detail: bool = False,
    intent: Intent | None = None,
    days: int | None = None,
) -> None:
    """Show an owner what a signature would allow, unless ``quiet``.

    Args:
        lock: Of the recipe.
        needs: Of the recipe.
        before: What the owner approved last: shown is what changed since.
        known: URL of each broker of the lock that the owner has a broker file of, by its id there.
        quiet: Show nothing.
        detail: Show every setting besides.
        intent: The approval, where one is to be signed.
        days: How long it would hold.
    """
    if quiet:
        return
    registered = () if intent is None else intent.registered
    say("You are about to approve" + (" these changes:" if before else ":"))
    changes = diff(before, lock)
    if before is None:
        for line in page(lock, registered):
            say(line)
        scripts = [change for change in changes if change.text_lines]
        shown = changes if detail else scripts
        hidden = len(changes) - len(shown)
        for line in change_lines(shown):
            say(f"  {line}")
        if hidden and not detail:
            say(f"  {hidden} settings in all, each with its value: --detail")
    else:
        for line in change_lines(changes) or ["no difference"]:
            say(f"  {line}")
    if intent is not None:
        for line in _approval(intent):
            say(line)
    if days is not None:
        say(f"  your approval holds for {days} day{'' if days == 1 else 's'}")
    say(f"  recipe hash {lock.recipe_hash}")
    say(f"  it needs: {needs.to_text()}")
    for broker_id in lock.brokers:
        say(f"  broker {broker_id}  {known.get(broker_id, 'no broker file was given for it')}")


def page(lock: Lock, registered: Sequence[DatasetManifest] = ()) -> list[str]:
    """What a lock does, in one screen.

    Args:
        lock: Of the recipe.
        registered: Datasets of its owners, verified; without them no records are counted.
    """
    lines: list[str] = []
    for label, text in _facts(lock, registered):
        wrapped = textwrap.wrap(
            text, _WIDTH - _LABEL - 2, break_long_words=False, break_on_hyphens=False
        )
        lines += [
            f"  {label if first else '':<{_LABEL}}{line}"
            for first, line in zip([True] + [False] * len(wrapped), wrapped, strict=False)
        ]
    return lines


def change_lines(changes: Sequence[Change]) -> list[str]:
    """Changes as aligned text; below it the lines of scripts that differ, and values that were cut.

    What is empty before and after says nothing and is left out; where nothing was before, there is
    no column for it.
    """
    said = [change for change in changes if not (_empty(change.before) and _empty(change.after))]
    if not said:
        return []
    if all(change.kind == "added" for change in said):
        added = [(change.severity, change.path, _short(change.after)) for change in said]
        lines = table(added, header=("weight", "what", "value"))
    else:
        rows = [
            (change.severity, change.path, _short(change.before), _short(change.after))
            for change in said
        ]
        lines = table(rows, header=("weight", "what", "before", "after"))
    for change in said:
        below = change.text_lines or _whole(change)
        if below:
            lines += ["", change.path, *below]
    return lines


def _whole(change: Change) -> list[str]:
    """What the table cut of two values that differ, or of one that is critical."""
    marked = [("-", change.before), ("+", change.after)]
    sides = [(mark, value) for mark, value in marked if not _empty(value)]
    if change.kind != "changed" and change.severity != "critical":
        return []
    if all(_text(value) == _short(value) for _, value in sides):
        return []
    return [f"{mark} {line}" for mark, value in sides for line in _text(value).split("\n")]


def _facts(lock: Lock, registered: Sequence[DatasetManifest]) -> Iterator[tuple[str, str]]:
    recipe: Any = lock.recipe
    yield "recipe", recipe.name + (f": {recipe.description}" if recipe.description else "")
    yield "trains", _training(recipe, lock)
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
    if recipe.validation is not None:
        yield "rules", "every record is held against the recipe's rules first: sealtrain validate"
    yield "runs on", _machines(lock)
    count = len(lock.environment.packages)
    yield (
        "code",
        f"sealtrain {lock.code.sealtrain}, {count} package{'' if count == 1 else 's'}, Python "
        f"{lock.environment.python}, all pinned by digest",
    )


def _training(recipe: Any, lock: Lock) -> str:
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
    batch = recipe.trainer.per_device_train_batch_size * recipe.trainer.gradient_accumulation_steps
    merged = " and merged into it" if getattr(recipe.peft, "merge", False) else ""
    return (
        f"{what}, {how}{merged}, from {base}{pinned}; {recipe.trainer.max_steps} steps of "
        f"{batch * recipe.backend.ranks} records"
    )


def _data(recipe: Recipe, registered: Sequence[DatasetManifest]) -> Iterator[tuple[str, str]]:
    columns = ", ".join(recipe.columns.names)
    known: dict[tuple[str, str], list[DatasetManifest]] = {}
    for manifest in registered:
        known.setdefault((manifest.owner, manifest.name), []).append(manifest)
    counts: list[int | None] = []
    label = "reads"
    for dataset in recipe.datasets:
        there = known.get((dataset.owner, dataset.name), [])
        records = there[0].records if len(there) == 1 else None
        told = f"{records} records" if records is not None else "records not told"
        if registered and not there:
            told = "not registered yet"
        if not registered:
            told = ""
        counts.append(records)
        parts = [dataset.role, told]
        if dataset.weight != 1:
            parts.append(f"weight {dataset.weight:g}")
        if dataset.max_records is not None:
            parts.append(f"at most {dataset.max_records} in an epoch")
        if dataset.columns:
            parts.append(_flat(dataset.columns))
        yield label, f"{dataset.owner}/{dataset.name} ({', '.join(filter(None, parts))})"
        label = ""
    total = "" if None in counts or not counts else f"; {sum(filter(None, counts))} records in all"
    yield "columns", f"{columns} of each, and no other{total}"


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


def _leaving(recipe: Recipe) -> str:
    policy = recipe.release_policy
    metrics = ", ".join(policy.metrics) or "no metric"
    logs = {
        "none": "no logs",
        "error-summary": "and the code of an error",
        "structured": "and named events, with file and line of the recipe's scripts",
    }[policy.logs]
    often = "" if policy.every_n_steps == 1 else f", every {policy.every_n_steps} steps at most"
    return f"{metrics}, rounded to {policy.round_to} places{often}; {logs}"


def _machines(lock: Lock) -> str:
    hardware = lock.recipe.hardware
    named = ", ".join(hardware.platforms)
    if hardware.platforms == ("simulator",):
        return "the simulator: NOT ATTESTED, it protects nothing"
    image = (
        f"; image {hardware.image}: account for every file of it with sealtrain image verify "
        "--source … --lock …"
    )
    keys = "" if hardware.key_provider == "none" else f"; keys by {hardware.key_provider}"
    unpinned = ", which is not pinned" if keys and hardware.key_provider_id is None else ""
    gpu = f"; {hardware.gpu} accelerators" if hardware.gpu else ""
    simulated = ", which protects nothing" if "simulator" in hardware.platforms else ""
    return f"{named}{simulated}{gpu}{keys}{unpinned}{image}"


def _approval(intent: Intent) -> Iterator[str]:
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
    if intent.lifts:
        yield f"  you take back {len(intent.lifts)} revocation(s) of this recipe"


def _flat(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_short(item)}" for key, item in value.items() if not _empty(item))


def _empty(value: object) -> bool:
    return value is None or value in ((), [], {}, "")


def _text(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _short(value: object) -> str:
    text = _text(value)
    if "\n" in text:
        text = f"{text.count(chr(10))} lines, below"
    return text if len(text) <= 72 else f"{text[:69]}..."
