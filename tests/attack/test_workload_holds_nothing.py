"""A hostile script looks for whatever could leave with a record, and finds nothing to take.

One whole run by the command line, with real brokers and keys. Its script looks at itself, tries
every way out that a script once had, and puts what it found into a file of the model: that is the
one thing of it that leaves, sealed to the recipients.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from stage import DEADLINE_SECONDS, OWNERS, RECIPE, Stage, stage
from variants import variants

from sealtrain.guest.sandbox.scratch import SHARED_MEMORY
from sealtrain.guest.workload.channel import ChannelEnds
from sealtrain.guest.workload.fork import WorkloadProcess, keep_orphans
from sealtrain.manifest import form
from sealtrain.sealing.file import read_header

pytestmark = [pytest.mark.long, pytest.mark.claim("C540")]
PLANTED = "planted-5d1c77"
CREDENTIALS = (
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "NVIDIA_API_KEY",
    "TORCH_HUB_TOKEN",
    "UNSLOTH_LICENSE_KEY_FILE",
)
SCRIPTED = ("app-compose.json", "recipe.lock.json", "train.py")
"""Files that hold the text of the script."""
SCRIPT = """
import ctypes, gc, inspect, json, os, re, sys, time
from pathlib import Path

import torch

import sealtrain
from sealtrain.guest import script as inside

KEEPER = os.getppid()
found = {"pid": os.getpid(), "keeper": KEEPER}


def tried(work):
    try:
        return repr(work())[:300]
    except BaseException as error:
        return type(error).__name__


def descriptors():
    places = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            places[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    return places


record = next(iter(sealtrain.unwrap_dataset()))
words = json.dumps(record).encode()
found["descriptors"] = descriptors()
found["environment"] = dict(os.environ)
found["planted"], anonymous = 0, 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, name = (line.split(maxsplit=5) + [""])[:6]
        if rights[:2] == "rw" and not name.startswith("/"):
            start, end = (int(bound, 16) for bound in place.split("-"))
            try:
                memory.seek(start)
                part = memory.read(end - start)
            except (OSError, ValueError):
                continue
            anonymous += len(part)
            found["planted"] += len(re.findall(rb"planted-[0-9a-f]{6}", part))
            del part
assert anonymous > 1 << 20
found["started with"] = Path("/proc/self/environ").read_bytes().decode("latin-1")
found["status"] = dict(
    line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
)
found["dumpable"] = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
found["maps"] = sorted({
    line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines()
    if len(line.split(maxsplit=5)) == 6
})
found["read"] = {path: tried(lambda: open(path, "rb").read(8)) for path in PATHS}
found["listed"] = {path: tried(lambda: os.listdir(path)) for path in PATHS}
for name in ("mem", "environ", "maps", "fd/0", "root/etc/hostname", "cwd/consortium.json"):
    place = f"/proc/{KEEPER}/{name}"
    found["read"][place] = tried(lambda: open(place, "rb").read(8))
found["listed"][f"/proc/{KEEPER}/fd"] = tried(lambda: os.listdir(f"/proc/{KEEPER}/fd"))
found["signal"] = tried(lambda: os.kill(KEEPER, 0))
held = {type(thing).__name__ for thing in gc.get_objects()}
found["objects"] = sorted(held & {
    "DataKey", "Secret", "SealedDataset", "SealedFile", "SealedStore", "Quorum", "Grants",
    "Lease", "LeaseKeeper", "Journal", "Recorder", "BrokerClient", "Keeper", "Stanza",
})
# The keeper as it was before it asked a broker.
found["keeper's"] = [
    sorted(vars(thing)) for thing in gc.get_objects() if type(thing).__name__ == "GuestRun"
]
# The pipe to the supervisor, by walking the stack; the terminal and pipes, by number.
frame, answers = inspect.currentframe(), []
while frame is not None:
    answers += [value for value in frame.f_locals.values() if hasattr(value, "send_bytes")]
    frame = frame.f_back
found["pipes"] = len(answers)
for number in map(int, os.listdir("/proc/self/fd")):
    if not found["descriptors"].get(str(number), "").startswith("socket:"):
        tried(lambda: os.write(number, b"LEAK-FD " + words))
for place in (OUT, OUT + "/notes.txt", str(Path(OUT).parent / "notes.txt")):
    tried(lambda: Path(place).write_bytes(b"LEAK-FILE " + words))
run = inside.running().run
found["ways"] = {
    "settings": hasattr(run, "settings"),
    "record": hasattr(run, "record"),
    "released": hasattr(run, "keep_metrics"),
    "quorum": hasattr(run, "quorum"),
    "grant": hasattr(run, "grant"),
}
found["columns"] = [list(source.dataset.batch(0).schema.names) for source in run.sources]
found["sockets"] = {
    str(kind): tried(lambda: ctypes.CDLL(None).socket(*kind)) for kind in ((1, 1), (2, 1), (2, 2))
}
found["loss"] = tried(lambda: run.metrics.offer(1, {"LEAK-METRIC " + record["prompt"]: 1.0}))
child = os.fork()
if child == 0:
    tried(os.setsid)
    if os.fork() == 0:
        time.sleep(3600)
    time.sleep(3600)
found["child"] = child
made_up = record["prompt"].encode().hex() + ".json"
found["file"] = tried(lambda: run.store.deliver(made_up, 2, [b"{}"]))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def save_pretrained(self, folder):
        from safetensors.torch import save_file

        save_file(self.state_dict(), f"{folder}/model.safetensors")
        Path(folder, "found.json").write_text(json.dumps(found))

    @classmethod
    def from_pretrained(cls, folder):
        from safetensors.torch import load_file

        made = cls()
        made.load_state_dict(load_file(f"{folder}/model.safetensors"))
        return made


model = Model()
loop = sealtrain.SealedLoop(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in loop.batches():
    loop.log(loss=0.5)
signed = sealtrain.sign_manifest(loop)
found["manifest"] = tried(lambda: Path(signed).read_bytes())
assert found["manifest"] == "PermissionError"
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(scope="module")
def done(world: Stage) -> subprocess.CompletedProcess[str]:
    """The run, begun as an operator begins one, in an environment with secrets."""
    name = "hostile"
    out = world.folder / f"{name}-run"
    secret = world.folder / "ticket.json"
    secret.write_text(PLANTED)
    looked_at = [
        secret, world.broker, world.folder, world.folder / name / "sealed", out,
        out / "checkpoints", out / "journal", world.folder / "home", world.folder / "tmp",
        world.folder.parent, "/etc/hostname", "/etc/shadow", "/root", "/home",
    ]  # fmt: skip
    script = SCRIPT.replace("PATHS", repr([str(place) for place in looked_at]), 2)
    recipe = RECIPE | {
        "name": name,
        "scripts": ["train.py"],
        "datasets": RECIPE["datasets"][:2],
        "trainer": RECIPE["trainer"] | {"max_steps": 4, "save_steps": 2},
        "release_policy": RECIPE["release_policy"]
        | {"metrics": ["loss"], "round_to": 4, "logs": "structured"},
    }
    source = world.folder / "notes.jsonl"
    source.write_text(
        "".join(
            json.dumps({"prompt": f"p{number}", "completion": " a", "ssn": f"078-05-{number:04}"})
            + "\n"
            for number in range(40)
        )
    )
    folder = world.propose(
        name,
        recipe,
        {"train.py": script.replace("OUT", repr(str(out)))},
        {"clinic-a.notes": source},
    )
    world.approve(folder, *OWNERS[:2])
    return subprocess.run(
        [*world.command(*world.train_words(folder, out.name)), "--json"],
        capture_output=True,
        text=True,
        env=world.environment() | dict.fromkeys(CREDENTIALS, PLANTED),
        cwd=world.folder,
        timeout=DEADLINE_SECONDS,
    )


@pytest.fixture(scope="module")
def found(world: Stage, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the script found; the test's report shows it."""
    assert done.returncode == 0, done.stdout + done.stderr
    out = world.folder / "opened"
    words = ["--identity", world.identity("clinic-a"), "--out", out]
    world.run("open", world.folder / "hostile-run", *words)
    told: dict[str, Any] = json.loads((out / "found.json").read_bytes())
    print(json.dumps(told, indent=1))
    return told


def test_it_holds_its_channel_its_memory_and_nothing_else(found: dict[str, Any]) -> None:
    kinds = re.compile(r"/dev/null|socket:\[\d+\]|/memfd:\S+ \(deleted\)|/proc/\d+/fd")
    others = [
        descriptor
        for descriptor in found["descriptors"].values()
        if not kinds.fullmatch(descriptor)
    ]
    pipes = Counter(other for other in others if other.startswith("pipe:"))
    assert set(pipes.values()) <= {
        2
    }  # both ends are here: it ends the ranks, of which there is one
    others = [other for other in others if other not in pipes]
    # Its folder in memory is held by a lock on it.
    assert all(
        re.fullmatch(str(SHARED_MEMORY / "sealtrain-run-[0-9a-f]+"), other) for other in others
    ), others
    assert (
        sum(descriptor.startswith("socket:") for descriptor in found["descriptors"].values()) == 3
    )
    assert found["objects"] == []
    later = {"quorum", "consortium", "grant", "lease", "lease_keeper", "sealed", "found", "store"}
    assert not [names for names in found["keeper's"] if later & set(names)]
    assert found["pipes"] == 0
    assert not any(found["ways"].values())


def test_its_environment_has_settings_of_libraries_alone(found: dict[str, Any]) -> None:
    assert PLANTED not in found["started with"] + str(found["environment"])
    assert found["planted"] == 0  # nowhere in its memory
    assert not {*CREDENTIALS, "XDG_CACHE_HOME"} & set(found["environment"])


def test_a_credential_under_a_librarys_prefix_stays_with_the_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"NVIDIA_VISIBLE_DEVICES": "all", "TOKENIZERS_PARALLELISM": "false"}
    for name, value in (settings | dict.fromkeys(CREDENTIALS, PLANTED)).items():
        monkeypatch.setenv(name, value)
    reader, writer = os.pipe()

    def live(_ends: Sequence[ChannelEnds]) -> None:
        os.write(writer, json.dumps(dict(os.environ)).encode())

    workload = WorkloadProcess(live, ranks=1, kept={writer})
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as said:
            kept = json.load(said)
    finally:
        workload.end()
        workload.close()
        keep_orphans(kept=False)
    assert not {*CREDENTIALS} & set(kept)
    assert settings.items() <= kept.items()


def test_it_reads_nothing_of_run_operator_or_keeper(found: dict[str, Any]) -> None:
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:
        pytest.skip("this kernel has no Landlock")
    refused = {"PermissionError", "FileNotFoundError", "IsADirectoryError"}
    assert {path: what for path, what in found["read"].items() if what not in refused} == {}
    listed = {"PermissionError", "FileNotFoundError", "NotADirectoryError"}
    assert {path: what for path, what in found["listed"].items() if what not in listed} == {}
    assert not any("078-05" in place or ".sealed" in place for place in found["maps"])


@pytest.mark.claim("C590")
@pytest.mark.parametrize("below", variants(["run", "sealed"], each_time=["run"]))
def test_a_run_that_it_could_read_begins_not(
    world: Stage, done: subprocess.CompletedProcess[str], below: str
) -> None:
    folder, out = world.folder / "hostile", world.folder / "readable-run"
    world.variables["LD_LIBRARY_PATH"] = str(out if below == "run" else folder / "sealed")
    try:
        answer = world.try_run(*world.train_words(folder, out.name))
    finally:
        del world.variables["LD_LIBRARY_PATH"]
    assert (answer.code, answer.data["error"]["check"]) == (2, "run folder")
    place = folder / "sealed" if below == "sealed" else out
    assert answer.data["error"]["got"] == str(place)
    assert not out.exists()


def test_the_kernel_binds_it(found: dict[str, Any]) -> None:
    status = found["status"]
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff")} == {0}
    assert found["dumpable"] == 0
    assert set(found["sockets"].values()) == {"-1"}
    assert found["signal"] == "PermissionError"


@pytest.mark.claim("C122")
def test_it_gets_the_columns_that_the_recipe_names(found: dict[str, Any]) -> None:
    assert found["columns"] == [["prompt", "completion"]] * 2


def test_nothing_that_it_tried_came_out(
    world: Stage, done: subprocess.CompletedProcess[str], found: dict[str, Any]
) -> None:
    assert "LEAK" not in done.stdout + done.stderr
    leaked = [
        path
        for path in world.folder.rglob("*")
        if path.is_file() and "opened" not in path.parts and b"LEAK-F" in path.read_bytes()
    ]
    assert [path for path in leaked if path.name not in SCRIPTED] == []
    manifest = (world.folder / "hostile-run" / "manifest.json").read_bytes()
    assert b"LEAK-METRIC" not in manifest


@pytest.mark.claim("C596")
def test_it_names_no_file_after_a_record(found: dict[str, Any]) -> None:
    assert found["file"] == "ModelNotReloaded"


@pytest.mark.claim("C557")
def test_the_manifest_says_whose_word_it_is(world: Stage, found: dict[str, Any]) -> None:
    assert found
    predicate = form.read((world.folder / "hostile-run" / "manifest.json").read_bytes()).predicate
    assert "workload-word" in {limit.id for limit in predicate.limits}
    assert predicate.run.environment["torch"] not in ("", "absent")
    (served,) = [
        entry["fields"] for entry in predicate.run_log.entries if entry["event"] == "rows.served"
    ]
    assert len(served) == 2
    assert all(rows is None or rows >= 40 for rows in served.values())


@pytest.mark.claim("C556")
def test_its_checkpoints_have_one_length(world: Stage, found: dict[str, Any]) -> None:
    assert found
    files = list((world.folder / "hostile-run" / "checkpoints").glob("checkpoint-*"))
    assert len(files) == 2
    assert len({path.stat().st_size - read_header(path).size for path in files}) == 1


@pytest.mark.claim("C542")
def test_what_it_forked_ended_with_the_run(found: dict[str, Any]) -> None:
    for pid in (found["pid"], found["child"]):
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "Seccomp:\t2" not in status.read_text()
    sessions = [_session(path) for path in Path("/proc").glob("[0-9]*/stat")]
    assert found["child"] not in sessions


def _session(path: Path) -> int:
    try:
        return int(path.read_text().rpartition(")")[2].split()[3])
    except OSError:  # it ended
        return 0
