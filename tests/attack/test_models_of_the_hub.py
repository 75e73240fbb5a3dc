"""Attacks of a hub of models on the machine that locks a recipe.

The hub's own client asks a small hub on this machine. Whatever that answers, a lock either pins
what was announced, or is refused with nothing left in the model's folder.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from hub import FakeHub, serving_hub

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.distributions import DISTRIBUTIONS
from sealtrain.client.errors import HubUnreachable
from sealtrain.owner.hub import Hub, bring_models
from sealtrain.recipe.errors import LockInvalid, ModelInvalid
from sealtrain.recipe.installation import CodePin, EnvironmentPin, Installation, PackagePin
from sealtrain.recipe.lock import LockedRecipe, lock_recipe, parse_lock
from sealtrain.recipe.schema import load_recipe

pytestmark = [pytest.mark.long, pytest.mark.claim("C154")]

CARD = b"---\nlicense: apache-2.0\ntags:\n- text\n---\n# tiny\n"
FILES = {
    "README.md": CARD,
    ".gitattributes": b"*.safetensors filter=lfs\n",
    "config.json": b'{"model_type": "llama", "max_position_embeddings": 4096}',
    "model.safetensors": b"\x08\0\0\0\0\0\0\0{}      ",
    "onnx/config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
}
PLACE = "models/org--tiny@v1"

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "notes",
    "phase": "sft",
    "model": {"id": "org/tiny", "revision": "v1"},
    "datasets": [{"owner": "hospital-a", "name": "notes", "role": "train"}],
    "columns": {"text": "text"},
    "trainer": {"max_steps": 2},
    "privacy": {"dp": "none"},
    "release_policy": {"metrics": ["loss"], "round_to": 4, "model": {"recipients": ["hospital-a"]}},
    "hardware": {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}

Lock = Callable[..., LockedRecipe]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # A test of training in this process may have switched the client off for good.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving_hub(FakeHub(files=dict(FILES))) as served:
        yield served


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The recipe's folder."""
    site = tmp_path / "site"
    site.mkdir()
    return site


@pytest.fixture
def lock(hub: FakeHub, site: Path, tmp_path: Path) -> Lock:
    """Brings the model and locks the recipe, as ``sealtrain lock`` does."""

    def make(*, cache: str = "cache", **model: Any) -> LockedRecipe:
        recipe = copy.deepcopy(RECIPE)
        recipe["model"] |= model
        path = site / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        reach = Hub(endpoint=hub.url, cache=tmp_path / cache, silence=0.4, tries=1)
        pins = bring_models(load_recipe(path), site, hub=reach)
        return lock_recipe(
            path,
            consortium_id="c0" * 32,
            brokers=["b0" * 32],
            installation=Installation(
                code=tuple(
                    CodePin(name=name, version="0.1.0", sha256="11" * 32) for name in DISTRIBUTIONS
                ),
                environment=EnvironmentPin(
                    python="3.11.7",
                    packages={"torch": PackagePin(version="2.9.0", record_sha256="22" * 32)},
                ),
            ),
            hub=pins,
        )

    return make


def _left_in(site: Path) -> list[str]:
    """Whatever lies beside the recipe."""
    return sorted(path.name for path in site.iterdir() if path.name != "recipe.yaml")


def test_a_lock_holds_commit_digest_and_licence(hub: FakeHub, lock: Lock, site: Path) -> None:
    made = lock().lock
    assert made.hub is not None
    assert made.to_dict()["hub"] == {"model": {"commit": hub.commit, "licence": "apache-2.0"}}
    brought = {
        path.relative_to(site / PLACE).as_posix(): path.read_bytes()
        for path in (site / PLACE).rglob("*")
    }
    assert brought == {
        name: data
        for name, data in FILES.items()
        if name not in (".gitattributes", "onnx/config.json")
    }
    assert not any(path.is_symlink() for path in (site / PLACE).rglob("*"))


def test_the_digest_is_that_of_the_folder(lock: Lock, site: Path) -> None:
    of_hub = lock().lock
    recipe = RECIPE | {"model": {"path": PLACE}}
    (site / "other.yaml").write_text(yaml.safe_dump(recipe))
    of_folder = lock_recipe(
        site / "other.yaml",
        consortium_id="c0" * 32,
        brokers=["b0" * 32],
        installation=Installation(code=of_hub.code, environment=of_hub.environment),
    )
    assert of_folder.lock.model == of_hub.model
    assert "hub" not in json.loads(of_folder.lock_bytes)
    assert not {"id", "revision"} & json.loads(of_folder.lock_bytes)["recipe"]["model"].keys()


def test_locking_again_gives_the_same_bytes(lock: Lock) -> None:
    assert lock().lock_bytes == lock().lock_bytes


def test_a_commit_in_the_local_cache_needs_no_hub(hub: FakeHub, lock: Lock, site: Path) -> None:
    lock()
    before = len(hub.asked)
    hub.stalls = "/"
    assert lock(revision=hub.commit).lock.hub == lock(revision=hub.commit).lock.hub
    assert len(hub.asked) == before
    assert (site / f"models/org--tiny@{hub.commit}").is_dir()


def test_a_revision_that_moves_changes_nothing_that_was_locked(
    hub: FakeHub, lock: Lock, site: Path
) -> None:
    first = lock()
    locked = hub.commit
    hub.commit = "c2" * 20
    hub.files["model.safetensors"] = b"\x09\0\0\0\0\0\0\0{}       "
    with pytest.raises(ModelInvalid) as refused:
        lock()
    assert hub.commit in str(refused.value.expected)
    assert (site / PLACE / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    # The engineer keeps what was locked by naming its commit.
    hub.files["model.safetensors"] = FILES["model.safetensors"]
    assert lock(revision=locked, path=PLACE).lock.model == first.lock.model


def test_the_moved_revision_gets_a_folder_of_its_own(hub: FakeHub, lock: Lock) -> None:
    first = lock().lock
    hub.commit = "c2" * 20
    hub.files["config.json"] = b'{"model_type": "llama", "max_position_embeddings": 8192}'
    second = lock(path="models/newer").lock
    assert (first.hub, first.model) != (second.hub, second.model)
    assert second.hub is not None
    assert second.hub["model"].commit == "c2" * 20


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_other_bytes_than_announced_are_refused(
    hub: FakeHub, lock: Lock, site: Path, name: str
) -> None:
    hub.answers[name] = FILES[name][:-1] + b"X"
    with pytest.raises(ModelInvalid):
        lock()
    assert _left_in(site) == []


def test_a_shorter_file_than_announced_is_refused(hub: FakeHub, lock: Lock, site: Path) -> None:
    hub.answers["model.safetensors"] = FILES["model.safetensors"][:-3]
    with pytest.raises((ModelInvalid, HubUnreachable)):
        lock()
    assert _left_in(site) == []


@pytest.mark.parametrize(
    "name", ["../evil.json", "a/../../evil.json", "/evil.json", "a\\..\\evil.json", "e v.json"]
)
def test_a_file_name_that_leaves_its_folder_is_refused(
    hub: FakeHub, lock: Lock, site: Path, tmp_path: Path, name: str
) -> None:
    hub.files[name] = b'{"evil": 1}'
    with pytest.raises(ModelInvalid):
        lock()
    assert _left_in(site) == []
    outside = [path for path in tmp_path.rglob("evil*") if tmp_path / "cache" not in path.parents]
    assert not outside


@pytest.mark.parametrize(
    "name",
    ["modeling_evil.py", "pytorch_model.bin", "training_args.pt", "x.pkl", "lib.so", "run.sh"],
)
def test_code_and_pickles_are_not_even_downloaded(
    hub: FakeHub, lock: Lock, site: Path, tmp_path: Path, name: str
) -> None:
    hub.files[name] = b"import os"
    lock()
    assert not [question for question in hub.asked if name in question]
    assert not list(tmp_path.rglob(name))


def test_what_another_program_left_in_the_cache_is_not_taken(
    hub: FakeHub, lock: Lock, site: Path, tmp_path: Path
) -> None:
    lock()
    snapshot = tmp_path / "cache" / "models--org--tiny" / "snapshots" / hub.commit
    (snapshot / "modeling_evil.py").write_text("import os")
    lock(path="models/again")
    assert not (site / "models/again/modeling_evil.py").exists()
    (snapshot / "planted.json").write_text("{}")
    with pytest.raises(ModelInvalid):
        lock(path="models/third")
    assert not (site / "models/third").exists()


def test_a_changed_cache_is_not_taken(hub: FakeHub, lock: Lock, site: Path, tmp_path: Path) -> None:
    lock()
    snapshot = tmp_path / "cache" / "models--org--tiny" / "snapshots" / hub.commit
    weights = (snapshot / "model.safetensors").resolve()
    changed = FILES["model.safetensors"][:-1] + b"X"
    weights.write_bytes(changed)
    hashes = {"got": sha256_hex(changed), "expected": sha256_hex(FILES["model.safetensors"])}
    with pytest.raises(ModelInvalid, check=carries(**hashes)):
        lock(path="models/again")
    assert not (site / "models/again").exists()


def test_a_configuration_that_names_code_is_refused(hub: FakeHub, lock: Lock, site: Path) -> None:
    hub.files["config.json"] = b'{"model_type": "x", "auto_map": {"AutoModel": "modeling.X"}}'
    with pytest.raises(ModelInvalid):
        lock()
    assert _left_in(site) == []


def test_a_model_of_pickles_alone_is_refused(hub: FakeHub, lock: Lock, site: Path) -> None:
    hub.files["pytorch_model.bin"] = hub.files.pop("model.safetensors")
    with pytest.raises(ModelInvalid):
        lock()
    assert _left_in(site) == []


@pytest.mark.parametrize("where", ["revision", "tree", "HEAD", "GET /org"])
def test_a_stalled_hub_is_given_up(hub: FakeHub, lock: Lock, site: Path, where: str) -> None:
    hub.stalls = where
    with pytest.raises(HubUnreachable):
        lock()
    assert _left_in(site) == []


def test_a_hub_that_is_not_there_is_unreachable(hub: FakeHub, lock: Lock, site: Path) -> None:
    hub.url = "http://127.0.0.1:9"
    with pytest.raises(HubUnreachable):
        lock()
    with pytest.raises(HubUnreachable):
        lock(revision="ab" * 20)
    assert _left_in(site) == []


@pytest.mark.parametrize("model", [{"id": "org/absent"}, {"revision": "absent"}])
def test_a_model_that_the_hub_lacks_is_named(lock: Lock, site: Path, model: dict[str, str]) -> None:
    with pytest.raises(ModelInvalid, check=carries(got="HTTP 404")):
        lock(**model)
    assert _left_in(site) == []


@pytest.mark.parametrize("commit", ["", "../../x", "C1" * 20, "c1"])
def test_a_hub_that_names_no_commit_is_refused(
    hub: FakeHub, lock: Lock, site: Path, commit: str
) -> None:
    hub.commit = commit
    with pytest.raises(ModelInvalid):
        lock()
    assert _left_in(site) == []


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (b"# no header", None),
        (b"---\ntags: [x]\n---\n", None),
        (b"---\nlicense: [mit, apache-2.0]\n---\n", "mit, apache-2.0"),
        (b"---\nlicense: other\nlicense_name: llama3.1\n---\n", "other (llama3.1)"),
        (b"---\nlicense: " + b"x" * 129 + b"\n---\n", None),
        (b'---\nlicense: "mit\\e[2J"\n---\n', None),
        (b"---\nlicense: {a: b}\n---\n", None),
        (b"---\nlicense: mit\n", None),
        (b"---\nlicense: &a mit\nx: *a\n---\n", None),
    ],
)
def test_the_licence_is_what_the_card_says(
    hub: FakeHub, lock: Lock, card: bytes, licence: str | None
) -> None:
    hub.files["README.md"] = card
    made = lock().lock
    assert made.hub is not None
    assert made.hub["model"].licence == licence


def test_a_model_without_a_card_names_no_licence(hub: FakeHub, lock: Lock) -> None:
    del hub.files["README.md"]
    made = lock().lock
    assert made.hub is not None
    assert made.hub["model"].licence is None


def test_a_model_of_the_hub_is_shown_with_the_digest_that_pins_it(hub: FakeHub, lock: Lock) -> None:
    made = lock().lock
    assert made.origins.keys() == {"model"}
    for said in ("org/tiny", hub.commit, str(made.model.sha256)):
        assert said in made.origins["model"]


def test_a_lock_that_does_not_fit_its_recipe_is_refused(hub: FakeHub, lock: Lock) -> None:
    made = json.loads(lock(revision=hub.commit).lock_bytes)
    for pins in (
        None,
        {},
        {"reward": made["hub"]["model"]},
        {"model": {"commit": "ff" * 20, "licence": None}},
        {"model": {"commit": hub.commit, "licence": ""}},
        {"model": {"commit": hub.commit}},
    ):
        changed = {key: value for key, value in made.items() if key != "hub"}
        if pins is not None:
            changed["hub"] = pins
        with pytest.raises(LockInvalid):
            parse_lock(canonical_json(changed))


def test_a_lock_of_a_folder_takes_no_commit(lock: Lock, hub: FakeHub) -> None:
    made = json.loads(lock().lock_bytes)
    del made["recipe"]["model"]["id"], made["recipe"]["model"]["revision"]
    with pytest.raises(LockInvalid, check=carries(check="hub")):
        parse_lock(canonical_json(made))
