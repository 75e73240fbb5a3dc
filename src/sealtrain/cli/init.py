"""``init``: a folder to begin in, with identity, recipe, project file and perhaps a consortium.

Five questions, each an option too; on a terminal those that were not answered are asked. A file
that is there stays as it is.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sealtrain.base.filenames import slug
from sealtrain.base.files import atomic_write
from sealtrain.base.shipped import find_shipped
from sealtrain.base.yamltext import parse_yaml, yaml_text
from sealtrain.cli.output import Json, emit, quote_path, require_name, say
from sealtrain.cli.project import NAME
from sealtrain.consortium.members import Consortium
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.proposal import PHASES, Proposal, propose, similar_labels
from sealtrain.recipe.sample import Sample, read_sample
from sealtrain.recipe.schema import parse_recipe
from sealtrain.signing.identity import PublicIdentity

_READY: Final[Mapping[str, str]] = {
    "dpo": "dpo-lora",
    "embed": "embed",
    "sft": "sft-lora",
    "classify": "classify-lora",
    "cpt": "cpt",
}
"""The ready recipe that a proposal begins with, by phase."""
_BROKER: Final = "up/broker.yaml"
_CONSORTIUM: Final = "consortium.json"
_MODEL: Final = "models/base"
_PASSES: Final = 3
"""Over the sample of each owner, where the ready recipe does not train for less."""
_WARMUP: Final = 0.1
"""Part of a short run's steps in which the learning rate rises."""
_POINTS: Final = 10
"""Losses at least that a report shows as a curve, where the run has so many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The five questions."""

    owner: Annotated[
        str | None, typer.Option("--owner-name", help="Your name as an owner: a-z, 0-9, -.")
    ] = None
    sample: Annotated[
        Path | None, typer.Option(help="Some records of yours: CSV, JSONL or Parquet.")
    ] = None
    phase: Annotated[
        str | None, typer.Option(help=f"{', '.join(PHASES)} [what the columns fit].")
    ] = None
    model: Annotated[
        Path | None,
        typer.Option("--base-model", help="Folder of the base model, from here [models/base]."),
    ] = None
    broker: Annotated[
        Path | None, typer.Option(help="Broker file, now or later [up/broker.yaml].")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """Which columns of the sample are what, where their names do not say it."""

    text: Annotated[str | None, typer.Option(help="Column of the sample with the text.")] = None
    label: Annotated[str | None, typer.Option(help="Column with the label.")] = None
    feature: Annotated[
        list[str] | None, typer.Option(help="Column with numbers or dates to read; repeat.")
    ] = None
    prompt: Annotated[str | None, typer.Option(help="Column with the prompt.")] = None
    completion: Annotated[str | None, typer.Option(help="Column with the answer.")] = None

    def by_role(self) -> dict[str, str | tuple[str, ...]]:
        """Column, or columns of features, by role."""
        given = {
            "text": self.text,
            "label": self.label,
            "prompt": self.prompt,
            "completion": self.completion,
        }
        found: dict[str, str | tuple[str, ...]] = {
            role: name for role, name in given.items() if name is not None
        }
        return found | ({"features": tuple(self.feature)} if self.feature else {})


def init(
    answers: Answers,
    named: NamedColumns,
    folder: Annotated[Path, typer.Argument(help="Where to begin.")] = Path(),
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Public identity of another owner, to found a consortium with; repeat."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Begin here: make an identity, a recipe that fits a sample of your records, a project file.

    What is not given is asked on a terminal. It overwrites no file. The recipe is for the
    simulator: read it, and change what does not fit, before you lock it.
    """
    ask = sys.stdin.isatty() and not as_json
    owner = _answer(answers.owner, "Your name as an owner", None, ask, "--owner-name")
    require_name(owner, "--owner-name")
    sample = _sample(answers.sample, ask)
    seen = None if sample is None else read_sample(sample)
    proposal = None
    roles = named.by_role()
    if seen is None and roles:
        raise UsageError("columns are named of a sample", check="--sample", hint="name the sample")
    if seen is not None:
        say(f"columns of {seen.records} records: {', '.join(seen.columns)}")
        fits = propose(seen, answers.phase, roles)
        phase = _answer(answers.phase, "Phase", fits.phase, ask, "--phase")
        proposal = fits if phase == fits.phase else propose(seen, phase, roles)
        for alike in similar_labels(proposal.labels):
            say(
                "look: these labels are alike, and each becomes a class: "
                f"{', '.join(map(repr, alike))}"
            )
        for line in _list_doubts(seen, proposal):
            say(f"look: {line}")
    model = _MODEL
    if proposal is not None and not proposal.of_numbers:
        model = _answer(
            _text(answers.model), "Folder of the base model", _MODEL, ask, "--base-model"
        )
    elif answers.model is not None and proposal is not None:
        raise UsageError(
            "a recipe of numbers has no base model",
            check="--base-model",
            hint="leave it out, or name a column of text: --text",
        )
    broker = _answer(_text(answers.broker), "Broker file", _BROKER, ask, "--broker")

    keys = folder / "keys"
    private = keys / f"{owner}.identity.json"
    identity = Identity.generate(owner)
    publics = [PublicIdentity.load(path) for path in others or ()]
    consortium = None
    if publics:
        own = PublicIdentity.load(keys / f"{owner}.public.json") if private.exists() else None
        consortium = Consortium.found(
            name=f"{owner}-and-others", owners=[own or identity.public, *publics]
        )
    recipe = None
    if proposal is not None and sample is not None and seen is not None:
        owners = (owner, *(public.name for public in publics))
        recipe = _recipe(owners, slug(sample.stem, "records"), proposal, model, seen.records)
    written: list[str] = []
    kept: list[str] = []

    def put(path: Path, write: Callable[[Path], None]) -> None:
        if path.exists():
            kept.append(str(path))
            return
        write(path)
        undo.callback(path.unlink)
        written.append(str(path))

    # All of it or nothing: an identity without its public file could take part in nothing.
    with ExitStack() as undo:
        for made in (folder, keys, folder / "locked", folder / "sealed"):
            if not made.is_dir():
                made.mkdir(parents=True)
                undo.callback(made.rmdir)
        keys.chmod(0o700)
        if not private.exists():
            put(private, identity.save)
            put(
                keys / f"{owner}.public.json",
                lambda at: atomic_write(at, identity.public.to_bytes()),
            )
        else:
            kept.append(str(private))
        put(keys / ".gitignore", lambda at: atomic_write(at, b"*.identity.json\n"))
        if consortium is not None:
            put(folder / _CONSORTIUM, lambda at: atomic_write(at, consortium.to_bytes()))
        if recipe is not None:
            put(folder / "recipe.yaml", lambda at: atomic_write(at, recipe))
        project = _project(owner, broker)
        put(folder / NAME, lambda at: atomic_write(at, project))
        undo.pop_all()
    for path in kept:
        say(f"kept: {path} was there")
    emit(
        as_json,
        {
            "written": written,
            "kept": kept,
            "phase": None if proposal is None else proposal.phase,
            "columns": None if proposal is None else dict(proposal.columns),
            "seal_as": [] if proposal is None else list(proposal.seal_as),
            "owners": None if consortium is None else [member.name for member in consortium.owners],
        },
        [
            *(f"written  {path}" for path in written),
            *_next(
                folder,
                owner,
                sample,
                founded=bool(publics),
                seal_as=() if proposal is None else proposal.seal_as,
            ),
        ],
    )


def _list_doubts(seen: Sample, proposal: Proposal) -> Iterator[str]:
    """What of the features may mean something else than it says."""
    features = proposal.columns.get("features", ())
    for name in (features,) if isinstance(features, str) else features:
        if name in seen.grouped:
            yield (
                f"each number of column {name} has three digits behind its mark, which are read "
                "as decimals; if they are thousands, write them without separators"
            )
        if told := seen.stand_ins.get(name):
            yield (
                f"column {name} holds {' and '.join(told)}, far from all others; if that stands "
                "for a missing value, leave the cell empty"
            )


def _answer(given: str | None, question: str, guess: str | None, ask: bool, option: str) -> str:
    """What was given, or typed, or guessed.

    Raises:
        UsageError: There is no guess, and no terminal to ask at.
    """
    if given is not None:
        return given
    if ask:
        typed: str = typer.prompt(question, default=guess, err=True)
        return typed
    if guess is None:
        raise UsageError(f"{option} is missing", check=option, hint="name it, or use a terminal")
    return guess


def _text(given: Path | None) -> str | None:
    return None if given is None else given.as_posix()


def _sample(given: Path | None, ask: bool) -> Path | None:
    if given is not None or not ask:
        return given
    typed = typer.prompt("Some records of yours (CSV, JSONL, Parquet), or nothing", "", err=True)
    return Path(typed) if typed else None


def _recipe(
    owners: Sequence[str], dataset: str, proposal: Proposal, model: str, records: int
) -> bytes:
    """A recipe for the proposal, as the parser takes it.

    Args:
        owners: Whose data it reads; the first gets the model.
        dataset: What each calls it.
        proposal: Phase and columns.
        model: Folder of the base model.
        records: Of the sample.
    """
    name = "classify-tabular" if proposal.of_numbers else _READY[proposal.phase]
    path = find_shipped("recipes") / f"{name}.yaml"
    recipe: Any = parse_yaml(path.read_bytes(), error=RecipeInvalid, what="recipe")
    for of_hardware in ("bf16", "activation_checkpointing", "eval_steps"):
        recipe["trainer"].pop(of_hardware, None)
    trainer = recipe["trainer"]
    batch = trainer["per_device_train_batch_size"] * trainer.get("gradient_accumulation_steps", 1)
    steps = max(1, min(trainer["max_steps"], _PASSES * records * len(owners) // batch))
    trainer["max_steps"] = steps
    for interval, most in (("logging_steps", max(1, steps // _POINTS)), ("save_steps", steps)):
        if trainer.get(interval, 0) > most:
            trainer[interval] = most
    if trainer.get("warmup_steps", 0) > steps * _WARMUP:  # a run that only warms up learns little
        trainer["warmup_steps"] = _WARMUP
    recipe |= {
        "name": dataset,
        "description": f"{proposal.phase} on {dataset} of {', '.join(owners)}.",
        "datasets": [{"owner": owner, "name": dataset, "role": "train"} for owner in owners],
        "columns": {
            role: list(of) if isinstance(of, tuple) else of for role, of in proposal.columns.items()
        },
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    }
    recipe["release_policy"] |= {
        "metrics": ["loss"],
        "every_n_steps": trainer.get("logging_steps", 1),
        "model": {"recipients": [owners[0]]},
    }
    if proposal.labels:
        recipe["labels"] = list(proposal.labels)
    if proposal.gaps:  # unlike a mean, it tells no figure about records
        recipe["missing"] = dict.fromkeys(proposal.gaps, "own-category")
    if not proposal.of_numbers:
        recipe["model"] = {"path": model}
    if "peft" in recipe and recipe["peft"] is not None:
        recipe["peft"]["target_modules"] = "all-linear"
    parse_recipe(recipe)
    rest = "a dataset of role test, to measure on"
    if len(owners) == 1:
        rest = f"the other owners' datasets, and {rest}"
    head = (
        "# Proposed by `sealtrain init` from a sample's columns; it becomes what owners approve.\n"
        f"# Add {rest}.\n"
        "# Labels, if it has any, are those of the sample. Every field: sealtrain recipe schema\n"
    )
    return (head + yaml_text(recipe)).encode()


def _project(owner: str, broker: str) -> bytes:
    values = {
        "version": 1,
        "consortium": _CONSORTIUM,
        "brokers": [broker],
        "identity": f"keys/{owner}.identity.json",
        "deployment": "locked/app-compose.json",
    }
    # Values of these types are written alike in TOML and JSON.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return ("\n".join(lines) + "\n").encode()


def _next(
    folder: Path, owner: str, sample: Path | None, *, founded: bool, seal_as: Sequence[str]
) -> list[str]:
    data = sample or Path("FILE")
    source = quote_path(data.absolute() if folder.absolute() != Path.cwd() else data)
    name = slug(data.stem, "records")
    found = f"  sealtrain consortium create NAME --owner keys/{owner}.public.json --owner OTHER"
    return [
        f"next, in {folder.absolute()}:",
        *([] if founded else [found]),
        "  sealtrain up                      # simulated broker and hardware, in another terminal",
        "  sealtrain lock recipe.yaml --out locked",
        f"  sealtrain seal {source} --name {name} --out sealed/{owner}.sealed --and-approve"
        + "".join(f" {word if word.startswith('--') else shlex.quote(word)}" for word in seal_as),
    ]
