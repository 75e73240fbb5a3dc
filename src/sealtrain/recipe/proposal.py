"""Propose a phase and columns for a sample of records.

Names of columns and of classes are all that a proposal has of a sample: these stand in the recipe,
which every owner reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sealtrain.base.suggestion import nearest
from sealtrain.base.visible_text import escape_hidden, is_visible
from sealtrain.errors import UsageError
from sealtrain.recipe.sample import MAX_CLASSES, Sample
from sealtrain.sealing.errors import SchemaMismatch
from sealtrain.sealing.tabular.conversion import is_number

_MAX_NAME: Final = 128
_MAX_FEATURES: Final = 4096
_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "messages": ("messages", "conversations", "conversation", "turns", "dialogue"),
        "prompt": ("prompt", "question", "instruction", "query", "input", "findings"),
        "completion": ("completion", "answer", "response", "output", "reply"),
        "chosen": ("chosen", "preferred", "accepted"),
        "rejected": ("rejected", "other", "refused"),
        "anchor": ("anchor", "question", "query"),
        "positive": ("positive", "passage", "match"),
        "text": ("text", "content", "letter", "note", "report", "document", "sentence", "body"),
        "label": ("label", "target", "class", "category", "diagnosis", "outcome", "y"),
    }
)
"""What a column of a role is usually called, the likeliest first."""

PHASES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        "dpo": (("prompt", "chosen", "rejected"),),
        "embed": (("anchor", "positive"),),
        "sft": (("messages",), ("prompt", "completion")),
        "classify": (("features", "label"), ("text", "label")),
        "cpt": (("text",),),
    }
)
"""Roles of the columns of each phase that can be proposed; the first that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A phase that fits a sample.

    Attributes:
        phase: Name of the phase.
        columns: Column, or columns of features, by role: as a recipe has them.
        labels: Classes, for ``classify``.
        seal_as: What an owner says of such a file when it is sealed: words of ``sealtrain seal``.
        gaps: Features of which values are missing.
    """

    phase: str
    columns: Mapping[str, str | tuple[str, ...]]
    labels: tuple[str, ...] = ()
    seal_as: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def of_numbers(self) -> bool:
        """The features are numbers, and the model is a table's."""
        return "features" in self.columns


def propose(
    sample: Sample,
    phase: str | None = None,
    named: Mapping[str, str | tuple[str, ...]] = MappingProxyType({}),
) -> Proposal:
    """The first phase whose columns a sample has.

    Args:
        sample: What was read.
        phase: Propose this one only.
        named: Column, or columns of ``features``, by role, where its owner says which they are;
            spaces around a name, and small or capital letters, need not be those of the file.

    Raises:
        UsageError: None fits, no such phase can be proposed, or the sample has no such column.
    """
    named = {role: _find_named(sample, role, name) for role, name in named.items()}
    _require_apart(named)
    if phase is not None and phase not in PHASES:
        raise UsageError(
            "no recipe is proposed for this phase", got=phase, expected=" or ".join(PHASES)
        )
    for name in PHASES if phase is None else (phase,):
        for roles in PHASES[name]:
            found = _fitting(sample, name, roles, named)
            if found is not None:
                _require_names(sample, found)
                return found
    options = [
        tuple(map(_option, roles))
        for name in PHASES
        if phase in {None, name}
        for roles in PHASES[name]
    ]
    given = [_option(role) for role in named]
    if not any(set(given) <= set(known) for known in options):
        who = "no phase reads" if phase is None else f"{phase} does not read"
        sayable = [" and ".join(known) for known in options if set(known) <= _OPTIONS]
        raise UsageError(
            f"{who} these columns together",
            got=" and ".join(given),
            expected=", or ".join(sayable),
            hint="leave one of them out",
        )
    wanted = [
        " and ".join(roles) for name in PHASES if phase in {None, name} for roles in PHASES[name]
    ]
    raise UsageError(
        "the columns fit no phase" if phase is None else f"the columns do not fit {phase}",
        got=", ".join(sample.columns)[:400],
        expected="columns called such as " + ", or ".join(wanted),
        hint=_explain_misfit(sample, phase, named)
        or "say which columns they are, such as --text NAME --label NAME; or begin with a ready "
        "recipe instead: sealtrain recipes",
    )


def _require_apart(named: Mapping[str, str | tuple[str, ...]]) -> None:
    """Refuse one column in two roles.

    Raises:
        UsageError: An owner named it for both.
    """
    roles: dict[str, str] = {}
    for role, of in named.items():
        for name in (of,) if isinstance(of, str) else of:
            if name in roles:
                raise UsageError(
                    "a column is named twice",
                    check=_option(role),
                    got=name[:_MAX_NAME],
                    expected=f"another column than {_option(roles[name])} names",
                )
            roles[name] = role


def _require_names(sample: Sample, proposal: Proposal) -> None:
    """Refuse columns whose names no recipe can hold, and more features than it holds.

    Raises:
        SchemaMismatch: It says which column.
        UsageError: There are too many.
    """
    names: list[str] = []
    for of in proposal.columns.values():
        names += [of] if isinstance(of, str) else of
    for name in names:
        fault = _fault_of_name(name)
        if fault is not None:
            place = sample.columns.index(name) + 1
            raise SchemaMismatch(
                f"{sample.file}: the name of column {place} {fault}, so no recipe can hold it",
                check="schema",
                column=name[:_MAX_NAME],
                got=escape_hidden(name, 80),
                expected=f"one line of 1 to {_MAX_NAME} visible characters",
                hint="rename the column in the file, or name others: --feature NAME, --text NAME",
            )
    if len(names) > _MAX_FEATURES:
        raise UsageError(
            "a recipe reads no table of so many columns",
            got=len(names),
            expected=f"at most {_MAX_FEATURES} features",
            hint="name those to read: --feature NAME",
        )


def _fault_of_name(name: str) -> str | None:
    """What keeps a column's name out of a recipe."""
    if not name.strip():
        return "is blank"
    if "\n" in name or "\r" in name:
        return "has a line break"
    if "\ufeff" in name:
        return "has a byte order mark inside"
    if not is_visible(name):
        return "has a character that is not shown"
    return f"is longer than {_MAX_NAME} characters" if len(name) > _MAX_NAME else None


def _explain_misfit(
    sample: Sample, phase: str | None, named: Mapping[str, str | tuple[str, ...]]
) -> str | None:
    """Which column keeps a table with labels from being one of numbers; ``None`` for others."""
    label = named.get("label") or _column(sample, "label")
    if label is None or phase not in (None, "classify") or not {"label"} >= set(named):
        return None
    if label not in sample.classes:
        return f"name a column with 2 to {MAX_CLASSES} different values as the label: --label NAME"
    name = next((n for n in sample.columns if n != label and n not in sample.numeric), None)
    if name is None:
        return None
    found = f"column {escape_hidden(name, _MAX_NAME)}"
    if name in sample.commas:
        return f"{found} has decimal commas: name the columns to read, --feature NAME"
    if sample.dates.get(name):
        return f"{found} has dates: name the columns to read, --feature NAME"
    if name not in sample.odd:
        return f"{found} has no numbers: name those to read, --feature NAME; or --text NAME"
    record, what, hint = sample.odd[name]
    return (
        f"record {record} holds {what} in {found}: {hint}; or name the columns to read: "
        "--feature NAME, or --text NAME"
    )


_OPTIONS: Final = frozenset({"--text", "--label", "--feature", "--prompt", "--completion"})


def _option(role: str) -> str:
    """The option of ``sealtrain init`` that names the column of a role."""
    return f"--{'feature' if role == 'features' else role}"


def _find_named(sample: Sample, role: str, name: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """The columns that an owner named, as the sample has them.

    Raises:
        UsageError: The sample has no such column, or what is a label has no few values.
    """
    if isinstance(name, tuple):
        return tuple(str(_find_named(sample, role, part)) for part in name)
    option = _option(role)
    like = {column.strip().lower(): column for column in reversed(sample.columns)}
    found = name if name in sample.columns else like.get(name.strip().lower())
    if found is None and len(sample.columns) == 1 and name in sample.columns[0]:
        raise UsageError(
            "the sample has one column alone",
            check=option,
            got=escape_hidden(sample.columns[0], 200),
            expected="fields between commas, or between semicolons, tabs or bars",
            hint="write the file with one of these separators",
        )
    if found is None:
        meant = nearest(name, list(sample.columns))
        raise UsageError(
            "the sample has no such column",
            check=option,
            got=name[:128],
            expected=", ".join(sample.columns)[:400],
            hint=f"did you mean {meant.strip()}?"
            if meant
            else "copy the name out of the first row",
        )
    if role == "label" and found not in sample.classes:
        raise UsageError(
            "a column of labels has a few short values in the sample, each a class",
            check=option,
            got=found[:128],
            expected=f"2 to {MAX_CLASSES} different values of up to 64 characters",
            hint="name another column, or a sample in which every class occurs",
        )
    if role == "features" and not _is_feature(sample, found):
        got, hint = f"column {found[:128]}", "name another column, or read text: --text NAME"
        if found in sample.odd:
            record, what, hint = sample.odd[found]
            got = f"{sample.file}: record {record} holds {what} in column {found[:128]}"
        raise UsageError(
            "a feature is a number or a date in every record, or missing",
            check=option,
            got=got,
            hint=hint,
        )
    return found


def _is_feature(sample: Sample, name: str) -> bool:
    return name in sample.numeric | sample.commas or bool(sample.dates.get(name))


def _seal_words(sample: Sample, features: Iterable[str]) -> tuple[str, ...]:
    """What ``sealtrain seal`` is told of a file with such features.

    Raises:
        UsageError: The sample does not say which of several patterns its dates have, or it has
            decimals with points and commas.
    """
    features = tuple(features)
    of_commas, of_points = sample.commas - sample.numeric, sample.numeric - sample.commas
    comma = [name for name in features if name in of_commas]
    point = [name for name in features if name in of_points]
    if comma and point:
        raise UsageError(
            "the features have decimals of two kinds", check="--feature",
            got=f"{comma[0]}: comma, {point[0]}: point", expected="one kind in a file",
        )  # fmt: skip
    words = ["--decimals", "comma"] if comma else []
    for name in features:
        plain = name in sample.numeric or name in sample.commas
        patterns = () if plain else sample.dates[name]
        if len(patterns) > 1:
            raise UsageError(
                "the sample does not say which of its numbers is the day of a date",
                check="--feature",
                got=name[:128],
                expected=" or ".join(patterns),
                hint="give a sample with a day after the 12th",
            )
        words += ["--dates", f"{name}={patterns[0]}"] if patterns else []
    return tuple(words)


def _fitting(
    sample: Sample,
    phase: str,
    roles: tuple[str, ...],
    named: Mapping[str, str | tuple[str, ...]],
) -> Proposal | None:
    if not set(named) <= set(roles):
        return None
    columns: dict[str, str | tuple[str, ...]] = {}
    for role in roles:
        if role == "features":
            continue
        found = named.get(role) or _column(sample, role)
        if found is None or found in columns.values():
            return None
        columns[role] = found
    labels: tuple[str, ...] = ()
    if "label" in roles:
        label = str(columns["label"])
        labels = sample.classes.get(label, ())
        if not labels:
            return None
        if "features" in roles:
            features = named.get("features") or tuple(
                name for name in sample.columns if name != label
            )
            if not features or not set(features) <= sample.numeric | (
                set(features) if "features" in named else set()
            ):
                return None
            return Proposal(
                phase=phase,
                columns={"features": tuple(features), "label": label},
                labels=labels,
                seal_as=_seal_words(sample, features),
                gaps=tuple(name for name in features if name in sample.gaps),
            )
    return Proposal(phase=phase, columns=columns, labels=labels)


def _column(sample: Sample, role: str) -> str | None:
    lower = {name.strip().lower(): name for name in reversed(sample.columns)}
    return next((lower[name] for name in _NAMES[role] if name in lower), None)


def similar_labels(labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Labels that are likely one class each: of one number, or but for case, spaces and quotes."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        bare = " ".join(label.casefold().strip(" \"'").split())
        alike.setdefault(repr(float(bare)) if is_number(bare) else bare, []).append(label)
    return [tuple(names) for names in alike.values() if len(names) > 1]
