"""Verifying and reporting load no training stack and no network."""

from __future__ import annotations

import subprocess
import sys


def test_verification_imports_nothing_heavy() -> None:
    script = (
        "import sys, sealtrain.manifest.verify, sealtrain.manifest.report;"
        "heavy = {'torch', 'transformers', 'pyarrow', 'datasets', 'httpx2', 'fastapi',"
        "'sqlalchemy', 'uvicorn', 'jinja2', 'numpy'} & set(sys.modules); print(sorted(heavy))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert found.stdout.strip() == "[]"
