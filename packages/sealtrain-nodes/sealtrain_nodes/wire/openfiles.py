"""Room for the connections of a rank among the files that its process may have open."""

from __future__ import annotations

import resource
from typing import Final

from sealtrain.errors import UsageError

_OTHER_FILES: Final = 512
"""Files that a process has open besides its connections, at most."""


def allow_files(connections: int) -> None:
    """Let this process have so many connections and its other files open.

    Raises:
        UsageError: The machine allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise UsageError(
            "a rank may not have a connection to each rank of other nodes open",
            check="open files",
            got=hard,
            expected=f"at least {wanted}",
            hint="raise the limit: ulimit -Hn",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
