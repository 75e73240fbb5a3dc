"""What no linter holds: names, imports, pins and what must never be written down."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import need

import sealtrain

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
FORBIDDEN_NAMES = {
    "common",
    "handle",
    "helper",
    "helpers",
    "manager",
    "misc",
    "process",
    "util",
    "utils",
}
TRAINING_STACK = {"accelerate", "datasets", "peft", "torch", "transformers", "trl"}
# Spelt in pieces so that this file does not find itself.
NEVER_WRITTEN = [
    r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/",
    r"(?<![\w.])/work/" + "(?:main|shared)",
    r"(?<![\w.])/tmp/" + "dev",
    r"(?<![\w.])/opt/" + "(?:wheels|py" + "pi)",
    "py" + r"pi\.org|python" + r"hosted\.org|download\.py" + r"torch\.org|registry\.npm" + "js",
    "--(?:extra-)?index-" + "url|--find-" + "links",
    r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bXX" + r"X\b",
]


@cache
def tracked() -> list[Path]:
    """Files of the repository: those git knows or would add, else all that is not hidden."""
    if (REPOSITORY / ".git").exists():
        listed = subprocess.run(
            [need("git")["git"], "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        ).stdout.decode()
        paths = [REPOSITORY / name for name in listed.split("\0") if name]
    else:
        paths = [
            path
            for path in REPOSITORY.rglob("*")
            if not any(
                part == "__pycache__" or (part.startswith(".") and part != ".ci")
                for part in path.relative_to(REPOSITORY).parts
            )
        ]
    return sorted(path for path in paths if path.is_file())


def python_files(*folders: str) -> list[Path]:
    roots = [REPOSITORY / folder for folder in folders]
    return [
        path
        for path in tracked()
        if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)
    ]


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def project() -> dict[str, object]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


# --- Names -----------------------------------------------------------------------------


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [
        name_of(path)
        for path in python_files("src", "packages")
        if {path.stem, *path.relative_to(REPOSITORY).parts} & FORBIDDEN_NAMES
    ]
    assert vague == []


def test_test_files_have_unique_names() -> None:
    names = Counter(path.name for path in python_files("tests") if path.name != "conftest.py")
    assert [name for name, times in names.items() if times > 1] == []


def test_nothing_is_written_down_that_belongs_to_one_machine_or_is_left_undone() -> None:
    pattern = re.compile("|".join(f"(?:{part})" for part in NEVER_WRITTEN))
    found = []
    for path in tracked():
        if name_of(path).startswith("vectors/"):
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{name_of(path)}:{number}: {match[0]}")
    assert found == []


# --- Imports ------------------------------------------------------------------------------------


def loaded_by(module: str) -> set[str]:
    """Top-level names of everything that importing ``module`` loads, in a fresh interpreter."""
    program = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return set(result.stdout.split())


def test_importing_sealtrain_loads_nothing_heavy() -> None:
    heavy = TRAINING_STACK | {"cryptography", "httpx2", "pyarrow", "pydantic", "rich", "typer"}
    assert loaded_by("sealtrain") & heavy == set()


def test_the_command_line_starts_without_anything_a_command_may_need_later() -> None:
    heavy = {
        *TRAINING_STACK,
        "blake3",
        "cryptography",
        "dcap_qvl",
        "fastapi",
        "httpx2",
        "numpy",
        "pandas",
        "pyarrow",
        "pydantic",
        "rich",
        "sqlalchemy",
        "starlette",
        "uvicorn",
        "yaml",
    }
    assert loaded_by("sealtrain.cli") & heavy == set()


def test_verifying_a_manifest_needs_neither_torch_nor_arrow_nor_a_server() -> None:
    heavy = {*TRAINING_STACK, "fastapi", "numpy", "pandas", "pyarrow", "sqlalchemy", "uvicorn"}
    assert loaded_by("sealtrain.manifest.verify") & heavy == set()


@pytest.mark.parametrize(
    "module",
    ["sealtrain.release.decide", "sealtrain.broker.service.service", "sealtrain.sealing.file"],
)
def test_below_the_line_nothing_loads_torch(module: str) -> None:
    assert loaded_by(module) & TRAINING_STACK == set()


# --- Packaging ----------------------------------------------------------------------------------


def pins(*more: str) -> dict[str, str]:
    names = ("constraints.txt", *more)
    lines = [line for name in names for line in (REPOSITORY / name).read_text().splitlines()]
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def requirements() -> dict[str, list[Requirement]]:
    """Requirements by extra; the core's under the empty name, the project itself left out."""
    table = project()["project"]
    assert isinstance(table, dict)
    groups = {"": table["dependencies"], **table["optional-dependencies"]}
    return {
        extra: [
            requirement
            for line in lines
            if (requirement := Requirement(line)).name != table["name"]
        ]
        for extra, lines in groups.items()
    }


def test_every_requirement_is_pinned_to_a_version_it_allows() -> None:
    ours = {canonicalize_name(name): version for name, version in pins().items()}
    flower = pins("tools/flower/pins.txt")
    beside = {canonicalize_name(name): version for name, version in flower.items()}
    azure = {canonicalize_name(name): pin for name, pin in pins("tools/azure/pins.txt").items()}
    own = {"azure": [azure], "federated": [beside]}
    wrong = [
        str(requirement)
        for extra, group in requirements().items()
        for pinned in own.get(extra, [ours, beside])
        for requirement in group
        if not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"))
        or canonicalize_name(requirement.name) not in pinned
    ]
    assert wrong == []


def test_constraints_are_sorted_plain_and_free_of_build_tools() -> None:
    names = [canonicalize_name(name) for name in pins()]
    assert names == sorted(set(names))
    assert not {"pip", "setuptools", "wheel", "hatchling"} & set(names)
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins().values())


def test_no_installer_is_told_which_build_of_torch_to_take() -> None:
    told = [
        name
        for name in ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run")
        if re.search(r"\+(?:cpu|cu\d+)", (REPOSITORY / name).read_text("utf-8"))
    ]
    assert told == []


def test_the_core_needs_nothing_of_the_training_stack() -> None:
    core = {canonicalize_name(requirement.name) for requirement in requirements()[""]}
    assert core & (TRAINING_STACK | {"numpy", "safetensors", "scikit-learn", "tokenizers"}) == set()


def test_an_extra_that_a_page_or_a_message_names_exists() -> None:
    code = [REPOSITORY / "src", REPOSITORY / "packages"]
    named = {
        extra
        for path in tracked()
        if path.suffix == ".md" or any(path.is_relative_to(folder) for folder in code)
        for names in re.findall(rb"sealtrain\[([a-z0-9,-]+)\]", path.read_bytes())
        for extra in names.decode().split(",")
    }
    assert {"train", "pkcs11"} <= named
    assert named <= set(requirements())


def test_the_changelog_knows_this_version() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    assert sealtrain.__version__ in headings


def test_the_package_says_that_it_is_typed() -> None:
    assert (REPOSITORY / "src/sealtrain/py.typed").is_file()


def test_the_ci_script_can_be_run() -> None:
    script = REPOSITORY / ".ci/run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script.read_text()
