"""Let a test file name what it imports at its top, and load it when its first test runs.

Pytest collects a file before it plays any. A training library takes seconds to load, so a
file that needs one writes its imports, and what is made of them at its top, under a condition::

    from collecting import COLLECTING

    if not COLLECTING:
        import torch
        from cut_world import CutWorld

        SHAPE = torch.Size([2, 3])

Pytest collects the file without them. Before the first test of the file is set up, ``conftest.py``
has :func:`load_deferred` run these blocks in the file's own namespace: every name then means what
it would mean without the condition, and nothing stands in for a module or a class. Outside pytest
the condition holds, and the file is imported whole.

Pytest needs tests, fixtures, their decorators and their parameters to collect a file. These stay
outside the blocks, and a parameter names what needs a library: ``"float32"``, or the key of a table
of functions. ``tests/meta/test_collection.py`` fails if collection loads a package of
:data:`STACK`.
"""

from __future__ import annotations
import __future__

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

COLLECTING = False
"""Whether pytest collects tests now. ``conftest.py`` sets it."""

STACK = (
    "accelerate",
    "boto3",
    "datasets",
    "eth_account",
    "eth_tester",
    "fastapi",
    "flwr",
    "lightning",
    "matplotlib",
    "nbformat",
    "opacus",
    "pandas",
    "peft",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "torch",
    "transformers",
    "trl",
    "web3",
    "webauthn",
)
"""What collection must not load."""

LOADED = pytest.StashKey[dict[str, str]]()
"""Where ``conftest.py`` keeps which packages of the stack collection loaded, and for which file."""

_loaded: set[str] = set()


def load_deferred(module: ModuleType) -> None:
    """Run the deferred blocks of a test file, once.

    A block that raises, ``pytest.skip`` too, raises for every test of the file.
    """
    if module.__name__ in _loaded:
        return
    assert module.__file__
    source = Path(module.__file__).read_text(encoding="utf-8")
    if "COLLECTING" in source:
        blocks = [
            statement
            for node in ast.parse(source).body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "not COLLECTING"
            for statement in node.body
        ]
        # The line numbers are the file's own: a traceback shows the import that failed.
        code = compile(
            ast.Module(blocks, type_ignores=[]),
            module.__file__,
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        exec(code, module.__dict__)  # noqa: S102 - a file of this repository
    _loaded.add(module.__name__)


def stack_loaded() -> frozenset[str]:
    """Return which packages of the stack this process has loaded."""
    return frozenset(package for package in STACK if package in sys.modules)
