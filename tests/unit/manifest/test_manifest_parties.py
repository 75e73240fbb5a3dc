"""What readers of a joint run are told: in the report, the card and the summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from manifest_world import NOW, RELEASED, RUN_ID, World, make_joint, make_world, party_receipt
from world import OWNERS

from sealtrain.base.clock import to_rfc3339
from sealtrain.manifest.checks.collaboration import RULES
from sealtrain.manifest.checks.parties import stays_of
from sealtrain.manifest.condense import select_releases
from sealtrain.manifest.exports.model_card import model_card
from sealtrain.manifest.exports.model_facts import model_facts_of
from sealtrain.manifest.exports.training_summary import training_summary
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import Report, examine
from sealtrain.signing.parties import party_run_id


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_joint(tmp_path_factory.mktemp("joint"))


@pytest.fixture
def report(world: World, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setitem(RULES, "federated", lambda _case: "rounds hold")
    return examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW)


def test_the_page_lists_every_party_and_what_was_recorded(report: Report) -> None:
    page = render(report)
    assert "Training together" in page
    assert all(party_run_id(RUN_ID, name) in page for name in OWNERS)
    assert "Events in the run log: keys 1, run 1, training 1." in page


@pytest.mark.parametrize("export", [model_card, training_summary])
def test_card_and_summary_say_that_parties_trained_together(
    report: Report, export: Callable[..., bytes]
) -> None:
    text = export(model_facts_of(report)).decode().replace("\\", "")
    assert "merged their updates" in text
    assert f"Parties: {', '.join(OWNERS)}." in text


def test_records_were_in_clear_where_the_kind_says(report: Report) -> None:
    facts = model_facts_of(report)
    assert facts.decrypted.endswith("in the memory of their owners' guests only.")


def test_a_run_of_one_guest_has_one_stay_and_no_such_section(tmp_path: Path) -> None:
    alone = make_world(tmp_path)
    found = examine(alone.manifest(), alone.trust(), artefacts=alone.artefacts, now=NOW)
    assert "Training together" not in render(found)
    facts = model_facts_of(found)
    assert facts.collaboration is None
    assert facts.decrypted.endswith("in the memory of a guest only.")
    assert [run.run_id for run in stays_of(facts.predicate)] == [RUN_ID]


def test_a_predicate_without_parties_is_spelled_as_it_always_was(tmp_path: Path) -> None:
    document = make_world(tmp_path).predicate()
    predicate = Predicate.model_validate_json(json.dumps(document))
    assert "collaboration" not in predicate.to_dict()


def test_renewals_are_left_out_of_each_partys_chain_by_itself(world: World) -> None:
    """Two parties renew at the same broker in turn; each keeps its release and last renewal."""
    first = [party_receipt(world, name) for name in OWNERS[:2]]
    renewals = [
        party_receipt(
            world,
            name,
            kind="renewal",
            datasets=(),
            released_at=to_rfc3339(RELEASED + 60 * turn),
        )
        for turn in (1, 2, 3)
        for name in OWNERS[:2]
    ]
    listed = world.record(*first, *renewals)
    kept = select_releases(listed)
    assert kept == [*listed[:2], *listed[-2:]]
