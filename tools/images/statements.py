"""What lies beside an image: its SBOM and its provenance (spec/images.md §7)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from sealtrain.base.canonical import JsonValue
from sealtrain.image.pins import Pins
from sealtrain.keys.identity import Identity
from sealtrain.recipe.installation import CodePin, code_sha256
from sealtrain.signing import dsse
from sealtrain.signing.statement import PAYLOAD_TYPE, Subject, build

BUILD_TYPE = "https://sealtrain.dev/images/v1"
SLSA = "https://slsa.dev/provenance/v1"


def sbom(pins: Pins, digest: str, code: Sequence[CodePin]) -> dict[str, JsonValue]:
    """CycloneDX 1.6: the image's packages with their digests. The same image gives the same."""
    parts: list[JsonValue] = [
        _component("application", pin.name, pin.version, f"pkg:pypi/{pin.name}@{pin.version}", None)
        for pin in code
    ]
    parts += [
        _component("library", name, pin.version, _debian(name, pin.version), pin.sha256)
        for name, pin in sorted(pins.debian.items())
    ]
    parts += [
        _component("library", name, pin.version, f"pkg:pypi/{name}@{pin.version}", pin.sha256)
        for name, pin in sorted(pins.wheels.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": _image(pins, digest)},
        "components": parts,
    }


def provenance(pins: Pins, digest: str, code: Sequence[CodePin], *, key: Path | None) -> bytes:
    """SLSA provenance v1 as an in-toto statement; in a DSSE envelope where a key signs it.

    Args:
        pins: Of the image.
        digest: Of the image, ``sha256:…``.
        code: sealtrain in it, the core first.
        key: File of an identity.
    """
    inputs: list[JsonValue] = [
        {"uri": _debian(name, pin.version), "digest": {"sha256": pin.sha256}}
        for name, pin in sorted(pins.debian.items())
    ]
    inputs += [
        {"uri": f"pkg:pypi/{name}@{pin.version}", "digest": {"sha256": pin.sha256}}
        for name, pin in sorted(pins.wheels.items())
    ]
    predicate: dict[str, JsonValue] = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"image": pins.name, "code": code_sha256(code)},
            "internalParameters": {},
            "resolvedDependencies": inputs,
        },
        "runDetails": {"builder": {"id": f"{BUILD_TYPE}#tools/images/build.py"}, "metadata": {}},
    }
    subject = Subject(name=pins.name, sha256=digest.removeprefix("sha256:"))
    payload = build([subject], SLSA, predicate)
    if key is None:
        return payload
    return dsse.sign(payload, PAYLOAD_TYPE, Identity.load(key).signer).to_bytes()


def _image(pins: Pins, digest: str) -> JsonValue:
    hash_: JsonValue = [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]
    return {
        "type": "container",
        "bom-ref": digest,
        "name": pins.name,
        "version": digest,
        "hashes": hash_,
    }


def _component(
    kind: str, name: str, version: str, purl: str, sha256: str | None
) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if sha256 is not None:
        found["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    return found


def _debian(name: str, version: str) -> str:
    return f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch=amd64&distro=bookworm"
