"""Whether a file is the user's own: by the rules that ``ssh`` has for its files (StrictModes).

A file that another user can change, replace or rename says what that user wants. Each of these
belongs to the user of the command or to root, and no other user can write it:

1. the file,
2. each symbolic link on the way to it,
3. each folder above it, and above what a link on the way names.

A folder that every user can write is none of those, except one with the sticky bit (``/tmp``)
above a folder of the user's own or root's: there others cannot rename or remove that folder. A file
or a link that lies in such a folder itself could have been put there by any user before.

Systems without users have no such checks.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NoReturn

from sealtrain.errors import SealtrainError

_MOST_LINKS: Final = 40
"""As many as Linux follows."""
_WRITTEN_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def require_own(
    path: Path, error: type[SealtrainError], *, check: str | None = None, hint: str | None = None
) -> None:
    """Refuse a path that another user made or can change, now or by what lies above it.

    Args:
        path: Of a file or a folder; what does not exist yet is judged by the folders above it.
        error: Class to raise.
        check: What it says was checked [``owner``, ``mode`` or ``links``].
        hint: What to do about another user's file.

    Raises:
        SealtrainError: An instance of ``error`` that names the file, link or folder.
    """
    if not hasattr(os, "geteuid"):
        return
    mine = {os.geteuid(), 0}

    def refuse(place: Path, problem: str, what: str, got: str, advice: str | None) -> NoReturn:
        raise error(
            f"{place} {problem}",
            check=check or what,
            got=got,
            expected=f"of user {os.geteuid()} or root, and written by no other user",
            hint=advice,
        )

    def judge(place: Path, found: os.stat_result, after: os.stat_result | None) -> None:
        # 1. to 3.
        if found.st_uid not in mine:
            refuse(place, "belongs to another user", "owner", f"user {found.st_uid}", hint)
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & _WRITTEN_BY_OTHERS:
            return
        own_below = after is not None and stat.S_ISDIR(after.st_mode) and after.st_uid in mine
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and own_below:
            return
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        refuse(place, "can be changed by other users", "mode", mode, f"chmod go-w {place}")

    pending = list(path.absolute().parts[1:])[::-1]
    above: list[tuple[Path, os.stat_result]] = [(Path("/"), Path("/").stat())]
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            judge(*above[-1], None)
            del above[max(1, len(above) - 1) :]
            continue
        folder, status = above[-1]
        place = folder / part
        try:
            found = place.lstat()
        except OSError:  # nothing there, or nothing that may be looked at: its reader says so
            break
        judge(folder, status, found)
        if stat.S_ISLNK(found.st_mode):
            judge(place, found, None)
            links += 1
            if links > _MOST_LINKS:
                refuse(path, "leads from link to link", "links", f"over {_MOST_LINKS}", None)
            target = Path(place.readlink())
            if target.is_absolute():
                above = above[:1]
            pending += [part for part in target.parts if part != "/"][::-1]
        else:
            above.append((place, found))
    judge(*above[-1], None)
