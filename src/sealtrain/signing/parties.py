"""Run ids of the parties of one run (spec/parties.md §2)."""

from __future__ import annotations

import hashlib
import re

from sealtrain.errors import UsageError

__all__ = ["party_run_id"]

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def party_run_id(run_id: str, party: str) -> str:
    """The id under which a party of a run asks brokers for its keys.

    Args:
        run_id: Of the whole run, 32 hex digits.
        party: Name of the owner whose data the party holds.

    Returns:
        32 hex digits.

    Raises:
        UsageError: An argument has another form.
    """
    for what, text, pattern in (("run id", run_id, _RUN_ID), ("party", party, _NAME)):
        if not pattern.fullmatch(text):
            raise UsageError(f"not a {what}", got=text[:80], expected=pattern.pattern)
    named = f"sealtrain/party/v1:{run_id}/{party}".encode("ascii")
    return hashlib.sha256(named).hexdigest()[:32]
