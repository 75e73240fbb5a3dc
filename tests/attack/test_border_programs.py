"""Inside a run no program starts, however Python is asked for it; compilers have no network."""

from __future__ import annotations

import ctypes.util
import platform
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from border_world import answer_of

from sealtrain.errors import EgressRefused
from sealtrain.guest.sandbox.events import run_telling
from sealtrain.guest.sandbox.network import confine_to
from sealtrain.guest.sandbox.programs import ProgramRefused, Programs, questions

pytestmark = [pytest.mark.long, pytest.mark.claim("C105")]
NOBODY = "http://127.0.0.1:1"
LDCONFIG = Path("/sbin/ldconfig")


def test_another_interpreter_is_never_spawned(tmp_path: Path) -> None:
    answer = answer_of(tmp_path, "spawns")
    ways = ("spawn", "forkserver", "tracker", "pool", "direct")
    assert {way: answer[way] for way in ways} == dict.fromkeys(ways, "ProgramRefused")
    assert answer["default"] == "fork"
    assert answer["counts"]["program.refused"] == len(ways)
    # By the function that Python itself uses, kept from before: the kernel refused to execute.
    if answer["seccomp"]:
        assert answer["kept"] == 255


@pytest.mark.claim("C109")
@pytest.mark.needs("ldconfig")
def test_what_libraries_ask_programs_is_answered_inside(tmp_path: Path) -> None:
    """torch's build for CUDA asks this on being loaded; ranks and scripts load it inside."""
    answer = answer_of(tmp_path, "asks_for_libraries")
    assert answer["c"] == ctypes.util.find_library("c")
    assert answer["none"] is None
    assert answer["listed"] == len(subprocess.check_output([LDCONFIG, "-p"]))
    assert answer["text"] == 0
    assert answer["other words"] == "ProgramRefused"
    assert answer["missing"] == "FileNotFoundError"
    assert answer["platform"][1] == platform.architecture()[0]


def test_an_answer_is_given_to_the_same_words_only() -> None:
    programs = Programs(answers={("true", "asked"): b"answer"})
    with confine_to(NOBODY, programs=programs):
        assert subprocess.check_output(["true", "asked"]) == b"answer"
        for words in (["true"], ["true", "asked", "more"], ["false", "asked"]):
            with pytest.raises(ProgramRefused):
                subprocess.check_output(words)
    assert subprocess.check_output(["true", "asked"]) == b""


def test_a_long_answer_is_read_while_it_is_given() -> None:
    long = b"x" * (1 << 20)
    with confine_to(NOBODY, programs=Programs(answers={("true",): long})):
        assert subprocess.check_output(["true"]) == long
        with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.read(4) == b"xxxx"
        assert subprocess.run(["true"], stdout=subprocess.DEVNULL, check=True).returncode == 0


def test_questions_are_asked_without_the_environment_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/no/such/library.so")
    assert set(questions()) <= {("/sbin/ldconfig", "-p")}


def test_a_refused_program_is_named_by_its_path_and_by_nothing_else() -> None:
    def start() -> None:
        subprocess.check_call(["true", "a record"])

    with confine_to(NOBODY, writable=()):
        for logs in ("none", "error-summary", "structured"):
            with pytest.raises(EgressRefused) as left:
                run_telling(start, logs, dict)  # type: ignore[arg-type]
            assert left.value.check == "program"
            assert left.value.got == shutil.which("true")
            assert "a record" not in str(left.value.to_dict())


@pytest.mark.parametrize("name", ["a record", "/a/record", "inside"])
def test_a_program_that_the_run_made_up_is_not_named(name: str, tmp_path: Path) -> None:
    made = tmp_path / "run" / "a record"
    made.parent.mkdir()
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)

    def refuse() -> None:
        if name == "inside":
            subprocess.check_call([made])
        raise ProgramRefused(name)

    with confine_to(NOBODY, writable=[made.parent]), pytest.raises(EgressRefused) as left:
        run_telling(refuse, "structured", dict)
    assert "a record" not in str(left.value.to_dict())
    assert "/a/record" not in str(left.value.to_dict())


@pytest.mark.needs("compiler")
class TestKernels:
    """On a machine with an accelerator libraries build code while they train."""

    @pytest.mark.claim("C741")
    @pytest.mark.parametrize("because", ["compilers", "compiles"])
    def test_a_compiler_builds_and_nothing_else_starts(self, because: str, tmp_path: Path) -> None:
        answer = answer_of(tmp_path, "builds_a_kernel", because)
        if not (answer["seccomp"] and answer["landlock"] >= 3):
            assert answer["raised"].startswith("ProgramRefused")  # and so nothing is built
            return
        assert "raised" not in answer, answer
        assert answer["answer"] == 42
        assert answer["version"]
        assert answer["broken"] == [1, True]
        ways = ("python", "shell", "loader", "spawn")
        assert {way: answer[way] for way in ways} == dict.fromkeys(ways, "ProgramRefused")
        assert answer["executed"] == 99  # not by the process that trains

    def test_a_compiler_that_the_environment_names_starts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = tmp_path / "their-compiler"
        named.symlink_to(str(shutil.which("gcc")))
        monkeypatch.setenv("CC", str(named))
        answer = answer_of(tmp_path, "builds_with_the_named_compiler", "compilers")
        if answer["seccomp"] and answer["landlock"] >= 3:
            assert answer["version"], answer
        answer = answer_of(tmp_path, "builds_with_the_named_compiler")
        assert answer["raised"].startswith("ProgramRefused")

    @pytest.mark.parametrize("program", ["sh", "python3", "env"])
    def test_no_other_program_is_named_a_compiler(
        self, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = tmp_path / "cc"
        named.symlink_to(str(shutil.which(program)))
        monkeypatch.setenv("CC", str(named))
        answer = answer_of(tmp_path, "builds_with_the_named_compiler", "compilers")
        assert answer["raised"].startswith("ProgramRefused")

    def test_without_an_accelerator_no_compiler_starts(self, tmp_path: Path) -> None:
        answer = answer_of(tmp_path, "builds_a_kernel")
        assert answer["raised"].startswith("ProgramRefused")

    @pytest.mark.claim("C741")
    @pytest.mark.parametrize("because", ["compilers", "compiles"])
    def test_what_a_compiler_is_made_to_load_reaches_nothing(
        self, because: str, tmp_path: Path
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            answer = answer_of(tmp_path, "builds_hostile_code", because, listener=port)
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()
        if answer["seccomp"] and answer["landlock"] >= 3:
            # A socket was refused with EPERM, a datagram, a connection, and a file outside.
            assert answer["found"] == [1, 1, 0, 1]
        assert not (tmp_path / "outside" / "made").exists()
