"""What a run log may say of rounds, and everything it may not."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.clock import to_rfc3339
from sealtrain.manifest.checks.collaborations.federated import FederatedTerms, check_rounds
from sealtrain.manifest.errors import ClaimContradicted

pytestmark = pytest.mark.claim("C76")

BEGAN = 1_790_000_000
PARTIES = ("clinic-a", "clinic-b", "clinic-c")
Entries = list[dict[str, Any]]


def digest(number: int) -> str:
    return f"{number:064x}"


def taken(number: int, party: str, records: int | None = 10) -> tuple[str, dict[str, Any]]:
    return "update.taken", {
        "round": number, "party": party, "digest": digest(100 * number + len(party)),
        "records": records, "norm": 1.5,
    }  # fmt: skip


def merged(number: int, *parties: str) -> tuple[str, dict[str, Any]]:
    return "round.merged", {
        "round": number, "rule": "exact", "parties": list(parties), "state": digest(number),
    }  # fmt: skip


def good() -> Entries:
    """Three parties; the third drops out in the second round and comes again for the third."""
    told: list[tuple[str, dict[str, Any]]] = [
        ("run.started", {"phase": "classify"}),
        ("federation.begun", {
            "rule": "exact", "rounds": 3, "min_parties": 2, "parties": list(PARTIES),
            "state": digest(0),
        }),
        *(("party.joined", {"party": party, "records": 10}) for party in PARTIES),
        ("party.refused", {"code": "compose-hash-mismatch"}),
        ("round.begun", {"round": 1, "state": digest(0)}),
        *(taken(1, party) for party in PARTIES),
        merged(1, *PARTIES),
        ("round.begun", {"round": 2, "state": digest(1)}),
        ("party.left", {"party": "clinic-c", "code": "peer-unreachable"}),
        *(taken(2, party) for party in PARTIES[:2]),
        merged(2, *PARTIES[:2]),
        ("round.begun", {"round": 3, "state": digest(2)}),
        ("party.joined", {"party": "clinic-c", "records": 10}),
        ("update.refused", {"round": 3, "party": "clinic-a", "code": "update-refused"}),
        *(taken(3, party) for party in PARTIES[1:]),
        merged(3, *PARTIES[1:]),
        ("federation.finished", {"rounds": 3, "state": digest(3)}),
        ("training.finished", {"steps": 60}),
    ]  # fmt: skip
    return [
        {"seq": place + 1, "at": to_rfc3339(BEGAN + place), "event": event, "fields": fields}
        for place, (event, fields) in enumerate(told)
    ]


def terms(**changed: Any) -> FederatedTerms:
    fields: dict[str, Any] = {
        "rule": "exact",
        "rounds": 3,
        "min_parties": 2,
        "holders": PARTIES,
        "records": dict.fromkeys(PARTIES, 10),
        "windows": dict.fromkeys(PARTIES, (BEGAN, BEGAN + 60)),
    }
    return FederatedTerms(**fields | changed)


def at(entries: Entries, event: str, nth: int = 0) -> dict[str, Any]:
    return [entry for entry in entries if entry["event"] == event][nth]


def fields(entries: Entries, event: str, nth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = at(entries, event, nth)["fields"]
    return found


def drop(event: str, nth: int = 0) -> Callable[[Entries], None]:
    return lambda entries: entries.remove(at(entries, event, nth))


def again(event: str, nth: int = 0) -> Callable[[Entries], None]:
    def twice(entries: Entries) -> None:
        one = at(entries, event, nth)
        entries.insert(entries.index(one), deepcopy(one))

    return twice


def put(event: str, nth: int = 0, **changed: Any) -> Callable[[Entries], None]:
    return lambda entries: fields(entries, event, nth).update(changed)


def unknown(entries: Entries) -> None:
    at(entries, "party.left")["event"] = "party.bribed"


def much_later(entries: Entries) -> None:
    at(entries, "update.taken", 6)["at"] = to_rfc3339(BEGAN + 10_000)


def test_a_log_that_holds_together_is_summed_up() -> None:
    found = check_rounds(good(), terms())
    assert found.merged == (PARTIES, PARTIES[:2], PARTIES[1:])
    assert (found.refused, found.left, found.state) == (1, 1, digest(3))


def test_a_party_whose_owner_keeps_the_number_gives_none() -> None:
    entries = good()
    for entry in entries:  # of the one that drops out
        if entry["fields"].get("party") == "clinic-c" and "records" in entry["fields"]:
            entry["fields"]["records"] = None
    records = {**dict.fromkeys(PARTIES, 10), "clinic-c": None}
    assert check_rounds(entries, terms(records=records)).left == 1
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 5")):
        check_rounds(entries, terms())
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 5")):
        check_rounds(good(), terms(records=records))


@pytest.mark.parametrize(
    ("change", "where", "field"),
    [
        (drop("federation.begun"), "run log entry 3", "event"),
        (again("federation.begun"), "run log entry 2", "event"),
        (drop("federation.finished"), "rounds", None),
        (again("federation.finished"), "run log entry 23", "event"),
        (put("federation.begun", rule="fedavg"), "run log entry 2", None),
        (put("federation.begun", min_parties=1), "run log entry 2", None),
        (put("federation.begun", parties=["clinic-a"]), "run log entry 2", None),
        (put("federation.begun", state=digest(9)), "run log entry 7", "state"),
        (drop("party.joined"), "run log entry 8", "records"),
        (again("party.joined"), "run log entry 3", "party"),
        (put("party.joined", 2, party="stranger"), "run log entry 5", "party"),
        (put("party.joined", records=1000), "run log entry 3", "records"),
        (drop("party.left"), "run log entry 18", "party"),
        (again("party.left"), "run log entry 13", "party"),
        (unknown, "run log entry 13", "event"),
        (drop("round.begun"), "run log entry 8", "round"),
        (again("round.begun"), "run log entry 7", "round"),
        (put("round.begun", 1, round=3), "run log entry 12", "round"),
        (put("round.begun", 1, state=digest(0)), "run log entry 12", "state"),
        (drop("update.taken"), "run log entry 11", "parties"),
        (again("update.taken"), "run log entry 8", "party"),
        (put("update.taken", 3, round=1), "run log entry 14", "round"),
        (put("update.taken", 4, party="clinic-c"), "run log entry 15", "records"),
        (put("update.taken", records=11), "run log entry 8", "records"),
        (put("update.taken", norm=-1.0), "run log entry 8", "norm"),
        (put("update.taken", digest="00"), "run log entry 8", "digest"),
        (put("update.taken", digest=None), "run log entry 8", "norm"),
        (put("update.taken", norm=None), "run log entry 8", "norm"),
        (much_later, "run log entry 21", "at"),
        (put("update.refused", party="stranger"), "run log entry 19", "party"),
        (put("update.refused", round=4), "run log entry 19", "party"),
        (drop("round.merged"), "run log entry 12", "round"),
        (again("round.merged"), "run log entry 11", "round"),
        (put("round.merged", rule="fedavg"), "run log entry 11", "round"),
        (put("round.merged", masked={"opened_by": 3}), "run log entry 11", "masked"),
        (put("round.merged", 1, parties=list(PARTIES)), "run log entry 16", "parties"),
        (put("round.merged", 2, state=digest(8)), "run log entry 23", "state"),
        (put("federation.finished", rounds=2), "run log entry 23", "rounds"),
    ],
)
def test_a_log_that_does_not_is_refused(
    change: Callable[[Entries], None], where: str, field: str | None
) -> None:
    entries = good()
    change(entries)
    with pytest.raises(ClaimContradicted, check=carries(field=field)) as caught:
        check_rounds(entries, terms())
    assert (caught.value.got or caught.value.check) == where


def test_a_round_of_too_few_is_refused() -> None:
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 2")):
        check_rounds(good(), terms(min_parties=3))
    entries = good()
    fields(entries, "federation.begun")["min_parties"] = 3
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 16")):
        check_rounds(entries, terms(min_parties=3))


def test_the_manifest_names_those_who_took_part_and_nobody_else() -> None:
    windows = dict.fromkeys((*PARTIES, "clinic-d"), (BEGAN, BEGAN + 60))
    with pytest.raises(
        ClaimContradicted,
        check=carries(check="rounds", got="clinic-a, clinic-b, clinic-c, clinic-d"),
    ):
        check_rounds(good(), terms(windows=windows))
    with pytest.raises(ClaimContradicted, check=carries(check="rounds", got="run log entry 10")):
        check_rounds(good(), terms(windows=dict.fromkeys(PARTIES[:2], (BEGAN, BEGAN + 60))))
