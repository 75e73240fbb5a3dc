"""The published CycloneDX schemas, which lie beside the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

SHARED = Path(os.environ.get("SEALTRAIN_SHARED", Path(__file__).resolve().parents[3] / "shared"))


def judge(version: str) -> Draft7Validator:
    """What says whether a document is CycloneDX of a version; skips without the schemas."""
    folder = SHARED / "vectors" / "cyclonedx" / "schema"
    if not folder.is_dir():
        pytest.skip("no CycloneDX schemas beside the repository (SEALTRAIN_SHARED)")
    loaded = {path.name: json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")}
    registry: Registry[Any] = Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}", Resource.from_contents(schema))
        for name, schema in loaded.items()
    )
    return Draft7Validator(loaded[f"bom-{version}.schema.json"], registry=registry)
