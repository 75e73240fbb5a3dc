"""What Python's hooks refuse, the kernel refuses native code, in every thread, and says how far.

Where a kernel has less, the tests of what it lacks are skipped: ``make vm-test`` boots kernels that
have it and one that has not.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from border_world import answer_of, started
from programs import need

from sealtrain.manifest.limits import BORDER_CLOSED, border_held

pytestmark = [pytest.mark.long, pytest.mark.claim("C107")]
SUPPORT = Path(__file__).parents[1] / "support"
GPU = Path("/dev/nvidia0")
EXPECTED_LANDLOCK = os.environ.get("SEALTRAIN_EXPECTED_LANDLOCK")


def filtered(folder: Path, job: str, *modes: str) -> dict[str, Any]:
    answer = answer_of(folder, job, *modes)
    if not answer["seccomp"]:
        pytest.skip("this kernel has no seccomp filters")
    for known in ("counts", "landlock", "seccomp", "unbound", "memory"):
        answer.pop(known)
    return answer


def test_this_kernel_holds_what_it_is_expected_to(tmp_path: Path) -> None:
    answer = answer_of(tmp_path, "works_as_ever")
    assert answer["child"] == 0
    assert answer["null"] == 1
    if EXPECTED_LANDLOCK is not None:
        expected = int(EXPECTED_LANDLOCK)
        assert (answer["landlock"] >= expected) if expected else (answer["landlock"] == 0)
        assert answer["seccomp"]


def test_only_plain_sockets_are_made(tmp_path: Path) -> None:
    possible = {"tcp": 0, "tcp6": 0, "unix": 0}
    unknown = dict.fromkeys(("packet", "netlink", "vsock", "algorithm"), errno.EAFNOSUPPORT)
    refused = ("udp", "unix datagrams", "raw", "ping", "mptcp", "sctp")
    assert filtered(tmp_path, "kinds_of_sockets") == {
        **possible,
        **unknown,
        **dict.fromkeys(refused, errno.EPERM),
    }


@pytest.mark.claim("C591")
def test_a_process_that_needs_no_unix_socket_reaches_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "other.sock"))
        server.listen()
        answer = filtered(tmp_path, "reaches_other_services", "apart")
    assert answer["other.sock"] == answer["guest.sock"] == errno.EBADF  # no socket was made


@pytest.mark.parametrize("modes", [(), ("names",)], ids=["addresses", "names"])
def test_native_code_reaches_named_services_only(modes: tuple[str, ...], tmp_path: Path) -> None:
    servers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for server, name in zip(servers, ("guest.sock", "other.sock"), strict=True):
        server.bind(str(tmp_path / name))
        server.listen()
    answer = answer_of(tmp_path, "reaches_other_services", *modes)
    for server in servers:
        server.close()
    assert answer["guest.sock"] == 0
    if answer["landlock"] >= 9:
        assert answer["other.sock"] == errno.EACCES
    if not modes and answer["seccomp"]:
        assert answer["name server"] == answer["anywhere"] == errno.EBADF  # no socket was made
    if modes:
        assert answer["looked up"]
        assert answer["name server"] == 0
        if answer["landlock"] >= 10:
            assert answer["anywhere"] == errno.EACCES


def test_no_door_is_opened(tmp_path: Path) -> None:
    answer = filtered(tmp_path, "listens_on_a_unix_socket")
    assert answer == dict.fromkeys(("bind", "name", "listen"), errno.EPERM)


def test_nothing_stays_in_the_kernel(tmp_path: Path) -> None:
    answer = filtered(tmp_path, "leaves_something_in_the_kernel")
    assert len(answer) == 6
    assert set(answer.values()) == {errno.EPERM}


@pytest.mark.parametrize("modes", [(), ("unprivileged",)], ids=["root", "unprivileged"])
def test_a_process_stays_in_its_place(modes: tuple[str, ...], tmp_path: Path) -> None:
    answer = filtered(tmp_path, "leaves_the_process", *modes)
    assert answer.pop("executed") == 99
    assert [answer.pop("clone3"), answer.pop("io_uring")] == [errno.ENOSYS] * 2
    assert len(answer) == 9
    assert set(answer.values()) == {errno.EPERM}


def test_a_thread_that_is_older_than_the_border_is_bound(tmp_path: Path) -> None:
    answer = answer_of(tmp_path, "old_thread_acts")
    if answer["seccomp"]:
        assert answer["executed"] == 99
    if answer["landlock"] >= 8:
        assert answer["outside"] == errno.EACCES
    # It is bound, or the run log says that it is not.
    assert answer["unbound"] == (0 if answer["landlock"] >= 8 else 1)


LOADED = """
import json, sys
sys.path[len(sys.path):], sys.prefix, sys.exec_prefix = json.loads(sys.argv.pop(1))
import numpy, pyarrow, pyarrow.compute
from sealtrain.guest.sandbox.landlock import other_threads
print(other_threads())
"""


def test_no_library_starts_a_thread_before_the_border() -> None:
    pytest.importorskip("pyarrow")
    begin = f"from sealtrain.cli.run_process import alone; alone({LOADED!r})"
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    told = subprocess.run(
        [sys.executable, "-c", begin], env=variables, capture_output=True, text=True, check=True
    )
    assert told.stdout == "0\n"


def test_a_first_packet_does_not_connect(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = answer_of(tmp_path, "connects_by_a_first_packet", listener=server.getsockname()[1])
        if answer["seccomp"]:
            assert answer["sendto"] == errno.EPERM
        if answer["landlock"] >= 4:
            assert answer["connect"] == errno.EACCES
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()


@pytest.mark.parametrize("modes", [(), ("unprivileged",)], ids=["root", "unprivileged"])
def test_native_code_writes_in_the_runs_folder_only(modes: tuple[str, ...], tmp_path: Path) -> None:
    answer = answer_of(tmp_path, "writes_by_native_code", *modes)
    if answer["landlock"] == 0:
        pytest.skip("this kernel has no Landlock")
    if answer["landlock"] < 3:
        answer["cut"] = errno.EACCES  # truncation is out of its reach
    assert answer["inside"] == 0
    assert answer["memory"] == "private" or answer["shared memory"] == errno.EACCES
    for known in ("counts", "landlock", "seccomp", "unbound", "memory", "inside", "shared memory"):
        answer.pop(known)
    assert [way for way, error in answer.items() if error == 0] == []
    kept = tmp_path / "outside" / "kept"
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["kept"]
    if answer["cut"] != 0:
        assert kept.stat().st_nlink == 1


def left(answer: dict[str, Any]) -> list[str]:
    """What of a run is in the machine's memory now."""
    found = [path for path in (answer["temporary"], *answer["marks"]) if Path(path).exists()]
    for path in answer["marks"]:
        Path(path).unlink(missing_ok=True)
    return found


@pytest.mark.claim("C106")
@pytest.mark.parametrize("modes", [(), ("unprivileged",)], ids=["root", "unprivileged"])
def test_what_is_written_in_memory_goes_with_the_run(
    modes: tuple[str, ...], tmp_path: Path
) -> None:
    answer = answer_of(tmp_path, "writes_in_memory", *modes)
    remains = left(answer)
    assert Path(answer["temporary"]).name.startswith("sealtrain-run-")
    assert answer["temporary"] not in remains
    assert answer["mode"] == "0o700"
    assert answer["kernels"] == [True] * 3
    if answer["memory"] == "folder":  # the rest of shared memory is everybody's
        assert answer["python"] == "PlaceRefused"
        if answer["landlock"] == 0:  # then native code is held by nothing
            return
        assert answer["native"] == errno.EACCES
    assert remains == []


@pytest.mark.claim("C106")
def test_what_a_killed_run_left_in_memory_is_gone_before_the_next_trains(tmp_path: Path) -> None:
    assert started(tmp_path, "is_killed", "unprivileged").returncode == -9
    answer = json.loads((tmp_path / "run" / "told").read_text())
    assert answer["temporary"] in left(answer)
    answer_of(tmp_path, "works_as_ever", "unprivileged")
    assert left(answer) == []


@pytest.mark.claim("C106")
def test_a_killed_run_leaves_nothing_where_memory_was_its_own(tmp_path: Path) -> None:
    if answer_of(tmp_path, "works_as_ever")["memory"] != "private":
        pytest.skip("this process may not mount")
    assert started(tmp_path, "is_killed").returncode == -9
    assert left(json.loads((tmp_path / "run" / "told").read_text())) == []


HELD = {"landlock": 7, "seccomp": True, "unbound": 0, "memory": "private"}


def entry(event: str, **fields: object) -> dict[str, object]:
    return {"seq": 1, "at": "2027-01-01T00:00:00Z", "event": event, "fields": fields}


@pytest.mark.parametrize(
    ("entries", "held"),
    [
        ([("run.started", {}), (BORDER_CLOSED, HELD)], True),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "landlock": 6})], True),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "landlock": 5})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "landlock": 4})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "landlock": 3})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "landlock": 0})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "landlock": True})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "seccomp": False})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "unbound": 1})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "unbound": False})], False),
        ([("run.started", {}), (BORDER_CLOSED, {**HELD, "unbound": None})], False),
        ([("run.started", {}), (BORDER_CLOSED, {})], False),
        ([("run.started", {}), (BORDER_CLOSED, None)], False),
        ([("run.started", {})], False),
        ([], False),
        ([(BORDER_CLOSED, HELD), ("run.started", {})], False),
        # Each process of a run counts by itself.
        ([("run.started", {}), (BORDER_CLOSED, HELD), ("run.resumed", {})], False),
        ([("run.started", {}), ("run.resumed", {}), (BORDER_CLOSED, HELD)], False),
        (
            [
                ("run.started", {}),
                (BORDER_CLOSED, HELD),
                ("run.restarted", {}),
                (BORDER_CLOSED, HELD),
                ("run.resumed", {}),
                (BORDER_CLOSED, HELD),
            ],
            True,
        ),
        (
            [
                ("run.started", {}),
                (BORDER_CLOSED, {**HELD, "landlock": 0}),
                ("run.resumed", {}),
                (BORDER_CLOSED, HELD),
            ],
            False,
        ),
    ],
)
def test_a_manifest_says_so_unless_the_kernel_held_every_process(
    entries: list[tuple[str, Any]], held: bool
) -> None:
    log = [{"event": event, "fields": fields} for event, fields in entries]
    assert border_held(log) is held


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that starts as a GPU's driver does, in place of the driver."""
    compiler = str(need("compiler")["cc"])
    library = tmp_path / "libcuda.so.1"
    words = [compiler, "-shared", "-fPIC", "-o", str(library), str(SUPPORT / "cuda_driver.c")]
    subprocess.run(words, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))


@pytest.mark.claim("C283")
@pytest.mark.skipif(GPU.exists(), reason="the real driver is here")
@pytest.mark.usefixtures("driver")
class TestDriver:
    """A GPU's driver listens as it starts, and the filter lets nothing listen."""

    def test_it_has_started_before_the_filter(self, tmp_path: Path) -> None:
        assert filtered(tmp_path, "uses_the_driver", "compilers") == {"started": 0}

    def test_where_nobody_started_it_it_does_not_start(self, tmp_path: Path) -> None:
        assert filtered(tmp_path, "uses_the_driver") == {"started": 304}


@pytest.mark.gpu
@pytest.mark.claim("C283")
@pytest.mark.skipif(not GPU.exists(), reason="needs a GPU")
def test_a_gpu_computes_inside_the_border(tmp_path: Path) -> None:
    answers = set(filtered(tmp_path, "uses_the_driver", "compilers").values())
    assert answers == {0}
