"""A whole run whose recipe's code is another user than its keeper, as on a guest's disk of ours.

``guest.boot.second`` starts the command, so keeper and workload have the users and capabilities
that they have there. ``make guest-boot`` plays the same with a kernel, a disk and a TPM.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user import show_python
from stage import OWNERS, RECIPE, Stage, stage

from sealtrain.guest.boot.decisions import COMMAND_USER
from sealtrain.guest.boot.second import start

pytestmark = [
    pytest.mark.long,
    pytest.mark.nightly,
    pytest.mark.claim("C710"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has two users"),
]
SCRIPT = """
import os

import torch

import sealtrain

assert (os.getuid(), os.getgid(), os.getgroups()) == (65531, 65531, [])
for place in PLACES:
    try:
        open(place, "rb").close()
    except PermissionError:
        continue
    raise SystemExit("the script opens what is its keeper's")
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
if os.environ.get("WORLD_SIZE", "1") != "1":  # over the loopback of a network of its own
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loop = sealtrain.SealedLoop(model, optimizer)
for batch in loop.batches():
    lengths = torch.tensor([[float(len(text))] for text in batch["prompt"]])
    loss = (model(lengths / 100) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loop.log(loss=loss)
sealtrain.sign_manifest(loop)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path, machine=()) as made:
        yield made


def hand_over(folder: Path) -> None:
    """Give a folder to the command's user alone."""
    folder.chmod(0o700)
    for place in (folder, *folder.rglob("*")):
        os.chown(place, COMMAND_USER, COMMAND_USER, follow_symlinks=False)


def start_as_a_guest_does(words: list[str], home: Path) -> int:
    """Exit status of a command that the second program of a guest starts, in its folder."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            show_python(home)
            status = start(words, str(home))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop_trains_and_its_manifest_verifies(world: Stage, ranks: int) -> None:
    recipe = RECIPE | {
        "name": "two-users",
        "scripts": ["train.py"],
        "backend": {"name": "trl", "ranks": ranks},
        "datasets": RECIPE["datasets"][:2],
        "trainer": RECIPE["trainer"] | {"max_steps": 4, "save_steps": 2},
        "release_policy": RECIPE["release_policy"] | {"metrics": ["loss"]},
    }
    looked_at = [world.broker, world.folder / "two-users.sock", world.folder / "two-users/train.py"]
    script = SCRIPT.replace("PLACES", repr([str(place) for place in looked_at]))
    folder = world.propose("two-users", recipe, {"train.py": script})
    world.approve(folder, *OWNERS[:2])
    hand_over(world.folder)
    run = world.folder / "run"
    assert start_as_a_guest_does(world.command(*world.train_words(folder, "run")), run.parent) == 0
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--policy", "policy.yaml",
        "--deployment", folder / "app-compose.json", "--broker", world.broker,
        "--out", world.trust,
    )  # fmt: skip
    assert world.run("verify", run / "manifest.json", "--trust", world.trust)["accepted"]
