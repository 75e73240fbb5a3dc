"""A chain of manifests with a link swapped, left out, repeated or forked is no chain."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from linked_runs import chained, linked_world, reports_of, run_of
from manifest_world import START, World
from world import DAY, RECIPE, digest, signer

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.errors import Refused, RunChainBroken
from sealtrain.manifest.chain import verify_chain
from sealtrain.manifest.chainledger import Recorded, require_whole
from sealtrain.manifest.verify import Report
from sealtrain.recipe.duetimes import name_of
from sealtrain.recipe.schedule import Schedule
from sealtrain.signing.dsse import sign

pytestmark = pytest.mark.claim("C193")
DAYS = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return linked_world(tmp_path_factory.mktemp("linked"))


@pytest.fixture(scope="module")
def manifests(world: World) -> list[bytes]:
    return chained(world, DAYS)


def test_a_whole_chain_holds_in_any_order(world: World, manifests: list[bytes]) -> None:
    chain = verify_chain(reports_of(world, manifests[::-1]))
    assert [link.number for link in chain.links] == [1, 2, 3, 4, 5]
    assert [link.run_id for link in chain.links] == [run_of(day) for day in range(1, DAYS + 1)]
    assert chain.head.digest == sha256_hex(manifests[-1])
    assert all(approval.epsilon is None and approval.runs == DAYS for approval in chain.spent)


@pytest.mark.parametrize("missing", range(DAYS - 1))
def test_a_link_that_is_left_out_is_missed(
    world: World, manifests: list[bytes], missing: int
) -> None:
    rest = manifests[:missing] + manifests[missing + 1 :]
    with pytest.raises(RunChainBroken, check=carries(check="number")):
        verify_chain(reports_of(world, rest))


def test_a_link_that_is_given_twice_is_refused(world: World, manifests: list[bytes]) -> None:
    with pytest.raises(RunChainBroken, check=carries(check="manifest twice")):
        verify_chain(reports_of(world, [*manifests, manifests[2]]))


def test_a_swapped_link_is_refused(world: World, manifests: list[bytes]) -> None:
    """Another genuine run in the place of the third: the fourth names the third's digest."""

    def another(facts: dict[str, Any]) -> None:
        facts["run"]["metrics"]["loss"] = 0.5

    other = chained(world, 3, {3: another})[2]
    swapped = [*manifests[:2], other, *manifests[3:]]
    with pytest.raises(RunChainBroken, check=carries(check="predecessor")):
        verify_chain(reports_of(world, swapped))


def test_a_fork_is_refused(world: World, manifests: list[bytes]) -> None:
    def another(facts: dict[str, Any]) -> None:
        facts["run"]["metrics"]["loss"] = 0.5

    other = chained(world, 5, {5: another})[4]
    with pytest.raises(RunChainBroken, check=carries(check="run twice")):
        verify_chain(reports_of(world, [*manifests, other]))


def test_a_number_that_is_made_up_is_refused(world: World) -> None:
    def leap(facts: dict[str, Any]) -> None:
        facts["continues"]["number"] = 7

    with pytest.raises(RunChainBroken, check=carries(check="number")):
        verify_chain(reports_of(world, chained(world, 3, {3: leap})))


def test_a_first_run_that_follows_another_is_no_beginning(
    world: World, manifests: list[bytes]
) -> None:
    with pytest.raises(RunChainBroken, check=carries(check="number")):
        verify_chain(reports_of(world, manifests[1:]))


def test_a_run_that_began_before_the_one_that_it_follows_ended_is_refused(world: World) -> None:
    """Its ticket names a digest that did not exist when it began."""

    with pytest.raises(RunChainBroken, check=carries(check="order")):
        verify_chain(reports_of(world, chained(world, 2, every=60)))
    assert verify_chain(reports_of(world, chained(world, 2, every=3600))).head.number == 2


def test_a_manifest_that_does_not_hold_breaks_its_chain(
    world: World, manifests: list[bytes]
) -> None:
    broken = bytearray(manifests[3])
    broken[len(broken) // 2] ^= 1
    with pytest.raises(Refused) as caught:
        verify_chain(reports_of(world, [*manifests[:3], bytes(broken), manifests[4]]))
    assert not isinstance(caught.value, RunChainBroken)


def test_a_chain_of_two_recipes_is_none(
    world: World, manifests: list[bytes], tmp_path: Path
) -> None:
    other = linked_world(tmp_path, description="another")
    foreign = reports_of(other, chained(other, 2))
    with pytest.raises(RunChainBroken, check=carries(check="recipe")):
        verify_chain([*reports_of(world, manifests[:1]), foreign[1]])


def test_a_manifest_without_a_predecessor_has_the_bytes_that_it_had(manifests: list[bytes]) -> None:
    payload = json.loads(manifests[0])["bundle"]["dsseEnvelope"]["payload"]
    assert "continues" not in json.loads(base64.b64decode(payload))["predicate"]


# With the ledger

FIRST = START - START % 60
SCHEDULE = Schedule.model_validate(
    {
        "when": "cron",
        "cron": datetime.fromtimestamp(FIRST, UTC).strftime("%-M %-H * * *"),
        "continue": "base",
        "runs": 9,
        "starts_at": to_rfc3339(FIRST),
        "ends_at": to_rfc3339(FIRST + 9 * DAY),
    }
)


def recorded(world: World, manifests: list[bytes], *, without: int | None = None) -> Recorded:
    """The ledger of the chain, in which day 3 was skipped and the run of day 4 is the third."""
    found = Recorded(world.locked.recipe_hash)
    before: str | None = None
    number = 0
    for day in range(1, len(manifests) + 2):
        name = name_of(world.locked.recipe_hash, FIRST + (day - 1) * DAY)
        submission = digest(f"submission {day}", 16)
        if day == without:
            continue
        found.entry(
            0,
            entry(
                "submission",
                submission_id=submission,
                name=name,
                recipe_hash=world.locked.recipe_hash,
            ),
        )
        if day == 3:
            found.entry(0, event(submission, "claimed"))
            found.entry(0, event(submission, "skipped", code="approvals-missing"))
            continue
        number += 1
        mine = sha256_hex(manifests[number - 1])
        continues = {} if before is None else {"continues": {"manifest_digest": before}}
        found.entry(0, event(submission, "started", run_id=run_of(number)))
        found.entry(0, entry("manifest", run_id=run_of(number), manifest_digest=mine, **continues))
        found.entry(0, event(submission, "completed", run_id=run_of(number)))
        before = mine
    return found


def entry(kind: str, **body: Any) -> dict[str, Any]:
    return {"kind": kind, "at": to_rfc3339(START), "body": body}


def event(submission: str, name: str, **more: Any) -> dict[str, Any]:
    body = {"code": None, "run_id": None} | more
    return entry("run-event", submission_id=submission, event=name, **body)


def test_the_ledger_says_how_each_due_time_ended(world: World, manifests: list[bytes]) -> None:
    chain = verify_chain(reports_of(world, manifests))
    dues = require_whole(chain, recorded(world, manifests), SCHEDULE)
    assert [(due.state, due.code, due.number) for due in dues] == [
        ("completed", None, 1),
        ("completed", None, 2),
        ("skipped", "approvals-missing", None),
        ("completed", None, 3),
        ("completed", None, 4),
        ("completed", None, 5),
    ]


@pytest.mark.parametrize(
    ("later", "state"), [(DAY - 1, "open"), (DAY, "open"), (DAY + 1, "expired")]
)
def test_a_due_time_that_no_runner_claimed_in_time_has_expired(
    world: World, manifests: list[bytes], later: int, state: str
) -> None:
    """By the times of the ledger's entries, and not by the reader's clock."""
    chain = verify_chain(reports_of(world, manifests))
    ledger = recorded(world, manifests)
    document = canonical_json({"not_after": to_rfc3339(START + DAY)})
    envelope = sign(document, "application/vnd.sealtrain.submission+json", signer("scheduler"))
    submission = digest("unclaimed", 16)
    name = name_of(world.locked.recipe_hash, FIRST + 6 * DAY)
    told = {"submission_id": submission, "name": name, "recipe_hash": world.locked.recipe_hash}
    ledger.entry(0, entry("submission", **told, envelope=envelope.to_dict()))
    ledger.entry(0, {"kind": "boot", "at": to_rfc3339(START + later), "body": {}})
    assert require_whole(chain, ledger, SCHEDULE)[-1].state == state
    ledger.entry(0, event(submission, "claimed"))
    assert require_whole(chain, ledger, SCHEDULE)[-1].state == "open"


def test_the_newest_run_cannot_be_left_out_beside_a_ledger(
    world: World, manifests: list[bytes]
) -> None:
    chain = verify_chain(reports_of(world, manifests[:-1]))
    with pytest.raises(RunChainBroken, check=carries(check="left out")):
        require_whole(chain, recorded(world, manifests), SCHEDULE)


def test_a_due_time_that_was_passed_over_in_silence_is_found(
    world: World, manifests: list[bytes]
) -> None:
    chain = verify_chain(reports_of(world, manifests))
    with pytest.raises(RunChainBroken, check=carries(check="due time")):
        require_whole(chain, recorded(world, manifests, without=3), SCHEDULE)


FRESH = Schedule.model_validate(
    {
        "when": "new-data",
        "least_seconds": 3600,
        "continue": "base",
        "runs": 9,
        "starts_at": to_rfc3339(START),
        "ends_at": to_rfc3339(START + 9 * DAY),
    }
)
COMPOSE = digest("compose")


class ByData:
    """A ledger of a schedule that waits for data."""

    def __init__(self, world: World, manifests: list[bytes]) -> None:
        self.world, self.manifests = world, manifests
        self.found = Recorded(world.locked.recipe_hash)
        self.size = self.runs = 0

    def add(self, made: dict[str, Any]) -> None:
        self.found.entry(self.size, made)
        self.size += 1

    def register(self, at: int) -> None:
        self.add(entry("dataset", compose_hash=COMPOSE) | {"at": to_rfc3339(at)})

    def submit(self, due: int) -> str:
        submission = digest(f"submission {self.size}", 16)
        told = {"recipe_hash": self.world.locked.recipe_hash, "compose_hash": COMPOSE}
        name = name_of(self.world.locked.recipe_hash, due)
        self.add(entry("submission", submission_id=submission, name=name, **told))
        return submission

    def skip(self, due: int) -> None:
        submission = self.submit(due)
        self.add(event(submission, "skipped", code="dataset-withdrawn"))

    def run(self, due: int) -> None:
        submission = self.submit(due)
        mine = sha256_hex(self.manifests[self.runs])
        before = sha256_hex(self.manifests[self.runs - 1])
        continues = {"continues": {"manifest_digest": before}} if self.runs else {}
        self.runs += 1
        run_id = run_of(self.runs)
        self.add(entry("manifest", run_id=run_id, manifest_digest=mine, **continues))
        self.add(event(submission, "completed", run_id=run_id))

    def dues(self) -> list[tuple[str, int | None]]:
        chain = verify_chain(reports_of(self.world, self.manifests[: self.runs]))
        return [(due.state, due.number) for due in require_whole(chain, self.found, FRESH)]


@pytest.fixture
def by_data(world: World, manifests: list[bytes]) -> ByData:
    """One run, and then further data."""
    made = ByData(world, manifests)
    made.register(START - DAY)
    made.run(START)
    made.register(START + DAY)
    return made


@pytest.mark.claim("C232")
def test_each_due_time_of_new_data_is_the_one_that_the_ledger_makes(by_data: ByData) -> None:
    by_data.skip(START + DAY)
    by_data.skip(START + DAY + 3600)
    by_data.register(START + DAY + 7000)
    by_data.run(START + DAY + 7200)
    by_data.register(START + DAY + 7201)
    by_data.run(START + DAY + 10800)
    ends = [("completed", 1), ("skipped", None), ("skipped", None), ("completed", 2)]
    assert by_data.dues() == [*ends, ("completed", 3)]


@pytest.mark.claim("C232")
@pytest.mark.parametrize("later", [-1, 1, 3600, DAY])
def test_a_run_of_new_data_at_another_time_is_found(by_data: ByData, later: int) -> None:
    by_data.run(START + DAY + later)
    with pytest.raises(RunChainBroken, check=carries(check="due time")):
        by_data.dues()


@pytest.mark.claim("C232")
def test_a_run_without_new_data_is_found(by_data: ByData) -> None:
    by_data.run(START + DAY)
    by_data.run(START + 2 * DAY)
    with pytest.raises(RunChainBroken, check=carries(check="due time")):
        by_data.dues()


@pytest.mark.claim("C232")
def test_a_try_that_was_passed_over_in_silence_is_found(by_data: ByData) -> None:
    by_data.skip(START + DAY)
    by_data.run(START + DAY + 7200)
    with pytest.raises(RunChainBroken, check=carries(check="due time")):
        by_data.dues()


def test_a_run_that_no_broker_recorded_is_found(world: World, manifests: list[bytes]) -> None:
    chain = verify_chain(reports_of(world, manifests))
    ledger = recorded(world, manifests)
    del ledger.manifests[sha256_hex(manifests[2])]
    with pytest.raises(RunChainBroken, check=carries(check="not recorded")):
        require_whole(chain, ledger, SCHEDULE)


def test_epsilon_adds_up(tmp_path: Path) -> None:
    world = linked_world(
        tmp_path,
        privacy={
            "dp": "sgd",
            "target_epsilon": 2.0,
            "delta": 1e-5,
            "sampling": "poisson",
            "unit": "record",
            "budgets": {},
        },
        release_policy=RECIPE["release_policy"] | {"metrics": ["accuracy"]},
    )
    manifests = chained(world, 3, dict.fromkeys((1, 2, 3), private(world)))
    chain = verify_chain(reports_of(world, manifests))
    assert {
        (approval.owner, approval.name): approval.epsilon
        for approval in chain.spent
        if approval.epsilon
    } == {
        (dataset.owner, dataset.name): pytest.approx(4.5)
        for dataset in world.locked.lock.recipe.datasets
        if dataset.role == "train"
    }


def private(world: World) -> Any:
    def change(facts: dict[str, Any]) -> None:
        train = [
            dataset for dataset in world.locked.lock.recipe.datasets if dataset.role == "train"
        ]
        facts["run"]["metrics"] = {}
        facts["run"]["history"] = []
        facts["privacy"] = {
            "dp": "sgd",
            "epsilon": 1.5,
            "delta": 1e-5,
            "accountant": "prv",
            "noise_multiplier": 1.1,
            "max_grad_norm": 1.0,
            "sampling": "poisson",
            "unit": "record",
            "batch": 16,
            "steps": 300,
            "datasets": [
                {
                    "owner": source.owner,
                    "name": source.name,
                    "records": 152,
                    "sample_rate": 0.1,
                    "epsilon": 1.5,
                }
                for source in train
            ],
        }

    return change


# --- Series that grow ----------------------------------------------------------------------------


def reading(
    world: World, manifests: list[bytes], days: list[dict[int, str]], mode: str = "append"
) -> list[Report]:
    """Verified runs that read these members, number and id, of one owner's series."""
    found = []
    for report, members in zip(reports_of(world, manifests), days, strict=True):
        assert report.facts.datasets is not None
        first, *others = report.facts.datasets
        read = tuple(
            first.model_copy(
                update={
                    "dataset_id": digest(f"member {label}", 16),
                    "root": digest(f"root {label}"),
                    "series": SeriesBlock(
                        name=first.name,
                        number=number,
                        mode=mode,  # type: ignore[arg-type]
                        previous=None if number == 1 else digest(f"before {number}"),
                    ),
                }
            )
            for number, label in members.items()
        )
        facts = replace(report.facts, datasets=(*read, *others))
        found.append(replace(report, facts=facts))
    return found


GROWS = [{1: "a"}, {1: "a"}, {1: "a", 2: "b"}, {1: "a", 2: "b", 3: "c"}, {1: "a", 2: "b", 3: "c"}]


def test_a_series_that_is_appended_to_grows(world: World, manifests: list[bytes]) -> None:
    chain = verify_chain(reading(world, manifests, GROWS))
    assert [len(members) for link in chain.links for members in link.members.values()] == [
        1, 1, 2, 3, 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("day", "members", "check"),
    [
        (4, {1: "a", 2: "b"}, "series"),
        (4, {1: "a", 3: "c"}, "series"),
        (4, {}, "series"),
        (4, {1: "a", 2: "b", 3: "other"}, "series"),
        (2, {1: "z", 2: "b"}, "series"),
    ],
    ids=["newest left out", "one left out", "all left out", "newest swapped", "first swapped"],
)
def test_a_member_that_is_left_out_or_swapped_breaks_the_chain(
    world: World, manifests: list[bytes], day: int, members: dict[int, str], check: str
) -> None:
    days = [*GROWS[:day], members, *GROWS[day + 1 :]]
    with pytest.raises(RunChainBroken, check=carries(check=check)):
        verify_chain(reading(world, manifests, days))


def test_a_series_that_is_replaced_is_read_by_its_newest_member(
    world: World, manifests: list[bytes]
) -> None:
    days = [{1: "a"}, {2: "b"}, {2: "b"}, {3: "c"}, {5: "e"}]
    assert len(verify_chain(reading(world, manifests, days, "replace")).links) == DAYS


@pytest.mark.parametrize("last", [{4: "d"}, {}], ids=["a former state", "none"])
def test_a_former_state_of_a_series_that_is_replaced_breaks_the_chain(
    world: World, manifests: list[bytes], last: dict[int, str]
) -> None:
    days = [{1: "a"}, {2: "b"}, {2: "b"}, {5: "e"}, last]
    with pytest.raises(RunChainBroken, check=carries(check="series")):
        verify_chain(reading(world, manifests, days, "replace"))


def test_one_dataset_under_two_roots_breaks_the_chain(world: World, manifests: list[bytes]) -> None:
    found = reading(world, manifests, GROWS)
    facts = found[4].facts
    assert facts.datasets is not None
    swapped = facts.datasets[0].model_copy(update={"root": "ab" * 32})
    found[4] = replace(found[4], facts=replace(facts, datasets=(swapped, *facts.datasets[1:])))
    with pytest.raises(RunChainBroken, check=carries(check="dataset root")):
        verify_chain(found)


@pytest.mark.claim("C450")
def test_an_id_that_two_owners_use_breaks_no_chain(world: World, manifests: list[bytes]) -> None:
    found = reading(world, manifests, GROWS)
    facts = found[4].facts
    assert facts.datasets is not None
    one = facts.datasets[0]
    other = next(each.owner for each in facts.datasets if each.owner != one.owner)
    theirs = one.model_copy(update={"root": "ab" * 32, "owner": other})
    found[4] = replace(found[4], facts=replace(facts, datasets=(*facts.datasets, theirs)))
    assert len(verify_chain(found).links) == DAYS
