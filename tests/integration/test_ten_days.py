"""Ten days of nightly runs, every part for real: it takes minutes, so the nightly run plays it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import sealtrain

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(3000),
    pytest.mark.claim("C195"),
]


def test_ten_days_end_as_their_owners_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "ten_days"))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    from run import EXPECTED, play  # type: ignore[import-not-found]

    table = play(tmp_path)
    ended = [EXPECTED[day] for day in range(1, 11)]
    assert [(row["state"], row["code"]) for row in table] == ended
    assert [row["day"] for row in table if row["killed"]] == [7]
    ledger = tmp_path / "broker" / "state" / "ledger.sqlite"
    trust = tmp_path / "trust.yaml"
    found = sealtrain.verify_chain([tmp_path / "runner"], trust, database=str(ledger))
    assert [(due.state, due.code) for due in found.due or ()] == ended
    assert found.chain.begins_with == "last"
    series = [share for share in found.chain.spent if share.name == "biopsies"]
    assert {member.runs for member in series} == {7}
