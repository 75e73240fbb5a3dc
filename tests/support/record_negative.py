"""A pytest plugin (``-p record_negative``): what the numbered negative cases ask is kept on disk.

``NEGATIVE_SEEN`` names an empty folder. Each question of a test with the marker ``negative`` to
``verify_quote``, ``verify_document``, ``verify_report``, ``guests.verified_guest``, ``verify`` and
``examine``, and those that ``record_accelerators`` describes, lies there once, with the numbers of
the test and the code in which ours ended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guests
import pytest
import record_accelerators

from sealtrain.attest import verify as evidence
from sealtrain.attest.nitro import verify as nitro
from sealtrain.attest.nvidia import ocsp, rim
from sealtrain.attest.nvidia import verify as nvidia
from sealtrain.attest.snp import verify as snp
from sealtrain.attest.tdx import verify as tdx
from sealtrain.base.encoding import to_base64
from sealtrain.errors import SealtrainError
from sealtrain.manifest import verify as manifest

_FOLDER = Path(os.environ["NEGATIVE_SEEN"]) if "NEGATIVE_SEEN" in os.environ else None
_MAX_KEPT = 2 << 20
_A_TEST = 60
"""Questions of one test that are kept: some flip every bit."""
_now: dict[str, Any] = {"numbers": [], "kept": 0}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember the numbers of the test that begins."""
    _now["numbers"] = [int(marker.args[0]) for marker in item.iter_markers("negative")]
    _now["kept"] = 0


def _root(der: bytes | None) -> str | None:
    return None if der is None else to_base64(der)


def _quote(raw: bytes, collateral: Any, policy: Any, **named: Any) -> Any:
    return {
        "kind": "quote",
        "raw": to_base64(raw),
        "collateral": None if collateral is None else collateral.to_dict(),
        "rules": policy.to_dict(),
        "root": _root(named["simulator_root"]),
        "now": named["now"],
    }


def _document(raw: bytes, *, simulator_root: bytes | None, now: int) -> Any:
    cpu = {"document": to_base64(raw), "app_compose": ""}
    return {"kind": "nitro", "cpu": cpu, "root": _root(simulator_root), "now": now, "rules": None}


def _report(raw: bytes, certificates: Any, **named: Any) -> Any:
    if len(certificates) != 3:
        return None  # evidence of another form, which a reader of documents refuses
    cpu = {
        "report": to_base64(raw),
        "certificates": [to_base64(certificate) for certificate in certificates],
        "crl": _root(named.get("crl")),
        "app_compose": "",
    }
    root = _root(named["simulator_root"])
    return {"kind": "snp", "cpu": cpu, "root": root, "now": named["now"], "rules": None}


def _guest(tee: str, shown: Any, app_compose: bytes, rules: Any, **named: Any) -> Any:
    if tee == "nitro":
        asked = _document(
            shown["document_bytes"], **{k: named[k] for k in ("simulator_root", "now")}
        )
    elif tee == "snp":
        given = {name: named.get(name) for name in ("simulator_root", "now", "crl")}
        asked = _report(shown["report_bytes"], shown["certificates_der"], **given)
    else:
        return None  # asked again of the quote
    if asked is not None:
        asked["cpu"]["app_compose"] = app_compose.decode("utf-8", "replace")
        asked["rules"] = rules.to_dict()
    return asked


def _evidence(shown: Any, policy: Any, now: int, *, binding: Any, **beside: Any) -> Any:
    document = shown.to_dict()
    for name in ("collateral", "gpu_collateral"):
        if beside.get(name) is not None:
            document[name] = beside[name].to_dict()
    if beside.get("crl") is not None:
        document["cpu"]["crl"] = to_base64(beside["crl"])
    if document["gpu_collateral"] is not None and document["gpu"] is None:
        document["gpu_collateral"] = None
    return {
        "kind": "evidence",
        "evidence": document,
        "policy": policy.to_dict(),
        "now": now,
        "purpose": binding.purpose,
        "transcript": binding.transcript,
    }


def _manifest(data: bytes, trust: Any, *, artefacts: Any, now: int, **_: Any) -> Any:
    return {
        "kind": "manifest",
        "manifest": to_base64(data),
        "trust": json.dumps(trust.to_dict()),
        "artefacts": None if artefacts is None else _files(Path(artefacts)),
        "now": now,
    }


def _files(folder: Path) -> dict[str, str | None]:
    return {
        path.relative_to(folder).as_posix(): (
            to_base64(path.read_bytes()) if path.is_file() and not path.is_symlink() else None
        )
        for path in sorted(folder.rglob("*"))
        if not (path.is_dir() and not path.is_symlink() and any(path.iterdir()))
    }


def _keep(question: Any, code: str | None) -> None:
    if question is None or _FOLDER is None or _now["kept"] >= _A_TEST:
        return
    try:
        data = json.dumps(question | {"code": code, "numbers": _now["numbers"]})
    except (TypeError, ValueError):
        return  # asked with what no document holds: a clock that stands still, a wrong type
    if len(data) > _MAX_KEPT or "\\udc" in data:  # a file whose name is no text
        return
    _now["kept"] += 1
    (_FOLDER / f"{hashlib.sha256(data.encode()).hexdigest()}.json").write_text(data)


def _recording(asked: Any, described: Callable[..., Any]) -> Any:
    def judged(*given: Any, **named: Any) -> Any:
        if not _now["numbers"]:
            return asked(*given, **named)
        try:
            question = described(*given, **named)
        except (KeyError, TypeError):  # a call without an argument that it needs
            return asked(*given, **named)
        try:
            found = asked(*given, **named)
        except SealtrainError as error:
            _keep(question, error.code)
            raise
        refusal = getattr(found, "refusal", None)
        _keep(question, None if refusal is None else refusal.code)
        return found

    return judged


if _FOLDER is not None:
    tdx.verify_quote = _recording(tdx.verify_quote, _quote)
    nitro.verify_document = _recording(nitro.verify_document, _document)
    snp.verify_report = _recording(snp.verify_report, _report)
    guests.verified_guest = _recording(guests.verified_guest, _guest)
    evidence.verify = _recording(evidence.verify, _evidence)
    manifest.examine = _recording(manifest.examine, _manifest)
    nvidia.verify_gpus = _recording(nvidia.verify_gpus, record_accelerators.gpus_asked)
    ocsp.check_answers = _recording(ocsp.check_answers, record_accelerators.revocation_asked)
    rim.verify_rim = _recording(rim.verify_rim, record_accelerators.file_asked)
    rim.check_reference_values = _recording(
        rim.check_reference_values, record_accelerators.reference_asked
    )
    nvidia.check_reference_values = rim.check_reference_values
