"""Several runs side by side: what each made of the same metrics, and where their recipes differ.

A run is read from its manifest. Without a trust file nothing but the form of a manifest was
checked, and every row says so. With trust files each manifest is examined in full, against the file
that names its consortium and recipe, or the first: the numbers of a refused manifest are left out.
``sealtrain run compare``, its page and the console show what this module found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sealtrain.base.clock import system_clock
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.manifest import form
from sealtrain.manifest.files import manifest_at, manifest_bytes
from sealtrain.manifest.predicate import (
    PatientTraining,
    Predicate,
    PrivateCounting,
    PrivateTraining,
)
from sealtrain.manifest.trust import Trust
from sealtrain.manifest.verify import examine

MAX_RUNS: Final = 100
MAX_DIFFERENCES: Final = 64
_MAX_VALUE_CHARS: Final = 60
_MAX_DEPTH: Final = 8

Verdict = Literal["verified", "refused", "not-verified"]
Points = tuple[tuple[int, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        place: Where its manifest was read.
        digest: SHA-256 of the manifest file.
        verdict: ``not-verified`` where no trust file was given, or none that names its recipe.
        code: Code of the refusal.
        simulated: The run says or its evidence shows that it was simulated.
        weak: Verified, and simulated or under a trust file that leaves something open.
        predicate: What the manifest says; ``None`` of a refused one.
    """

    place: Path
    digest: str
    verdict: Verdict
    code: str | None = None
    simulated: bool = False
    weak: bool = False
    predicate: Predicate | None = None

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe of its lock, as the manifest has it; empty where it is none."""
        found = None if self.predicate is None else self.predicate.recipe.lock.get("recipe")
        return found if isinstance(found, dict) else {}

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics at its end, by name."""
        return {} if self.predicate is None else self.predicate.run.metrics

    @property
    def epsilon(self) -> float | None:
        """The epsilon it spent; ``None`` without differential privacy."""
        privacy = None if self.predicate is None else self.predicate.privacy
        if isinstance(privacy, PrivateTraining | PrivateCounting | PatientTraining):
            return privacy.epsilon
        return None

    def curve(self, metric: str) -> Points:
        """Step and value of a metric, as the run released it."""
        history = () if self.predicate is None else self.predicate.run.history
        return tuple(
            (point.step, point.values[metric]) for point in history if metric in point.values
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        found: dict[str, Any] = {
            "place": str(self.place),
            "manifest_digest": self.digest,
            "verdict": self.verdict,
            "code": self.code,
            "simulated": self.simulated,
        }
        if self.predicate is None:
            return found
        run = self.predicate.run
        return found | {
            "run_id": run.run_id,
            "recipe": self.recipe.get("name"),
            "recipe_hash": self.predicate.recipe.recipe_hash,
            "finished_at": run.finished_at,
            "steps": run.steps,
            "tokens": run.tokens,
            "wall_s": self.predicate.compute.wall_s,
            "epsilon": self.epsilon,
            "metrics": dict(run.metrics),
            "history": [{"step": p.step, "values": dict(p.values)} for p in run.history],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs in the order in which they were named."""

    runs: tuple[ComparedRun, ...]

    @property
    def accepted(self) -> bool:
        """No manifest was refused."""
        return all(run.verdict != "refused" for run in self.runs)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that some run released, losses first."""
        names = {
            name
            for run in self.runs
            if run.predicate is not None
            for name in (
                *run.metrics,
                *(name for point in run.predicate.run.history for name in point.values),
            )
        }
        return tuple(sorted(names, key=lambda name: ("loss" not in name, name)))

    @property
    def differences(self) -> dict[str, tuple[str, ...]]:
        """Fields in which the recipes differ, with the value of each run; the first ones."""
        flat = [dict(_fields(run.recipe)) for run in self.runs]
        names = dict.fromkeys(name for fields in flat for name in fields)
        found: dict[str, tuple[str, ...]] = {}
        for name in names:
            values = tuple(
                "" if run.predicate is None else fields.get(name, "")
                for run, fields in zip(self.runs, flat, strict=True)
            )
            shown = {v for v, run in zip(values, self.runs, strict=True) if run.predicate}
            if len(shown) > 1 and len(found) < MAX_DIFFERENCES:
                found[name] = values
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "accepted": self.accepted,
            "metrics": list(self.metrics),
            "runs": [run.to_dict() for run in self.runs],
            "differences": {name: list(values) for name, values in self.differences.items()},
        }


def compare_runs(
    places: Sequence[Path],
    trusts: Sequence[Trust] = (),
    *,
    now: int | None = None,
    foreign: Literal["refused", "not-verified"] = "refused",
) -> Comparison:
    """Read runs, and verify each where there is a trust file. Asks no server.

    The sealed outputs are not looked at.

    Args:
        places: Folders of finished runs, or their manifests.
        trusts: What the reader trusts; none to read the manifests unverified.
        now: Seconds since 1970; the system's clock when ``None``.
        foreign: The verdict about a run whose recipe no trust file names, where nothing else is
            wrong with its manifest.

    Raises:
        UsageError: No run, too many, or one twice.
        ManifestMalformed: Without trust files: a file is no manifest.
        DataInvalid: There is no such file.
    """
    if not 1 <= len(places) <= MAX_RUNS:
        raise UsageError(
            "so many runs do not stand side by side",
            check="runs",
            got=len(places),
            expected=f"1 to {MAX_RUNS}",
        )
    at = system_clock() if now is None else now
    found: dict[str, ComparedRun] = {}
    for place in places:
        run = _run(place, trusts, at, foreign)
        if run.digest in found:
            raise UsageError(
                "the same run is named twice",
                check="runs",
                got=f"{found[run.digest].place}, {place}",
                expected="each run once",
            )
        found[run.digest] = run
    return Comparison(runs=tuple(found.values()))


def _run(
    place: Path, trusts: Sequence[Trust], now: int, foreign: Literal["refused", "not-verified"]
) -> ComparedRun:
    data = manifest_bytes(manifest_at(place))
    if not trusts:
        try:
            read = form.read(data)
        except SealtrainError as error:
            raise error.with_message(f"{place}: {error.message}") from None
        return ComparedRun(
            place=place,
            digest=read.digest,
            verdict="not-verified",
            simulated=read.predicate.simulated,
            predicate=read.predicate,
        )
    report = examine(data, _trust_for(data, trusts), artefacts=None, now=now)
    refusal = report.refusal
    verdict: Verdict = foreign if report.foreign else "refused"
    if refusal is None and report.manifest is not None:
        verdict = "verified"
    said = None if report.manifest is None else report.manifest.predicate
    return ComparedRun(
        place=place,
        digest=report.digest,
        verdict=verdict,
        code=None if refusal is None else refusal.code,
        simulated=report.simulated,
        weak=verdict == "verified" and report.weak,
        predicate=None if verdict == "refused" else said,
    )


def _trust_for(data: bytes, trusts: Sequence[Trust]) -> Trust:
    """The trust file that names this consortium and recipe, or the first, which refuses."""
    if len(trusts) > 1:
        try:
            said = form.read(data).predicate
        except SealtrainError:
            return trusts[0]  # the examination says what is wrong
        named = (said.recipe.recipe_hash, said.consortium.consortium_id)
        for trust in trusts:
            if (trust.recipe_hash, trust.consortium_id) == named:
                return trust
    return trusts[0]


def _fields(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Paths into a recipe, with what stands there."""
    if isinstance(value, dict) and value and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _fields(inner, f"{name}.{key}" if name else str(key), depth + 1)
        return
    if name:
        text = str(value)
        cut = text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"
        yield name, cut
