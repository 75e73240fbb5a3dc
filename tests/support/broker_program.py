"""The broker as a program of its own: how tests start one and end it."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warm import Process, program

from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.service.deployment import document_of

PROGRAM = """
import json, sys
from pathlib import Path
from sealtrain.base.clock import system_clock
from sealtrain.broker.config import BrokerConfig, BrokerLimits
from sealtrain.broker.serve import serve
fields = json.loads(sys.argv[1])
for name in ("consortium", "policy", "state"):
    fields[name] = Path(fields[name])
limits = BrokerLimits(**fields.pop("limits", {}))
now = fields.pop("now", None)
serve(
    BrokerConfig(**fields, limits=limits),
    ready=lambda url: print(url, flush=True),
    clock=system_clock if now is None else lambda: now,
)
"""


def documented(fields: Mapping[str, Any]) -> bytes:
    """The deployment document of a broker with these settings."""
    given = dict(fields)
    for name in ("consortium", "policy"):
        given[name] = Path(given[name])
    for name in ("limits", "now"):
        given.pop(name, None)
    return document_of(BrokerConfig(**given | {"state": Path("state")})).to_bytes()


def start(
    fields: Mapping[str, Any],
    log: Path,
    *,
    prelude: str = "",
) -> tuple[Process, str]:
    """A process with these settings, and its URL: empty if it ended instead of serving.

    The program text ``prelude`` runs in it first; ``limits`` and a clock that stands at ``now`` may
    be among the settings.
    """
    with log.open("a") as errors:
        process = program(prelude + PROGRAM, json.dumps(fields), stderr=errors)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: Process, number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    code = process.wait(20)
    assert process.stdout is not None
    process.stdout.close()
    return code
