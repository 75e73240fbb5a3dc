"""Run sealtrain as on a system that lacks what only Linux, or only Unix, has.

``python elsewhere.py WORDS…`` is ``sealtrain WORDS…`` for which modules and names that Windows has
not do not exist. They are taken from sealtrain's own code alone: a library brings its own way for
each system, and here it is on this one.
"""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import Any

from sealtrain.base.version import PACKAGES

ABSENT_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
ABSENT_NAMES = {
    "os": {
        "O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC",
        "POSIX_FADV_DONTNEED",
        "chown", "chroot", "fchdir", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "getegid",
        "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "lchown", "lockf",
        "memfd_create", "mkfifo", "mknod", "nice", "posix_fadvise", "posix_fallocate", "pread",
        "preadv", "pwrite", "pwritev", "register_at_fork", "sched_getaffinity", "sched_setaffinity",
        "sendfile", "setsid", "splice", "statvfs", "sync", "sysconf", "uname",
    },
    "signal": {
        "SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGUSR1",
        "alarm", "pthread_sigmask", "setitimer", "sigwait",
    },
    "socket": {"AF_UNIX", "SCM_RIGHTS", "SO_PEERCRED", "SO_REUSEPORT", "recv_fds", "send_fds"},
    "mmap": {"MADV_DONTDUMP", "MADV_WILLNEED", "MAP_PRIVATE", "MAP_SHARED", "PROT_READ"},
}  # fmt: skip


class _Without(ModuleType):
    """A module that lacks some of its names."""

    def __init__(self, module: ModuleType, absent: set[str]) -> None:
        super().__init__(module.__name__)
        self.__dict__["_behind"] = (module, absent)

    def __getattr__(self, name: str) -> Any:
        module, absent = self.__dict__["_behind"]
        if name in absent:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} here")
        return getattr(module, name)


def take_away() -> None:
    """Take everything above from modules of sealtrain that are imported from now on."""
    imported = builtins.__import__
    shown: dict[str, _Without] = {}

    def without(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        ours = str((globals or {}).get("__name__", "")).partition(".")[0] in PACKAGES
        if ours and name in ABSENT_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        found = imported(name, globals, locals, fromlist, level)
        if ours and name in ABSENT_NAMES:
            return shown.setdefault(name, _Without(found, ABSENT_NAMES[name]))
        return found

    builtins.__import__ = without


if __name__ == "__main__":
    take_away()
    from sealtrain.cli import main

    sys.argv[0] = "sealtrain"
    main()
