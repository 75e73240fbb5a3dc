"""Medical text to classify, read from a folder that holds collections as they are published.

==================  ==============================================================================
``pubmedqa_pair``   PubMedQA: question and abstract as a pair, to yes, no or maybe; the authors'
                    test records
``pubmedqa_long``   the same question with its long answer, the authors' reasoning-free setting
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
from functools import partial
from pathlib import Path
from typing import Any

from measured_on import give_up

Rows = list[dict[str, str]]
Read = Callable[[], tuple[Rows, Rows]]

_PAIR = " [SEP] "
"""The tokenizer reads it as the token that ends the first text of a pair."""


def folder_of() -> Path:
    """The medical collections beside the repository, or under ``SEALTRAIN_SHARED``."""
    root = Path(__file__).resolve().parents[1]
    folder = root / os.environ.get("SEALTRAIN_SHARED", "../shared") / "data" / "medical"
    if not folder.is_dir():
        give_up("medical collections: SEALTRAIN_SHARED names no folder with data/medical in it")
    return folder


def pubmedqa(folder: Path) -> tuple[Rows, Rows]:
    """Question and abstract in one text; ``final_decision`` is the label."""
    return _pubmedqa(folder, lambda one: f"{one['QUESTION']} {_abstract(one)}")


def pubmedqa_pair(folder: Path) -> tuple[Rows, Rows]:
    """Question and abstract, with the separator of a pair between them."""
    return _pubmedqa(folder, lambda one: one["QUESTION"] + _PAIR + _abstract(one))


def pubmedqa_long(folder: Path) -> tuple[Rows, Rows]:
    """Question and long answer, with the separator of a pair between them."""
    return _pubmedqa(folder, lambda one: one["QUESTION"] + _PAIR + one["LONG_ANSWER"])


def _abstract(record: dict[str, Any]) -> str:
    """The last section first: a text is cut at its end, and that section tells the result."""
    return " ".join(reversed(record["CONTEXTS"]))


def _pubmedqa(folder: Path, text: Callable[[dict[str, Any]], str]) -> tuple[Rows, Rows]:
    records = json.loads((folder / "pubmedqa_pqal/ori_pqal.json").read_text("utf-8"))
    tested = json.loads((folder / "pubmedqa_pqal/test_ground_truth.json").read_text("utf-8"))
    rows = {
        key: {"text": text(record), "label": record["final_decision"], "patient": key}
        for key, record in records.items()
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
                for row in csv.DictReader(file):
                    label = row["section_header"].strip().upper()
                    patient = f"{name}-{row['ID']}"
                    rows.append({"text": row["dialogue"], "label": label, "patient": patient})
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
                "patient": str(row.get("patient", f"{name}:{number}")),
            }
            for number, row in enumerate(rows)
        ]

    return of("train.jsonl"), of("test.jsonl")


def found_in(folder: Path) -> dict[str, Read]:
    """Collections of a folder by name, each to be read when it is asked for.

    Args:
        folder: Holds a folder for each collection.
    """
    known: dict[str, dict[str, Callable[[Path], tuple[Rows, Rows]]]] = {
        "pubmedqa_pqal": {"pubmedqa_pair": pubmedqa_pair, "pubmedqa_long": pubmedqa_long},
        "mts_dialog": {"mts_dialog": mts_dialog},
        "medquad": {"medquad": medquad},
    }
    found: dict[str, Read] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if path.name in known:
            readers = known[path.name].items()
            found |= {name: partial(reader, folder) for name, reader in readers}
        elif (path / "train.jsonl").is_file() and (path / "test.jsonl").is_file():
            found[path.name] = partial(jsonl, path)
    return found
