"""What the processes of a test printed, written to a folder where the test fails.

With SEALTRAIN_KEEP in the environment a test that fails leaves a folder of its own there, named by
its id: ``failure.txt`` has pytest's report of each phase that failed, ``commands.txt`` what the
commands said that this test process waited for, and every other file is the end of a log or of an
answer that lay in a temporary folder of the test or of its file. A test that passes leaves nothing,
and without the variable nothing changes.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import stat
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "SEALTRAIN_KEEP"
MAX_FILES = 50
MAX_FILE_BYTES = 1 << 20
_MAX_SEEN = 100_000
_MAX_SAID = 32 << 10
_MAX_NAME = 150
_CLOCK_S = 1.0  # a file system's times lag a little behind
_LOGS = (".err", ".log", ".out")
_TEXTS = (".jsonl", ".txt")

_commands: deque[str] = deque(maxlen=200)


def keep_output(config: pytest.Config) -> None:
    """Have failing tests leave their output where the environment names a folder."""
    folder = os.environ.get(VARIABLE)
    if folder:
        config.pluginmanager.register(Keeping(Path(folder).absolute()), "keeping")


def note_command(words: Any, code: object, *said: str | bytes | None) -> None:
    """Remember what a command said that this process waited for.

    Args:
        words: Its command line.
        code: How it ended.
        said: Its streams; ``None`` for one that was not captured.
    """
    if VARIABLE not in os.environ:
        return
    line = words if isinstance(words, str) else shlex.join(map(_text, words))
    texts = [_text(stream)[-_MAX_SAID:] for stream in said if stream]
    _commands.append("\n".join([f"$ {line[:_MAX_SAID]}", *texts, f"[ended with {code}]\n"]))


class Keeping:
    """A plugin of pytest. Argument: the folder in which each failing test gets its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Path | None = None
        self._since = 0.0
        self._others: set[Path] = set()
        self._failures: list[str] = []
        self._run = subprocess.run

    def pytest_sessionstart(self) -> None:
        """Note from now on what commands say."""
        subprocess.run = _noting(self._run)

    def pytest_sessionfinish(self) -> None:
        """Leave ``subprocess`` as it was."""
        subprocess.run = self._run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Forget what the tests of another file left."""
        self._failures = []
        if item.path != self._file:
            self._file, self._since = item.path, time.time() - _CLOCK_S
            self._others.clear()
            _commands.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        """Keep what there is when a phase fails, and again when the last one is over."""
        report: pytest.TestReport = yield  # type: ignore[misc,assignment]
        if report.failed:
            self._failures.append(_told(report))
        if self._failures and (report.failed or report.when == "teardown"):
            self._keep(item)
        if report.when == "teardown" and (own := _arguments(item).get("tmp_path")) is not None:
            self._others.add(own)
        return report  # type: ignore[return-value]

    def _keep(self, item: pytest.Item) -> None:
        folder = self._folder / _file_name(item.nodeid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.txt").write_text("\n".join(self._failures), "utf-8")
        if _commands:
            said = "\n".join(_commands).encode()
            (folder / "commands.txt").write_bytes(said[-MAX_FILE_BYTES:])
        for path, name in self._outputs(item):
            with suppress(OSError):  # its process, or a fixture, removed it
                (folder / name).write_bytes(_end_of(path))

    def _outputs(self, item: pytest.Item) -> list[tuple[Path, str]]:
        """Files to keep: logs and answers before other texts, each the newest first."""
        found: list[tuple[tuple[int, float], Path, str]] = []
        for folder in self._folders(item):
            for path in _files_below(folder):
                with suppress(OSError):
                    rank, about = _rank(path), path.lstat()
                    if rank is not None and stat.S_ISREG(about.st_mode) and about.st_size:
                        name = _file_name(str(path.relative_to(folder.parent)), most=_MAX_NAME)
                        found.append(((rank, -about.st_mtime), path, name))
        found.sort(key=lambda one: one[0])
        names: dict[str, Path] = {}
        for _order, path, name in found[:MAX_FILES]:
            number = 1
            unique = f"{name}.txt"
            while unique in names:
                number += 1
                unique = f"{name}-{number}.txt"
            names[unique] = path
        return [(path, name) for name, path in names.items()]

    def _folders(self, item: pytest.Item) -> list[Path]:
        """Temporary folders of the test and of its file, without those of its other tests."""
        given = _arguments(item)
        own, factory = given.get("tmp_path"), given.get("tmp_path_factory")
        base = own.parent if factory is None and own is not None else None
        base = base if factory is None else factory.getbasetemp()
        if base is None:
            return []
        return sorted(
            path
            for path in base.iterdir()
            if path not in self._others
            and not path.is_symlink()
            and path.is_dir()
            and path.stat().st_ctime >= self._since
        )


def _noting(run: Any) -> Any:
    @functools.wraps(run)
    def noted(*given: Any, **named: Any) -> Any:
        words = given[0] if given else named.get("args", ())
        try:
            done = run(*given, **named)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            note_command(words, type(error).__name__, error.stdout, error.stderr)
            raise
        note_command(words, done.returncode, done.stdout, done.stderr)
        return done

    return noted


def _arguments(item: pytest.Item) -> dict[str, Any]:
    found: dict[str, Any] = getattr(item, "funcargs", {})
    return found


def _told(report: pytest.TestReport) -> str:
    """A failed phase as pytest shows it, with what it captured."""
    parts = [f"{report.nodeid}: {report.when} failed", report.longreprtext]
    parts += [f"----- {title} -----\n{text}" for title, text in report.sections]
    return "\n".join(parts) + "\n"


def _files_below(folder: Path) -> Iterator[Path]:
    seen = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > _MAX_SEEN:
                return
            yield Path(where) / name


def _rank(path: Path) -> int | None:
    """How soon a file is kept; ``None`` for one that is no output."""
    if path.suffix in _LOGS or path.name in ("stdout", "stderr"):
        return 0
    if path.suffix == ".json" and path.with_suffix(".log").exists():  # the answer of a ``Part``
        return 0
    return 1 if path.suffix in _TEXTS else None


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_FILE_BYTES))
        return file.read(MAX_FILE_BYTES)


def _file_name(text: str, most: int = 200) -> str:
    """A name for a file; of a long one its end."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("_.")[-most:]


def _text(word: object) -> str:
    if isinstance(word, bytes):
        return word.decode("utf-8", "replace")
    return os.fspath(word) if isinstance(word, os.PathLike) else str(word)
