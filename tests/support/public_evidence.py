"""Evidence that others published, by its address: read where this machine has it, never kept.

``SEALTRAIN_PUBLIC`` names a folder with a checkout of each repository, at ``OWNER/NAME``. A test of
a file that is not there is skipped and says which one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sealtrain.attest.nvidia.parse import GpuDevice

VECTORS = Path(__file__).resolve().parents[2] / "vectors/public/evidence.json"
FILES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in json.loads(VECTORS.read_text("utf-8"))["cases"]
}


def published(name: str) -> bytes:
    """The bytes of a file that others published; skips the test where it is not here."""
    known = FILES[name]
    address = f"{known['repository']}/{known['path']}"
    file = Path(os.environ.get("SEALTRAIN_PUBLIC", "/nonexistent")) / address
    if not file.is_file():
        pytest.skip(f"SEALTRAIN_PUBLIC has no {address} (commit {known['commit'][:12]})")
    data = file.read_bytes()
    assert hashlib.sha256(data).hexdigest() == known["sha256"]
    return data


def devices_in(data: bytes) -> tuple[GpuDevice, ...]:
    """Accelerators in a file of Google's verifier, in its order."""
    return tuple(
        GpuDevice.build(
            gpu["Arch"],
            base64.b64decode(gpu["AttestationReport"]["py/b64"]),
            base64.b64decode(gpu["CertificateChains"]["GpuAttestationCertificateChain"][0]["pem"]),
        )
        for gpu in json.loads(data)["gpus"]
    )
