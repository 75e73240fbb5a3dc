"""Medical text to classify, read from a folder that holds collections as they are published.

==================  ==============================================================================
``pubmedqa_pqal``   PubMedQA: question and abstract to yes, no or maybe; official test records
``mts_dialog``      MTS-Dialog: conversation to one of 20 section headers; train and validation
                    sets against both test sets
``medquad``         MedQuAD: answer to one of the eight most frequent types of its question; the
                    answers about one disease are all in training or all in test
any other name      ``train.jsonl`` and ``test.jsonl``: records of ``text``, ``label`` and, where
                    several are one patient's, ``patient``
==================  ==============================================================================

A row has text, label and ``patient``: whose record it is, as far as a collection tells. Articles
and conversations stand alone; MedQuAD's answers about one disease belong together.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import tarfile
import xml.etree.ElementTree as Xml
from collections import Counter
from collections.abc import Callable
from pathlib import Path

Rows = list[dict[str, str]]
Reader = Callable[[Path], tuple[Rows, Rows]]


def folder_of() -> Path:
    """The medical collections beside the repository, or under ``SEALTRAIN_SHARED``."""
    root = Path(__file__).resolve().parents[1]
    folder = root / os.environ.get("SEALTRAIN_SHARED", "../shared") / "data" / "medical"
    if not folder.is_dir():
        raise SystemExit("SEALTRAIN_SHARED names no folder with data/medical in it")
    return folder


def pubmedqa(folder: Path) -> tuple[Rows, Rows]:
    """Question and abstract; ``final_decision`` is the label."""
    records = json.loads((folder / "pubmedqa_pqal/ori_pqal.json").read_text("utf-8"))
    tested = json.loads((folder / "pubmedqa_pqal/test_ground_truth.json").read_text("utf-8"))
    rows = {
        key: {
            "text": f"{one['QUESTION']} {' '.join(reversed(one['CONTEXTS']))}",
            "label": one["final_decision"],
            "patient": key,
        }
        for key, one in records.items()
    }
    train = [row for key, row in rows.items() if key not in tested]
    return train, [row for key, row in rows.items() if key in tested]


def mts_dialog(folder: Path) -> tuple[Rows, Rows]:
    """Conversation and section header."""

    def of(*names: str) -> Rows:
        rows = []
        for name in names:
            path = folder / "mts_dialog" / f"MTS-Dialog-{name}.csv"
            with path.open(encoding="utf-8-sig", newline="") as file:
                for one in csv.DictReader(file):
                    label = one["section_header"].strip().upper()
                    patient = f"{name}-{one['ID']}"
                    rows.append({"text": one["dialogue"], "label": label, "patient": patient})
        return rows

    tests = ("TestSet-1-MEDIQA-Chat-2023", "TestSet-2-MEDIQA-Sum-2023")
    return of("TrainingSet", "ValidationSet"), of(*tests)


def medquad(folder: Path) -> tuple[Rows, Rows]:
    """Answer and type of its question, of the eight types that occur most."""
    found: list[tuple[str, str, str]] = []
    with tarfile.open(folder / "medquad/medquad_xml.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".xml") else None
            if file is None:
                continue
            document = Xml.fromstring(file.read())  # noqa: S314 - a published collection
            focus = (document.findtext("Focus") or "").strip().lower() or member.name
            for pair in document.iter("QAPair"):
                question, answer = pair.find("Question"), (pair.findtext("Answer") or "").strip()
                if question is not None and answer:
                    found.append((focus, answer, question.get("qtype", "")))
    kinds = {kind for kind, _ in Counter(kind for _, _, kind in found).most_common(8)}
    split: tuple[Rows, Rows] = ([], [])
    for focus, answer, kind in found:
        if kind in kinds:
            tested = hashlib.sha256(focus.encode()).digest()[0] < 0.15 * 256
            split[tested].append({"text": answer, "label": kind, "patient": focus})
    return split


def jsonl(folder: Path) -> tuple[Rows, Rows]:
    """Training and test rows of a folder of one's own."""

    def of(name: str) -> Rows:
        lines = (folder / name).read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return [
            {
                "text": str(row["text"]),
                "label": str(row["label"]),
                "patient": str(row.get("patient", number)),
            }
            for number, row in enumerate(rows)
        ]

    return of("train.jsonl"), of("test.jsonl")


def found_in(folder: Path) -> dict[str, Callable[[], tuple[Rows, Rows]]]:
    """Collections of a folder by name, each to be read when it is asked for."""

    def reading(reader: Reader, at: Path) -> Callable[[], tuple[Rows, Rows]]:
        return lambda: reader(at)

    known = {"pubmedqa_pqal": pubmedqa, "mts_dialog": mts_dialog, "medquad": medquad}
    found = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if path.name in known:
            found[path.name] = reading(known[path.name], folder)
        elif (path / "train.jsonl").is_file() and (path / "test.jsonl").is_file():
            found[path.name] = reading(jsonl, path)
    return found
