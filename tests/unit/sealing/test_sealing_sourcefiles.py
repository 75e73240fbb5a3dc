"""Which files of a folder are sealed: all but a closed list that operating systems write."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_world import png
from sealing_world import sealed_folder

from sealtrain.cli.shownrecords import say_left_out
from sealtrain.errors import DataInvalid
from sealtrain.sealing.sourcefiles import list_left_out, source_files

DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        "
WRITTEN = {
    ".DS_Store": b"Bud1",
    "cat/.ds_store": b"Bud1",
    "cat/Thumbs.db": b"\xd0\xcf\x11\xe0",
    "cat/ehthumbs_vista.db": b"",
    "Desktop.ini": b"[.ShellClassInfo]",
    ".directory": b"[Desktop Entry]",
    "cat/._a.png": DOUBLE,
}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def names_of(folder: Path) -> list[str]:
    return [name for name, _ in source_files(folder)]


def test_what_operating_systems_wrote_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "scans", {"cat/a.png": png(), **WRITTEN})
    assert names_of(folder) == ["cat/a.png"]
    assert list_left_out(folder) == sorted(WRITTEN)
    say_left_out(folder)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(len(WRITTEN)) in shown.err
    say_left_out(folder / "cat/a.png")
    say_left_out(tmp_path / "absent")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "name",
    [
        ".hidden", "DS_Store", ".DS_Store.png", "Thumbs.db.txt", "thumbs.dbx", "._a.png", "._",
        ".git/config", "__MACOSX/a.png", ".DS_Store/a.png", "\u200b.DS_Store",
    ],
)  # fmt: skip
def test_no_other_file_is_left_out(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {"a.png": png(), name: b"\x00\x05\x16 of an owner"})
    assert sorted(names_of(folder)) == sorted(["a.png", name])
    assert list_left_out(folder) == []


def test_a_file_that_is_named_by_itself_is_sealed_whatever_its_name(tmp_path: Path) -> None:
    folder = write(tmp_path, {".DS_Store": b"Bud1", "._a": DOUBLE})
    for name in (".DS_Store", "._a"):
        assert source_files(folder / name) == [(name, folder / name)]
    with pytest.raises(DataInvalid):
        source_files(folder)  # nothing is left to seal


def test_a_link_with_such_a_name_is_refused_as_every_other_one(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a.png": png()})
    (folder / ".DS_Store").symlink_to(folder / "a.png")
    with pytest.raises(DataInvalid):
        source_files(folder)
    assert list_left_out(folder) == []


def test_a_folder_of_tables_stays_one_of_records(tmp_path: Path) -> None:
    """One such file made every table of the folder a file without records."""
    tables = {"a.csv": b"x,y\n1,2\n", "b.csv": b"x,y\n3,4\n"}
    folder = write(tmp_path / "tables", tables | {".DS_Store": b"Bud1"})
    sealed = sealed_folder(folder, tmp_path / "tables.sealed")
    with sealed.open() as dataset:
        assert dataset.num_rows == 2
