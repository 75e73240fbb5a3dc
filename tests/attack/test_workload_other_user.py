"""A recipe's script that is another user than its keeper reaches nothing of it, without Landlock.

The machine is as a guest's first program leaves it (``guest.boot.second``): the agent's socket and
the keeper belong to one user, devices to user 0. No rule of Landlock and no filter of calls is in
force here: users and namespaces hold alone.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from other_user import show_python
from polling import wait_until
from world import RECIPE

from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.base.yamltext import yaml_text
from sealtrain.errors import UsageError
from sealtrain.guest.boot.decisions import COMMAND_USER, SCRIPT_USER
from sealtrain.guest.boot.second import start
from sealtrain.guest.sandbox.landlock import leave_no_memory
from sealtrain.guest.sandbox.users import (
    LENT,
    WORKLOAD_USER,
    become_user,
    change_user,
    give_up_capabilities,
    workload_user,
)
from sealtrain.guest.workload.channel import ChannelEnds, Reply, answer_all
from sealtrain.guest.workload.fork import WorkloadProcess
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import WorkloadQuestion
from sealtrain.guest.workload_life import Workload
from sealtrain.recipe.installation import measure_installation
from sealtrain.recipe.kinds import workload_distributions
from sealtrain.recipe.lock import lock_recipe
from sealtrain.recipe.schema import load_recipe

pytestmark = pytest.mark.claim("C710")
_SECONDS = 20
_LIFE_SECONDS = 200
"""A workload loads the training libraries, also on a machine that does much else."""
_ATTACH, _READ_MEMORY = 16, 310

SCRIPT = """
import os
from pathlib import Path

import sealtrain

keeper = Path(KEEPER)
assert (os.getuid(), os.getgid(), os.getgroups()) == (65531, 65531, [])
assert Path.cwd().parent == Path("/dev/shm")
Path("note").write_text("a relative name")
try:
    os.chdir(keeper)
except PermissionError:
    pass
else:
    raise SystemExit("the script goes to its keeper's folder")
"""

for _name in ("ascii", "utf-8"):
    codecs.lookup(_name)  # another user does not read this machine's Python

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has two users")


def word(work: Callable[[], Any]) -> str:
    try:
        return f"did: {work()!r}"[:200]
    except OSError as error:
        return type(error).__name__


def copied_from(pid: int) -> None:
    """Read memory of a process at an address that both have, since one forked the other."""
    own = ctypes.create_string_buffer(8)
    place = struct.pack("QQ", ctypes.addressof(own), 8)
    called("syscall", _READ_MEMORY, pid, place, 1, place, 1, 0)


def called(name: str, *words: Any) -> None:
    kernel = ctypes.CDLL(None, use_errno=True)
    whole = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    if getattr(kernel, name)(*whole) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def reached(family: int, place: Any) -> None:
    with socket.socket(family) as handle:
        handle.settimeout(2)
        handle.connect(place)


def others_in_group() -> list[int]:
    """The guard: in the script's group, and no process of the script's."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(place.name)
            if pid != os.getpid() and os.getpgid(pid) == os.getpgrp():
                found.append(pid)
    return found


def end_guard() -> None:
    """Wait until the guard is there, which may be later than this process, and kill it."""
    end = time.monotonic() + _SECONDS
    while not (others := others_in_group()) and time.monotonic() < end:
        time.sleep(0.01)
    for pid in others:
        os.kill(pid, signal.SIGKILL)


def attack(keeper: int, folder: Path, port: int) -> dict[str, str]:
    """All that a script tries, and how each ended."""
    give_up_capabilities()  # as the workload does before it loads the recipe
    return {
        "device": word((folder / "tpm0").open),
        "agent": word(lambda: reached(socket.AF_UNIX, str(folder / "agent.sock"))),
        "ticket": word((folder / "ticket.json").read_bytes),
        "memory": word(Path(f"/proc/{keeper}/mem").open),
        "environment": word(Path(f"/proc/{keeper}/environ").read_bytes),
        "descriptors": word(lambda: [*Path(f"/proc/{keeper}/fd").iterdir()]),
        "network of the keeper": word(Path(f"/proc/{keeper}/ns/net").open),
        "debugger": word(lambda: called("ptrace", _ATTACH, keeper, 0, 0)),
        "other memory": word(lambda: copied_from(keeper)),
        "signal": word(lambda: os.kill(keeper, signal.SIGKILL)),
        "guard": word(end_guard),
        "priority": word(lambda: os.setpriority(os.PRIO_PROCESS, keeper, 19)),
        "loopback": word(lambda: reached(socket.AF_INET, ("127.0.0.1", port))),
        "abstract": word(lambda: reached(socket.AF_UNIX, f"\0sealtrain-{port}")),
        "network": word(lambda: reached(socket.AF_INET, ("192.0.2.1", 443))),
        "raw socket": word(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
        "user": word(lambda: os.setuid(COMMAND_USER)),
        "root": word(lambda: os.setuid(0)),
        "group": word(lambda: os.setgroups([COMMAND_USER])),
        "mount": word(lambda: called("umount2", b"/", 0)),
        "names": word(lambda: called("unshare", 0x20000)),
    }


EXPECTED = dict.fromkeys(
    (
        "device", "agent", "ticket", "memory", "environment", "descriptors",
        "network of the keeper", "debugger", "other memory", "signal", "guard", "priority",
        "raw socket", "user", "root", "group", "mount", "names",
    ),
    "PermissionError",
) | {"loopback": "ConnectionRefusedError", "abstract": "ConnectionRefusedError",
     "network": "OSError"}  # fmt: skip


def as_keeper(work: Callable[[], None], before: Callable[[], object] = lambda: None) -> int:
    """A process as the first program starts the document's command; its id.

    Args:
        work: All that it does.
        before: Done as user 0.
    """
    child = os.fork()
    if child:
        return child
    try:
        before()
        change_user(COMMAND_USER, LENT)
        leave_no_memory()
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """What only user 0 and the keeper reach; names lead there for all."""
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.geteuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o111)
    os.mknod(tmp_path / "tpm0", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    (tmp_path / "ticket.json").write_text("{}")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent.sock"))
        agent.listen()
        for name in ("agent.sock", "ticket.json"):
            (tmp_path / name).chmod(0o600)
            os.chown(tmp_path / name, COMMAND_USER, COMMAND_USER)
        yield tmp_path


def heard(reader: int, seconds: float = _SECONDS) -> bytes:
    """What a process writes until its end, or for so long."""
    found = b""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        part = os.read(reader, 65536)
        if not part:
            break
        found += part
    os.close(reader)
    return found


@needs_root
def test_a_script_reaches_nothing_of_its_keeper(folder: Path) -> None:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def keep() -> None:
            keeper, listening = os.getpid(), socket.socket(socket.AF_UNIX)
            listening.bind(f"\0sealtrain-{port}")
            listening.listen()

            def live(_ends: Sequence[ChannelEnds]) -> None:
                found = attack(keeper, folder, port)
                os.write(writer, json.dumps(found).encode())

            workload = WorkloadProcess(live, ranks=1, kept=(writer,), user=SCRIPT_USER)
            os.close(writer)
            wait_until(lambda: workload.status is not None)
            workload.end()

        keeper = as_keeper(keep)
        os.close(writer)
        found = json.loads(heard(reader))
        os.waitpid(keeper, 0)
    assert found == EXPECTED


@needs_root
def test_its_keeper_ends_it_though_it_is_another_user() -> None:
    reader, writer = os.pipe()

    def keep() -> None:
        give_up = WorkloadProcess(
            lambda _ends: time.sleep(_SECONDS), ranks=1, kept=(writer,), user=SCRIPT_USER
        )
        os.close(writer)
        give_up_capabilities(1 << 5)  # as the keeper does when it closes its border
        give_up.end()

    keeper = as_keeper(keep)
    os.close(writer)
    began = time.monotonic()
    assert heard(reader) == b""
    assert time.monotonic() - began < _SECONDS
    assert os.waitpid(keeper, 0)[1] == 0


@needs_root
def test_it_ends_with_a_keeper_that_is_killed() -> None:
    reader, writer = os.pipe()

    def keep() -> None:
        def live(_ends: Sequence[ChannelEnds]) -> None:
            os.write(writer, b"lives")
            time.sleep(_SECONDS)

        WorkloadProcess(live, ranks=1, kept=(writer,), user=SCRIPT_USER)
        os.close(writer)
        time.sleep(_SECONDS)

    keeper = as_keeper(keep)
    os.close(writer)
    assert os.read(reader, 5) == b"lives"
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    began = time.monotonic()
    assert heard(reader) == b""
    assert time.monotonic() - began < _SECONDS


@needs_root
def test_without_the_lent_capabilities_no_code_of_the_recipe_runs() -> None:
    reader, writer = os.pipe()

    def keep() -> None:
        give_up_capabilities(1 << 5)

        def live(_ends: Sequence[ChannelEnds]) -> None:
            os.write(writer, b"ran")

        workload = WorkloadProcess(live, ranks=1, kept=(writer,), user=SCRIPT_USER)
        os.close(writer)
        wait_until(lambda: workload.status is not None)
        assert workload.status == 1
        workload.end()

    keeper = as_keeper(keep)
    os.close(writer)
    assert heard(reader) == b""
    os.waitpid(keeper, 0)


@needs_root
def test_memory_of_its_own_is_all_that_it_may_still_mount() -> None:
    reader, writer = os.pipe()

    def keep() -> None:
        become_user(SCRIPT_USER)
        status = Path("/proc/self/status").read_text().splitlines()
        sets = [line.split()[1] for line in status if line.startswith(("CapPrm", "CapEff"))]
        give_up_capabilities()
        status = Path("/proc/self/status").read_text().splitlines()
        sets += [
            line.split()[1] for line in status if line.startswith(("CapInh", "CapPrm", "CapAmb"))
        ]
        os.write(writer, json.dumps([int(text, 16) for text in sets]).encode())

    keeper = as_keeper(keep)
    os.close(writer)
    assert json.loads(heard(reader)) == [1 << 21, 1 << 21, 0, 0, 0]
    os.waitpid(keeper, 0)


@needs_root
def test_it_reads_the_copies_of_what_the_lock_pins_and_alters_none() -> None:
    reader, writer = os.pipe()

    def keep() -> None:
        os.umask(0o077)
        with contextlib.closing(PrivateFolder()) as taken:
            with taken.writer("base/inner/train.py") as file:
                file.write(b"print(1)")
            taken.show_to_others()
            script = taken.path / "base/inner/train.py"

            def live(_ends: Sequence[ChannelEnds]) -> None:
                found = [script.read_bytes().decode()]
                found += [word(lambda: script.write_bytes(b"x")), word(script.unlink)]
                found += [word(lambda: (taken.path / "other").write_bytes(b"x"))]
                os.write(writer, json.dumps(found).encode())

            kept = (writer, *taken.descriptors)
            workload = WorkloadProcess(live, ranks=1, kept=kept, user=SCRIPT_USER)
            os.close(writer)
            wait_until(lambda: workload.status is not None)
            workload.end()

    keeper = as_keeper(keep)
    os.close(writer)
    assert json.loads(heard(reader)) == ["print(1)", *["PermissionError"] * 3]
    os.waitpid(keeper, 0)


def answer_control(question: WorkloadQuestion, said: list[dict[str, Any]]) -> Reply | None:
    """What a keeper without keys answers a rank, and what that rank says."""
    said.append(question.to_dict())
    if question.to_dict()["ask"] != "ready":
        return None
    return Reply(
        {"run_id": "00" * 16, "leads": True, "anchored": 0, "resume": None, "datasets": [],
         "model": None, "secret": None}
    )  # fmt: skip


@needs_root
def test_its_life_ends_in_its_own_words_though_its_keepers_folder_is_closed(
    folder: Path, tmp_path: Path
) -> None:
    """A whole life, libraries and border included; the script ends without a manifest."""
    reader, writer = os.pipe()
    home, base = tmp_path / "home", tmp_path / "base"
    base.mkdir(mode=0o755)
    home.mkdir(mode=0o700)
    os.chown(home, COMMAND_USER, COMMAND_USER)
    (base / "train.py").write_text(SCRIPT.replace("KEEPER", repr(str(home))))
    (base / "recipe.yaml").write_text(yaml_text(RECIPE | {"scripts": ["train.py"]}))
    recipe = load_recipe(base / "recipe.yaml")
    installed = measure_installation(recipe)
    lock = lock_recipe(
        base / "recipe.yaml", consortium_id="11" * 32, brokers=["22" * 32], installation=installed
    ).lock

    def keep() -> None:
        said: list[dict[str, Any]] = []
        life = Workload(
            lock=lock, lock_bytes=lock.to_bytes(),
            importable=installed.importable.narrow_to(workload_distributions(None)),
            base=base, copies=base, out=home / "out", shown=False,
        )  # fmt: skip
        sys.modules.pop("torch", None)  # a keeper has none: its workload begins anew
        workload = WorkloadProcess(life.live, ranks=1, kept=(), user=SCRIPT_USER)
        slots, descriptor = SharedMemory.create(1 << 16)
        (ends,) = workload.ends
        others = (
            ("rows", ends.rows, lambda _: Reply({"slot_bytes": slots.size}, descriptor)),
            ("store", ends.store, lambda _: Reply()),
        )
        for words in others:
            threading.Thread(target=answer_all, args=words, daemon=True).start()
        answer_all("control", ends.control, lambda question: answer_control(question, said))
        workload.end()
        os.write(writer, json.dumps(said).encode())

    keeper = as_keeper(keep, lambda: (show_python(tmp_path), os.chdir(home)))
    os.close(writer)
    try:
        ready, last = json.loads(heard(reader, _LIFE_SECONDS))
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
    assert ready["ask"] == "ready"
    assert (last["ask"], last["code"]) == ("failed", "usage")


@needs_root
def test_the_documents_command_is_lent_what_the_border_takes_and_no_more(tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.geteuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o111)
    os.chown(tmp_path, COMMAND_USER, COMMAND_USER)
    told = (
        f"id -u; id -G; echo ${WORKLOAD_USER} $HOME; grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status"
    )
    assert start(["/bin/sh", "-c", f"({told}) > told; exit 7"], str(tmp_path)) == 7
    user, groups, other, *held = (tmp_path / "told").read_text().splitlines()
    assert (int(user), groups) == (COMMAND_USER, str(COMMAND_USER))
    assert other == f"{SCRIPT_USER} {tmp_path}"
    assert [int(line.split()[1], 16) for line in held] == [LENT] * 3


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "65534", "65536", "1e3", "own"])
def test_no_other_user_is_a_refusal(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(os.geteuid())
    monkeypatch.setenv(WORKLOAD_USER, own if text == "own" else text)
    with pytest.raises(UsageError) as caught:
        workload_user()
    assert caught.value.check == WORKLOAD_USER


def test_elsewhere_a_workload_is_its_keepers_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKLOAD_USER, raising=False)
    assert workload_user() is None
    monkeypatch.setenv(WORKLOAD_USER, "65531")
    assert workload_user() == 65531
