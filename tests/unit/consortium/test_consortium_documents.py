"""A kind of document that one entry of the table adds: posted, recorded, found again, audited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[2] / "support"
PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from sealtrain.base.models import Hex32
from sealtrain.consortium.documents import DOCUMENTS
from sealtrain.consortium.owner_document import RecordedDocument, sign_owned
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import Refused, SignatureInvalid


class Purpose(RecordedDocument):
    payload_type = "application/vnd.sealtrain.purpose+json"
    what = "purpose"
    max_bytes = 1 << 10
    entry_kind = "purpose"
    path = "/v1/purposes"
    summary = "State what datasets were collected for"

    datasets: tuple[Hex32, ...] = Field(min_length=1, max_length=4)
    purpose: str = Field(min_length=1, max_length=100)

    def recorded(self):
        return {"datasets": list(self.datasets)}

    def subjects(self):
        return self.datasets

    def follow(self, before):
        for dataset_id in self.datasets:
            if {name for name, _ in before.owners_of(dataset_id)} - {self.owner}:
                raise DatasetMismatch("a dataset is of another owner", check="dataset owner")


DOCUMENTS[Purpose.entry_kind] = Purpose  # the line; a broker that does not know it is not changed

from release_world import audited
from release_world import served_world
from manifest_world import OWNERS, identity
from owner_acts import BROKER

from sealtrain.client.broker_api import BrokerClient

with served_world(Path(sys.argv[1])) as (world, url):
    def stated(owner, dataset, **changed):
        own = {"datasets": [world.sealed[dataset].dataset_id], "purpose": "research"} | changed
        document = Purpose.write(
            own,
            consortium_id=world.consortium.consortium_id,
            owner=identity(owner).public,
            signed_at=world.clock(),
        )
        return sign_owned(document, identity(owner).signer)

    def hand_in(owner, envelope):
        signer = identity(owner).signer
        with BrokerClient(url, signer=signer, broker=BROKER, clock=world.clock) as client:
            return client.hand_in("purpose", envelope)

    first, second = OWNERS[:2]
    envelope = stated(first, first)
    index = hand_in(first, envelope)
    assert hand_in(first, envelope) == index
    entry = world.ledger.entry(index)
    assert (entry["kind"], entry["body"]["owner"]) == ("purpose", first)
    assert audited(world).holds
    with world.store.reading() as transaction:
        documents = transaction.owner_documents
        owned = world.sealed[first].owned
        assert documents.about("purpose", "", [owned]) == {owned.dataset_id: first}
        assert documents.in_force("purpose")[first] == (envelope.digest, envelope.to_bytes())
    for refused, error in (
        (stated(first, second), DatasetMismatch),
        (replace(envelope, payload=envelope.payload + b" "), SignatureInvalid),
    ):
        try:
            hand_in(first, refused)
        except Refused as answer:
            assert isinstance(answer, error), answer
        else:
            raise AssertionError("it was accepted")
    forged = dict(entry["body"]) | {"owner": second}
    world.ledger.append("purpose", forged)
    assert not audited(world).holds
print("done")
"""


def test_one_line_of_the_table_adds_a_kind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr[-3000:]
