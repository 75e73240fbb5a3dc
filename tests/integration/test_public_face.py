"""The names of ``import sealtrain``: an owner, a recipient and an auditor, without a command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import OWNERS, RECIPE, Stage, records, stage

import sealtrain
from sealtrain.client.opening import RunManifest
from sealtrain.consortium.members import Consortium
from sealtrain.errors import AlreadyExists, NoStanza, SubjectMismatch, UsageError
from sealtrain.keys.identity import Identity

pytestmark = pytest.mark.slow
SHORT: dict[str, Any] = RECIPE | {"trainer": RECIPE["trainer"] | {"max_steps": 4, "save_steps": 2}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A locked recipe, and a guest that booted for it."""
    with stage(tmp_path_factory.mktemp("face")) as made:
        folder = made.folder / "engineer"
        (folder / "sealed").mkdir(parents=True)
        made.inputs.mkdir()
        (folder / "recipe.yaml").write_text(yaml.safe_dump(SHORT))
        made.run("lock", folder / "recipe.yaml", "--broker", made.broker, "--out", folder)
        made.boot(folder)
        yield made


def owner_of(world: Stage, name: str) -> sealtrain.Owner:
    return sealtrain.Owner(identity=world.identity(name), brokers=(world.broker,))


@pytest.fixture(scope="module")
def trained(world: Stage) -> Path:
    """Everything that owners do, done by the library; the run's folder."""
    consortium = Consortium.load(world.folder / "consortium.json")
    for name in OWNERS:
        owner = owner_of(world, name)
        mine = [one["name"] for one in SHORT["datasets"] if one["owner"] == name]
        folders = []
        for dataset in mine:
            source = world.inputs / f"{name}.{dataset}.jsonl"
            source.write_text(records(name))
            read: list[int] = []
            sealed = sealtrain.seal(
                owner,
                source,
                world.folder / "engineer" / "sealed" / f"{name}.{dataset}.sealed",
                name=dataset,
                deployment=world.deployment,
                progress=read.append,
            )
            assert sum(read) == source.stat().st_size
            assert (sealed.description.records, sealed.simulated) == (40, True)
            assert list(sealed.registered.done)
            assert not sealed.registered.failed
            folders.append(sealed.folder)
        answers = sealtrain.approve(owner, world.deployment, consortium, datasets=folders)
        (tally,) = answers.done.values()
        assert name in tally.approved_by
    assert not tally.sealed  # every owner whose records it reads approved
    world.run(*world.train_words(world.folder / "engineer", "run"))
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--deployment", world.deployment,
        "--policy", "policy.yaml", "--broker", world.broker, "--out", world.trust,
    )  # fmt: skip
    return world.folder / "run"


def test_a_run_whose_owners_used_the_library_verifies(world: Stage, trained: Path) -> None:
    verified = sealtrain.verify(trained / "manifest.json", world.trust)
    assert verified.simulated
    assert len(verified.predicate.datasets) == len(SHORT["datasets"])


def test_a_changed_output_is_refused_by_the_library(world: Stage, trained: Path) -> None:
    victim = next((trained / "model").glob("*.sealed"))
    kept = victim.read_bytes()
    victim.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    try:
        with pytest.raises(SubjectMismatch):
            sealtrain.verify(trained / "manifest.json", world.trust)
        sealtrain.verify(trained / "manifest.json", world.trust, artefacts=None)
    finally:
        victim.write_bytes(kept)


def test_a_recipient_opens_the_model_and_nobody_else_does(
    world: Stage, trained: Path, tmp_path: Path
) -> None:
    opened = sealtrain.open(
        trained,
        tmp_path / "model",
        identity=Identity.load(world.identity("clinic-a")),
        run=RunManifest(trust=world.trust),
    )
    assert opened.model is not None
    assert opened.model.checks
    assert "model.safetensors" in opened.files
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == opened.files
    with pytest.raises(NoStanza):
        sealtrain.open(
            trained, tmp_path / "other", identity=Identity.load(world.identity("clinic-c"))
        )
    assert not (tmp_path / "other").exists()


def test_an_owner_opens_what_it_sealed(world: Stage, trained: Path, tmp_path: Path) -> None:
    sealed = world.folder / "engineer" / "sealed" / "clinic-a.notes.sealed"
    mine = Identity.load(world.identity("clinic-a"))
    opened = sealtrain.open(sealed, tmp_path / "notes.jsonl", identity=mine)
    assert opened.dataset == "notes"
    lines = (tmp_path / "notes.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        json.loads(line) for line in records("clinic-a").splitlines()
    ]
    with pytest.raises(AlreadyExists):
        sealtrain.open(sealed, tmp_path / "notes.jsonl", identity=mine)


def test_a_revocation_is_taken_back_only_by_saying_so(world: Stage, trained: Path) -> None:
    from sealtrain.client.approving import revoke

    consortium = Consortium.load(world.folder / "consortium.json")
    owner = owner_of(world, "clinic-b")
    (tally,) = revoke(owner, world.deployment, consortium).done.values()
    assert tally.revoked_by == ("clinic-b",)
    with pytest.raises(UsageError) as refused:
        sealtrain.approve(owner, world.deployment, consortium)
    assert refused.value.check == "--lift-revocation"
    answers = sealtrain.approve(owner, world.deployment, consortium, lift_revocation=True)
    (tally,) = answers.done.values()
    assert "clinic-b" in tally.approved_by


def test_one_memory_is_for_one_broker(world: Stage) -> None:
    with pytest.raises(UsageError) as refused:
        sealtrain.Owner(
            identity=world.identity("clinic-a"),
            brokers=(world.broker, world.broker),
            state=world.folder / "memory.json",
        )
    assert refused.value.check == "--memory"


def test_the_guide_does_what_it_says(
    world: Stage, trained: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (repository / "docs/guides/python.md").read_text()
    (world.folder / "notes.jsonl").write_text(records("clinic-a"))
    monkeypatch.chdir(world.folder)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)  # noqa: S102 - it is our own page
    assert names["sealed"].description.records == 40
    assert names["tally"].approved_by
    assert "model.safetensors" in names["opened"].files
    assert names["verified"].simulated


def test_importing_sealtrain_is_light_and_a_name_loads_what_it_needs() -> None:
    program = (
        "import sys, sealtrain\n"
        "heavy = ('torch', 'pyarrow', 'httpx', 'pydantic', 'cryptography')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "sealtrain.errors.SealtrainError, sealtrain.verify, sealtrain.Owner, sealtrain.approve\n"
        "assert not [name for name in heavy[:2] if name in sys.modules]\n"
        "for name in sealtrain.__all__: getattr(sealtrain, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
