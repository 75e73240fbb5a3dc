"""What lies beside an image: stock schemas accept it, and it names the image's digest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from container_world import NAME, REPOSITORY, ImageWorld, make_image_world
from cyclonedx_schema import judge

from sealtrain.image.layout import read_image
from sealtrain.image.packages import code_of, keeps
from sealtrain.keys.identity import Identity
from sealtrain.recipe.installation import code_sha256
from sealtrain.signing import dsse
from sealtrain.signing.statement import PAYLOAD_TYPE, parse

SLSA = "https://slsa.dev/provenance/v1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    return make_image_world(tmp_path_factory.mktemp("image"))


def test_the_list_of_packages_is_cyclonedx(world: ImageWorld) -> None:
    document = json.loads((world.layout.parent / f"{NAME}.cdx.json").read_bytes())
    judge("1.6").validate(document)
    assert document["metadata"]["component"]["version"] == read_image(world.layout, keeps).digest
    assert {component["name"] for component in document["components"]} == {
        "sealtrain",
        "python3.11-minimal",
        "toypackage",
    }


def test_the_provenance_names_digest_code_and_every_package(world: ImageWorld) -> None:
    image = read_image(world.layout, keeps)
    payload = (world.layout.parent / f"{NAME}.provenance.json").read_bytes()
    statement = parse(payload, SLSA)
    (subject,) = statement.subjects
    assert f"sha256:{subject.sha256}" == image.digest
    definition = statement.predicate["buildDefinition"]
    assert definition["externalParameters"] == {"image": NAME, "code": code_sha256(code_of(image))}
    pins = json.loads((world.source / "deploy/images/toy/pins.json").read_bytes())
    assert {
        resolveddependency["digest"]["sha256"]
        for resolveddependency in definition["resolvedDependencies"]
    } == {pin["sha256"] for kind in ("debian", "wheels") for pin in pins[kind].values()}


def test_a_key_signs_the_provenance(world: ImageWorld, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "sealtrain", "keygen", "builder", "--out", tmp_path]
    subprocess.run(program, check=True, capture_output=True)
    key = tmp_path / "builder.identity.json"
    words = ["--source", world.source, "--out", tmp_path, "--cache", world.cache, "--key", key]
    build = [sys.executable, REPOSITORY / "tools/images/build.py", NAME, *words]
    subprocess.run(build, check=True, capture_output=True)
    envelope = dsse.Envelope.from_bytes((tmp_path / f"{NAME}.provenance.json").read_bytes())
    signer = Identity.load(key).signer
    payload = dsse.verify(envelope, [signer.public], payload_type=PAYLOAD_TYPE)
    assert payload == (world.layout.parent / f"{NAME}.provenance.json").read_bytes()
