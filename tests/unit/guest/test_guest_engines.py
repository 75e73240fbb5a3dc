"""A machine that a recipe's engine settings cannot work on is refused before keys are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from carrying import carries
from training_world import sft

from sealtrain.errors import ExtraMissing
from sealtrain.guest import engines
from sealtrain.guest.engines import require_engines

pytestmark = pytest.mark.claim("C741")


def compiler(folder: Path, name: str) -> None:
    (folder / name).write_text("")
    (folder / name).chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the programs of one folder, which is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def test_a_guest_without_a_compiler_of_cpp_compiles_no_model(bare: Path) -> None:
    recipe = sft(trainer={"torch_compile": True})
    compiler(bare, "gcc")
    with pytest.raises(ExtraMissing, check=carries(check="torch_compile")):
        require_engines(recipe)
    compiler(bare, "c++")
    require_engines(recipe)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_what_builds_no_code_needs_no_compiler(bare: Path, backend: str) -> None:
    require_engines(sft(trainer={"torch_compile": True, "torch_compile_backend": backend}))
    require_engines(sft())


def test_liger_s_kernels_need_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = sft(trainer={"use_liger_kernel": True})
    monkeypatch.setattr(engines, "has_accelerator", lambda: False)
    with pytest.raises(ExtraMissing, check=carries(check="use_liger_kernel")):
        require_engines(recipe)
    monkeypatch.setattr(engines, "has_accelerator", lambda: True)
    require_engines(recipe)
