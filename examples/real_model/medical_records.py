"""Two public collections as the records of three hospitals.

``DIR/data/medical`` holds them as they are published, where ``SEALTRAIN_SHARED`` names DIR:

- MTS-Dialog (CC BY 4.0): a conversation with a doctor, and the note that was written of it.
  Two hospitals have them; the authors' test set is held out.
- MedQuAD (CC BY 4.0): questions of patients and the answers of the National Institutes of Health.
  The third hospital has them; about a seventh of the diseases is held out.

Records are chosen by their length, so that none is cut: a phase would count the cut ones.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import tarfile
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinned_models import Unavailable  # it lies beside this file

Record = dict[str, Any]

TASK = "Write the section of the clinical note for this conversation.\n\n"
_HELD_OUT = 0.15


@dataclass(frozen=True, slots=True)
class Pair:
    """What a user says, and the right answer.

    Attributes:
        asked: Conversation or question.
        answer: Note or answer.
        about: Pairs of one subject are never both trained on and held out.
    """

    asked: str
    answer: str
    about: str

    @property
    def size(self) -> int:
        """Characters."""
        return len(self.asked) + len(self.answer)


def medical_folder() -> Path:
    """The collections beside the repository, or under ``SEALTRAIN_SHARED``.

    Raises:
        Unavailable: They are not there.
    """
    root = Path(__file__).resolve().parents[2]
    folder = root / os.environ.get("SEALTRAIN_SHARED", "../shared") / "data" / "medical"
    if not folder.is_dir():
        raise Unavailable("SEALTRAIN_SHARED names no folder with data/medical in it")
    return folder


def dialogues(folder: Path, name: str) -> Iterator[Pair]:
    """Conversation and note of one file of MTS-Dialog, in its order."""
    path = folder / "mts_dialog" / f"MTS-Dialog-{name}.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            said = "\n".join(line.strip() for line in row["dialogue"].strip().splitlines())
            yield Pair(TASK + said, " ".join(row["section_text"].split()), f"{name}-{row['ID']}")


def questions(folder: Path) -> Iterator[Pair]:
    """Questions of MedQuAD that have an answer, in the archive's order."""
    with tarfile.open(folder / "medquad/medquad_xml.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".xml") else None
            if file is None:
                continue
            document = Xml.fromstring(file.read())  # noqa: S314 - a published collection
            focus = (document.findtext("Focus") or "").strip().lower() or member.name
            for pair in document.iter("QAPair"):
                asked, answer = (" ".join((pair.findtext(name) or "").split()) for name in
                                 ("Question", "Answer"))  # fmt: skip
                if asked and answer:
                    yield Pair(asked, answer, focus)


def held_out(pair: Pair) -> bool:
    """Whether a pair's subject is one of those that no hospital trains on."""
    return hashlib.sha256(pair.about.encode()).digest()[0] < _HELD_OUT * 256


def chosen(pairs: Iterable[Pair], count: int, longest: int, *, seed: int) -> list[Pair]:
    """So many of the pairs that have at most ``longest`` characters, no answer twice."""
    known: dict[str, Pair] = {}
    for pair in pairs:
        if pair.size <= longest:
            known.setdefault(pair.answer, pair)
    fitting = list(known.values())
    random.Random(seed).shuffle(fitting)  # noqa: S311 - which records, not a secret
    return fitting[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRecords:
    """Everything the story reads.

    Attributes:
        train: By hospital.
        dialogues: Held out, of MTS-Dialog.
        questions: Held out, of MedQuAD.
    """

    train: dict[str, list[Pair]]
    dialogues: list[Pair]
    questions: list[Pair]


def read(folder: Path, *, each: int, tested: int, longest: int) -> StoryRecords:
    """The hospitals' pairs, and those held out.

    Args:
        folder: That of the collections.
        each: Pairs of a hospital.
        tested: Pairs held out, of each collection.
        longest: Characters of a pair.
    """
    training = chosen(dialogues(folder, "TrainingSet"), 2 * each, longest, seed=1)
    asked = list(questions(folder))
    return StoryRecords(
        train={
            "hospital-a": training[0::2],
            "hospital-b": training[1::2],
            "hospital-c": chosen(
                (pair for pair in asked if not held_out(pair)), each, longest, seed=2
            ),
        },
        dialogues=chosen(dialogues(folder, "TestSet-1-MEDIQA-Chat-2023"), tested, longest, seed=3),
        questions=chosen((pair for pair in asked if held_out(pair)), tested, longest, seed=4),
    )


def conversation(pair: Pair) -> Record:
    """A record to fine-tune on."""
    return {"messages": [_turn("user", pair.asked), _turn("assistant", pair.answer)]}


def preferences(pairs: list[Pair]) -> list[Record]:
    """Records of the right answer before that of the next pair, which is about something else."""
    return [
        {
            "prompt": [_turn("user", pair.asked)],
            "chosen": [_turn("assistant", pair.answer)],
            "rejected": [_turn("assistant", other.answer)],
        }
        for pair, other in zip(pairs, [*pairs[1:], *pairs[:1]], strict=True)
    ]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def written(folder: Path, shares: dict[str, list[Record]]) -> dict[str, Path]:
    """One JSONL file a dataset.

    Args:
        folder: Where they go.
        shares: ``owner.name`` → its records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {key: folder / f"{key}.jsonl" for key in shares}
    for key, records in shares.items():
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        paths[key].write_text(text, "utf-8")
    return paths
