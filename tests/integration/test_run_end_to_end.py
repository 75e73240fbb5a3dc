"""The whole story through the command line: seal, approve, train, crash, resume, verify."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from polling import wait_until
from stage import (
    CANARY,
    DEADLINE_SECONDS,
    MACHINE,
    OWNERS,
    RECIPE,
    Stage,
    stage,
)

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # A short path: unix sockets allow about a hundred characters.
    with stage(tmp_path_factory.mktemp("e2e")) as made:
        yield made


@pytest.fixture(scope="module")
def engineer(world: Stage) -> Path:
    return world.propose("engineer", RECIPE)


@pytest.fixture(scope="module")
def refused_early(world: Stage, engineer: Path) -> Any:
    world.approve(engineer, "clinic-a", "clinic-b")
    return world.try_run(*world.train_words(engineer, "early"))


@pytest.fixture(scope="module")
def finished(world: Stage, engineer: Path, refused_early: Any) -> Path:
    world.approve(engineer, "clinic-c")
    world.run(*world.train_words(engineer, "run"))
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--deployment", world.deployment,
        "--policy", "policy.yaml", "--broker", world.broker, "--out", world.trust,
    )  # fmt: skip
    return world.folder / "run"


def manifest_of(run: Path) -> Any:
    """The statement in a run's manifest."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    return json.loads(base64.b64decode(manifest["bundle"]["dsseEnvelope"]["payload"]))


def opened_model(world: Stage, run: Path, name: str, owner: str = "clinic-a") -> Path:
    out = world.folder / name
    world.run("open", run / "model", "--identity", world.identity(owner), "--out", out)
    return out


@pytest.mark.claim("C10")
@pytest.mark.claim("C45")
def test_without_the_approval_of_one_whose_data_is_read_no_run_begins(
    world: Stage, refused_early: Any
) -> None:
    assert (refused_early.code, refused_early.error) == (3, "approvals-missing")
    assert not (world.folder / "early").exists()


def test_the_manifest_of_a_run_verifies_and_says_simulated(world: Stage, finished: Path) -> None:
    report = world.run("verify", finished / "manifest.json", "--trust", world.trust)
    assert report["accepted"]
    assert report["simulated"]
    assert {check["outcome"] for check in report["checks"]} == {"passed"}


def test_a_recipient_opens_the_model_and_a_stranger_does_not(world: Stage, finished: Path) -> None:
    model = opened_model(world, finished, "model-a")
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {
        path.name for path in model.iterdir()
    }
    answer = world.try_run(
        "open", finished / "model", "--identity", world.identity("clinic-c"), "--out", "stolen"
    )
    assert (answer.code, answer.error) == (3, "no-stanza")
    assert not (world.folder / "stolen").exists()


def test_an_owner_opens_their_own_dataset_again(world: Stage, engineer: Path) -> None:
    out = world.folder / "again.jsonl"
    world.run(
        "open", engineer / "sealed" / "clinic-a.notes.sealed",
        "--identity", world.identity("clinic-a"), "--out", out,
    )  # fmt: skip
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    source = (world.inputs / "clinic-a.notes.jsonl").read_text().splitlines()
    out.unlink()  # plaintext on the owner's own disk; the search below is for all other places
    assert rows == [json.loads(line) for line in source]


@pytest.mark.claim("C107")
def test_a_manifest_says_how_far_the_kernel_held_the_border(finished: Path) -> None:
    envelope = json.loads((finished / "manifest.json").read_bytes())["bundle"]["dsseEnvelope"]
    predicate = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    entries = predicate["run_log"]["entries"]
    closed = [entry["fields"] for entry in entries if entry["event"] == "border.closed"]
    assert len(closed) == 1
    assert closed[0]["unbound"] == 0
    held = closed[0]["landlock"] >= 6 and closed[0]["seccomp"]
    limits = {limit["id"] for limit in predicate["limits"]}
    assert ("border-in-software" in limits) is not held


@pytest.mark.claim("C23")
def test_a_killed_run_resumes_to_the_very_same_weights(
    world: Stage, engineer: Path, finished: Path
) -> None:
    checkpoints = world.folder / "killed" / "checkpoints"
    world.train_and_kill(
        engineer, "killed", lambda: len(list(checkpoints.glob("checkpoint-*.sealed"))) >= 2
    )
    assert not (world.folder / "killed" / "manifest.json").exists()
    world.run("resume", world.folder / "killed")
    straight = opened_model(world, finished, "model-straight")
    resumed = opened_model(world, world.folder / "killed", "model-resumed")
    name = "model.safetensors"
    assert (resumed / name).read_bytes() == (straight / name).read_bytes()
    report = world.run("verify", world.folder / "killed" / "manifest.json", "--trust", world.trust)
    assert report["accepted"]


@pytest.mark.nightly
@pytest.mark.claim("C22")
def test_an_older_checkpoint_put_back_is_refused(world: Stage, engineer: Path) -> None:
    out = world.folder / "rolled"
    checkpoints = out / "checkpoints"
    kept = world.folder / "kept"

    def copied_first() -> bool:
        if not kept.exists() and list(checkpoints.glob("checkpoint-00000001-*.sealed")):
            shutil.copytree(checkpoints, kept)
        return kept.exists() and bool(list(checkpoints.glob("checkpoint-00000003-*.sealed")))

    world.train_and_kill(engineer, "rolled", copied_first)
    shutil.rmtree(checkpoints)
    shutil.copytree(kept, checkpoints)
    answer = world.try_run("resume", out)
    assert (answer.code, answer.error) == (3, "checkpoint-refused")


@pytest.mark.claim("C4")
def test_no_file_but_the_owners_input_holds_a_record(
    world: Stage, engineer: Path, finished: Path
) -> None:
    needle = CANARY.encode()
    inside = [
        path.relative_to(world.folder)
        for path in world.folder.rglob("*")
        if path.is_file() and world.inputs not in path.parents and needle in path.read_bytes()
    ]
    assert needle in (world.inputs / "clinic-a.notes.jsonl").read_bytes()
    assert inside == []


@pytest.mark.claim("C21")
def test_only_metrics_of_the_release_policy_leave(world: Stage, finished: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_bytes())
    text = json.dumps(manifest)
    assert "grad_norm" not in text
    log = world.run("log", "--broker", world.broker)
    assert "grad_norm" not in json.dumps(log)


@pytest.mark.parametrize("at", [0.01, 0.3, 0.6, 0.99])
def test_a_changed_manifest_exits_with_three(world: Stage, finished: Path, at: float) -> None:
    data = bytearray((finished / "manifest.json").read_bytes())
    data[int(len(data) * at)] ^= 1
    changed = finished / "changed.json"
    changed.write_bytes(bytes(data))
    answer = world.try_run("verify", changed, "--trust", world.trust)
    changed.unlink()
    assert answer.code == 3


def test_a_changed_artefact_exits_with_three(world: Stage, finished: Path) -> None:
    folder = world.folder / "altered"
    shutil.copytree(finished, folder)
    victim = folder / "model" / "config.json.sealed"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(bytes(data))
    answer = world.try_run("verify", folder / "manifest.json", "--trust", world.trust)
    assert (answer.code, answer.error) == (3, "subject-mismatch")


def test_trust_takes_what_the_measured_broker_asks_and_no_other_policy(
    world: Stage, finished: Path
) -> None:
    words = (
        "trust", "new", "--consortium", "consortium.json", "--deployment", world.deployment,
        "--broker", world.broker, "--out",
    )  # fmt: skip
    world.run(*words, "measured.yaml", "--broker-deployment", "broker-compose.json")
    assert (world.folder / "measured.yaml").read_bytes() == world.trust.read_bytes()
    document = json.loads((world.folder / "broker-compose.json").read_bytes())
    (world.folder / "other-compose.json").write_text(json.dumps(document, indent=1))
    for other in ([], ["--broker-deployment", "other-compose.json"]):
        answer = world.try_run(*words, "other.yaml", *other)
        assert (answer.code, answer.error) in {(2, "usage"), (2, "lock-invalid")}
        assert not (world.folder / "other.yaml").exists()


@pytest.mark.parametrize("pin", ["consortium_id", "recipe_hash", "root"])
def test_another_trust_exits_with_three(world: Stage, finished: Path, pin: str) -> None:
    document = yaml.safe_load(world.trust.read_text())
    if pin == "root":
        world.run(
            "simulator",
            "serve",
            "--simulator",
            "other-root",
            "--write-policy",
            f"other-{pin}.yaml",
            *MACHINE,
        )
        document["appraisal"] = yaml.safe_load((world.folder / f"other-{pin}.yaml").read_text())
    else:
        document[pin] = "0" * 64
    other = world.folder / f"trust-{pin}.yaml"
    other.write_text(yaml.safe_dump(document))
    answer = world.try_run("verify", finished / "manifest.json", "--trust", other)
    assert answer.code == 3


def test_the_report_is_one_page_that_loads_nothing(world: Stage, finished: Path) -> None:
    world.run("report", finished / "manifest.json", "--trust", world.trust, "--out", "r.html")
    page = (world.folder / "r.html").read_text()
    assert "SIMULATED — NOT ATTESTED" in page
    assert 'src="http' not in page
    assert "<svg" in page
    for submodule in ("Processor (cpu0)", "Accelerator (gpu0)", "Accelerator (gpu1)"):
        assert submodule in page


SCRIPT = """
import ctypes.util
from pathlib import Path
import sealtrain
# What torch's build for CUDA asks when it is loaded; a script may be what loads it.
assert ctypes.util.find_library("c") and ctypes.util.find_library("no-such-library") is None
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from sealtrain.training.models.base import byte_tokenizer

config = LlamaConfig(vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128)
train_ds = sealtrain.unwrap_dataset()
trainer = SFTTrainer(
    LlamaForCausalLM(config),
    args=SFTConfig(output_dir="scratch", max_steps=6, per_device_train_batch_size=4, use_cpu=True,
                   bf16=False, activation_checkpointing=False, save_steps=3, logging_steps=2,
                   max_length=64, report_to="none"),
    train_dataset=train_ds,
    processing_class=byte_tokenizer(),
    callbacks=[sealtrain.SealedRun()],
)
trainer.train()
print(next(iter(train_ds)))
Path("log.txt").write_text(str(next(iter(train_ds))))
assert Path("log.txt").resolve().is_relative_to("/dev/shm")
sealtrain.sign_manifest(trainer)
"""


@pytest.mark.nightly
@pytest.mark.claim("C106")
@pytest.mark.claim("C109")
def test_a_users_own_script_trains_inside_the_run(world: Stage, finished: Path) -> None:
    recipe = {**RECIPE, "name": "own-script", "scripts": ["train.py"]}
    folder = world.propose("script", recipe, {"train.py": SCRIPT})
    world.approve(folder, *OWNERS)
    outcome = world.run(*world.train_words(folder, "script-run"))
    assert outcome["steps"] == 6
    report = world.run(
        "verify", world.folder / "script-run" / "manifest.json", "--trust", _trust(world, folder)
    )
    assert report["accepted"]
    # What it wrote by relative names is in no folder, its own ``output_dir`` included.
    assert not [*world.folder.rglob("log.txt"), *world.folder.rglob("scratch")]


LOOP = """
import time
import torch
import sealtrain

torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loop = sealtrain.SealedLoop(model, optimizer)
paced = loop.steps == 0  # time for an owner to think; a resumed run has none to lose
for batch in loop.batches():
    lengths = torch.tensor([[float(len(text))] for text in batch["prompt"]])
    loss = (model(lengths / 100) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loop.log(loss=loss)
    if paced and loop.steps >= 3:
        time.sleep(1)
sealtrain.sign_manifest(loop, accuracy=0.5, secret_score=1.0)
"""


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


@pytest.mark.nightly
@pytest.mark.claim("C11")
def test_a_loop_pauses_where_approvals_end_and_goes_on_when_they_are_back(
    world: Stage, finished: Path
) -> None:
    trainer = RECIPE["trainer"] | {"max_steps": 30, "save_steps": 3}
    recipe = {**RECIPE, "name": "own-loop", "scripts": ["loop.py"], "trainer": trainer}
    folder = world.propose("loop", recipe, {"loop.py": LOOP})
    world.approve(folder, *OWNERS)
    out = world.folder / "loop-run"
    words = [*world.train_words(folder, "loop-run"), "--wait-for-lease", "120"]
    with world.part(*words) as guest:
        wait_until(lambda: list((out / "checkpoints").glob("*.sealed")) or guest.gone)
        # An owner's latest approval counts, and this one is over in two seconds.
        world.approve_until(folder, "clinic-c", seconds=2)
        wait_until(lambda: "no key is held" in "\n".join(guest.read_stderr()) or guest.gone)
        assert not guest.gone, guest.read_stderr()
        assert children(guest.pid) == [], guest.read_stderr()
        newest = max(path.name for path in (out / "checkpoints").glob("*.sealed"))
        assert not (out / "manifest.json").exists()
        world.approve(folder, "clinic-c")
        outcome = guest.wait_for_end(within=DEADLINE_SECONDS)
    said = "\n".join(guest.read_stderr())
    assert "paused [" in said
    assert f"checkpoint {int(newest.split('-')[1])} is sealed" in said
    resumes = manifest_of(out)["predicate"]["run"]["resumes"]
    assert resumes[0]["counter"] == int(newest.split("-")[1])
    assert outcome["steps"] == 30
    assert outcome["metrics"]["accuracy"] == 0.5
    assert "secret_score" not in outcome["metrics"]
    verified = world.run(
        "verify", world.folder / "loop-run" / "manifest.json", "--trust", _trust(world, folder)
    )  # fmt: skip
    assert verified["simulated"] is True


@pytest.fixture(scope="module")
def changed(world: Stage, engineer: Path, finished: Path) -> Path:
    """The engineer keeps the sealed data of a recipe that owners approved, and changes a number."""
    changed = world.folder / "changed"
    changed.mkdir()
    trainer = {**RECIPE["trainer"], "learning_rate": 0.004}
    (changed / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "trainer": trainer}))
    world.run("lock", changed / "recipe.yaml", "--broker", world.broker, "--out", changed)
    world.boot(changed)
    shutil.copytree(engineer / "sealed", changed / "sealed")
    return changed


def test_a_recipe_changed_after_approval_gets_no_keys(world: Stage, changed: Path) -> None:
    answer = world.try_run(*world.train_words(changed, "changed-run"))
    assert (answer.code, answer.error) == (3, "recipe-changed")


@pytest.mark.nightly
def test_the_same_ciphertext_serves_a_changed_recipe_once_its_owners_say_so(
    world: Stage, changed: Path
) -> None:
    """They rewrap the data and approve."""
    for folder in sorted((changed / "sealed").iterdir()):
        before = {path.name: path.read_bytes() for path in folder.glob("shard-*")}
        world.run(
            "rewrap", folder, "--identity", world.identity(folder.name.split(".")[0]),
            "--deployment", changed / "app-compose.json", "--broker", world.broker,
        )  # fmt: skip
        assert {path.name: path.read_bytes() for path in folder.glob("shard-*")} == before
    world.approve(changed, *OWNERS)
    assert world.run(*world.train_words(changed, "rewrapped"))["steps"] == 40


@pytest.fixture(scope="module")
def second(world: Stage) -> Path:
    """Broker file of a second instance: the genuine deployment, and another root secret."""
    told = world.open_broker("second")
    lock = json.loads(world.lock.read_bytes())
    assert told["broker_id"] not in lock["brokers"]
    assert told["simulated"]
    return world.folder / "second.yaml"


@pytest.mark.claim("C90")
def test_no_owner_seals_or_approves_for_a_broker_that_guests_do_not_obey(
    world: Stage, engineer: Path, second: Path
) -> None:
    me = ["--identity", world.identity("clinic-a"), "--broker", second]
    sealed = engineer / "sealed" / "clinic-a.notes.sealed"
    for words in (
        ["approve", "--deployment", world.deployment, *me, "--yes"],
        ["approve", "--deployment", world.deployment, *me, "--broker", world.broker, "--yes"],
        ["seal", world.inputs / "clinic-a.notes.jsonl", "--name", "notes", *me,
         "--deployment", world.deployment, "--out", "astray.sealed"],
        ["rewrap", sealed, *me, "--deployment", world.deployment],
        ["trust", "new", "--consortium", "consortium.json", "--policy", "policy.yaml",
         "--deployment", world.deployment, "--broker", second, "--out", "astray.yaml"],
    ):  # fmt: skip
        answer = world.try_run(*words)
        assert (answer.code, answer.error) == (3, "broker-not-approved"), words
    assert not list(world.folder.glob("astray*"))


@pytest.mark.claim("C90")
def test_a_guest_obeys_no_other_broker_than_the_locks_whatever_its_broker_file_says(
    world: Stage, engineer: Path, finished: Path, second: Path
) -> None:
    def started(broker: Path, out: str) -> Any:
        words = [
            broker if word == world.broker else word for word in world.train_words(engineer, out)
        ]
        return world.try_run(*words)

    answer = started(second, "astray")
    assert (answer.code, answer.error) == (3, "broker-not-approved")
    assert not (world.folder / "astray").exists()
    # The operator may write the real broker's key into the file: the second one has another.
    lying = yaml.safe_load(second.read_text())
    lying["signing_key"] = yaml.safe_load(world.broker.read_text())["signing_key"]
    (world.folder / "lying.yaml").write_text(yaml.safe_dump(lying))
    answer = started(world.folder / "lying.yaml", "astray")
    assert (answer.code, answer.error) == (3, "broker-mismatch")
    shutil.copytree(finished, world.folder / "led-astray")
    answer = world.try_run("resume", "led-astray", "--broker", second)
    assert (answer.code, answer.error) == (3, "broker-not-approved")
    ledger = world.run("log", "--broker", second)
    assert {entry["kind"] for entry in ledger["entries"]} == set()


def test_a_revoked_recipe_gets_no_keys(world: Stage, engineer: Path, finished: Path) -> None:
    world.run(
        "revoke", "--deployment", world.deployment, "--identity", world.identity("clinic-c"),
        "--broker", world.broker, "--yes",
    )  # fmt: skip
    answer = world.try_run(*world.train_words(engineer, "revoked"))
    assert (answer.code, answer.error) == (3, "approval-revoked")
    assert not (world.folder / "revoked").exists()
    status = world.run(
        "approvals", "status", "--deployment", world.deployment, "--broker", world.broker
    )
    assert status["sealed"]


def _trust(world: Stage, folder: Path) -> Path:
    out = world.folder / f"trust-{folder.name}.yaml"
    world.run(
        "trust", "new", "--consortium", "consortium.json",
        "--deployment", folder / "app-compose.json", "--policy", "policy.yaml",
        "--broker", world.broker, "--out", out,
    )  # fmt: skip
    return out
