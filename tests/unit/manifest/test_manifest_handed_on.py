"""A manifest of a model that was handed on: it names that model, for that recipe, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import NOW, C, World, handed_on_world
from world import OWNERS, identity

from sealtrain.manifest import form
from sealtrain.manifest.errors import ClaimContradicted, SubjectMismatch
from sealtrain.manifest.outputs import model_of, require_recipient
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine, verify_manifest
from sealtrain.sealing.errors import NoStanza

pytestmark = pytest.mark.claim("C141")


@pytest.fixture(scope="module")
def handed_on(tmp_path_factory: pytest.TempPathFactory) -> World:
    return handed_on_world(tmp_path_factory.mktemp("handed-on"))


def test_it_verifies_with_its_files(handed_on: World) -> None:
    manifest = handed_on.manifest()
    verified = verify_manifest(manifest, handed_on.trust(), artefacts=handed_on.artefacts, now=NOW)
    assert {check.outcome for check in verified.checks} == {"passed"}
    read = form.read(manifest)
    assert model_of(read.predicate, read.subjects) == handed_on.model


@pytest.mark.parametrize("owner", OWNERS)
def test_no_owner_is_a_recipient(handed_on: World, owner: str) -> None:
    with pytest.raises(NoStanza):
        require_recipient(form.read(handed_on.manifest()).predicate, identity(owner).public)


def _stated(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["outputs"]["dataset"].update({name: value})


def _hidden(document: dict[str, Any]) -> None:
    del document["outputs"]["dataset"]


@pytest.mark.parametrize(
    "change",
    [
        _stated("owner", OWNERS[0]),
        _stated("owner_id", identity(OWNERS[0]).public.owner_id),
        _stated("name", "another"),
        _stated("root", "00" * 32),
        _stated("dataset_id", "00" * 16),
        _stated("app_id", "00" * 20),
        _stated("compose_hash", "00" * 32),
        _hidden,
    ],
    ids=["owner", "owner id", "name", "root", "dataset id", "app id", "compose hash", "hidden"],
)
def test_a_manifest_that_hands_on_something_else_is_refused(
    handed_on: World, change: Callable[[dict[str, Any]], None]
) -> None:
    manifest = handed_on.manifest(change)
    with pytest.raises(ClaimContradicted, check=carries(check="handed on")):
        verify_manifest(manifest, handed_on.trust(), artefacts=None, now=NOW)


def test_a_run_that_hands_nothing_on_cannot_say_that_it_did(handed_on: World, world: World) -> None:
    stated = handed_on.facts["outputs"]["dataset"]
    manifest = world.manifest(lambda document: document["outputs"].update(dataset=stated))
    with pytest.raises(ClaimContradicted, check=carries(check="handed on")):
        verify_manifest(manifest, world.trust(), artefacts=None, now=NOW)


def test_persons_beside_the_guests_are_refused(handed_on: World) -> None:
    manifest = handed_on.manifest(
        lambda document: document["outputs"].update(recipients=[OWNERS[0]])
    )
    with pytest.raises(ClaimContradicted, check=carries(check="recipients")):
        verify_manifest(manifest, handed_on.trust(), artefacts=None, now=NOW)


def test_a_file_that_is_exchanged_or_added_is_refused(handed_on: World, tmp_path: Path) -> None:
    manifest = handed_on.manifest()
    for name, change in {
        "shard-00000.sealed": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
        "dataset.json": lambda path: path.write_bytes(b"{}"),
    }.items():
        folder = tmp_path / name
        shutil.copytree(handed_on.artefacts, folder)
        change(folder / "model" / name)
        with pytest.raises(SubjectMismatch):
            verify_manifest(manifest, handed_on.trust(), artefacts=folder, now=NOW)


def test_the_report_says_where_the_model_went(handed_on: World) -> None:
    report = examine(handed_on.manifest(), handed_on.trust(), artefacts=None, now=NOW)
    html = render(report)
    assert handed_on.facts["outputs"]["dataset"]["compose_hash"] in html
    assert f"{C}/diagnosis" in html
