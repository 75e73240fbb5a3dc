"""States of a chain that an independent generator makes: words for receipts of a manifest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manifest_world import RELEASED, World

_GENERATOR = str(Path(__file__).resolve().parents[2] / "tools" / "vectorgen")
sys.path.insert(0, _GENERATOR)
try:
    from chain_words import CODE, IMPLEMENTATION, State
finally:
    sys.path.remove(_GENERATOR)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["State", "state_of", "trusted_chain"]


def state_of(world: World, kind: str = "owners", **changed: Any) -> State:
    """A state in which the owners' contract allows the deployment of a manifest's world."""
    usual: Mapping[str, Any] = {
        "time": RELEASED - 60,
        "approved": world.target.compose_hash,
        "until": RELEASED + 86400,
    }
    return State(f"0x{world.target.app_id}", kind, **usual | changed)


def trusted_chain(state: State, **changed: Any) -> dict[str, Any]:
    """``chain`` of the trust file of an auditor who knows the block of a state."""
    proxied = state.kind == "dstack-app"
    return {
        "chain_id": 8453,
        "contract": state.contract,
        "kind": state.kind,
        "code_hash": CODE.hex(),
        "implementation": f"0x{IMPLEMENTATION.hex()}" if proxied else "none",
        "app_id": "contract",
        "max_age_seconds": 600,
        "blocks": [state.block],
    } | changed
