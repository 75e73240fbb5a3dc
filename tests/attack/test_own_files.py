"""Another user of the machine changes what decides for us: a file, a link to it, a folder above."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sealtrain.base.ownfiles import require_own
from sealtrain.cli.project import NAME, load_project
from sealtrain.errors import ConfigError, KeyFileInvalid, ProjectInvalid, SealtrainError
from sealtrain.keys.identity import Identity
from sealtrain.ledger.witness import memory
from sealtrain_console.web.passkeys import Passkeys

pytestmark = [
    pytest.mark.claim("C146"),
    pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no users"),
]
OTHER = 20_002
ROOT_ONLY = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files away"
)
PROJECT = 'version = 1\nconsortium = "consortium.json"\n'


@pytest.fixture
def home() -> Iterator[Path]:
    """``base/work/home``, all of them the user's own; the base lies in a sticky folder."""
    base = Path(tempfile.mkdtemp())
    home = base / "work/home"
    home.mkdir(parents=True, mode=0o755)
    yield home
    os.chown(base, os.geteuid(), os.getegid())
    base.chmod(0o700)
    shutil.rmtree(base)


def project(home: Path) -> Path:
    path = home / NAME
    path.write_text(PROJECT)
    path.chmod(0o644)
    return path


def identity(home: Path) -> Path:
    path = home / "clinic-a.json"
    Identity.generate("clinic-a").save(path)
    return path


def remembered(home: Path) -> Path:
    path = home / "clinic-a.memory.json"
    path.write_text("{}")
    path.chmod(0o600)
    return path


def passkeys(home: Path) -> Path:
    path = home / "clinic-a.passkeys.json"
    path.write_text('{"passkeys":[],"version":1}')
    path.chmod(0o600)
    return path


def read_memory(path: Path) -> None:
    with memory(path):
        pass


def read_passkeys(path: Path) -> None:
    _ = Passkeys(file=path, origin="http://localhost:8600").ids


Made = Callable[[Path], Path]
READERS: dict[str, tuple[Made, Callable[[Path], object], type[SealtrainError]]] = {
    "project file": (project, load_project, ProjectInvalid),
    "identity": (identity, Identity.load, KeyFileInvalid),
    "memory of a ledger": (remembered, read_memory, ConfigError),
    "passkeys": (passkeys, read_passkeys, KeyFileInvalid),
}
readers = pytest.mark.parametrize("reader", READERS)


def refused(reader: str, path: Path) -> str:
    """The reader refuses the path; returns why the judgement does."""
    _, read, error = READERS[reader]
    with pytest.raises(error) as refusal:
        read(path)
    with pytest.raises(error) as judged:
        require_own(path, error)
    assert refusal.value.code == judged.value.code
    return str(judged.value.check)


@readers
def test_a_file_of_ones_own_is_read(home: Path, reader: str) -> None:
    made, read, error = READERS[reader]
    path = made(home)
    require_own(path, error)
    if reader != "memory of a ledger":  # an empty one is none
        read(path)


@readers
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o620, 0o602, 0o666])
def test_a_file_that_a_group_or_everyone_writes_is_refused(
    home: Path, reader: str, mode: int
) -> None:
    path = READERS[reader][0](home)
    path.chmod(mode)
    assert refused(reader, path) == "mode"


@readers
@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o2775, 0o730])
def test_every_folder_above_is_judged(home: Path, reader: str, above: int, mode: int) -> None:
    path = READERS[reader][0](home)
    folder = path.parents[above]
    folder.chmod(mode)
    assert refused(reader, path) == "mode"
    folder.chmod(0o755)
    require_own(path, READERS[reader][2])


@ROOT_ONLY
@readers
@pytest.mark.parametrize("given", [None, 0, 1, 2])
def test_what_belongs_to_another_user_is_refused(
    home: Path, reader: str, given: int | None
) -> None:
    path = READERS[reader][0](home)
    os.chown(path if given is None else path.parents[given], OTHER, OTHER)
    assert refused(reader, path) in {"owner"} | ({"mode"} if given == 2 else set())


@readers
def test_a_file_in_a_sticky_folder_could_be_anyones(home: Path, reader: str) -> None:
    path = READERS[reader][0](home)
    home.chmod(0o1777)
    assert refused(reader, path) == "mode"


@readers
def test_a_sticky_folder_above_a_folder_of_ones_own_is_accepted(home: Path, reader: str) -> None:
    path = READERS[reader][0](home)
    home.parent.chmod(0o1777)
    require_own(path, READERS[reader][2])


@ROOT_ONLY
def test_in_a_sticky_folder_only_a_folder_of_ones_own_counts(home: Path) -> None:
    path = project(home)
    home.parent.chmod(0o1777)
    os.chown(home, OTHER, OTHER)
    assert refused("project file", path) in {"owner", "mode"}


@pytest.mark.parametrize("place", ["sticky", "open", "grouped"])
def test_a_link_lies_in_a_folder_that_others_cannot_write(home: Path, place: str) -> None:
    path = project(home)
    shared = home / "shared"
    shared.mkdir()
    (shared / NAME).symlink_to(path)
    load_project(shared / NAME)
    shared.chmod({"sticky": 0o1777, "open": 0o777, "grouped": 0o775}[place])
    assert refused("project file", shared / NAME) == "mode"
    load_project(path)


@ROOT_ONLY
def test_a_link_of_another_user_is_refused(home: Path) -> None:
    path = project(home)
    (home / "sub").mkdir()
    link = home / "sub" / NAME
    link.symlink_to(path)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    assert refused("project file", link) == "owner"


@pytest.mark.parametrize("relative", [False, True])
def test_folders_above_what_a_link_names_are_judged(home: Path, relative: bool) -> None:
    away = home.parent / "away"
    (away / "deep").mkdir(parents=True)
    path = project(away / "deep")
    named = Path("../away/deep") if relative else away / "deep"
    (home / "link").symlink_to(named)
    load_project(home / "link" / NAME)
    away.chmod(0o777)
    assert refused("project file", home / "link" / NAME) == "mode"
    assert refused("project file", path) == "mode"


def test_a_way_through_an_open_folder_and_back_is_refused(home: Path) -> None:
    path = project(home)
    (home / "open").mkdir()
    load_project(home / "open/.." / NAME)
    (home / "open").chmod(0o777)
    assert refused("project file", home / "open/.." / NAME) == "mode"
    load_project(path)


def test_links_without_end_are_refused(home: Path) -> None:
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    with pytest.raises(ProjectInvalid) as refusal:
        require_own(home / "a" / NAME, ProjectInvalid)
    assert refusal.value.check == "links"


def test_a_file_that_is_not_there_yet_is_judged_by_its_folders(home: Path) -> None:
    require_own(home / "new" / "file", ProjectInvalid)
    home.chmod(0o777)
    with pytest.raises(ProjectInvalid) as refusal:
        require_own(home / "new" / "file", ProjectInvalid)
    assert refusal.value.check == "mode"
