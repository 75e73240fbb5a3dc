"""What a run finds of its datasets is what their owners signed, read once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sealing_world import json_lines, sealed_folder
from world import RECIPE, founded, identity

from sealtrain.consortium.datasets import sign_dataset
from sealtrain.consortium.members import Consortium
from sealtrain.errors import SignatureInvalid
from sealtrain.guest import datasets
from sealtrain.guest.datasets import find_datasets
from sealtrain.recipe.schema import PhaseRecipe, parse_recipe
from sealtrain.sealing.places import Ranges
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.storage import connect

pytestmark = pytest.mark.claim("C121")


class Store:
    """A store that answers each question for ``dataset.json`` with the next of its answers."""

    name = "biopsies.sealed"

    def __init__(self, folder: Path, answers: list[bytes]) -> None:
        self._folder = folder
        self.answers = answers

    def read(self, name: str, max_bytes: int) -> bytes:
        if name == "dataset.json" and self.answers:
            return self.answers.pop(0)
        return (self._folder / name).read_bytes()

    def open(self, name: str, *, size: int | None = None) -> Ranges:
        raise AssertionError(name)

    def close(self) -> None:
        pass


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    source = tmp_path / "biopsies.jsonl"
    source.write_text(json_lines([{"prompt": "a", "completion": "b"}]))
    owner = identity("hospital-a")
    made = sealed_folder(
        source, tmp_path / "biopsies.sealed", name="biopsies",
        owner_id=owner.public.owner_id, owner_name="hospital-a",
        sign=lambda one: sign_dataset(
            one, owner.signer, sealed_at="2026-01-01T00:00:00Z"
        ).to_bytes(),
    )  # fmt: skip
    return made.folder


@pytest.fixture
def recipe() -> PhaseRecipe:
    one = {"owner": "hospital-a", "name": "biopsies", "role": "train"}
    policy = RECIPE["release_policy"] | {"model": {"recipients": ["hospital-a"]}}
    return parse_recipe(dict(RECIPE) | {"datasets": [one], "release_policy": policy})


def consortium() -> Consortium:
    return founded("two", ("hospital-a", "hospital-b"), approve=1)


def test_the_manifest_that_was_verified_is_the_one_that_is_kept(
    sealed: Path, recipe: PhaseRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes into the run's manifest: a store that shows another one later changes nothing."""
    signed = (sealed / "dataset.json").read_bytes()
    other = json.loads(signed)
    other["signatures"][0]["sig"] = "AAAA"
    forged = json.dumps(other).encode()
    (sealed / "dataset.json").write_bytes(forged)
    store = Store(sealed, [signed])
    monkeypatch.setattr(connect, "open_folder", lambda url: store)
    monkeypatch.setattr(datasets, "read_stanzas", lambda _store: read_stanzas(sealed))
    (found,) = find_datasets(["https://store.example/biopsies.sealed"], recipe, consortium())
    assert found.envelope == json.loads(signed)
    store.answers = [forged, signed]
    with pytest.raises(SignatureInvalid):
        find_datasets(["https://store.example/biopsies.sealed"], recipe, consortium())
