"""A project file names files and decides nothing; one that others could have made is refused."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from carrying import carries
from cli_tree import all_commands
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.cli.project import KEYS, NAME, PLACE, find_project, load_project
from sealtrain.errors import DataInvalid, LimitExceeded, ProjectInvalid
from sealtrain.recipe.kinds import KINDS

pytestmark = pytest.mark.claim("C146")

GOOD = 'version = 1\nconsortium = "consortium.json"\n'
MEASURED = [
    ("guest",),
    ("broker", "serve"),
    ("deploy", "credentials"),
    ("split", "accelerator"),
]


@pytest.mark.claim("C655")
def test_a_guest_of_a_recipe_begins_in_two_ways_and_its_document_starts_one() -> None:
    """Its evidence and a lock are asked for where a guest begins, and nowhere else."""
    beginning = {
        path
        for path, command in all_commands()
        if {"lock", "--guest"} <= {option for param in command.params for option in param.opts}
    }
    assert beginning == {("guest",), ("train",)}
    roles = [place for kind in KINDS.values() for place in kind.roles.values()]
    assert all(place.endswith("_by_ticket") for place in roles)


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SEALTRAIN_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    path = folder / NAME
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    "key",
    [
        "yes",
        "trust",
        "policy",
        "threshold",
        "days",
        "lift_revocation",
        "insecure_code",
        "no_manifest",
        "passphrase",
        "passphrase_file",
        "token",
        "root_secret",
        "simulated",
        "approved_before",
        "Consortium",
    ],
)
def test_a_decision_a_trust_file_or_a_secret_is_refused_by_name(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, f'{GOOD}{key} = "x"\n')
    with pytest.raises(ProjectInvalid, check=carries(check="key", got=key)):
        load_project(path)


def test_no_key_stands_for_a_decision_or_a_secret() -> None:
    stands_for = {key.parameter for key in KEYS.values()}
    assert stands_for == {
        "--consortium",
        "--broker",
        "--identity",
        "--deployment",
        "lock",
        "--memory",
        "--base",
        "--ticket",
    }


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("version = 2\n", "version"),
        ("version = true\n", "version"),
        ('version = "1"\n', "version"),
        ('consortium = "c"\n', "version"),
        ("version = 1\nconsortium = 3\n", "type"),
        ('version = 1\nconsortium = ["a"]\n', "type"),
        ('version = 1\nconsortium = ""\n', "type"),
        ('version = 1\nconsortium = "a\\u0000b"\n', "type"),
        ('version = 1\nbrokers = "a"\n', "type"),
        ("version = 1\nbrokers = []\n", "type"),
        ("version = 1\nbrokers = [1]\n", "type"),
        ("version = 1\n[consortium]\n", "type"),
        ("version = 1\nversion = 1\n", "form"),
        ("version = ", "form"),
        ("a = " + "[" * 20_000, "form"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str, check: str) -> None:
    with pytest.raises(ProjectInvalid, check=carries(check=check)):
        load_project(written(tmp_path, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"version = 1\n\xff")
    with pytest.raises(ProjectInvalid, check=carries(check="form")):
        load_project(tmp_path / NAME)


def test_a_huge_file_a_pipe_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LimitExceeded):
        load_project(written(tmp_path, GOOD + "#" * (1 << 16)))
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / NAME)
        with pytest.raises(DataInvalid):
            load_project(tmp_path / name / NAME)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("given", ["file", "folder"])
def test_a_file_or_folder_of_another_user_is_refused(tmp_path: Path, given: str) -> None:
    path = written(tmp_path, GOOD)
    os.chown(path if given == "file" else tmp_path, 12345, 12345)
    with pytest.raises(ProjectInvalid, check=carries(check="owner")):
        load_project(path)
    os.chown(tmp_path, 0, 0)


@pytest.mark.parametrize("opened", ["file", "folder"])
def test_a_file_or_folder_that_every_user_can_write_is_refused(tmp_path: Path, opened: str) -> None:
    path = written(tmp_path, GOOD)
    (path if opened == "file" else tmp_path).chmod(0o777)
    with pytest.raises(ProjectInvalid, check=carries(check="mode")):
        load_project(path)


def test_a_sticky_folder_is_no_place_for_the_file_but_for_a_folder_of_ones_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    path, below = written(tmp_path, GOOD), written(tmp_path / "own", GOOD)
    tmp_path.chmod(0o1777)
    with pytest.raises(ProjectInvalid, check=carries(check="mode")):
        load_project(path)
    assert load_project(below).values["consortium"] == tmp_path / "own/consortium.json"


def test_a_bad_file_hides_a_good_one_above_it(tmp_path: Path) -> None:
    """Looking further up would let a folder choose which of two files counts."""
    written(tmp_path, GOOD)
    below = tmp_path / "below"
    below.mkdir()
    written(below, GOOD).chmod(0o666)
    (below / "deep").mkdir()
    with pytest.raises(ProjectInvalid, check=carries(check="mode")):
        find_project(below / "deep", {})
    assert find_project(below / "deep", {PLACE: "none"}) is None
    named = find_project(below / "deep", {PLACE: str(tmp_path / NAME)})
    assert named is not None
    assert named.path == tmp_path / NAME


def test_commands_that_a_document_starts_read_neither_file_nor_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "this would be refused if anything read it")
    monkeypatch.chdir(tmp_path)
    for key in KEYS.values():
        if key.variable:
            monkeypatch.setenv(key.variable, str(tmp_path / "taken"))
    by_path = dict(all_commands())
    for path in MEASURED:
        assert [param.envvar for param in by_path[path].params if param.envvar] == []
        if not any(param.required for param in by_path[path].params):
            continue
        result = CliRunner().invoke(app, [*path])
        assert (result.exit_code, "Missing" in result.stderr) == (2, True), path


def test_the_commands_that_judge_take_their_trust_file_from_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A downloaded folder could bring a project file of its own."""
    written(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEALTRAIN_TRUST", "trust.yaml")
    for words in (("verify", "m"), ("report", "m"), ("export", "m", "--format", "cyclonedx")):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "'--trust'" in result.stderr) == (2, True)


def test_no_flag_and_no_number_is_taken_from_file_or_variables() -> None:
    """What approves, lifts, forces or limits is typed each time."""
    for path, command in all_commands():
        for parameter in command.params:
            if parameter.envvar:
                assert not getattr(parameter, "is_flag", False), path
                assert "PATH" in parameter.make_metavar(click.Context(command)) or (
                    parameter.param_type_name == "argument"
                ), path


def took(folder: Path, path: tuple[str, ...], *words: str) -> tuple[click.Context, str]:
    """A command's context in a folder that names everything, and what the command said of it."""
    written(folder, f'{GOOD}identity = "theirs.json"\nmemory = "memory.json"\nbrokers = ["b"]\n')
    command = dict(all_commands())[path]
    with CliRunner().isolation() as (_, stderr, _both):
        context = command.make_context("x", list(words))
        return context, stderr.getvalue().decode()


@pytest.mark.parametrize(
    ("path", "words", "taken"),
    [
        (("log", "witness"), (), True),
        (("log", "witness"), ("--identity", "mine.json"), False),
        (("log", "audit"), (), False),
    ],
)
def test_a_folder_chooses_no_memory_for_an_identity_of_mine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: tuple[str, ...],
    words: tuple[str, ...],
    taken: bool,
) -> None:
    """A memory holds the ledger's key, and judges like a trust file."""
    monkeypatch.chdir(tmp_path)
    context, said = took(tmp_path, path, *words)
    assert str(context.params["state"]) == (str(tmp_path / "memory.json") if taken else "None")
    assert ("memory.json" in said) == taken


def test_each_place_that_was_not_typed_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEALTRAIN_BROKERS", "evil\x1b[2K.yaml")
    _, said = took(tmp_path, ("log", "witness"))
    lines = said.splitlines()
    assert any(str(tmp_path / NAME) in line and "theirs.json" in line for line in lines)
    assert any("SEALTRAIN_BROKERS" in line and "evil\\u{1b}[2K.yaml" in line for line in lines)


def test_help_reads_no_project_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "broken")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["approve", "--help"]).exit_code == 0
    result = CliRunner().invoke(app, ["lock", "recipe.yaml"])
    assert isinstance(result.exception, ProjectInvalid)
