from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import tomllib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.distributions import CORE, DISTRIBUTIONS, code_folder
from sealtrain.base.version import PACKAGES, own_folders
from sealtrain.errors import ExtraMissing
from sealtrain.recipe import installation
from sealtrain.recipe.errors import EnvironmentChanged
from sealtrain.recipe.installation import (
    EnvironmentPin,
    Installed,
    check_package_files,
    measure_code,
    measure_installation,
)
from sealtrain.recipe.schema import parse_recipe

pytestmark = pytest.mark.long

Place = Callable[..., Path]
Measure = Callable[..., EnvironmentPin]


def recorded(data: bytes) -> str:
    digest = urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={digest},{len(data)}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Installs a tiny package into a folder on the path."""

    def install(
        name: str, *, version: str = "1.0", requires: tuple[str, ...] = (), extra_rows: str = ""
    ) -> Path:
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        code = f"# {name}\n".encode()
        (tmp_path / f"{name}.py").write_bytes(code)
        (info / "RECORD").write_text(
            f"{name}.py,{recorded(code)}\n{info.name}/RECORD,,\n{extra_rows}"
        )
        return info

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return install


@pytest.fixture
def measure(sft: dict[str, Any]) -> Measure:
    """Measures what a recipe needs; words change the recipe."""

    def measured(**changed: Any) -> EnvironmentPin:
        return measure_installation(parse_recipe(sft | changed)).environment

    return measured


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def want(*lines: str) -> None:
        monkeypatch.setattr(installation, "own_requirements", lambda: list(lines))

    return want


def test_the_closure_follows_markers_and_extras(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    place("alpha", requires=("beta[fast]>=1", "windows-only; sys_platform == 'win32'"))
    place("beta", requires=("gamma; extra == 'fast'", "delta; extra == 'slow'", "no-such-package"))
    place("gamma")
    place("delta")
    place("epsilon")
    wanted("alpha>=1", "epsilon; extra == 'train'", "zeta; extra == 'other'")
    measured = measure()
    assert list(measured.packages) == ["alpha", "beta", "epsilon", "gamma"]
    assert measured.python == platform.python_version()


@pytest.mark.parametrize(
    ("marker", "walked"),
    [
        ("extra == 'fast'", True),
        ('extra=="Fast"', True),
        ("extra == 'slow'", False),
        ("python_version >= '3' and extra == 'fast'", True),
        ("python_version >= '3' and extra == 'slow'", False),
        ("(sys_platform != 'none') and (extra == 'slow')", False),
        ("python_version >= '3' or extra == 'slow'", True),
        ("(python_version >= '3')or(extra == 'slow')", True),
        ("(extra == 'fast' or extra == 'slow') and python_version >= '3'", True),
        ("extra == 'fast' or extra == 'slow'", True),
        ("extra != 'slow'", True),
        ("'slow' == extra", False),
    ],
)
def test_a_requirement_of_an_extra_counts_where_the_extra_is_asked_for(
    place: Place, wanted: Callable[..., None], measure: Measure, marker: str, walked: bool
) -> None:
    place("alpha", requires=(f"beta; {marker}",))
    place("beta")
    wanted("alpha[fast]")
    assert ("beta" in measure().packages) is walked


def test_metadata_is_read_once(place: Place, tmp_path: Path) -> None:
    info = place("alpha", requires=("beta>=1; extra == 'fast'",))
    found = Installed(PathDistribution(info))
    assert (found.name, found.version) == ("alpha", "1.0")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 2.0\n")
    assert (found.name, found.version) == ("alpha", "1.0")
    assert found.requires == ["beta>=1; extra == 'fast'"]
    assert found.read_text("RECORD") == (info / "RECORD").read_text()
    assert found.locate_file("alpha.py") == tmp_path / "alpha.py"


def test_a_missing_or_old_requirement_is_named_with_the_way_to_install_it(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    place("alpha", version="1.0")
    wanted("alpha>=2; extra == 'train'")
    with pytest.raises(ExtraMissing) as refusal:
        measure()
    assert (refusal.value.got, refusal.value.expected) == ("1.0", ">=2")
    assert "pip install" in (refusal.value.hint or "")
    wanted("no-such-package")
    with pytest.raises(ExtraMissing) as refusal:
        measure()
    assert refusal.value.got == "absent"


def test_what_installers_write_does_not_change_a_record_digest(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    plain = place("alpha")
    wanted("alpha")
    before = measure()
    noise = recorded(b"noise")
    (plain / "RECORD").write_text(
        f"../../bin/alpha,{noise}\n/opt/alpha,{noise}\n"
        f"{plain.name}/INSTALLER,{noise}\n{plain.name}/REQUESTED,{noise}\n"
        f"{plain.name}/direct_url.json,{noise}\n__pycache__/alpha.cpython-311.pyc,{noise}\n"
        + (plain / "RECORD").read_text()
    )
    assert measure() == before
    with (plain / "RECORD").open("a") as file:
        file.write(f"alpha_more.py,{noise}\n")
    assert measure() != before


def test_a_package_without_record_cannot_be_measured(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    (place("alpha") / "RECORD").unlink()
    wanted("alpha")
    with pytest.raises(ExtraMissing, match=r"alpha.*RECORD"):
        measure()


def test_a_package_used_from_its_source_cannot_be_measured(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    origin = {"url": "file:///src/alpha", "dir_info": {"editable": True}}
    (place("alpha") / "direct_url.json").write_text(json.dumps(origin))
    wanted("alpha")
    with pytest.raises(ExtraMissing) as refusal:
        measure()
    assert refusal.value.check == "environment"


def test_an_extra_may_name_others_of_our_own(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    for name in ("alpha", "beta", "gamma"):
        place(name)
    wanted(
        "sealtrain[far]; extra == 'train'",
        "alpha; extra == 'far'",
        "sealtrain[far,train]; extra == 'far'",
        "beta; extra == 'other'",
        "gamma",
    )
    assert list(measure().packages) == ["alpha", "gamma"]


def test_packages_of_scripts_are_pinned_with_what_they_need(
    place: Place, wanted: Callable[..., None], measure: Measure
) -> None:
    place("alpha", version="2.0", requires=("beta", "gamma; extra == 'fast'"))
    place("beta")
    place("gamma")
    wanted()
    scripts = {"scripts": ["train.py"]}
    assert list(measure(**scripts, packages=["alpha==2.0"]).packages) == ["alpha", "beta"]
    pinned = measure(**scripts, packages=["Alpha[fast]==2.0"]).packages
    assert list(pinned) == ["alpha", "beta", "gamma"]
    with pytest.raises(ExtraMissing) as refusal:
        measure(**scripts, packages=["alpha==1.0"])
    assert (refusal.value.got, refusal.value.expected) == ("2.0", "==1.0")
    assert refusal.value.hint == "pip install 'alpha==1.0'"


def test_package_files_are_compared_with_their_record(place: Place, tmp_path: Path) -> None:
    place("alpha")
    check_package_files(("alpha",))
    (tmp_path / "alpha.py").write_text("import os\n")
    with pytest.raises(EnvironmentChanged, match=r"alpha\.py"):
        check_package_files(("alpha",))
    (tmp_path / "alpha.py").unlink()
    with pytest.raises(EnvironmentChanged) as refusal:
        check_package_files(("alpha",))
    assert refusal.value.got == "absent"


def test_a_checkout_says_itself_what_its_code_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(name: str) -> list[str]:
        return ["something-else"]

    monkeypatch.setattr(importlib.metadata, "requires", older)
    lines = installation.own_requirements()
    assert any(line.startswith("cryptography>=") for line in lines)
    assert any(line.startswith("trl>=") and line.endswith("extra == 'train'") for line in lines)


def test_code_is_measured_by_its_python_files() -> None:
    assert measure_code() == measure_code()
    assert [pin.name for pin in measure_code()] == list(DISTRIBUTIONS)
    assert measure_code(["sealtrain"]) == measure_code()[:1]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of our code, and the digests that a process which imports it computes."""
    folder = tmp_path_factory.mktemp("code")
    for name, place in own_folders().items():
        shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder, code_digests_at(folder)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_digest_changes_with_a_file_of_its_package_alone(
    package: str, copied: tuple[Path, dict[str, str]]
) -> None:
    folder, before = copied
    changed = folder / package / "__init__.py"
    text = changed.read_text()
    changed.write_text(f"{text}# another line\n")
    try:
        after = code_digests_at(folder)
    finally:
        changed.write_text(text)
    assert before == {pin.name: pin.sha256 for pin in measure_code()}
    assert {name for name in after if after[name] != before[name]} == {
        name for name, its in DISTRIBUTIONS.items() if its == package
    }


def test_every_distribution_has_a_wheel_of_its_package_alone(repository: Path) -> None:
    built = {}
    for file in (repository / "pyproject.toml", *repository.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text("utf-8"))
        name = project["project"]["name"]
        folder = code_folder(repository, name)
        built[name] = [path.parent.name for path in folder.glob("*/__init__.py")]
        if name != CORE:  # which hatchling finds by its name, and would find another instead of
            assert file.parent == folder
            assert project["tool"]["hatch"].keys() == {"version"}
    assert built == {name: [package] for name, package in DISTRIBUTIONS.items()}


def code_digests_at(folder: Path) -> dict[str, str]:
    """The digests that a process computes whose sealtrain lies in ``folder``."""
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); "
        "from sealtrain.recipe.installation import measure_code; "
        "import json; print(json.dumps({pin.name: pin.sha256 for pin in measure_code()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    digests: dict[str, str] = json.loads(done.stdout)
    return digests
