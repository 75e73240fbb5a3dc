"""A pytest plugin (``-p record_accelerators``): what tests ask about accelerators is kept on disk.

``ACCELERATORS_SEEN`` names an empty folder. Each question to ``verify_gpus``, ``check_answers``,
``verify_rim`` and ``check_reference_values`` lies there once, with how ours ended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sealtrain.attest.nvidia import ocsp, rim, verify
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.errors import SealtrainError, TrustInvalid

_FOLDER = Path(os.environ["ACCELERATORS_SEEN"]) if "ACCELERATORS_SEEN" in os.environ else None


def _collateral(collateral: Any) -> Any:
    return None if collateral is None else collateral.without_verdict().to_dict()


def gpus_asked(evidence: Any, policy: Any, collateral: Any, **named: Any) -> Any:
    if policy.nras == "require":
        return None  # the second verifier has no archive of its own
    return {
        "kind": "gpus",
        "evidence": evidence.to_dict(),
        "rules": policy.to_dict(),
        "simulated": policy.simulator_root is not None,
        "collateral": _collateral(collateral),
        "nonce": named["nonce"].hex(),
        "now": named["now"],
    }


def revocation_asked(certificates: Any, answers: Any, *, now: int, max_age: int) -> Any:
    return {
        "kind": "revocation",
        "chain": [to_base64(certificate) for certificate in certificates],
        "answers": [to_base64(answer) for answer in answers],
        "now": now,
        "max_age": max_age,
    }


def file_asked(xml: bytes, *, simulator_root: bytes | None, now: int, pinned: bool) -> Any:
    if len(xml) > 1 << 20:
        return None
    root = rim.NVIDIA_RIM_ROOT_SHA256 if simulator_root is None else sha256_hex(simulator_root)
    return {"kind": "file", "xml": to_base64(xml), "root": root, "now": now, "pinned": pinned}


def reference_asked(device: Any, collateral: Any, policy: Any, **named: Any) -> Any:
    root = named["simulator_root"]
    return {
        "kind": "reference",
        "architecture": device.architecture,
        "report": to_base64(device.report.signed + device.report.signature),
        "collateral": _collateral(collateral),
        "wanted": policy.to_dict()["reference_values"],
        "root": None if root is None else to_base64(root),
        "now": named["now"],
    }


def _recording(asked: Any, described: Callable[..., Any]) -> Any:
    def judged(*given: Any, **named: Any) -> Any:
        code: str | None = None
        try:
            return asked(*given, **named)
        except TrustInvalid:
            code = "not asked"
            raise
        except SealtrainError as error:
            code = error.code
            raise
        finally:
            question = None if code == "not asked" else described(*given, **named)
            if question is not None:
                data = json.dumps(question | {"code": code})
                name = hashlib.sha256(data.encode()).hexdigest()
                assert _FOLDER is not None
                (_FOLDER / f"{name}.json").write_text(data)

    return judged


if _FOLDER is not None:
    verify.verify_gpus = _recording(verify.verify_gpus, gpus_asked)
    ocsp.check_answers = _recording(ocsp.check_answers, revocation_asked)
    rim.verify_rim = _recording(rim.verify_rim, file_asked)
    rim.check_reference_values = _recording(rim.check_reference_values, reference_asked)
    verify.check_reference_values = rim.check_reference_values
