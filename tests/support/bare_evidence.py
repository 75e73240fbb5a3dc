"""The smallest document that has the form of evidence; it verifies nowhere."""

from __future__ import annotations

from typing import Any

EVIDENCE: dict[str, Any] = {
    "version": 2,
    "platform": "simulator",
    "cpu": {
        "tee": "dstack",
        "quote": "AAAA",
        "event_log": [
            {
                "imr": 3,
                "event_type": 1,
                "digest": "",
                "event": "x",
                "event_payload": "",
                "version": 1,
            }
        ],
        "app_compose": "{}",
        "vm_config": None,
    },
    "gpu": None,
    "collateral": None,
    "gpu_collateral": None,
}
