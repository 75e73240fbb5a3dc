"""What the stories share: a folder, ``sealtrain`` commands as people type them, and servers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Meanwhile", "Server", "Stage", "emptied"]


@dataclass
class Server:
    """A server that a story started."""

    process: subprocess.Popen[str]
    said: str
    """Last word of the line that said it was ready."""

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(timeout=20)
        if self.process.stderr is not None:
            self.process.stderr.close()


@dataclass
class Meanwhile:
    """A command that runs beside the story."""

    process: subprocess.Popen[str]
    answer: dict[str, Any] = field(default_factory=dict)
    """What it said, once it ended."""

    @property
    def running(self) -> bool:
        """Whether it still does."""
        return self.process.poll() is None


@dataclass
class Stage:
    """Where a story plays. Use as a context: it ends every server."""

    out: Path
    began: float = field(default_factory=time.monotonic)
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stack.close()

    def title(self, text: str) -> None:
        """Announce the next scene."""
        print(f"\n[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)

    def run(self, *arguments: str | Path, expect: int = 0) -> dict[str, Any]:
        """Run one ``sealtrain`` command, show it, and return its JSON answer."""
        words = self._shown(arguments)
        quiet = words[:2] != ["deploy", "run"] and words[0] not in (
            "train",
            "resume",
        )  # these show their own progress on stderr
        done = subprocess.run(  # noqa: S603 - our own program with our own words
            _command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None,
            text=True,
        )  # fmt: skip
        return _answer(done.returncode, done.stdout, done.stderr or "", expect)

    def server(self, ready: str, *arguments: str | Path) -> Server:
        """Start a server and wait for the line that says that it is ready."""
        return self.stack.enter_context(_server(ready, [str(word) for word in arguments]))

    @contextmanager
    def meanwhile(self, *arguments: str | Path, expect: int) -> Iterator[Meanwhile]:
        """Run a command while the block does something else, and wait for its end."""
        process = subprocess.Popen(  # noqa: S603 - our own program with our own words
            _command(self._shown(arguments)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        running = Meanwhile(process)
        try:
            yield running
            said, _ = process.communicate(timeout=900)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        running.answer = _answer(process.returncode, said, "", expect)

    def _shown(self, arguments: tuple[str | Path, ...]) -> list[str]:
        words = [str(argument) for argument in arguments]
        shown = " ".join(word.replace(f"{self.out}/", "") for word in words)
        print(f"  $ sealtrain {shown}", flush=True)
        return words


def emptied(out: Path, mark: str) -> Path:
    """An empty folder at ``out``; what an earlier play of the same story left there goes.

    Args:
        out: The folder.
        mark: A file that every play leaves; a folder without it is somebody else's.
    """
    if out.exists():
        if not (out / mark).exists() and any(out.iterdir()):
            raise SystemExit(f"{out} is not a folder of this story; choose another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    return out


def _command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "sealtrain", *words, "--json"]


def _answer(code: int, said: str, errors: str, expect: int) -> dict[str, Any]:
    if code != expect:
        print(said, errors, sep="\n", file=sys.stderr)
        raise SystemExit(f"exit code {code}, expected {expect}")
    answer: dict[str, Any] = json.loads(said) if said.strip() else {}
    return answer


@contextmanager
def _server(ready: str, words: list[str]) -> Iterator[Server]:
    process = subprocess.Popen(  # noqa: S603 - our own program with our own words
        [sys.executable, "-m", "sealtrain", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        stream = process.stderr
        if stream is None:
            raise SystemExit("the server has no stderr")
        said = ""
        for line in stream:
            said += line
            if ready in line:
                yield Server(process, line.rsplit(" ", 1)[-1].strip())
                break
        else:
            raise SystemExit(f"server did not start:\n{said}")
    finally:
        process.terminate()
        process.wait(timeout=20)
