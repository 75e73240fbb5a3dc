"""Inside a run files are made, changed and removed in its own folder only, by any name."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from sealtrain.base.files import atomic_write
from sealtrain.errors import UsageError
from sealtrain.guest.sandbox.files import PlaceRefused, keep_out_of_reach, readable_places
from sealtrain.guest.sandbox.network import confine_to

pytestmark = pytest.mark.claim("C106")
NOBODY = "http://127.0.0.1:1"
RECORD = b"a record in the clear"


@dataclass
class Ground:
    """The run's folder, a folder outside with one file, and the latter as an open directory."""

    inside: Path
    outside: Path
    directory: int

    @property
    def kept(self) -> Path:
        return self.outside / "kept"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    inside, outside = tmp_path / "run", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (inside / "own").write_bytes(b"own")
    (inside / "way").symlink_to(outside)
    directory = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    yield Ground(inside, outside, directory)
    os.close(directory)


def written(path: Path | str, flags: int = os.O_WRONLY | os.O_CREAT, at: int | None = None) -> None:
    place = os.open(path, flags, 0o600, dir_fd=at)
    os.write(place, RECORD)
    os.close(place)


def opened_again(ground: Ground) -> None:
    place = os.open(ground.kept, os.O_RDONLY)
    try:
        written(f"/proc/self/fd/{place}", os.O_WRONLY)
    finally:
        os.close(place)


def below(ground: Ground) -> None:
    """The current folder is the run's; the name is relative to another one."""
    before = Path.cwd()
    os.chdir(ground.inside)
    try:
        written("made", at=ground.directory)
    finally:
        os.chdir(before)


def linked(ground: Ground) -> None:
    """A file outside gets a name inside, which could then be written to."""
    os.link(ground.kept, ground.inside / "second")
    (ground.inside / "second").write_bytes(RECORD)


def linked_by_link(ground: Ground) -> None:
    (ground.inside / "to-kept").symlink_to(ground.kept)
    os.link(ground.inside / "to-kept", ground.inside / "second")
    (ground.inside / "second").write_bytes(RECORD)


WAYS: dict[str, Callable[[Ground], object]] = {
    "open": lambda g: (g.outside / "made").write_bytes(RECORD),
    "append": lambda g: g.kept.open("ab"),
    "change in place": lambda g: g.kept.open("r+b"),
    "dots": lambda g: (g.inside / ".." / "outside" / "made").write_bytes(RECORD),
    "link to a folder": lambda g: (g.inside / "way" / "made").write_bytes(RECORD),
    "directory": below,
    "directory and posix": lambda g: posix_open("made", g.directory),
    "directory by its descriptor": lambda g: written(f"/proc/self/fd/{g.directory}/made"),
    "directory by another name": lambda g: written(f"/dev/fd/{g.directory}/made"),
    "opened again": opened_again,
    "unnamed": lambda g: written(g.outside, os.O_TMPFILE | os.O_RDWR),
    "mkdir": lambda g: (g.outside / "made").mkdir(),
    "mkdir at": lambda g: os.mkdir("made", dir_fd=g.directory),
    "rename": lambda g: (g.inside / "own").rename(g.outside / "made"),
    "rename at": lambda g: os.rename(g.inside / "own", "made", dst_dir_fd=g.directory),
    "replace": lambda g: (g.inside / "own").replace(g.kept),
    "rename in": lambda g: g.kept.rename(g.inside / "taken"),
    "link": lambda g: (g.outside / "made").hardlink_to(g.inside / "own"),
    "link at": lambda g: os.link(g.inside / "own", "made", dst_dir_fd=g.directory),
    "link in": linked,
    "link in by a link": linked_by_link,
    "symlink": lambda g: (g.outside / "made").symlink_to("a record spelled as a target"),
    "symlink at": lambda g: os.symlink("a record", "made", dir_fd=g.directory),
    "truncate": lambda g: os.truncate(g.kept, 0),
    "remove": lambda g: g.kept.unlink(),
    "remove at": lambda g: os.unlink("kept", dir_fd=g.directory),
    "remove below a link": lambda g: (g.inside / "way" / "kept").unlink(),
    "rmtree": lambda g: shutil.rmtree(g.outside),
    "copy": lambda g: shutil.copyfile(g.inside / "own", g.outside / "made"),
    "move": lambda g: shutil.move(g.inside / "own", g.outside / "made"),
    "attribute": lambda g: os.setxattr(g.kept, "user.record", RECORD),
    "mode": lambda g: g.kept.chmod(0o777),
    "time": lambda g: os.utime(g.kept, (1, 1)),
    "time at": lambda g: os.utime("kept", (1, 1), dir_fd=g.directory),
    "owner": lambda g: os.chown(g.kept, os.geteuid(), os.getegid()),
    "kernel log": lambda _: Path("/dev/kmsg").write_bytes(RECORD),
    "terminal": lambda _: Path("/dev/tty").write_bytes(RECORD),
    "kernel settings": lambda _: Path("/proc/sys/kernel/core_pattern").write_bytes(RECORD),
    "shared memory": lambda _: Path("/dev/shm/sealtrain-made").write_bytes(RECORD),  # noqa: S108
}


def posix_open(name: str, directory: int) -> None:
    """Not through ``os``, which could be replaced."""
    posix = sys.modules["posix"]
    os.close(posix.open(name, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=directory))


def state(folder: Path) -> dict[str, object]:
    """All that can be seen of the files outside."""
    return {
        str(path): (path.lstat(), path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_to_a_file_outside(way: str, ground: Ground) -> None:
    before = state(ground.outside)
    noted: list[str] = []
    with (
        confine_to(NOBODY, writable=[ground.inside], noted=noted.append),
        pytest.raises(PlaceRefused),
    ):
        WAYS[way](ground)
    assert set(noted) == {"file.refused"}
    after = state(ground.outside)
    assert {path: held[1] for path, held in after.items()} == {
        path: held[1] for path, held in before.items()
    }
    for path, (stat, _) in before.items():  # type: ignore[misc]
        now = after[path][0]  # type: ignore[index]
        assert (now.st_mode, now.st_mtime_ns, now.st_ctime_ns, now.st_nlink) == (
            stat.st_mode,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            stat.st_nlink,
        )


def test_what_a_run_does_in_its_own_folder_is_let_pass(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = ground.inside
    directory = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    monkeypatch.chdir(inside.parent)
    with confine_to(NOBODY, writable=[inside]):
        (inside / "folder").mkdir()
        (inside / "own").rename(inside / "folder" / "moved")
        os.rename("folder", "renamed", src_dir_fd=directory, dst_dir_fd=directory)
        (inside / "link").symlink_to(ground.outside)
        (inside / "link").unlink()
        (inside / "second").hardlink_to(inside / "renamed" / "moved")
        os.utime(inside / "second", (1, 1))
        os.truncate(inside / "second", 1)
        atomic_write(Path("run/whole"), b"sealed")  # by a relative name, as --out may be
        with Path("run/plain").open("wb") as file:
            file.write(b"sealed")
            os.truncate(file.fileno(), 0)
        Path(os.devnull).write_bytes(b"x")
        shutil.rmtree(inside / "renamed")
    os.close(directory)
    assert {path.name for path in inside.iterdir()} == {"way", "second", "whole", "plain"}


def test_reading_is_free(ground: Ground) -> None:
    with confine_to(NOBODY, writable=[ground.inside]):
        assert ground.kept.read_bytes() == b"kept"
        place = os.open("kept", os.O_RDONLY, dir_fd=ground.directory)
        with os.fdopen(place, "rb") as file:
            assert file.read() == b"kept"


def test_a_refusal_is_what_libraries_expect_that_only_try(ground: Ground) -> None:
    with confine_to(NOBODY, writable=[ground.inside]), suppress(OSError):
        (ground.outside / "cache").mkdir()
    assert not (ground.outside / "cache").exists()


class TestReading:
    """Landlock's rules of reading are whole folders."""

    pytestmark = pytest.mark.claim("C590")

    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A project whose own folder is the virtual environment, with packages elsewhere too."""
        project = tmp_path / "project"
        for name in ("project/lib/packages", "project/bin", "copies", "libraries", "elsewhere"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "way").symlink_to(project / "lib")
        (tmp_path / "libraries" / "out").symlink_to(tmp_path / "elsewhere")
        monkeypatch.setattr(sys, "prefix", str(project))
        monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'libraries'}")
        return project

    def readable(self, installed: Path) -> list[Path]:
        packages = [str(installed / "lib" / "packages")]
        return readable_places(packages, installed.parent / "copies")

    @pytest.mark.parametrize(
        "place",
        [
            "project/lib/packages/out", "project/bin/out/run", "copies", "libraries/run",
            "way/out", "elsewhere/../way/out", "/usr/local/run", "/sys/run", "/lib/run",
            f"{sys.base_prefix}/run",
        ],
    )  # fmt: skip
    def test_a_place_in_a_folder_that_is_read_is_refused(self, installed: Path, place: str) -> None:
        with pytest.raises(UsageError) as caught:
            keep_out_of_reach(self.readable(installed), installed.parent / place)
        assert (caught.value.check, caught.value.got) == (
            "run folder",
            str(installed.parent / place),
        )

    @pytest.mark.parametrize("place", ["project/out", "elsewhere/run", "libraries/out"])
    def test_a_project_may_be_its_own_environment(self, installed: Path, place: str) -> None:
        readable = self.readable(installed)
        keep_out_of_reach(readable, installed.parent / place, installed / "sealed")
        # The kernel's rules follow links, as this list does.
        assert not [path for path in readable if installed.is_relative_to(path)]
