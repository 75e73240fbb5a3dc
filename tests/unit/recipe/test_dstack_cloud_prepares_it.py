"""dstack's own tool for Google and AWS puts our document and ticket on a machine's disk, unchanged.

The tool is run as its users run it, from a published checkout (``SEALTRAIN_PUBLIC``); the steps
before a cloud is asked need none.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from public_evidence import published

from sealtrain.recipe.compose import compose_hash

MEASUREMENT = b"measured"
SUMS = f"{hashlib.sha256(MEASUREMENT).hexdigest()}  measurement.aws.cbor\n".encode()
VECTORS = Path(__file__).resolve().parents[3] / "vectors" / "recipe" / "compose.json"
DOCUMENTS: list[bytes] = [
    case["compose"].encode()
    for case in json.loads(VECTORS.read_text("utf-8"))["cases"]
    if case["name"].startswith("dstack")
]


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "dstack-cloud"
    path.write_bytes(published("dstack's tool for Google and AWS"))
    image = tmp_path / "images" / "dstack-0.6.0"
    image.mkdir(parents=True)
    (image / "digest.txt").write_text(hashlib.sha256(SUMS).hexdigest())
    (image / "sha256sum.txt").write_bytes(SUMS)
    for platform in ("gcp", "aws"):
        (image / f"measurement.{platform}.cbor").write_bytes(MEASUREMENT)
    config = {"image_search_paths": [str(tmp_path / "images")], "services": {"kms_urls": []}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return path


def play(tool: Path, folder: Path, *words: str) -> None:
    environment = {
        "DSTACK_CLOUD_CONFIG": str(tool.parent / "config.json"),
        "HOME": str(tool.parent),
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run(
        [sys.executable, str(tool), *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        timeout=60,
    )


def prepared(tool: Path, document: bytes, platform: str, app_id: str | None) -> Path:
    """The folder that becomes the machine's shared disk."""
    name = f"project-{platform}-{hashlib.sha256(document).hexdigest()[:8]}"
    words = ("--app-id", app_id) if app_id else ()
    play(
        tool, tool.parent, "new", name, "--platform", platform, "--instance-name", "guest",
        "--machine-type", "a3-highgpu-1g" if platform == "gcp" else "m6i.large",
        "--key-provider", "tpm", *words,
    )  # fmt: skip
    project = tool.parent / name
    settings: dict[str, Any] = json.loads((project / "app.json").read_text())
    (project / "app.json").write_text(
        json.dumps(settings | {"app_compose_file": "app-compose.json"})
    )
    (project / "app-compose.json").write_bytes(document)
    play(tool, project, "prepare")
    return project / "shared"


@pytest.mark.parametrize("platform", ["gcp", "aws"])
def test_the_measured_bytes_are_ours(tool: Path, platform: str) -> None:
    for document in DOCUMENTS:
        digest = compose_hash(document)
        shared = prepared(tool, document, platform, digest[:40])
        assert (shared / "app-compose.json").read_bytes() == document
        # The app id that we compare is the first 20 bytes of the hash: the tool makes another one
        # where it is told none.
        assert json.loads((shared / ".instance_info").read_text())["app_id"] == digest[:40]
        machine = json.loads((shared / ".sys-config.json").read_text())
        assert json.loads(machine["vm_config"])["os_image_hash"] == hashlib.sha256(SUMS).hexdigest()


def test_an_app_id_that_is_not_told_is_random(tool: Path) -> None:
    document = DOCUMENTS[0]
    shared = prepared(tool, document, "gcp", None)
    found = json.loads((shared / ".instance_info").read_text())["app_id"]
    assert len(found) == 40
    assert found != compose_hash(document)[:40]


def test_the_machine_that_was_asked_for_is_the_one_of_the_project(tool: Path) -> None:
    shared = prepared(tool, DOCUMENTS[0], "gcp", None)
    settings = json.loads((shared.parent / "app.json").read_text())
    assert settings["gcp_config"]["machine_type"] == "a3-highgpu-1g"
