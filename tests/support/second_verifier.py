"""The JavaScript verifier beside ours: the same manifests to both, and where they disagree."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_judges import judge

from sealtrain.base.encoding import to_base64
from sealtrain.manifest.trust import Trust
from sealtrain.manifest.verify import Report, examine

DRIVER = Path(__file__).with_suffix(".mjs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One manifest under one trust file.

    Attributes:
        label: The change that was made, for a person.
        artefacts: Folder with the output files, ``None`` for the choice not to check them.
    """

    label: str
    manifest: bytes
    trust: Trust
    artefacts: Path | None
    now: int

    def to_line(self) -> str:
        """As the driver reads it."""
        return json.dumps(
            {
                "manifest": to_base64(self.manifest),
                "trust": json.dumps(self.trust.to_dict()),
                "artefacts": None if self.artefacts is None else str(self.artefacts),
                "now": self.now,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two verifiers said of the same questions.

    Attributes:
        asked: Number of questions.
        verdicts: Ours: ``verified``, or the check and code of the first refusal.
        disagreements: One line each.
        crashes: What ours did not survive: no answer at all.
        undecided: Checks that the second verifier could not make before anything was refused.
        slowest_ms: Longest time that the second verifier took for one.
    """

    asked: int
    verdicts: Counter[str]
    disagreements: tuple[str, ...]
    crashes: tuple[str, ...]
    undecided: Counter[str]
    slowest_ms: float

    def __str__(self) -> str:
        return (
            f"{self.asked} manifests, {len(self.verdicts)} different answers, "
            f"{len(self.disagreements)} disagreements, {len(self.crashes)} crashes of ours, "
            f"{self.undecided.total()} undecided "
            f"by the second verifier {dict(self.undecided)}; slowest {self.slowest_ms:.0f} ms"
        )


def counted(what: str, asked: int, disagreements: int) -> None:
    """Keep a count for ``second_counts.py``, where ``SECOND_COUNTS`` names a file."""
    if file := os.environ.get("SECOND_COUNTS"):
        with Path(file).open("a", encoding="utf-8") as counts:
            counts.write(json.dumps([what, asked, disagreements]) + "\n")


def second_answers(questions: Iterable[Question]) -> list[dict[str, Any]]:
    """What the JavaScript verifier says of each question."""
    return judge(DRIVER, (question.to_line() for question in questions), seconds=1200)


def own_answer(question: Question) -> Report:
    """What our verifier says."""
    return examine(
        question.manifest, question.trust, artefacts=question.artefacts, now=question.now
    )


def first_refusal(report: Report) -> tuple[str | None, str | None]:
    """Name of the first failed check and code of its refusal; of an accepted one ``None``."""
    failed = next((check for check in report.checks if check.error is not None), None)
    return (None, None) if failed is None else (failed.name, failed.error and failed.error.code)


def compare(questions: Sequence[Question]) -> Comparison:
    """Ask both verifiers.

    They disagree where one accepts and the other does not, and where the first refused check or
    its code differ. Where the second could not make a check before anything failed, it has to say
    ``not verified``; that is counted apart and never an acceptance.
    """
    verdicts: Counter[str] = Counter()
    undecided: Counter[str] = Counter()
    disagreements: list[str] = []
    crashes: list[str] = []
    slowest = 0.0
    answers = second_answers(questions)
    assert len(answers) == len(questions)
    for question, answer in zip(questions, answers, strict=True):
        try:
            report = own_answer(question)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            crashes.append(f"{question.label}: {error!r}")
            if answer["verdict"] == "verified":
                disagreements.append(f"{question.label}: ours crashes, the second verifies it")
            continue
        check, code = first_refusal(report)
        verdicts["verified" if report.accepted else f"{check} {code}"] += 1
        slowest = max(slowest, answer["ms"])
        names = [check["name"] for check in answer["checks"]]
        if not names:
            disagreements.append(f"{question.label}: second refuses the trust file {answer}")
            continue
        if report.accepted and answer["limits"] != list(report.limits):
            disagreements.append(f"{question.label}: other limits {answer['limits']}")
        said = (answer["verdict"] == "verified", answer["check"], answer["code"])
        if names != [check.name for check in report.checks]:
            disagreements.append(f"{question.label}: other checks {names}")
        ours = len(names) if check is None else names.index(check)
        theirs = names.index(answer["check"]) if answer["verdict"] == "refused" else len(names)
        unmade = [
            place
            for place, check in enumerate(answer["checks"])
            if check["outcome"] == "not-checked" and place <= min(ours, theirs)
        ]
        faults = [check["detail"] for check in answer["checks"] if check.get("fault")]
        disagreements += [f"{question.label}: {fault}" for fault in faults]
        contradicts = answer["verdict"] == "verified" or (report.accepted and said[1] and said[2])
        if unmade and not contradicts:
            undecided[names[unmade[0]]] += 1
            continue
        if said != (report.accepted, check, code):
            detail = next((o["detail"] for o in answer["checks"] if o["name"] == said[1]), "")
            disagreements.append(
                f"{question.label}: ours {check} {code} "
                f"({report.refusal}), second {answer['verdict']} {said[1]} {said[2]} ({detail})"
            )
    return Comparison(
        asked=len(questions),
        verdicts=verdicts,
        disagreements=tuple(disagreements),
        crashes=tuple(crashes),
        undecided=undecided,
        slowest_ms=slowest,
    )
