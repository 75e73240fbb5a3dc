"""The names of ``import sealtrain``: owners, an engineer and an auditor, without a command."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from polling import wait_until
from ports import free_port
from stage import CANARY, OWNERS, RECIPE, interpreter, records

import sealtrain
from sealtrain.client.pin import load_pin
from sealtrain.client.ticket import RunTicket
from sealtrain.consortium.errors import ApprovalRevoked, ApprovalsMissing
from sealtrain.errors import AlreadyExists, RecipeChanged, Refused, Unreachable, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.manifest.errors import SubjectMismatch
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.sealing.errors import NoStanza, NotSealed
from sealtrain.signing.errors import StatementInvalid
from sealtrain_rehearsal.rehearsal import ON_SIMULATOR
from sealtrain_rehearsal.simulation import Simulation

pytestmark = [pytest.mark.long, pytest.mark.slow]
SHORT: dict[str, Any] = (
    RECIPE | ON_SIMULATOR | {"trainer": RECIPE["trainer"] | {"max_steps": 4, "save_steps": 2}}
)


@dataclass
class World:
    """A consortium that only the library made.

    Attributes:
        folder: Everything that it wrote.
        consortium: Of three owners.
        simulation: Its broker, which runs.
        recipe: Of the engineer.
        locked: The same, locked.
        owners: By name.
        ids: Of their datasets, by folder name.
        said: What the library handed out: each value that a test may look through.
    """

    folder: Path
    consortium: sealtrain.Consortium
    simulation: Simulation
    recipe: sealtrain.Recipe
    locked: sealtrain.LockedRecipe
    owners: dict[str, sealtrain.Owner]
    ids: dict[str, str] = field(default_factory=dict)
    said: list[object] = field(default_factory=list)

    @property
    def sealed(self) -> Path:
        return self.folder / "sealed"

    def seal(self, name: str, dataset: str, out: Path) -> str:
        source = self.folder / f"{name}.{dataset}.jsonl"
        source.write_text(records(name))
        read: list[int] = []
        made = self.owners[name].seal(
            source, out, name=dataset, locked=self.locked, progress=read.append
        )
        assert sum(read) == source.stat().st_size
        assert (made.description.records, made.simulated) == (40, True)
        assert list(made.registered.done)
        self.said.append(made)
        return made.description.dataset_id


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    """What the library starts is forked from a warm process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", interpreter())
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Founded, a broker in its simulated guest, locked and sealed; nobody approved."""
    folder = tmp_path_factory.mktemp("face")
    identities = {name: Identity.generate(name) for name in OWNERS}
    private = {name: identity.save_pair(folder / name)[0] for name, identity in identities.items()}
    consortium = sealtrain.Consortium.found(
        name="face", owners=[identity.public for identity in identities.values()], approve=2
    )
    consortium.save(folder / "consortium.json")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(SHORT))
    with sealtrain.rehearsal(folder / "simulation", consortium) as simulation:
        recipe = sealtrain.Recipe.load(folder / "recipe.yaml").check(consortium)
        made = World(
            folder=folder,
            consortium=consortium,
            simulation=simulation,
            recipe=recipe,
            locked=recipe.lock(consortium, simulation.brokers, out=folder / "engineer"),
            owners={
                name: sealtrain.Owner(
                    identity=path, brokers=simulation.brokers, consortium=consortium
                )
                for name, path in private.items()
            },
        )
        made.sealed.mkdir()
        for dataset in SHORT["datasets"]:
            key = f"{dataset['owner']}.{dataset['name']}"
            made.ids[key] = made.seal(
                dataset["owner"], dataset["name"], made.sealed / f"{key}.sealed"
            )
        made.said += [identities, made.locked, made.owners]
        yield made


@pytest.fixture(scope="module")
def trained(world: World) -> sealtrain.Run:
    """A run that every owner approved."""
    for owner in world.owners.values():
        answers = owner.approve(world.locked, expecting=world.locked.recipe_hash)
        (tally,) = answers.done.values()
        assert owner.name in tally.approved_by
        world.said.append(answers)
    run = world.simulation.train(world.recipe, world.locked, world.sealed)
    world.said.append(run)
    return run


@pytest.fixture(scope="module")
def trust(world: World, trained: sealtrain.Run) -> sealtrain.Trust:
    made = sealtrain.pin_trust(
        world.consortium, world.locked, world.simulation.brokers, world.simulation.policy
    )
    made.save(world.folder / "trust.yaml")
    return made


def remain(folder: Path, within: float = 20) -> None:
    """Assert that every process whose words name a folder is gone, soon."""

    def is_gone() -> bool:
        commands = Path("/proc").glob("[0-9]*/cmdline")
        return not any(str(folder).encode() in _words_of(path) for path in commands)

    wait_until(is_gone, within)


def _words_of(cmdline: Path) -> bytes:
    try:
        return cmdline.read_bytes()
    except OSError:
        return b""  # it ended


def entries(world: World) -> int:
    """Entries of the broker's ledger."""
    return sealtrain.audit_ledger(world.simulation.brokers[0], world.consortium).size


# --- Before anybody approved: tests in this order ------------------------------------------------


def test_what_only_an_owner_can_allow_is_refused_without_it(world: World) -> None:
    with pytest.raises(ApprovalsMissing):
        world.simulation.train(world.recipe, world.locked, world.sealed)
    refused = world.simulation.runs[-1]
    assert refused.state == "not-begun"
    with pytest.raises(UsageError):
        _ = refused.run_id


@pytest.mark.parametrize("act", ["approve", "revoke"])
@pytest.mark.parametrize("expecting", ["0" * 64, "", "any", None])
def test_an_owner_decides_on_the_recipe_that_it_names_and_on_no_other(
    world: World, act: str, expecting: Any
) -> None:
    before = entries(world)
    with pytest.raises(RecipeChanged, check=carries(check="expecting")):
        getattr(world.owners["clinic-a"], act)(world.locked, expecting=expecting)
    assert entries(world) == before


@pytest.mark.parametrize("act", ["approve", "revoke"])
def test_to_decide_without_naming_the_recipe_is_no_call(world: World, act: str) -> None:
    with pytest.raises(TypeError):
        getattr(world.owners["clinic-a"], act)(world.locked)


def test_a_recipe_that_the_engineer_exchanged_is_not_approved(world: World, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(SHORT | {"trainer": SHORT["trainer"] | {"seed": 99}})
    )
    other = sealtrain.Recipe.load(tmp_path / "recipe.yaml").lock(
        world.consortium, world.simulation.brokers
    )
    assert [change.path for change in other.changes(since=world.locked)] == ["recipe.trainer.seed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml"]  # no out, no file
    with pytest.raises(RecipeChanged):
        world.owners["clinic-a"].approve(other, expecting=world.locked.recipe_hash)


def test_a_document_that_was_exchanged_after_it_was_read_changes_nothing(
    world: World, tmp_path: Path
) -> None:
    document = tmp_path / "app-compose.json"
    document.write_bytes(world.locked.compose_bytes)
    read = sealtrain.LockedRecipe.load(document)
    document.write_bytes(b"{}")
    assert read == world.locked
    with pytest.raises(LockInvalid):
        sealtrain.LockedRecipe.load(document)


def test_a_recipe_that_could_not_work_is_neither_checked_nor_locked(
    world: World, tmp_path: Path
) -> None:
    datasets = [*SHORT["datasets"], {"owner": "clinic-z", "name": "notes", "role": "train"}]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(SHORT | {"datasets": datasets}))
    recipe = sealtrain.Recipe.load(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeInvalid):
        recipe.check(world.consortium)
    with pytest.raises(RecipeInvalid):
        recipe.lock(world.consortium, world.simulation.brokers, out=tmp_path / "engineer")
    assert not (tmp_path / "engineer").exists()


# --- A run --------------------------------------------------------------------------------------


def test_a_run_verifies_and_says_so_by_its_contents(
    world: World, trained: sealtrain.Run, trust: sealtrain.Trust
) -> None:
    assert trained.state == "finished"
    for verified in (
        trained.verify(trust),
        sealtrain.verify_manifest(trained.manifest, world.folder / "trust.yaml"),
    ):
        assert verified.simulated
        assert verified.predicate.run.run_id == trained.run_id
        assert verified.lock == world.locked.lock
        assert len(verified.predicate.datasets) == len(SHORT["datasets"])
        world.said.append(verified)
    assert [checkpoint.step for checkpoint in trained.checkpoints()] == [4, 2]


def test_a_changed_output_is_refused_and_its_report_is_written(
    world: World, trained: sealtrain.Run, trust: sealtrain.Trust, tmp_path: Path
) -> None:
    victim = next(trained.model.glob("*.sealed"))
    kept = victim.read_bytes()
    victim.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    try:
        with pytest.raises(SubjectMismatch):
            trained.verify(trust)
        with pytest.raises(SubjectMismatch):
            trained.report(trust, tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text().endswith("</html>\n")
        with pytest.raises(SubjectMismatch):
            world.owners["clinic-a"].open_model(trained, tmp_path / "model", trust=trust)
        assert not (tmp_path / "model").exists()
        sealtrain.verify_manifest(trained.manifest, trust, artefacts=None)
    finally:
        victim.write_bytes(kept)


@pytest.mark.parametrize("cut", [0, 1, 1000, -1])
def test_half_a_manifest_is_refused_everywhere_and_leaves_no_model(
    world: World, trained: sealtrain.Run, trust: sealtrain.Trust, tmp_path: Path, cut: int
) -> None:
    kept = trained.manifest.read_bytes()
    trained.manifest.write_bytes(kept[:cut])
    try:
        with pytest.raises(Refused):
            trained.verify(trust)
        assert sealtrain.examine_manifest(trained.manifest, trust).refusal is not None
        with pytest.raises(Refused):
            world.owners["clinic-a"].open_model(trained, tmp_path / "model", trust=trust)
        assert not (tmp_path / "model").exists()
    finally:
        trained.manifest.write_bytes(kept)


def test_an_auditor_of_another_recipe_refuses_the_run(
    trained: sealtrain.Run, trust: sealtrain.Trust
) -> None:
    with pytest.raises(Refused):
        trained.verify(trust.model_copy(update={"recipe_hash": "0" * 64}))


def test_a_recipient_opens_the_model_and_nobody_else_does(
    world: World, trained: sealtrain.Run, trust: sealtrain.Trust, tmp_path: Path
) -> None:
    opened = world.owners["clinic-a"].open_model(trained, tmp_path / "model", trust=trust)
    assert opened.model is not None
    assert opened.model.checks
    assert "model.safetensors" in opened.files
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == opened.files
    with pytest.raises(NoStanza):
        world.owners["clinic-c"].open_model(trained, tmp_path / "other", trust=trust)
    assert not (tmp_path / "other").exists()


def test_an_owner_opens_what_it_sealed_and_a_run_is_no_dataset(
    world: World, trained: sealtrain.Run, tmp_path: Path
) -> None:
    owner, sealed = world.owners["clinic-a"], world.sealed / "clinic-a.notes.sealed"
    opened = owner.open_dataset(sealed, tmp_path / "notes.jsonl")
    assert opened.dataset == "notes"
    lines = (tmp_path / "notes.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        json.loads(line) for line in records("clinic-a").splitlines()
    ]
    with pytest.raises(AlreadyExists):
        owner.open_dataset(sealed, tmp_path / "notes.jsonl")
    for none in (trained.folder, trained.model, tmp_path):
        with pytest.raises(NotSealed):
            owner.open_dataset(none, tmp_path / "other")


def test_the_sealed_records_of_an_owner_in_place_of_a_model_are_not_opened_as_one(
    world: World, trained: sealtrain.Run, trust: sealtrain.Trust, tmp_path: Path
) -> None:
    swapped = sealtrain.Run(folder=world.sealed / "clinic-a.notes.sealed")
    with pytest.raises(NotSealed):
        world.owners["clinic-a"].open_model(swapped, tmp_path / "model", trust=trust)
    assert not (tmp_path / "model").exists()


def test_a_ledger_is_watched_and_audited(world: World, trained: sealtrain.Run) -> None:
    (first,) = world.owners["clinic-a"].witness().done.values()
    (again,) = world.owners["clinic-b"].witness(quorum=2).done.values()
    assert sorted(again.witnessed.times) == ["clinic-a", "clinic-b"]
    assert first.head.size <= again.head.size
    audit = sealtrain.audit_ledger(world.simulation.brokers[0], world.consortium)
    assert audit.kinds["release"] == 1
    assert audit.findings == ()
    world.said += [first, again, audit]


def test_a_run_that_was_begun_elsewhere_is_not_resumed(
    world: World, trained: sealtrain.Run, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, check=carries(check="run")):
        world.simulation.resume(sealtrain.Run(folder=tmp_path))


def test_the_guide_does_what_it_says(
    world: World,
    trained: sealtrain.Run,
    trust: sealtrain.Trust,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (repository / "docs/guides/python.md").read_text()
    for name in OWNERS:
        (tmp_path / name).symlink_to(world.folder / name)
    for file in ("consortium.json", "recipe.yaml", "engineer"):
        (tmp_path / file).symlink_to(world.folder / file)
    (tmp_path / "broker.yaml").symlink_to(world.simulation.brokers[0])
    (tmp_path / "policy.yaml").symlink_to(world.simulation.policy)
    (tmp_path / "run").symlink_to(trained.folder)
    (tmp_path / "notes.jsonl").write_text(records("clinic-a"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agreed.txt").write_text(world.locked.recipe_hash + "\n")
    ticket = RunTicket(
        version=1,
        role="train",
        brokers=(load_pin(world.simulation.brokers[0]),),
        data=(str(world.sealed),),
    )
    (tmp_path / "ticket.json").write_bytes(ticket.to_bytes())
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)  # noqa: S102 - it is our own page
    assert names["sealed"].description.records == 40
    assert names["tally"].approved_by
    assert names["submitted"].state == "waiting"
    names["submitted"].stop(world.owners["clinic-a"].identity)
    assert "model.safetensors" in names["opened"].files
    assert names["verified"].simulated
    assert (tmp_path / "rehearsal" / "broker.yaml").is_file()
    remain(tmp_path / "rehearsal")
    own = [world.sealed / f"clinic-a.{name}.sealed" for name in ("notes", "check")]
    world.owners["clinic-a"].approve(world.locked, expecting=world.locked.recipe_hash, datasets=own)


# --- Taking back: tests in this order -----------------------------------------------------------


def test_a_revocation_stops_the_next_run_and_is_taken_back_only_by_saying_so(
    world: World, trained: sealtrain.Run
) -> None:
    owner, agreed = world.owners["clinic-b"], world.locked.recipe_hash
    (tally,) = owner.revoke(world.locked, expecting=agreed).done.values()
    assert tally.revoked_by == ("clinic-b",)
    with pytest.raises(ApprovalRevoked):
        world.simulation.train(world.recipe, world.locked, world.sealed)
    with pytest.raises(UsageError, check=carries(check="--lift-revocation")):
        owner.approve(world.locked, expecting=agreed)
    answers = owner.approve(world.locked, expecting=agreed, lift_revocation=True)
    (tally,) = answers.done.values()
    assert "clinic-b" in tally.approved_by


def test_what_is_withdrawn_is_named_by_its_id_and_never_released_again(
    world: World, trained: sealtrain.Run
) -> None:
    owner = world.owners["clinic-c"]
    before = entries(world)
    for wrong in (["notes"], [str(world.sealed / "clinic-c.notes.sealed")], []):
        with pytest.raises(StatementInvalid):
            owner.withdraw(wrong)
    assert entries(world) == before
    (done,) = owner.withdraw([world.ids["clinic-c.notes"]]).done.values()
    (use,) = done.uses
    assert [run.run_id for run in use.runs] == [trained.run_id]
    assert done.unread is None
    world.said.append(done)
    with pytest.raises(DatasetWithdrawn):
        world.simulation.train(world.recipe, world.locked, world.sealed)


def test_no_value_log_or_print_of_the_library_shows_a_record_or_a_key(
    world: World,
    trained: sealtrain.Run,
    trust: sealtrain.Trust,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = world.owners["clinic-a"]
    source = tmp_path / "broken.jsonl"
    source.write_text(records("clinic-a") + '{"prompt": "' + CANARY + '", "completion": 7}\n')
    errors: list[BaseException] = []
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(sealtrain.errors.SealtrainError) as refused:
            owner.seal(source, tmp_path / "broken.sealed", name="notes", locked=world.locked)
        errors.append(refused.value)
        with pytest.raises(RecipeChanged) as changed:
            owner.approve(world.locked, expecting="0" * 64)
        errors.append(changed.value)
        world.owners["clinic-b"].prepare(world.locked)
        owner.witness()
        trained.verify(trust)
        owner.open_model(trained, tmp_path / "model", trust=trust)
    assert not (tmp_path / "broken.sealed").exists()
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    told = [repr(world.said), str(world.said), caplog.text, *map(str, errors), *map(repr, errors)]
    told += [repr(vars(error)) for error in errors]
    seeds = [json.loads(owner.identity.read_text())["seed"] for owner in world.owners.values()]
    assert CANARY in source.read_text()
    assert len(set(seeds)) == len(OWNERS)
    for secret in (CANARY, *seeds):
        assert not [text for text in told if secret in text]


# --- The face itself ----------------------------------------------------------------------------


def public_functions() -> Iterator[tuple[str, Any]]:
    """Every function and method that ``import sealtrain`` names."""
    for name in sealtrain.__all__:
        found = getattr(sealtrain, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found) and found.__module__.startswith("sealtrain"):
            for method, function in inspect.getmembers(found, inspect.isfunction):
                if not method.startswith("_") and function.__module__.startswith("sealtrain"):
                    yield f"{name}.{method}", function


def test_nothing_that_verifies_or_decides_returns_a_bool() -> None:
    judged = ("verify", "examine", "audit", "check", "approve", "witness", "report", "open", "load")
    found = {
        name: function
        for name, function in public_functions()
        if name.rsplit(".", 1)[-1].startswith(judged)
    }
    assert {"verify_manifest", "Run.verify", "audit_ledger", "Recipe.check"} <= found.keys()
    for name, function in found.items():
        said = str(function.__annotations__["return"])
        assert "bool" not in said, name
        assert said != "None", name


def test_no_default_weakens_a_check_or_says_what_is_approved() -> None:
    for name, function in public_functions():
        for word, parameter in inspect.signature(function).parameters.items():
            if word in ("expecting", "trust"):
                assert parameter.default is inspect.Parameter.empty, name
            if parameter.default is True:
                assert not re.search(r"insecure|unpinned|lift", word), name


@pytest.mark.nightly
def test_the_typed_story_is_typed_and_a_wrong_call_is_found(
    repository: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import sealtrain\n"
        "def f(owner: sealtrain.Owner, locked: sealtrain.LockedRecipe, run: sealtrain.Run)"
        " -> None:\n"
        "    owner.approve(locked)\n"
        "    owner.open_model(run, run.folder)\n"
        "    passed: bool = run.verify(run.folder)\n"
        "    print(passed, typed)\n"
        "typed: sealtrain.VerifiedManifest = sealtrain.verify_manifest('manifest.json', 'trust')\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary",
            repository / "examples/notebook/story.py", wrong,
        ],
        cwd=repository, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert not [line for line in lines if "story.py" in line], done.stdout
    assert {3, 4, 5, 7} == {
        int(match[1]) for line in lines if (match := re.search(r"wrong\.py:(\d+):", line))
    }, done.stdout


def test_every_public_name_has_hints_that_hold() -> None:
    hinted = {"sealtrain": sealtrain}
    assert typing.get_type_hints(sealtrain.Run)["folder"] is Path
    assert set(sealtrain.__all__) >= {"Owner", "Run", "verify_manifest", "rehearsal"}
    for name in sealtrain.__all__:
        found = getattr(hinted["sealtrain"], name)
        assert inspect.ismodule(found) or inspect.getdoc(found), name


def test_importing_sealtrain_is_light_and_a_name_loads_what_it_needs() -> None:
    program = (
        "import sys, sealtrain\n"
        "heavy = ('torch', 'pyarrow', 'httpx2', 'pydantic', 'cryptography')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "for name in sealtrain.__all__:\n"
        "    if name not in ('SealedLightning', 'SealedLoop', 'SealedRun', 'sign_manifest',\n"
        "                    'unwrap_dataset'): getattr(sealtrain, name)\n"
        "assert not [name for name in heavy[:2] if name in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    for name in sealtrain.__all__:
        getattr(sealtrain, name)


def test_owners_and_auditors_need_neither_torch_nor_a_training_library() -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'trl', 'accelerate', 'datasets', 'starlette'):\n"
        "    sys.modules[name] = None\n"
        "import sealtrain\n"
        "for name in ('Owner', 'Consortium', 'Identity', 'LockedRecipe', 'Recipe', 'Run',\n"
        "             'Trust', 'verify_manifest', 'audit_ledger', 'pin_trust', 'report',\n"
        "             'rehearsal'):\n"
        "    getattr(sealtrain, name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = sealtrain.verify_all  # type: ignore[attr-defined]


def test_one_memory_is_for_one_broker(world: World) -> None:
    with pytest.raises(UsageError, check=carries(check="--memory")):
        sealtrain.Owner(
            identity=world.owners["clinic-a"].identity,
            brokers=world.simulation.brokers * 2,
            state=world.folder / "memory.json",
            consortium=world.consortium,
        )


def test_no_file_of_a_person_is_replaced(world: World) -> None:
    identity, consortium = Identity.generate("clinic-a"), world.folder / "consortium.json"
    kept = world.owners["clinic-a"].identity.read_bytes(), consortium.read_bytes()
    with pytest.raises(AlreadyExists):
        identity.save_pair(world.folder / "clinic-a")
    with pytest.raises(AlreadyExists):
        world.consortium.save(consortium)
    assert kept == (world.owners["clinic-a"].identity.read_bytes(), consortium.read_bytes())


def test_a_pair_of_files_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "clinic-a.public.json").write_text("another's")
    with pytest.raises(AlreadyExists):
        Identity.generate("clinic-a").save_pair(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clinic-a.public.json"]


def test_a_rehearsal_needs_a_folder_of_its_own_and_starts_nothing_else(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(AlreadyExists):
        sealtrain.rehearsal(tmp_path, world.consortium)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_broker_that_failed_is_not_overlooked(world: World) -> None:
    away = world.folder / "away.yaml"
    pin = yaml.safe_load(world.simulation.brokers[0].read_text())
    away.write_text(yaml.safe_dump(pin | {"url": f"http://127.0.0.1:{free_port()}"}))
    some = replace(world.owners["clinic-a"], brokers=(*world.simulation.brokers, away))
    answers = some.witness()
    assert len(answers.done) == len(answers.failed) == 1
    with pytest.raises(Unreachable):
        answers.at_all()
    assert list(world.owners["clinic-a"].witness().at_all()) == list(answers.done)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_that_was_killed_goes_on_from_its_sealed_checkpoint(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(SHORT | {"trainer": SHORT["trainer"] | {"max_steps": 300, "save_steps": 5}})
    )
    recipe = sealtrain.Recipe.load(tmp_path / "recipe.yaml")
    locked = recipe.lock(world.consortium, world.simulation.brokers)
    (tmp_path / "sealed").mkdir()
    for dataset in SHORT["datasets"]:
        source = tmp_path / "records.jsonl"
        source.write_text(records(dataset["owner"]))
        out = tmp_path / "sealed" / f"{dataset['owner']}.{dataset['name']}.sealed"
        world.owners[dataset["owner"]].seal(source, out, name=dataset["name"], locked=locked)
    for owner in world.owners.values():
        owner.approve(locked, expecting=locked.recipe_hash)
    begun = len(world.simulation.runs)
    ended: list[BaseException] = []

    def training() -> None:
        try:
            world.simulation.train(recipe, locked, tmp_path / "sealed")
        except BaseException as error:
            ended.append(error)

    beside = threading.Thread(target=training)
    beside.start()

    def is_anchored() -> bool:
        assert beside.is_alive(), ended
        runs = world.simulation.runs
        return len(runs) > begun and _anchored(runs[-1])

    wait_until(is_anchored, 300)
    run = world.simulation.runs[-1]
    for process in _inside(run.folder.parent):
        os.kill(process, signal.SIGKILL)
    beside.join(60)
    assert len(ended) == 1
    assert run.state == "interrupted"
    assert world.simulation.resume(run) == run
    trust = sealtrain.pin_trust(
        world.consortium, locked, world.simulation.brokers, world.simulation.policy
    )
    verified = run.verify(trust)
    assert len(verified.predicate.run.resumes) == 1
    assert verified.predicate.run.steps == 300


def _anchored(run: sealtrain.Run) -> bool:
    return run.state == "interrupted" and any(
        checkpoint.anchored for checkpoint in run.checkpoints()
    )


def _inside(folder: Path) -> list[int]:
    """The children of this process that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and (path / "cwd").readlink() == folder:
                found.append(int(path.name))
        except OSError:
            continue  # it ended
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("end", ["an exception", "kill -9"])
def test_a_rehearsal_leaves_no_process_however_it_ends(
    world: World, tmp_path: Path, end: str
) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "import sealtrain\n"
        "consortium = sealtrain.Consortium.load(Path(sys.argv[1]))\n"
        "with sealtrain.rehearsal(Path(sys.argv[2]), consortium) as simulation:\n"
        "    print('up', flush=True)\n"
        "    sys.stdin.read()\n"
        "    raise KeyboardInterrupt\n"
    )
    words = [
        sys.executable, "-c", program, world.folder / "consortium.json", tmp_path / "rehearsal"
    ]  # fmt: skip
    with (
        (tmp_path / "playing.log").open("wb") as log,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as playing,
    ):
        assert playing.stdout is not None
        assert playing.stdin is not None
        assert playing.stdout.readline() == "up\n"
        with pytest.raises(AssertionError):
            remain(tmp_path / "rehearsal", within=0)  # the search finds what runs
        if end == "kill -9":
            playing.kill()
        playing.stdin.close()
        playing.wait(timeout=60)
    remain(tmp_path / "rehearsal")
