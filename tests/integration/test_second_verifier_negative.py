"""The numbered negative cases end in the JavaScript verifier as in ours, or it never sees them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from node_judges import judge
from second_verifier import counted

pytestmark = [pytest.mark.long, pytest.mark.claim("C239"), pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/second_negative.mjs"
PAGE = (ROOT / "docs/reference/negative-cases.md").read_text("utf-8")
CODES = {
    int(row[1]): set(re.findall(r"errors\.md#([a-z-]+)\)", row[2]))
    for row in re.finditer(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| [^|]*\|$", PAGE, re.MULTILINE)
}
UNSEEN = {
    int(number)
    for row in re.finditer(r"^\| ((?:\d+, )*\d+) \| [^|]+ \|$", PAGE, re.MULTILINE)
    for number in row[1].split(", ")
}
ASKED = (
    "tests/unit/attest",
    "tests/attack/test_tdx_negative.py",
    "tests/attack/test_nitro_forgery.py",
    "tests/attack/test_snp_forgery.py",
    "tests/attack/test_snp_versions.py",
    "tests/attack/test_nvidia_forgery.py",
    "tests/attack/test_nvidia_boards.py",
    "tests/attack/test_nvidia_collateral_forgery.py",
    "tests/attack/test_evidence_refusals.py",
    "tests/attack/test_rented_machines.py",
    "tests/attack/test_counted_records.py",
    "tests/attack/test_counts_of_parties.py",
    "tests/attack/test_cloud_machines.py",
    "tests/attack/test_enclaves_under_test_roots.py",
    "tests/attack/test_manifest_negative.py",
    "tests/attack/test_manifest_tampering.py",
    "tests/attack/test_auditors_path.py",
    "tests/attack/test_words_of_a_chain.py",
    "tests/attack/test_products_of_parties.py",
)
ELSEWHERE = {42, 51, 53, 101}
"""Cases of accelerators that ``test_second_verifier_accelerators`` plays with captured devices, and
of the rules of a cut run, which ``test_second_verifier`` plays."""
UNREAD = {"collateral-mismatch", "quote-invalid", "quote-root-untrusted"}
"""Which of these a quote with a certificate of another encoding ends in hangs on what of it is
read first. Both refuse it in check 4."""


def same(kind: str, ours: str | None, theirs: str | None) -> bool:
    """Ours may stop before what the second goes on to; it may lack the means for a file."""
    unread = kind == "quote" and {ours, theirs} <= UNREAD
    return ours in (theirs, None) or unread or (kind == "file" and theirs == "not-checked")


def test_the_page_names_each_case_once() -> None:
    assert sorted(CODES) == [*range(1, 97), 99, 100, 101, 105, 106, 119, 120, 121, 127]
    assert set(CODES) > UNSEEN
    assert not UNSEEN & ELSEWHERE


@pytest.mark.nightly
def test_every_case_that_it_can_see_ends_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [sys.executable, "-m", "pytest", "-q", "-m", "negative", "-p", "record_negative", *ASKED]
    done = subprocess.run(
        run,
        cwd=ROOT,
        env={
            **os.environ,
            "NEGATIVE_SEEN": str(tmp_path),
            "PYTHONPATH": str(ROOT / "tests/support"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    seen: list[dict[str, Any]] = [
        json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))
    ]
    answers = judge(DRIVER, map(json.dumps, seen), seconds=400)
    differ, played = [], defaultdict[int, Counter[str]](Counter)
    for question, theirs in zip(seen, answers, strict=True):
        ours = question["code"]
        if not same(question["kind"], ours, theirs):
            differ.append((question["kind"], question["numbers"], ours, theirs))
        for number in question["numbers"]:
            if theirs is not None and (theirs == ours or theirs in CODES[number]):
                played[number][theirs] += 1
    with capsys.disabled():
        print(f"\n{len(seen)} questions of {len(played)} cases, {len(differ)} disagreements")
    counted(f"questions of {len(played)} numbered negative cases", len(seen), len(differ))
    assert differ == []
    assert set(CODES) - set(played) - ELSEWHERE == UNSEEN
