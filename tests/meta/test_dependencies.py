"""What is imported is declared, in the right extra; what is declared is used."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_tree import source_modules

from sealtrain.base import extras as shipped_extras
from sealtrain.base.version import PACKAGES

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = source_modules(REPOSITORY)

# Folder or module → extras that it may rely on besides the core.
EXTRAS = {
    "sealtrain/recipe/sample.py": ["seal"],
    "sealtrain/recipe/duetimes.py": ["schedule"],  # imported where cron is read
    "sealtrain/owner/hub.py": ["train"],  # imported where a recipe names a model of the hub
    "sealtrain/cli/learnable_records.py": ["seal", "train"],  # imported where records are counted
    "sealtrain/sealing": ["seal"],
    "sealtrain/recipe/records.py": ["seal"],  # imported where records are read
    "sealtrain/recipe/recordcolumns.py": ["seal"],  # the same
    "sealtrain/recipe/conversations.py": ["seal"],  # imported where records are read
    "sealtrain/recipe/recordvalues.py": ["seal"],  # the same
    "sealtrain/recipe/finite_weights.py": ["train"],  # imported where weights are read
    "sealtrain/guest/stated_data.py": ["train"],  # imported where datasets are stated
    "sealtrain/guest/workload/opening.py": ["train"],  # the same
    "sealtrain/guest/workload/stubs.py": ["train"],  # the same
    "sealtrain/training": ["train"],
    "sealtrain/training/checkpoints/lightning.py": ["lightning"],
    "sealtrain/training/distributed": ["deepspeed"],
    "sealtrain/training/backends": ["axolotl", "unsloth"],
    "sealtrain/broker": ["broker"],
    "sealtrain_console/web": ["console"],
    "sealtrain_together/federated/engine.py": ["federated"],
    "sealtrain_together/federated/flower.py": ["federated"],
    "sealtrain_together/federated/relay.py": ["federated"],
    "sealtrain_together": ["train"],
    "sealtrain_nodes": ["train"],
    "sealtrain_chain": ["chain"],
    "sealtrain_rehearsal": ["simulator"],
    "sealtrain/attest/nvidia": ["train"],  # the driver's bindings, imported where a GPU is read
    "sealtrain/keys": ["aws", "pkcs11"],
    "sealtrain/image/machine": ["measure"],
    "sealtrain/storage/azure.py": ["azure"],
    "sealtrain/storage": ["remote"],
    "sealtrain/training/data/validation": ["validation"],
    "sealtrain/base/asgi.py": ["broker", "console"],  # the protocol of both servers
    "sealtrain/base/background.py": [
        "broker",
        "console",
        "simulator",
    ],  # the one server start of all
    "sealtrain/ledger": ["broker", "postgres"],  # imported where a database is opened
}
# Declared although no module names it.
NEEDED_UNSEEN = {
    "accelerate": "transformers' Trainer refuses to start without it",
    "coincurve": "eth-keys signs by it, where it is installed",
    "liger-kernel": "transformers puts its kernels in place of a model's layers",
    "torchao": "transformers takes its optimizers of few bits",
    "bitsandbytes": "transformers loads it to hold a base in four bits",
}


def declared() -> dict[str, set[str]]:
    """Distributions by extra, but our own, which names other extras; the core's under ``""``."""
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    # What pip cannot resolve beside our versions lives in an environment of its own.
    apart = {
        path.stem: [line for line in path.read_text().splitlines() if not line.startswith("#")]
        for path in (REPOSITORY / "tools" / "backends").glob("*.txt")
    }
    groups = {"": table["dependencies"], **table["optional-dependencies"], **apart}
    return {
        extra: {canonicalize_name(Requirement(line).name) for line in lines} - {table["name"]}
        for extra, lines in groups.items()
    }


@cache
def imported(path: Path) -> frozenset[str]:
    """Distributions that a module imports, outside ``if TYPE_CHECKING``."""
    return frozenset(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    pending: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):
            pending += ast.iter_child_nodes(node)  # no expression holds an import
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in PACKAGES:
                yield canonicalize_name(shipped_extras.MODULES.get(top, top))


def extras_of(module: str) -> list[str]:
    return [
        "",
        *(e for place, es in EXTRAS.items() if f"{module}/".startswith(f"{place}/") for e in es),
    ]


def test_every_import_is_declared_where_it_is_used() -> None:
    groups = declared()
    undeclared = {
        f"{module}: {name}"
        for module, path in MODULES.items()
        for name in imported(path)
        if not any(name in groups[extra] for extra in extras_of(module))
    }
    assert undeclared == set()


@pytest.mark.parametrize("extra", ["", "seal", "train", "broker", "chain", "console", "simulator"])
def test_every_declared_package_is_imported(extra: str) -> None:
    used = {name for path in MODULES.values() for name in imported(path)}
    assert declared()[extra] - used - NEEDED_UNSEEN.keys() == set()


def test_an_auditors_installation_is_small() -> None:
    wanted, pending = {"sealtrain"}, list(declared()[""])
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        lines = [Requirement(line) for line in importlib.metadata.requires(name) or ()]
        pending += [line.name for line in lines if line.marker is None or line.marker.evaluate()]
    sizes = {
        name: sum(file.size or 0 for file in importlib.metadata.files(name) or ())
        for name in wanted - {"sealtrain"}
    }
    sizes["sealtrain"] = sum(path.stat().st_size for path in (REPOSITORY / "src").rglob("*.*"))
    assert "pyarrow" not in sizes
    assert sum(sizes.values()) < 120e6, sorted(sizes.items(), key=lambda item: -item[1])[:5]


def test_dev_contains_every_extra_that_code_uses() -> None:
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    [itself] = [
        Requirement(line)
        for line in table["optional-dependencies"]["dev"]
        if Requirement(line).name == table["name"]
    ]
    assert itself.extras >= {"seal", "train", "broker", "chain", "console", "simulator"}
