"""A trained model's files: their names, their cores, and which of them a folder holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealtrain.guest.outputs import seal_model
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import NotSealed, SealRefused, WrongContext
from sealtrain.sealing.file import read_header
from sealtrain.sealing.opened_model import open_named_model, open_unnamed_model
from sealtrain.sealing.trainedmodel import (
    TrainedModel,
    check_sealed_names,
    holds_sealed_files,
    model_name,
    strange_entry,
)

KEY = bytes(range(32))
FILES = {"b.json": b"{}", "a.safetensors": b"weights", "c/a.json": b"[]"}


def unwrap(_run_id: str, _stanzas: object) -> DataKey:
    return DataKey(KEY)


@pytest.fixture
def made(tmp_path: Path) -> TrainedModel:
    drawn = [KEY]
    return seal_model(
        FILES,
        tmp_path,
        run_id="ab" * 16,
        owner_id="cd" * 32,
        recipients=[],
        random=lambda size: drawn.pop() if drawn else bytes(size),
    )


def test_each_core_names_run_consortium_file_position_and_number(
    made: TrainedModel, tmp_path: Path
) -> None:
    assert made.names == ("a.safetensors", "b.json", "c/a.json")
    for position, name in enumerate(check_sealed_names(made.names)):
        found = read_header(tmp_path / "model" / name).context
        assert found == made.context(position)
        assert (found.dataset_id, found.owner_id) == ("ab" * 16, "cd" * 32)
        assert (found.kind, found.shard, found.binding) == ("model", position, {"files": 3})


def test_what_is_named_opens_under_its_root(made: TrainedModel, tmp_path: Path) -> None:
    found = open_named_model(tmp_path / "model", made, unwrap)
    assert {name: file.open().read() for name, file in found.items()} == FILES
    wrong = replace(made, files=(replace(made.files[0], root="00" * 32), *made.files[1:]))
    with pytest.raises(SealRefused):
        open_named_model(tmp_path / "model", wrong, unwrap)["a.safetensors"].open()


def test_files_beside_those_that_are_named_are_not_looked_at(
    made: TrainedModel, tmp_path: Path
) -> None:
    (tmp_path / "model" / "x.sealed").write_bytes(b"")
    assert set(open_named_model(tmp_path / "model", made, unwrap)) == set(FILES)


@pytest.mark.parametrize("field", ["run_id", "owner_id"])
def test_a_model_of_another_run_is_refused(made: TrainedModel, tmp_path: Path, field: str) -> None:
    other = replace(made, **{field: "00" * (len(getattr(made, field)) // 2)})  # type: ignore[arg-type]
    with pytest.raises(WrongContext):
        open_named_model(tmp_path / "model", other, unwrap)


def test_without_a_list_the_folder_is_one_run_s_and_whole(
    made: TrainedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    found = open_unnamed_model(folder, unwrap)
    assert {name: file.open().read() for name, file in found.items()} == FILES
    (folder / "c/a.json.sealed").unlink()
    with pytest.raises(WrongContext):
        open_unnamed_model(folder, unwrap)


@pytest.mark.parametrize("name", ["x", ".sealed", "a b.sealed", "nul.sealed"])
def test_without_a_list_nothing_else_lies_there(
    made: TrainedModel, tmp_path: Path, name: str
) -> None:
    (tmp_path / "model" / name).write_bytes(b"")
    with pytest.raises(NotSealed):
        open_unnamed_model(tmp_path / "model", unwrap)


def test_what_is_no_model_is_not_sealed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(NotSealed):
            open_unnamed_model(folder, unwrap)


@pytest.mark.parametrize(
    "names",
    [(), ("b", "a"), ("a", "a"), ("a", "A"), ("a", "a/b"), ("a", "a.sealed/b"), ("../a",)],
    ids=str,
)
def test_names_that_no_folder_holds_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):  # each case breaks another rule
        check_sealed_names(names)


def test_too_many_names_are_refused() -> None:
    names = [f"{number:05}" for number in range(4097)]
    assert len(check_sealed_names(names[:-1])) == 4096
    with pytest.raises(ValueError, match="4096"):
        check_sealed_names(names)


@pytest.mark.parametrize("sealed", ["a", "a.sealed.x", ".sealed", "../a.sealed", "/a.sealed"])
def test_a_place_where_no_file_of_a_model_lies_has_no_name(sealed: str) -> None:
    with pytest.raises(ValueError):  # each case breaks another rule
        model_name(sealed)


def test_the_first_strange_entry_is_named(made: TrainedModel, tmp_path: Path) -> None:
    folder, names = tmp_path / "model", check_sealed_names(made.names)
    assert strange_entry(folder, names) is None
    (folder / "c" / "link").symlink_to(folder / "b.json.sealed")
    assert strange_entry(folder, names) == "c/link"


def test_only_a_folder_with_sealed_files_may_be_a_model(made: TrainedModel, tmp_path: Path) -> None:
    assert holds_sealed_files(tmp_path / "model")
    assert not holds_sealed_files(tmp_path / "model" / "b.json.sealed")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.txt").write_text("a")
    assert not holds_sealed_files(tmp_path / "records")
