"""What code inside a run tries: border_victim.py FOLDER JOB [unprivileged] [compilers] [compiles].

Enclosed and locked as ``sandbox.border`` does it for a run, for good. Prints one JSON object: how
the border is held, what was counted, and the answer of the job. With ``unprivileged`` it may not
mount, with ``compilers`` a workshop as on a machine with an accelerator, with ``compiles`` one for
a recipe that compiles its model.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import ctypes
import json
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sealtrain.guest.sandbox.border import Ways, enclose
from sealtrain.guest.sandbox.output import OutputTally

FOLDER = Path(sys.argv[1]).resolve()
OUTSIDE = FOLDER.parent / "outside"
LIBC = ctypes.CDLL(None, use_errno=True)
REAL_FORK_EXEC = _posixsubprocess.fork_exec
MEMORY = Path("/dev/shm")  # noqa: S108  # what is tried to be left there
MARK = f"sealtrain-victim-{os.getpid()}"
RECORD = b"a record in the clear"


def errno_of(call: Callable[[], int]) -> int:
    """0 if the call went through."""
    ctypes.set_errno(0)
    return ctypes.get_errno() if call() < 0 else 0


def tried(work: Callable[[], Any]) -> str:
    """Name of what was raised, empty if it went through."""
    try:
        work()
    except BaseException as error:
        return type(error).__name__
    return ""


def native(path: Path | str, flags: int = os.O_CREAT | os.O_WRONLY, at: int = -100) -> int:
    """``openat`` of the C library, which no audit hook hears."""
    place = LIBC.openat(at, os.fsencode(path), flags, 0o600)
    if place >= 0:
        os.write(place, RECORD)
        os.close(place)
    return int(place)


def executes() -> int:
    """Status of a child that executes a program by the C library: 99 if it could not."""
    child = LIBC.fork()
    if child == 0:
        LIBC.execv(b"/bin/true", (ctypes.c_char_p * 2)(b"true", None))
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kinds_of_sockets() -> dict[str, int]:
    kinds = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, 0),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, 6),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, 0),
        "unix datagrams": (socket.AF_UNIX, socket.SOCK_DGRAM, 0),
        "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "ping": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        "mptcp": (socket.AF_INET, socket.SOCK_STREAM, 262),
        "sctp": (socket.AF_INET, socket.SOCK_STREAM, 132),
        "packet": (17, socket.SOCK_RAW, 0),
        "netlink": (16, socket.SOCK_RAW, 0),
        "vsock": (40, socket.SOCK_STREAM, 0),
        "algorithm": (38, 5, 0),
    }
    return {name: errno_of(lambda kind=kind: LIBC.socket(*kind)) for name, kind in kinds.items()}  # type: ignore[misc]


def listens_on_a_unix_socket() -> dict[str, int]:
    server = LIBC.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)
    address = struct.pack("H", socket.AF_UNIX) + os.fsencode(FOLDER / "door") + b"\0"
    seen = struct.pack("H", socket.AF_UNIX) + b"\0" + RECORD  # in /proc/net/unix
    return {
        "bind": errno_of(lambda: LIBC.bind(server, address, len(address))),
        "name": errno_of(lambda: LIBC.bind(server, seen, len(seen))),
        "listen": errno_of(lambda: LIBC.listen(server, 1)),
    }


def connects_by_a_first_packet() -> dict[str, int]:
    port = int(os.environ["LISTENER"])
    caller = LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, b"\x7f\0\0\1")
    sent = lambda: LIBC.sendto(caller, RECORD, len(RECORD), 0x20000000, address, len(address))  # noqa: E731
    return {
        "sendto": errno_of(sent),
        "connect": errno_of(lambda: LIBC.connect(caller, address, len(address))),
    }


def reaches_other_services() -> dict[str, Any]:
    """By native code, where Python's hook refuses all but the guest's socket and look-ups."""
    said: dict[str, Any] = {}
    for name in ("guest.sock", "other.sock"):
        caller = LIBC.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)
        address = struct.pack("H", socket.AF_UNIX) + os.fsencode(FOLDER.parent / name) + b"\0"
        said[name] = errno_of(
            lambda caller=caller, address=address: LIBC.connect(caller, address, len(address))  # type: ignore[misc]
        )
    for name, port in (("name server", 53), ("anywhere", 9)):
        caller = LIBC.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, b"\x7f\0\0\1")
        said[name] = errno_of(
            lambda caller=caller, address=address: LIBC.sendto(caller, b"x", 1, 0, address, 16)  # type: ignore[misc]
        )
    if "names" in sys.argv:
        said["looked up"] = bool(socket.getaddrinfo("localhost", 1))
    return said


def leaves_something_in_the_kernel() -> dict[str, int]:
    kind, name = b"user", b"sealtrain-test"
    return {
        "shared memory": errno_of(lambda: LIBC.shmget(0x5EA1, 4096, 0o1600)),
        "messages": errno_of(lambda: LIBC.msgget(0x5EA1, 0o1600)),
        "semaphores": errno_of(lambda: LIBC.semget(0x5EA1, 1, 0o1600)),
        "queue": errno_of(
            lambda: LIBC.mq_open(b"/sealtrain-test", os.O_CREAT | os.O_RDWR, 0o600, 0)
        ),
        "key": errno_of(lambda: LIBC.syscall(number("add_key"), kind, name, RECORD, 8, -3)),
        "log": errno_of(lambda: LIBC.klogctl(10, None, 0)),
    }


def leaves_the_process() -> dict[str, int]:
    memory = (ctypes.c_ulong * 2)(0, 0)
    return {
        "ptrace": errno_of(lambda: LIBC.ptrace(0, 0, 0, 0)),
        "other memory": errno_of(
            lambda: LIBC.process_vm_readv(os.getppid(), memory, 1, memory, 1, 0)
        ),
        "namespace": errno_of(lambda: LIBC.unshare(0x10000000)),
        "clone": errno_of(lambda: LIBC.syscall(number("clone"), 0x10000000 | 17, 0, 0, 0, 0)),
        "clone3": errno_of(lambda: LIBC.syscall(435, 0, 0)),
        "mount": errno_of(lambda: LIBC.mount(b"x", os.fsencode(FOLDER), b"tmpfs", 0, None)),
        "io_uring": errno_of(lambda: LIBC.syscall(425, 4, bytes(256))),
        "clock": errno_of(lambda: LIBC.clock_settime(0, bytes(16))),
        "keystroke": errno_of(lambda: LIBC.ioctl(0, 0x5412, b"x")),
        "device": errno_of(lambda: LIBC.mknod(os.fsencode(FOLDER / "disk"), 0o060600, 0x800)),
        "module": errno_of(lambda: LIBC.syscall(number("finit_module"), -1, b"", 0)),
        "executed": executes(),
    }


def leaves_marks_on_files() -> dict[str, Any]:
    """By every call that changes a file which may only be read; 0 where it says that it did."""
    kept = OUTSIDE / "kept"
    path, name = os.fsencode(kept), b"user.record"
    place, folder = os.open(kept, os.O_RDONLY), os.open(OUTSIDE, os.O_RDONLY)
    was = kept.stat()
    times = struct.pack("qqqq", 7, 7, 8, 8)
    call, size = LIBC.syscall, len(RECORD)
    given = struct.pack("QII", 0, 0, 0)
    one = {
        "setxattr": lambda: LIBC.setxattr(path, name, RECORD, size, 0),
        "fsetxattr": lambda: LIBC.fsetxattr(place, name, RECORD, size, 0),
        "of a folder": lambda: LIBC.fsetxattr(folder, name, RECORD, size, 0),
        "setxattrat": lambda: call(463, -100, path, 0, name, given, len(given)),
        "removexattr": lambda: LIBC.removexattr(path, b"user.kept"),
        "fremovexattr": lambda: LIBC.fremovexattr(place, b"user.kept"),
        "chmod": lambda: LIBC.chmod(path, 0o751),
        "fchmod": lambda: LIBC.fchmod(place, 0o751),
        "fchmodat": lambda: call(number("fchmodat"), -100, path, 0o751),
        "fchmodat2": lambda: call(452, -100, path, 0o751, 0),
        "utimensat": lambda: LIBC.utimensat(-100, path, times, 0),
        "futimens": lambda: LIBC.futimens(place, times),
        "chown": lambda: LIBC.chown(path, 12345, 54321),
        "fchown": lambda: LIBC.fchown(place, 12345, 54321),
        "flags": lambda: LIBC.ioctl(place, 0x40086602, struct.pack("q", 0x90)),
        "flags of XFS": lambda: LIBC.ioctl(place, 0x401C5820, bytes(28)),
        "hint": lambda: LIBC.fcntl(place, 1036, struct.pack("q", 4)),
        "lease": lambda: LIBC.fcntl(place, 1024, 0),
        "owner": lambda: LIBC.fcntl(place, 8, os.getppid()),
        "attributes": lambda: call(469, -100, path, bytes(32), 32, 0),
    }
    found = {way: errno_of(act) for way, act in one.items()}
    python: dict[str, Callable[[], Any]] = {
        "os.chmod": lambda: os.chmod(place, 0o751),  # noqa: PTH101, S103
        "os.utime": lambda: os.utime(place, ns=(0, 0)),
        "os.setxattr": lambda: os.setxattr(place, "user.python", RECORD),
    }
    before = [was.st_mode, was.st_uid, was.st_gid, was.st_mtime_ns]
    return {"before": before} | found | {way: tried(act) for way, act in python.items()}


def touches_other_processes() -> dict[str, int]:
    """Limits, priorities and processors of the process that started this one; and of this one."""
    parent, mask = os.getppid(), (ctypes.c_ulong * 16)(1)
    limits, call = struct.pack("QQ", 64, 64), LIBC.syscall
    before = Path("/proc/self/comm").read_text()
    found = {
        "limits": errno_of(lambda: LIBC.prlimit(parent, 7, limits, None)),
        "priority": errno_of(lambda: LIBC.setpriority(0, parent, 5)),
        "of a group": errno_of(lambda: LIBC.setpriority(1, 0, 5)),
        "processors": errno_of(lambda: LIBC.sched_setaffinity(parent, 128, mask)),
        "scheduler": errno_of(lambda: LIBC.sched_setscheduler(parent, 3, bytes(4))),
        "compared": errno_of(lambda: call(312, parent, os.getpid(), 0, 0, 0)),
        "advice": errno_of(lambda: call(440, 0, 0, 0, 20, 0)),
        "signal": errno_of(lambda: LIBC.kill(parent, signal.SIGURG)),
        "own limits": errno_of(lambda: LIBC.prlimit(0, 7, None, bytes(16))),
        "own processors": errno_of(lambda: LIBC.sched_setaffinity(0, 128, mask)),
        "open to debuggers": errno_of(lambda: LIBC.prctl(4, 1, 0, 0, 0)),
        "closed to debuggers": errno_of(lambda: LIBC.prctl(4, 0, 0, 0, 0)),
        "traced": errno_of(lambda: LIBC.prctl(0x59616D61, parent, 0, 0, 0)),
        "core": errno_of(lambda: LIBC.prlimit(0, 4, struct.pack("QQ", 1 << 30, 1 << 30), None)),
        "named": errno_of(lambda: LIBC.prctl(15, b"patient-4711", 0, 0, 0)),
        "elder": errno_of(lambda: call(number("clone"), 0x8000 | 17, 0, 0, 0, 0)),
    }
    import resource

    told = resource.getrlimit(resource.RLIMIT_CORE) == (0, 0), LIBC.prctl(3, 0, 0, 0, 0) == 0
    renamed = Path("/proc/self/comm").read_text() != before
    return found | {
        "cores": int(not told[0]),
        "dumpable": int(not told[1]),
        "renamed": int(renamed),
    }


def makes_another_protocol_of_tcp() -> dict[str, int]:
    caller = LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    return {
        "smc": errno_of(lambda: LIBC.setsockopt(caller, 6, 31, b"smc", 3)),
        "smc of its own": errno_of(lambda: LIBC.socket(43, socket.SOCK_STREAM, 0)),
        "smc by its number": errno_of(lambda: LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 256)),
        "no delay": errno_of(lambda: LIBC.setsockopt(caller, 6, 1, struct.pack("i", 1), 4)),
    }


def has_all_its_connections() -> dict[str, int]:
    """As a process that makes no more of them."""
    from sealtrain.guest.sandbox.seccomp import refuse_calls

    before, other = socket.socketpair()
    tcp, pair = LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0), (ctypes.c_int * 2)()
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 9, b"\x7f\0\0\1")
    assert refuse_calls(network=False)
    before.sendall(b"x")
    return {
        "socket": errno_of(lambda: LIBC.socket(socket.AF_INET, socket.SOCK_STREAM, 0)),
        "unix": errno_of(lambda: LIBC.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)),
        "connect": errno_of(lambda: LIBC.connect(tcp, address, len(address))),
        "bind": errno_of(lambda: LIBC.bind(tcp, address, len(address))),
        "listen": errno_of(lambda: LIBC.listen(tcp, 1)),
        "accept": errno_of(lambda: LIBC.accept(tcp, None, None)),
        "datagrams": errno_of(lambda: LIBC.socketpair(1, socket.SOCK_DGRAM, 0, pair)),
        "packets": errno_of(lambda: LIBC.socketpair(1, socket.SOCK_SEQPACKET, 0, pair)),
        "of the internet": errno_of(lambda: LIBC.socketpair(2, socket.SOCK_STREAM, 0, pair)),
        "pair": errno_of(lambda: LIBC.socketpair(1, socket.SOCK_STREAM, 0, pair)),
        "received": int(other.recv(1) != b"x"),
    }


def number(call: str) -> int:
    from sealtrain.guest.sandbox import calls

    every = calls.REFUSED | calls.LOOKED_INTO | calls.SILENT
    found = every[call][0 if os.uname().machine == "x86_64" else 1]
    assert found is not None
    return found


def works_as_ever() -> dict[str, Any]:
    """What training needs."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    child = multiprocessing.get_context("fork").Process(target=lambda: None)
    child.start()
    child.join()
    (FOLDER / "inside").write_bytes(b"x")
    (FOLDER / "inside").rename(FOLDER / "renamed")
    (FOLDER / "renamed").unlink()
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        memory.write(b"x")
    return {"child": child.exitcode, "null": Path(os.devnull).write_bytes(b"x")}


def writes_by_native_code() -> dict[str, int]:
    """Every way to a file outside, and one inside."""
    outside = os.open(OUTSIDE, os.O_RDONLY | os.O_DIRECTORY)
    kept, link = os.fsencode(OUTSIDE / "kept"), os.fsencode(FOLDER / "link")
    made = os.fsencode(OUTSIDE / "made")
    (FOLDER / "own").write_bytes(b"x")
    own = os.fsencode(FOLDER / "own")
    (FOLDER / "way").symlink_to(OUTSIDE)
    found = {
        "inside": errno_of(lambda: native(FOLDER / "native")),
        "outside": errno_of(lambda: native(OUTSIDE / "made")),
        "relative to a directory": errno_of(lambda: native("made", at=outside)),
        "through a link": errno_of(lambda: native(FOLDER / "way" / "made")),
        "shared memory": errno_of(lambda: native(MEMORY / MARK)),
        "opened again": opened_again(),
        "moved out": errno_of(lambda: LIBC.rename(own, made)),
        "linked in": errno_of(lambda: LIBC.link(kept, link)),
        "folder": errno_of(lambda: LIBC.mkdir(made, 0o700)),
        "symbolic link": errno_of(lambda: LIBC.symlink(RECORD, made)),
        "pipe": errno_of(lambda: LIBC.mkfifo(made, 0o600)),
        "removed": errno_of(lambda: LIBC.unlink(kept)),
        "kernel log": errno_of(lambda: native("/dev/kmsg", os.O_WRONLY)),
        "own name": errno_of(lambda: native("/proc/self/comm", os.O_WRONLY)),
        "own weight": errno_of(lambda: native("/proc/self/oom_score_adj", os.O_WRONLY)),
        "kernel settings": errno_of(lambda: native("/proc/sys/kernel/core_pattern", os.O_WRONLY)),
        "cut": errno_of(lambda: LIBC.truncate(kept, 0)),
    }
    (FOLDER / "way").unlink()
    return found


def opened_again() -> int:
    """A file that is open for reading, opened for writing by its descriptor's name."""
    place = os.open(OUTSIDE / "kept", os.O_RDONLY)
    return errno_of(lambda: native(f"/proc/self/fd/{place}", os.O_WRONLY))


def writes_in_memory() -> dict[str, Any]:
    """Where code may write while the run lasts."""
    import tempfile

    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(RECORD)
    return {
        "temporary": str(Path(file.name).parent),
        "marks": [str(MEMORY / MARK), str(MEMORY / f"{MARK}-2")],
        "native": errno_of(lambda: native(MEMORY / MARK)),
        "python": tried(lambda: (MEMORY / f"{MARK}-2").write_bytes(RECORD)),
        "mode": oct(Path(file.name).parent.stat().st_mode & 0o777),
        "kernels": [
            Path(os.environ[name]).is_relative_to(tempfile.gettempdir())
            for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
        ],
    }


def is_killed() -> None:
    (FOLDER / "told").write_text(json.dumps(writes_in_memory()))
    os.kill(os.getpid(), signal.SIGKILL)


def spawns() -> dict[str, Any]:
    """Every way in which Python starts another interpreter."""
    from multiprocessing import shared_memory

    said: dict[str, Any] = {"default": multiprocessing.get_start_method()}
    for method in ("spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=print)
        said[method] = tried(child.start)
    said["tracker"] = tried(lambda: shared_memory.SharedMemory(create=True, size=64))
    said["pool"] = tried(lambda: multiprocessing.get_context("spawn").Pool(1))
    said["direct"] = tried(lambda: fork_exec(_posixsubprocess.fork_exec))
    # The real function, kept from before: only the kernel can refuse it.
    status = os.waitstatus_to_exitcode(os.waitpid(fork_exec(REAL_FORK_EXEC), 0)[1])
    said["kept"] = status
    return said


def fork_exec(function: Any) -> int:
    words, paths = [b"true"], [b"/bin/true"]
    rest = (-1, None, None, None, -1, None, False)
    read, write = os.pipe()
    streams = (-1, -1, -1, -1, -1, -1, read, write)
    return int(function(words, paths, True, (write,), None, None, *streams, False, False, *rest))


def asks_for_libraries() -> dict[str, Any]:
    """What torch's own build for accelerators, triton and others do when they are loaded."""
    import ctypes.util
    import platform

    return {
        "c": ctypes.util.find_library("c"),
        "none": ctypes.util.find_library("no-such-library"),
        "listed": len(subprocess.check_output(["/sbin/ldconfig", "-p"])),
        "text": subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
        ).returncode,
        "other words": tried(lambda: subprocess.check_output(["/sbin/ldconfig", "-v"])),
        "missing": tried(lambda: subprocess.check_output(["/no/such/program"])),
        "platform": [platform.processor(), *platform.architecture()],
    }


def builds_a_kernel() -> dict[str, Any]:
    """As triton does: a C compiler makes a library that is loaded at once."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        source.write_text("int answer(void) { return 42; }")
        subprocess.check_call(["gcc", str(source), "-shared", "-fPIC", "-o", str(library)])
        answer = ctypes.CDLL(str(library)).answer()
    version = subprocess.run(["gcc", "--version"], capture_output=True, text=True, check=True)
    broken = subprocess.run(
        ["gcc", "-x", "c", "-", "-o", os.devnull], input=b"no C", capture_output=True, check=False
    )
    return {
        "answer": answer,
        "version": "gcc" in version.stdout.lower(),
        "broken": [broken.returncode, bool(broken.stderr)],
        "python": tried(lambda: subprocess.check_output([sys.executable, "-c", "0"])),
        "shell": tried(lambda: subprocess.check_output("true", shell=True)),  # noqa: S602
        "loader": tried(
            lambda: subprocess.check_output(["/lib64/ld-linux-x86-64.so.2", "/bin/true"])
        ),
        "spawn": tried(multiprocessing.get_context("spawn").Process(target=print).start),
        "executed": executes(),
    }


def builds_with_the_named_compiler() -> dict[str, Any]:
    version = subprocess.run([os.environ["CC"], "--version"], capture_output=True, check=True)
    return {"version": b"Free Software Foundation" in version.stdout}


def uses_the_driver() -> dict[str, Any]:
    """As PyTorch looks for a GPU; of a real driver also what a training asks for."""
    driver = ctypes.CDLL("libcuda.so.1")
    found = {"started": driver.cuInit(0)}
    if Path("/dev/nvidia0").exists():
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        size = ctypes.c_size_t(1 << 24)
        found["device"] = driver.cuDeviceGet(ctypes.byref(device), 0)
        found["context"] = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        found["current"] = driver.cuCtxSetCurrent(context)
        found["memory"] = driver.cuMemAlloc_v2(ctypes.byref(memory), size)
        found["locked memory"] = driver.cuMemAllocHost_v2(ctypes.byref(memory), size)
    return found


HOSTILE = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv("LISTENER")))};
  int tcp = socket(AF_INET, SOCK_STREAM, 0), first = errno, udp = socket(AF_INET, SOCK_DGRAM, 0);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int reached = tcp >= 0 && connect(tcp, (void *)&to, sizeof to) == 0;
  int file = open(getenv("OUTSIDE"), O_CREAT | O_WRONLY, 0600);
  FILE *said = fopen(getenv("SAID"), "w");
  fprintf(said, "[%d, %d, %d, %d]", tcp < 0 ? first : 0, udp < 0, reached, file < 0);
  fclose(said);
}
"""


def builds_hostile_code() -> dict[str, Any]:
    """A compiler that is told to load a library: what that tries is refused by the kernel."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, library, said = (Path(folder, name) for name in ("h.c", "h.so", "said"))
        source.write_text(HOSTILE)
        subprocess.check_call(["gcc", str(source), "-shared", "-fPIC", "-o", str(library)])
        told = {"LD_PRELOAD": str(library), "SAID": str(said), "OUTSIDE": str(OUTSIDE / "made")}
        subprocess.check_call(["gcc", "--version"], env={**os.environ, **told})
        return {"found": json.loads(said.read_text())}


def old_thread_acts() -> dict[str, Any]:
    """A thread that is older than the border."""
    GO.set()
    OLD.join()
    return dict(ANSWERS)


def waits_and_acts() -> None:
    GO.wait(60)
    ANSWERS["executed"] = executes()
    ANSWERS["outside"] = errno_of(lambda: native(OUTSIDE / "made"))


GO, ANSWERS = threading.Event(), dict[str, int]()
OLD = threading.Thread(target=waits_and_acts, daemon=True)


def main() -> None:
    job: Callable[[], dict[str, Any] | None] = globals()[sys.argv[2]]
    OUTSIDE.mkdir(exist_ok=True)
    (OUTSIDE / "kept").write_bytes(b"kept")
    if "unprivileged" in sys.argv:
        assert LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)) == 0
    if job is old_thread_acts:
        OLD.start()
    tally = OutputTally()
    held: dict[str, Any] = {}
    host = "localhost" if "names" in sys.argv else "127.0.0.1"
    sockets = [] if "apart" in sys.argv else [FOLDER.parent / "guest.sock"]
    ways = Ways(urls=[f"http://{host}:1"], folders=[FOLDER], sockets=sockets)
    with (
        enclose(
            tally,
            alone=True,
            accelerated="compilers" in sys.argv,
            compiles="compiles" in sys.argv,
        ) as room,
        room.confine(ways),
    ):
        try:
            held = room.lock(ways).to_dict()
            answer = job()
        except BaseException as error:
            answer = {"raised": f"{type(error).__name__} {error}"}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"counts": tally.counts, **held, **(answer or {})}))


if __name__ == "__main__":
    main()
