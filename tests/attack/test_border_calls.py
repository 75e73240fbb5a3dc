"""The filter lets pass what is listed, on both architectures, and that leaves no mark."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from border_world import answer_of

from sealtrain.guest.sandbox.calls import (
    ALLOWED,
    LOOKED_INTO,
    MACHINES,
    PROGRAMS,
    REFUSED,
    SILENT,
    SOCKETS,
)
from sealtrain.guest.sandbox.seccomp import instructions

pytestmark = [pytest.mark.claim("C552")]

PASSES = -1
KNOWN = ALLOWED | LOOKED_INTO | PROGRAMS | REFUSED | SILENT | SOCKETS


def decided(machine: str, number: int, *arguments: int, **how: bool) -> int:
    """Run the filter as the kernel does: ``PASSES``, or the number of the error; 0 is success."""
    halves = [number, MACHINES[machine][1], 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        halves += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    code, at, loaded = instructions(machine, **how), 0, 0
    while True:
        operation, true, false, value = code[at]
        at += 1
        if operation == 0x20:
            loaded = halves[value // 4]
        elif operation == 0x54:
            loaded &= value
        elif operation == 0x06:
            return PASSES if value == 0x7FFF0000 else value & 0xFFFF
        else:
            held = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}
            at += true if held[operation] else false


def asked(machine: str, call: str, *arguments: int, **how: bool) -> int:
    number = KNOWN[call][MACHINES[machine][0]]
    assert number is not None
    return decided(machine, number, *arguments, **how)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_number_has_the_answer_of_its_table_and_any_other_is_unknown(machine: str) -> None:
    column, _ = MACHINES[machine]
    answers = {PASSES: ALLOWED, 0: SILENT, errno.EPERM: REFUSED | PROGRAMS}
    wanted = {
        numbers[column]: answer for answer, calls in answers.items() for numbers in calls.values()
    }
    looked_into = {numbers[column] for numbers in (LOOKED_INTO | SOCKETS).values()}
    for number in {*range(520), 1000, 0x3FFFFFFF} - looked_into:
        assert decided(machine, number) == wanted.get(number, errno.ENOSYS), number
    assert decided(machine, 0x40000000) == errno.EPERM  # another way to number them


def test_numbers_are_told_apart(machine: str) -> None:
    column, _ = MACHINES[machine]
    numbers = [pair[column] for pair in KNOWN.values() if pair[column] is not None]
    tables = (ALLOWED, LOOKED_INTO, PROGRAMS, REFUSED, SILENT, SOCKETS)
    assert len(set(numbers)) == len(numbers)
    assert sum(map(len, tables)) == len(KNOWN)


def test_numbers_are_those_of_the_headers() -> None:
    headers = (
        Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        Path("/usr/include/asm-generic/unistd.h"),
    )
    if not all(header.exists() for header in headers):
        pytest.skip("the headers of Linux are not installed")
    for column, (header, form) in enumerate(
        zip(
            headers,
            (r"#define __NR_(\w+)\s+(\d+)", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
            strict=True,
        )
    ):
        found = {name: int(number) for name, number in re.findall(form, header.read_text())}
        found.setdefault("newfstatat", found.get("fstatat", -1))
        known = {name: pair[column] for name, pair in KNOWN.items() if pair[column] is not None}
        newer = max(found.values())
        assert {name: found.get(name) for name, number in known.items() if number <= newer} == {
            name: number for name, number in known.items() if number <= newer
        }
        missing = {name for name, pair in KNOWN.items() if pair[column] is None} & set(found)
        assert missing <= {"renameat", "getrlimit", "setrlimit"}  # which ARM64 leaves out, or not


@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("clone", (17,), PASSES),
        ("clone", (0x3D0F00,), PASSES),
        ("clone", (0x10000000 | 17,), errno.EPERM),
        ("clone", (0x8000 | 17,), errno.EPERM),
        ("clone", (0x80 | 17,), errno.EPERM),
        ("fcntl", (3, 2, 1), PASSES),
        ("fcntl", (3, 1030), PASSES),
        ("fcntl", (3, 8, 1), errno.EINVAL),
        ("fcntl", (3, 10, 1), errno.EINVAL),
        ("fcntl", (3, 1024, 1), errno.EINVAL),
        ("fcntl", (3, 1026, 1), errno.EINVAL),
        ("fcntl", (3, 1036, 1), errno.EINVAL),
        ("fcntl", (3, 1038, 1), errno.EINVAL),
        ("ioctl", (3, 0x5401), PASSES),
        ("ioctl", (3, 0x5402), errno.EPERM),
        ("ioctl", (3, 0x5412), errno.EPERM),
        ("ioctl", (3, 0x5414), errno.EPERM),
        ("ioctl", (3, 0x541C), errno.EPERM),
        ("ioctl", (3, 0xFFFFFFFF00005412), errno.EPERM),
        ("ioctl", (3, 0x402C542B), errno.EPERM),
        ("ioctl", (3, 0xC4405401), PASSES),
        ("ioctl", (3, 0x80086601), PASSES),
        ("ioctl", (3, 0xC0606610), PASSES),
        ("ioctl", (3, 0x40086602), errno.ENOTTY),
        ("ioctl", (3, 0x40046602), errno.ENOTTY),
        ("ioctl", (3, 0x401C5820), errno.ENOTTY),
        ("ioctl", (3, 0x40087602), errno.ENOTTY),
        ("ioctl", (3, 0x40049409), errno.ENOTTY),
        ("ioctl", (3, 0x5000940E), errno.ENOTTY),
        ("ioctl", (3, 0x125D), errno.ENOTTY),
        ("ioctl", (3, 0x4B72), errno.ENOTTY),
        ("ioctl", (3, 0x8912), PASSES),
        ("ioctl", (3, 0x8924), errno.EPERM),
        ("ioctl", (3, 0xC020462A), PASSES),  # a GPU's driver
        ("ioctl", (3, 0x30000001), PASSES),
        ("ioctl", (3, 0xC0384B02), PASSES),
        ("ioctl", (3, 0xC0200A00), PASSES),  # evidence
        ("ioctl", (3, 0xC0205302), PASSES),
        ("prctl", (15, 1), 0),
        ("prctl", (38, 1), PASSES),
        ("prctl", (4, 0), PASSES),
        ("prctl", (4, 1), errno.EPERM),
        ("prctl", (0x59616D61, 1), errno.EINVAL),
        ("prctl", (35, 8), errno.EINVAL),
        ("prctl", (22, 2), errno.EINVAL),
        ("prlimit64", (0, 7, 0, 1), PASSES),
        ("prlimit64", (0, 4, 0, 1), PASSES),
        ("prlimit64", (0, 4, 1, 0), 0),
        ("prlimit64", (0, 4, 1 << 32, 0), 0),
        ("prlimit64", (1, 7, 1, 0), errno.EPERM),
        ("setrlimit", (7, 1), PASSES),
        ("setrlimit", (4, 1), 0),
        ("setrlimit", (4, 1 << 32), 0),
        ("setpriority", (0, 0, 5), PASSES),
        ("setpriority", (0, 1, 5), errno.EPERM),
        ("setpriority", (2, 0, 5), errno.EPERM),
        ("sched_setaffinity", (0,), PASSES),
        ("sched_setaffinity", (1,), errno.EPERM),
        ("sched_setscheduler", (1,), errno.EPERM),
        ("sched_setparam", (1,), errno.EPERM),
        ("sched_setattr", (1,), errno.EPERM),
        ("move_pages", (0,), PASSES),
        ("move_pages", (1,), errno.EPERM),
        ("setsockopt", (3, 6, 31), errno.EPERM),
        ("setsockopt", (3, 6, 1), PASSES),
        ("setsockopt", (3, 1, 31), PASSES),
        ("socketpair", (1, 1, 0), PASSES),
        ("socketpair", (1, 0x80801, 0), PASSES),
        ("socketpair", (1, 2, 0), errno.EPERM),
        ("socketpair", (1, 5, 0), errno.EPERM),
        ("socketpair", (2, 1, 0), errno.EPERM),
        ("socket", (2, 1, 256), errno.EPERM),
        ("socket", (43, 1, 0), errno.EAFNOSUPPORT),
    ],
)
def test_arguments_decide(machine: str, call: str, arguments: tuple[int, ...], answer: int) -> None:
    if call == "setrlimit" and KNOWN[call][MACHINES[machine][0]] is None:
        pytest.skip("not on this architecture")
    assert asked(machine, call, *arguments) == answer


def test_a_process_that_has_all_its_connections_makes_none(machine: str) -> None:
    for call in SOCKETS:
        assert asked(machine, call, 1, 1, network=False) == errno.EPERM
        assert asked(machine, call, 1, 1) == PASSES
    assert asked(machine, "socketpair", 1, 1, network=False) == PASSES
    for kind in (1, 2, 5):
        assert asked(machine, "socket", 1, kind, unix=False) == errno.EPERM
    assert asked(machine, "socket", 2, 1, unix=False) == PASSES
    assert asked(machine, "socketpair", 1, 1, unix=False) == PASSES
    assert asked(machine, "listen") == errno.EPERM
    assert asked(machine, "execve", programs=True) == PASSES
    assert asked(machine, "socket", 2, 2, 17, datagrams=True) == PASSES
    assert asked(machine, "socket", 2, 2, 17) == errno.EPERM


def enforced(folder: Path, job: str, *modes: str) -> dict[str, Any]:
    answer = answer_of(folder, job, *modes)
    if not answer["seccomp"]:
        pytest.skip("this kernel has no seccomp filters")
    return {name: found for name, found in answer.items()
            if name not in ("counts", "landlock", "seccomp", "unbound", "memory")}  # fmt: skip


@pytest.mark.claim("C106")
@pytest.mark.parametrize("modes", [(), ("unprivileged",)], ids=["root", "unprivileged"])
def test_no_mark_stays_on_a_file_outside(modes: tuple[str, ...], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = outside / "kept"
    kept.write_bytes(b"kept")
    kept.chmod(0o644)
    marks = dict.fromkeys(("user.kept",), b"as it was")
    try:
        os.setxattr(kept, "user.kept", b"as it was")
    except OSError:
        marks = {}  # this file system has none
    answer = enforced(tmp_path, "leaves_marks_on_files", *modes)
    before = answer.pop("before")
    refused = {"chown": errno.EPERM, "fchown": errno.EPERM, "attributes": errno.ENOSYS}
    refused |= dict.fromkeys(("flags", "flags of XFS"), errno.ENOTTY)
    refused |= dict.fromkeys(("hint", "lease", "owner"), errno.EINVAL)
    silent = {name: 0 for name in answer if name not in refused and not name.startswith("os.")}
    assert answer == silent | refused | dict.fromkeys(("os.chmod", "os.utime", "os.setxattr"), "")
    after = kept.stat()
    assert [after.st_mode, after.st_uid, after.st_gid, after.st_mtime_ns] == before
    for path in (kept, outside):
        assert {name: os.getxattr(path, name) for name in os.listxattr(path)
                if name.startswith("user.")} == (marks if path == kept else {})  # fmt: skip


def test_no_other_process_is_touched_and_this_one_stays_closed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:  # nothing else is a child of this test
        answer = enforced(tmp_path, "touches_other_processes")
        other.kill()
    signalled = answer.pop("signal")
    assert signalled == errno.EPERM or answer_of(tmp_path, "works_as_ever")["landlock"] < 6
    zero = ("own limits", "own processors", "closed to debuggers", "core", "named", "cores")
    assert answer == {
        **dict.fromkeys(zero, 0),
        "dumpable": 0,
        "renamed": 0,
        **dict.fromkeys(("limits", "priority", "of a group", "processors"), errno.EPERM),
        **dict.fromkeys(("scheduler", "open to debuggers", "elder"), errno.EPERM),
        **dict.fromkeys(("compared", "advice"), errno.ENOSYS),
        "traced": errno.EINVAL,
    }


def test_a_tcp_socket_stays_one_that_landlock_knows(tmp_path: Path) -> None:
    """SMC over TCP would go to any port: no rule of Landlock is about it."""
    assert enforced(tmp_path, "makes_another_protocol_of_tcp") == {
        "smc": errno.EPERM,
        "smc of its own": errno.EAFNOSUPPORT,
        "smc by its number": errno.EPERM,
        "no delay": 0,
    }


def test_connections_that_are_there_serve_on_where_no_other_is_made(tmp_path: Path) -> None:
    answer = enforced(tmp_path, "has_all_its_connections")
    assert answer.pop("pair") == answer.pop("received") == 0
    assert len(answer) == 9
    assert set(answer.values()) == {errno.EPERM}
