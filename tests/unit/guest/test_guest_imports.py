"""What the finder of a run finds: the library, sealtrain, listed files, and nothing beside them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from importlib.metadata import DistributionFinder, PathDistribution
from pathlib import Path

import pytest

import sealtrain
from sealtrain.guest.sandbox.imports import PinnedFinder
from sealtrain.recipe.importable import Importable

pytestmark = pytest.mark.claim("C120")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two pinned packages that share a folder, and what somebody put beside their files."""
    place = tmp_path / "lib" / "python3" / "site-packages"
    for name in (
        "alpha/__init__.py", "alpha/inner.py", "alpha/evil.py", "shared/one.py", "shared/evil.py",
        "shared/evil/__init__.py", "beta.py", "gamma.py", "delta/__init__.py", "shared/two/x.py",
        "json.py", "alpha/torch.py",
    ):  # fmt: skip
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"NAME = {name!r}\n")
    for name in ("alpha-1.0", "beta-1.0", "gamma-1.0"):
        info = place / f"{name}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name[:-4]}\nVersion: 1.0\n")
    return place


@pytest.fixture
def finder(site: Path) -> PinnedFinder:
    pinned = {name: PathDistribution(site / f"{name}-1.0.dist-info") for name in ("alpha", "beta")}
    listed = {
        "alpha": ("alpha/__init__.py", "alpha/inner.py", "shared/one.py", "alpha/gone.py"),
        "beta": ("beta.py", "shared/two/x.py"),
    }
    return PinnedFinder(Importable(pinned, listed))


def origin(spec: importlib.machinery.ModuleSpec | None) -> str | None:
    return None if spec is None else spec.origin


def test_files_that_records_list_are_found(finder: PinnedFinder, site: Path) -> None:
    alpha = finder.find_spec("alpha")
    assert alpha is not None
    assert alpha.origin == str(site / "alpha/__init__.py")
    inner = alpha.submodule_search_locations
    assert inner == [str(site / "alpha")]
    assert origin(finder.find_spec("alpha.inner", inner)) == str(site / "alpha/inner.py")
    beta = finder.find_spec("beta")
    assert beta is not None
    module = importlib.util.module_from_spec(beta)
    assert beta.loader is not None
    beta.loader.exec_module(module)
    assert module.NAME == "beta.py"
    assert beta.submodule_search_locations is None


def test_what_lies_beside_them_is_not_there(finder: PinnedFinder, site: Path) -> None:
    assert finder.find_spec("gamma") is None
    assert finder.find_spec("delta") is None
    for name in ("evil", "gone", "torch", "__init__.py", "inner.py"):
        assert finder.find_spec(f"alpha.{name}", [str(site / "alpha")]) is None


def test_paths_that_somebody_adds_give_nothing(
    finder: PinnedFinder, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gamma.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    assert finder.find_spec("gamma") is None
    for path in ([str(tmp_path)], [str(site)], ["."], [""], [f"{site}/shared/.."]):
        assert finder.find_spec("alpha.gamma", path) is None


def test_a_folder_that_packages_share_has_their_modules_only(
    finder: PinnedFinder, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = finder.find_spec("shared")
    assert shared is not None
    assert shared.origin is None
    inner = list(shared.submodule_search_locations or ())
    assert inner == [str(site / "shared")]
    assert origin(finder.find_spec("shared.one", inner)) == str(site / "shared/one.py")
    assert finder.find_spec("shared.evil", inner) is None
    monkeypatch.setitem(sys.modules, "shared", importlib.util.module_from_spec(shared))
    two = finder.find_spec("shared.two", inner)
    assert two is not None
    places = list(two.submodule_search_locations or ())
    assert origin(finder.find_spec("shared.two.x", places)) == str(site / "shared/two/x.py")


def test_a_folder_that_was_given_code_has_none(finder: PinnedFinder, site: Path) -> None:
    (site / "shared" / "__init__.py").write_text("")
    shared = finder.find_spec("shared")
    assert shared is not None
    assert shared.origin is None


def test_the_library_is_the_interpreters_own(finder: PinnedFinder, site: Path) -> None:
    library = Path(importlib.util.__file__).parents[1]
    found = finder.find_spec("json")
    assert origin(found) == str(library / "json" / "__init__.py")
    assert found is not None
    assert origin(finder.find_spec("json.decoder", found.submodule_search_locations)) == str(
        library / "json" / "decoder.py"
    )
    for name in ("sys", "zipimport", "_socket", "xml", "sqlite3"):
        assert finder.find_spec(name) is not None, name
    for name in ("sitecustomize", "usercustomize", "pip", "pytest", "antigravity_"):
        assert finder.find_spec(name) is None, name


def test_sealtrain_is_its_measured_files(finder: PinnedFinder) -> None:
    own = Path(sealtrain.__file__).parent
    found = finder.find_spec("sealtrain")
    assert origin(found) == str(own / "__init__.py")
    assert origin(finder.find_spec("sealtrain.errors", [str(own)])) == str(own / "errors.py")
    assert finder.find_spec("sealtrain.no_such", [str(own)]) is None
    assert finder.find_spec("examples") is None


def test_metadata_is_that_of_pinned_packages(finder: PinnedFinder) -> None:
    def named(name: str | None) -> list[str]:
        context = DistributionFinder.Context(name=name) if name else DistributionFinder.Context()
        return sorted(found.metadata["Name"] for found in finder.find_distributions(context))

    assert set(named(None)) >= {"alpha", "beta"}
    assert "gamma" not in named(None)
    assert named("Beta") == ["beta"]
    assert named("gamma") == named("pytest") == []


def test_files_a_process_may_have_loaded(finder: PinnedFinder, site: Path) -> None:
    for module in (sys.modules["json"], sys.modules["sealtrain.errors"], sys.modules["_socket"]):
        assert module.__file__ is not None
        assert finder.knows(module.__file__)
    assert finder.knows(str(site / "alpha/inner.py"))
    for file in (site / "alpha/evil.py", site / "gamma.py", Path(pytest.__file__)):
        assert not finder.knows(str(file))
    library = Path(importlib.util.__file__).parents[1]
    assert not finder.knows(str(library / "site-packages" / "evil.py"))
