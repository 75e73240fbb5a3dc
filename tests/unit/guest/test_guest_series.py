"""A guest takes a series only whole, newest and within its owner's bounds."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from world import RECIPE, digest, founded, identity, lock_changed, signed_dataset

from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.errors import DatasetMismatch, SeriesMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series import chain_of, member_digest, newest_of
from sealtrain.consortium.series_block import SeriesBlock
from sealtrain.errors import SignatureInvalid
from sealtrain.guest.series import Chains, SeriesMembers, check_entries, check_opened, list_series
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.schema import PhaseRecipe, parse_recipe
from sealtrain.release.messages import EnvelopeDocument, ListedSeries
from sealtrain.sealing.index import schema_digest_of
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import broker_id

pytestmark = [pytest.mark.claim("C187"), pytest.mark.claim("C188")]

A, B = "hospital-a", "hospital-b"
NAME = "biopsies"
KEY = (A, NAME)
CONSORTIUM: Consortium = founded("two", (A, B), approve=1)
LOCKED: LockedRecipe = lock_changed(
    CONSORTIUM.consortium_id, (broker_id(identity(A).signer.public),)
)
COLUMNS = [pa.field("prompt", pa.string()), pa.field("completion", pa.string())]


def recipe() -> PhaseRecipe:
    found = copy.deepcopy(RECIPE)
    found["datasets"] = [{"owner": A, "series": NAME, "role": "train"}]
    found["release_policy"]["model"] = {"recipients": [A]}
    return parse_recipe(found)


def member(number: int, before: Envelope | None, *, signed_by: str = A, **changed: Any) -> Envelope:
    names = SeriesBlock.model_fields.keys()
    of_block = {name: changed.pop(name) for name in tuple(changed) if name in names}
    previous = None if before is None else member_digest(manifest_of(before))
    block = {"name": NAME, "number": number, "mode": "append", "previous": previous} | of_block
    own = {
        "dataset_id": digest(f"member {number}", 16),
        "root": digest(f"root {number}"),
        "records": 3,
        "schema_digest": schema_digest_of(pa.schema(COLUMNS)),
    }
    series = SeriesBlock.model_validate(block)
    return signed_dataset(
        LOCKED, A, NAME, sealed_at=1, series=series, signed_by=signed_by, **own | changed
    )


def manifest_of(envelope: Envelope) -> DatasetManifest:
    return DatasetManifest.from_bytes(envelope.payload)


def answer(*members: Envelope) -> tuple[ListedSeries, ...]:
    documents = tuple(EnvelopeDocument.of(member) for member in members)
    return (ListedSeries(owner=A, name=NAME, members=documents),)


def three() -> list[Envelope]:
    first = member(1, None)
    second = member(2, first)
    return [first, second, member(3, second)]


def chains(*members: Envelope) -> Chains:
    found = chain_of(manifest_of(member) for member in members)
    return Chains({KEY: SeriesMembers(members=found, envelopes=members)})


def test_the_longest_list_of_several_brokers_counts() -> None:
    first, second, third = three()
    found = list_series(
        [answer(first), answer(first, second, third), (), answer(first, second)],
        recipe(),
        CONSORTIUM,
    )
    assert [dataset.dataset_id for dataset in found.of[KEY].read] == [
        manifest_of(value).dataset_id for value in (first, second, third)
    ]
    assert found.until({KEY: 2}).of[KEY].members[-1] == manifest_of(second)


def test_lists_with_a_gap_a_fork_or_another_order_are_refused() -> None:
    first, second, third = three()
    fork = member(2, first, root=digest("another root"))
    for answers in (
        [answer(first, third)],
        [answer(second, third)],
        [answer(second, first)],
        [answer(first, second), answer(first, fork)],
        [answer(first, first)],
        [()],
        [],
    ):
        with pytest.raises(SeriesMismatch):
            list_series(answers, recipe(), CONSORTIUM)


def test_a_member_that_another_owner_signed_is_refused() -> None:
    first, second, _ = three()
    forged = second.to_dict() | {"signatures": first.to_dict()["signatures"]}
    with pytest.raises((SignatureInvalid, DatasetMismatch)):
        list_series([answer(first, Envelope.from_dict(forged))], recipe(), CONSORTIUM)
    with pytest.raises(DatasetMismatch):
        list_series([answer(first, member(2, first, signed_by=B))], recipe(), CONSORTIUM)


def grants(stated: Any, released: list[str], owner: str = A) -> Any:
    """Of one broker whose proven entry states these newest members."""
    body = {} if stated is None else {"series": stated}
    owner_id = identity(owner).public.owner_id
    listed = [SimpleNamespace(owner_id=owner_id, dataset_id=value) for value in released]
    receipt = SimpleNamespace(datasets=listed)
    first = SimpleNamespace(receipt=receipt, proof=SimpleNamespace(entry={"body": body}))
    return SimpleNamespace(held={"broker": SimpleNamespace(receipts=[first])})


def test_an_entry_that_states_another_newest_member_is_refused() -> None:
    first, second, third = three()
    shown, whole = chains(first, second), chains(first, second, third)
    released = [manifest_of(value).dataset_id for value in (first, second)]
    newest = newest_of(shown.of[KEY].members).to_dict()
    newer = newest_of(whole.of[KEY].members).to_dict()
    check_entries(grants([newest], released), shown)
    check_entries(grants(None, []), shown)  # another broker's data
    check_entries(grants(None, released, owner=B), shown)  # another owner's, of the same ids
    for stated in ([newer], None, [], "none", [newest | {"member": "00" * 32}]):
        with pytest.raises(SeriesMismatch):
            check_entries(grants(stated, released), shown)
    with pytest.raises(SeriesMismatch):
        check_entries(grants([newer], []), shown)


def opened(records: int = 3, columns: list[Any] = COLUMNS) -> Any:
    return SimpleNamespace(num_rows=records, schema=pa.schema(columns))


def check(bounds: dict[str, Any] | None, second: dict[str, Any], data: Any) -> None:
    begun = {} if bounds is None else {"bounds": bounds}
    first = member(1, None, **begun)
    last = member(2, first, **second)
    ids = [manifest_of(value).dataset_id for value in (first, last)]
    check_opened(chains(first, last), dict(zip(ids, [opened(), data], strict=True)))


def with_column(*, nullable: bool) -> list[Any]:
    return [*COLUMNS, pa.field("age", pa.int64(), nullable=nullable)]


def stating(columns: list[Any], records: int | None = 3) -> dict[str, Any]:
    return {"schema_digest": schema_digest_of(pa.schema(columns)), "records": records}


def test_opened_data_within_the_bounds_is_read() -> None:
    check(None, {}, opened())
    check({"min_growth": 3, "max_growth": 3, "schema": "same"}, {}, opened())
    wider = with_column(nullable=True)
    check({"schema": "nullable-columns"}, stating(wider), opened(columns=wider))
    check({"max_growth": 9}, {"records": None}, opened(9))


@pytest.mark.parametrize(
    ("bounds", "second", "data"),
    [
        (None, {}, opened(4)),
        ({"max_growth": 9}, {"records": None}, opened(10)),
        ({"min_growth": 2}, {"records": None}, opened(1)),
        ({"schema": "same"}, {}, opened(columns=with_column(nullable=True))),
        ({"schema": "nullable-columns"}, {}, opened(columns=with_column(nullable=True))),
        (
            {"schema": "nullable-columns"},
            stating(with_column(nullable=False)),
            opened(columns=with_column(nullable=False)),
        ),
        (
            {"schema": "nullable-columns"},
            stating(COLUMNS[:1]),
            opened(columns=COLUMNS[:1]),
        ),
        (
            {"schema": "nullable-columns"},
            stating(COLUMNS[::-1]),
            opened(columns=COLUMNS[::-1]),
        ),
    ],
)
def test_opened_data_beyond_the_bounds_is_not_read(
    bounds: dict[str, Any] | None, second: dict[str, Any], data: Any
) -> None:
    with pytest.raises(SeriesMismatch):
        check(bounds, second, data)
