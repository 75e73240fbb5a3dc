"""Owners without a TEE and a guest that is not to be trusted blindly: each refuses the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from carrying import carries
from channel_world import COMPOSE, NOW, guest, talking
from collecting import COLLECTING
from polling import wait_until
from world import digest, identity

from sealtrain.attest.errors import ComposeHashMismatch, QuoteRootUntrusted
from sealtrain.consortium.consents import Consent, ConsentedDataset, verify_consent
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.errors import DataInvalid, RunMismatch, SealtrainError, SignatureInvalid
from sealtrain.signing.dsse import Envelope
from sealtrain.training.errors import ChannelBroken, ChannelRefused, PeerUnreachable
from sealtrain_together.channel.proofs import ProveKey
from sealtrain_together.cut.messages import (
    Ask,
    BeginCut,
    NotedState,
    OwnerJoined,
    receive_message,
    send_message,
)
from sealtrain_together.cut.states import Note

if not COLLECTING:
    import torch
    from cut_world import RUN_ID, cut_recipe, own_dataset, site

    from sealtrain_together.cut.activations import Row

pytestmark = [
    pytest.mark.claim("C83"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures("one_thread"),
]

A, B = "hospital-a", "hospital-b"


@pytest.fixture(scope="module")
def recipe() -> Any:
    return cut_recipe()


@pytest.fixture(scope="module")
def expected(recipe: Any) -> Any:
    from pathlib import Path

    from sealtrain_together.cut.learning import Learning

    return Learning(recipe, Path()).expected


def consent(at: Any, owner: str, **changed: Any) -> Envelope:
    """A consent of an owner to the run, with changes."""
    datasets = [
        own_dataset(dataset).manifest for dataset in at.recipe.datasets if dataset.owner == owner
    ]
    values: dict[str, Any] = {
        "datasets": [
            ConsentedDataset(
                dataset_id=dataset.dataset_id, name=dataset.name, root=dataset.root, rows=40
            )
            for dataset in datasets
        ],
        "run_id": RUN_ID,
        "target": at.target,
        "consortium_id": at.consortium.consortium_id,
        "owner": identity(owner).public,
        "signed_at": NOW,
    }
    signer = changed.pop("signer", identity(owner).signer)
    return sign_owned(Consent.of(**values | changed), signer)


def joined(owner: str, envelope: Envelope, own: list[Any], **changed: Any) -> OwnerJoined:
    """An owner's word that it joins."""
    values: dict[str, Any] = {
        "owner": owner,
        "share": digest(f"share of {owner}"),
        "consent": envelope.to_dict(),
        "datasets": tuple(dataset.envelope for dataset in own),
        "counts": {dataset.manifest.dataset_id: None for dataset in own if dataset.counted},
    }
    return OwnerJoined(**values | changed)


def answered(at: Any, owner: str, envelope: Envelope, **changed: Any) -> Any:
    """What the server does about a consent; its next word."""
    with at.channel(owner) as channel:
        receive_message(channel, BeginCut)
        send_message(channel, NotedState())
        own = [own_dataset(dataset) for dataset in at.recipe.datasets if dataset.owner == owner]
        send_message(channel, joined(owner, envelope, own, **changed))
        return channel.receive(max_bytes=1 << 20)


@pytest.mark.parametrize(
    ("proof", "refusal"),
    [
        (guest(COMPOSE + b" "), ComposeHashMismatch),
        (guest(vendor="another vendor"), QuoteRootUntrusted),
        (ProveKey(identity(A).signer), ChannelRefused),
    ],
)
def test_an_owner_tells_nothing_to_a_guest_it_did_not_approve(
    recipe: Any, expected: Any, proof: Any, refusal: type[SealtrainError]
) -> None:
    with site(recipe, expected=expected, proof=proof) as at:
        client = at.client(A, reading=None)
        with pytest.raises(refusal):
            at.channel(A)
        assert client.sent == 0
        assert not at.clients.present


@pytest.mark.parametrize("field", ["compose_hash", "recipe_hash", "app_id", "run_id"])
def test_an_owner_leaves_a_guest_that_runs_something_else(
    recipe: Any, expected: Any, field: str
) -> None:
    """The channel's proof is of the deployment; what it runs there is said, and compared."""
    with site(recipe, expected=expected) as at, talking() as (mine, server):
        client = at.client(A, reading=None, note=Note(run_id=RUN_ID))
        begin = BeginCut(run_id=RUN_ID, **at.target.to_dict()).to_dict()
        told = begin | {field: digest(field)[: len(begin[field])]}
        send_message(server, BeginCut(**told))
        with pytest.raises(RunMismatch):
            client.serve(mine)
        assert client.sent == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"proof": ProveKey(identity("somebody").signer)},
        {"proof": ProveKey(identity(B).signer)},
        {"context": {"owner": "somebody", "recipe_hash": digest("recipe")}},
        {"context": {"owner": A, "recipe_hash": digest("another recipe")}},
        {"context": {"owner": A}},
    ],
)
def test_nobody_joins_under_the_name_of_another(
    recipe: Any, expected: Any, changed: dict[str, Any]
) -> None:
    with site(recipe, expected=expected) as at:
        # Closed without a word of the run.
        with pytest.raises((ChannelBroken, PeerUnreachable)), at.channel(A, **changed) as channel:
            receive_message(channel, BeginCut)
        assert not at.clients.present


def test_a_consent_counts_for_one_run_of_one_recipe_by_its_owner(
    recipe: Any, expected: Any
) -> None:
    with site(recipe, expected=expected) as at:
        other = replace(at.target, recipe_hash=digest("another recipe"))
        redeployed = replace(at.target, compose_hash=digest("another deployment"))
        one = own_dataset(recipe.datasets[0]).manifest
        row: dict[str, Any] = {
            "dataset_id": one.dataset_id,
            "name": one.name,
            "root": one.root,
            "rows": 40,
        }
        bad: list[Envelope] = [
            consent(at, A, run_id="77" * 16),
            consent(at, A, target=other),
            consent(at, A, target=redeployed),
            consent(at, A, signer=identity(B).signer),
            consent(at, B),  # replayed under another name
            consent(at, A, consortium_id=digest("another consortium")),
            consent(at, A, datasets=[ConsentedDataset(**row)]),  # not all the recipe names
            consent(at, A, datasets=[ConsentedDataset(**row | {"root": digest("older")})]),
        ]
        forged = consent(at, A).to_dict()
        forged["payload"] = consent(at, A).to_dict()["payload"]
        bad.append(Envelope.from_dict(forged))
        for envelope in bad:
            with pytest.raises((ChannelBroken, PeerUnreachable)):
                answered(at, A, envelope)
            assert not at.clients.present
        with pytest.raises(RunMismatch):
            verify_consent(bad[0], at.consortium, run_id=RUN_ID, target=at.target)
        with pytest.raises(SignatureInvalid):
            verify_consent(bad[-1], at.consortium, run_id=RUN_ID, target=at.target)


@pytest.mark.parametrize("lie", ["noise", "label", "fewer"])
def test_records_that_are_none_stop_the_run(recipe: Any, expected: Any, lie: str) -> None:
    with site(recipe, expected=expected) as at:
        honest = at.client(A).reading

        class Lying:
            def rows(self, records: Any) -> list[Row]:
                rows = honest.rows(records)
                if lie == "noise":
                    return [
                        replace(row, scales=torch.full((len(row.values),), float("nan")))
                        for row in rows
                    ]
                if lie == "label":
                    return [replace(row, labels=torch.tensor(2)) for row in rows]
                return rows[:-1]

        at.joining(at.client(A, reading=Lying()), at.client(B, reading=honest))
        at.clients.wait_for_all(within=60)
        with pytest.raises(DataInvalid, check=carries(check="activations")):
            at.clients.sources()[0].dataset.batch(0)


def test_an_owner_cannot_change_what_it_sent(recipe: Any, expected: Any) -> None:
    """Else it could train the model on one thing and leave another in the record."""
    with site(recipe, expected=expected, kept_bytes=0) as at:
        honest = at.client(A).reading
        swapped: list[int] = []

        class Swapping:
            def rows(self, records: list[Any]) -> list[Row]:
                swapped.append(len(records))
                return honest.rows(records[:: 1 if len(swapped) == 1 else -1])

        at.joining(at.client(A, reading=Swapping(), kept_bytes=0), at.client(B, reading=honest))
        at.clients.wait_for_all(within=60)
        records = at.clients.sources()[0].dataset
        records.batch(0)
        with pytest.raises(DatasetMismatch, check=carries(check="activations")):
            records.batch(0)
        assert len(swapped) == 2


PARTS = {"whole": 30, "truncated": 10, "filtered": 0, "empty": 0}
HONEST = {"records": 40, **PARTS}


def open_recipe(recipe: Any) -> Any:
    """The recipe, with counts that may leave."""
    policy = recipe.release_policy.model_copy(update={"logs": "structured"})
    return recipe.model_copy(update={"release_policy": policy})


@pytest.mark.claim("C616")
@pytest.mark.negative(101)
@pytest.mark.parametrize(
    ("public", "lie"),
    [
        (True, None),
        (True, {}),
        (True, {"train": None}),
        (True, {"train": HONEST | {"whole": 29, "empty": 1}}),
        (True, {"train": HONEST | {"whole": 31, "records": 41}}),
        (True, {"train": HONEST, "another": HONEST}),
        (False, {"train": HONEST}),
    ],
)
def test_a_server_trains_on_no_records_that_are_counted_falsely(
    recipe: Any, expected: Any, public: bool, lie: dict[str, Any] | None
) -> None:
    recipe = open_recipe(recipe) if public else recipe
    with site(recipe, expected=expected) as at:
        own = [own_dataset(dataset) for dataset in recipe.datasets if dataset.owner == A]
        ids = {"train": next(dataset.manifest.dataset_id for dataset in own if dataset.counted)}
        honest = {ids["train"]: HONEST if public else None}
        lied = None if lie is None else {ids.get(name, "ab" * 16): lie[name] for name in lie}
        with pytest.raises((ChannelBroken, PeerUnreachable)):
            answered(at, A, consent(at, A), counts=lied)
        assert A not in at.clients.present
        with at.channel(A) as channel:
            receive_message(channel, BeginCut)
            send_message(channel, NotedState())
            send_message(channel, joined(A, consent(at, A), own, counts=honest))
            wait_until(lambda: A in at.clients.present, 10)


def test_a_server_gets_no_records_that_were_not_consented_to(recipe: Any, expected: Any) -> None:
    """A server with a program of its own."""
    with site(recipe, expected=expected) as at, talking() as (mine, server):
        client = at.client(A)
        send_message(server, BeginCut(run_id=RUN_ID, **at.target.to_dict()))
        another = digest("dataset of another", 16)
        send_message(server, Ask(kind="records", dataset_id=another, number=0))
        with pytest.raises(ChannelBroken, check=carries(check="cut")):
            client.serve(mine)
        assert receive_message(server, NotedState).sealed is None
        assert receive_message(server, OwnerJoined).owner == A
        assert client.sent == 0


@pytest.mark.claim("C226")
def test_an_owner_that_dies_is_named_with_its_dataset_and_message(
    recipe: Any, expected: Any
) -> None:
    with site(recipe, patience=1.0) as at, at.channel(A) as channel:
        receive_message(channel, BeginCut)
        send_message(channel, NotedState())
        own = [own_dataset(dataset) for dataset in recipe.datasets if dataset.owner == A]
        envelope = consent(at, A)
        send_message(channel, joined(A, envelope, own))
        wait_until(lambda: A in at.clients.present, 10)
        channel.close()
        dataset = next(own_dataset(dataset) for dataset in recipe.datasets if dataset.owner == A)
        with pytest.raises(PeerUnreachable) as gone:
            at.clients.message(A, dataset.manifest.dataset_id, 0, 4)
    assert gone.value.owner == A
    assert f"{dataset.manifest.dataset_id}, message 0" in str(gone.value.got)
    assert "channel-broken" not in str(gone.value.got)
