"""What a manifest names, and who may open it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from manifest_world import NOW, World
from world import OWNERS, identity, signer, simulated_pki

from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain.keys.identity import Identity
from sealtrain.manifest import form
from sealtrain.manifest.outputs import files_of, model_of, require_recipient, subjects_of
from sealtrain.manifest.verify import examine
from sealtrain.sealing.errors import NoStanza

pytestmark = pytest.mark.claim("C110")


def test_a_model_comes_back_out_of_its_manifest(world: World, honest: bytes) -> None:
    read = form.read(honest)
    model = model_of(read.predicate, read.subjects)
    assert model == world.model
    assert subjects_of(model) == read.subjects
    assert files_of(model) == [file.to_dict() for file in read.predicate.outputs.files]


def test_size_and_digest_are_those_of_the_file_on_disk(world: World) -> None:
    for subject, file in zip(world.subjects, world.model.files, strict=True):
        data = (world.artefacts / subject.name).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("name", OWNERS)
def test_a_recipient_is_known_by_its_keys(honest: bytes, name: str) -> None:
    predicate = form.read(honest).predicate
    require_recipient(predicate, identity(name).public)
    for other in (Identity(name, Secret(bytes(32))), Identity("mallory", Secret(bytes(32)))):
        with pytest.raises(NoStanza):
            require_recipient(predicate, other.public)


def test_outputs_of_a_statement_that_no_quote_names_are_not_read(
    world: World, honest: bytes, empty: Path
) -> None:
    policy = world.trust_document()["appraisal"]
    policy["root"] = {"insecure_simulator_root": to_base64(simulated_pki("another").root_der)}
    report = examine(honest, world.trust(appraisal=policy), artefacts=empty, now=NOW)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert (outcomes["quote"], outcomes["artefacts"]) == ("failed", "not-done")
    report = examine(
        honest, world.trust(brokers=world.brokers(signer("other"))), artefacts=empty, now=NOW
    )
    outcomes = {check.name: check.outcome for check in report.checks}
    assert (outcomes["releases"], outcomes["artefacts"]) == ("failed", "failed")
