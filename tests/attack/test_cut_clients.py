"""Owners without a TEE and a guest that is not to be trusted blindly: each refuses the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from carrying import carries
from channel_world import COMPOSE, NOW, guest
from cut_world import PARTIES, RUN_ID, cut_recipe, one_thread, own_dataset, site
from manifest_world import digest, identity

from sealtrain.consortium.consents import Consent, ConsentedDataset, verify_consent
from sealtrain.consortium.owned import sign_owned
from sealtrain.errors import (
    ChannelBroken,
    ChannelRefused,
    ComposeHashMismatch,
    DataInvalid,
    DatasetMismatch,
    PeerUnreachable,
    QuoteRootUntrusted,
    RunMismatch,
    SealtrainError,
    SignatureInvalid,
)
from sealtrain.signing.dsse import Envelope
from sealtrain_collab.channel.proofs import ProveKey
from sealtrain_collab.cut.activations import encode
from sealtrain_collab.cut.messages import Ask, Begin, Joined, receive_message, send_message
from sealtrain_collab.cut.sending import Client

pytestmark = [
    pytest.mark.claim("C83"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures(one_thread.__name__),
]

A, B = PARTIES


@pytest.fixture(scope="module")
def recipe() -> Any:
    return cut_recipe()


@pytest.fixture(scope="module")
def expected(recipe: Any) -> Any:
    from pathlib import Path

    from sealtrain_collab.cut.learning import Learning

    return Learning(recipe, Path()).expected


def consent(at: Any, owner: str, **changed: Any) -> Envelope:
    """A consent of an owner to the run, with changes."""
    datasets = [own_dataset(one).manifest for one in at.recipe.datasets if one.owner == owner]
    values: dict[str, Any] = {
        "datasets": [
            ConsentedDataset(dataset_id=one.dataset_id, name=one.name, root=one.root, rows=40)
            for one in datasets
        ],
        "run_id": RUN_ID,
        "target": at.target,
        "consortium_id": at.consortium.consortium_id,
        "owner": identity(owner).public,
        "signed_at": NOW,
    }
    signer = changed.pop("signer", identity(owner).signer)
    return sign_owned(Consent.of(**values | changed), signer)


def answered(at: Any, owner: str, envelope: Envelope) -> Any:
    """What the server does about a consent; its next word."""
    with at.channel(owner) as channel:
        receive_message(channel, Begin)
        own = [own_dataset(one).envelope for one in at.recipe.datasets if one.owner == owner]
        send_message(channel, Joined(owner=owner, consent=envelope.to_dict(), datasets=tuple(own)))
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
    with site(recipe, expected=expected) as at:
        at.clients._conversation = replace(at.clients._conversation, proof=proof)
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
    with site(recipe, expected=expected) as at:
        begin = at.clients._begin.to_dict()
        at.clients._begin = Begin(**begin | {field: digest(field)[: len(begin[field])]})
        client = at.client(A, reading=None, run_id=RUN_ID)
        with at.channel(A) as channel, pytest.raises(RunMismatch):
            client.serve(channel)
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
            receive_message(channel, Begin)
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
        honest = at.client(A)

        class Liar(Client):
            def _message(self, dataset_id: str, number: int) -> bytes:
                rows = self.reading.rows(self.datasets[0].records.slice(0, 40).to_pylist())
                if lie == "noise":
                    rows = [
                        replace(row, scales=torch.full((len(row.values),), float("nan")))
                        for row in rows
                    ]
                elif lie == "label":
                    rows = [replace(row, labels=torch.tensor(2)) for row in rows]
                else:
                    rows = rows[:-1]
                return encode(rows)

        at.joining(at.client(A, reading=honest.reading), at.client(B, reading=honest.reading))
        at.clients.joined(within=60)
        at.clients._clients[A].channel = None
        at.joining(_as(Liar, at.client(A, reading=honest.reading)))
        with pytest.raises(DataInvalid, check=carries(check="activations")):
            at.clients.sources()[0].dataset.batch(0)


def test_an_owner_cannot_change_what_it_sent(recipe: Any, expected: Any) -> None:
    """Else it could train the model on one thing and leave another in the record."""
    with site(recipe, expected=expected, kept_bytes=0) as at:
        swapped: list[int] = []

        class Swapping(Client):
            def _message(self, dataset_id: str, number: int) -> bytes:
                records = self.datasets[0].records.to_pylist()
                swapped.append(number)
                return encode(self.reading.rows(records[:: 1 if len(swapped) == 1 else -1]))

        at.joining(_as(Swapping, at.client(A)), at.client(B))
        at.clients.joined(within=60)
        records = at.clients.sources()[0].dataset
        records.batch(0)
        with pytest.raises(DatasetMismatch, check=carries(check="activations")):
            records.batch(0)


def test_a_server_gets_no_records_that_were_not_consented_to(recipe: Any, expected: Any) -> None:
    with site(recipe, expected=expected) as at:
        threads = at.joining(at.client(A))
        while A not in at.clients.present:
            threads[0].join(0.05)
        channel = at.clients._clients[A].channel
        assert channel is not None
        send_message(
            channel, Ask(kind="records", dataset_id=digest("dataset of another", 16), number=0)
        )
        threads[0].join(60)
        assert [type(error) for error in at.failures] == [ChannelBroken]


def _as(kind: type[Client], client: Client) -> Client:
    names = ("owner", "consortium_id", "signer", "target", "datasets", "reading", "rows", "clock")
    return kind(**{name: getattr(client, name) for name in names})
