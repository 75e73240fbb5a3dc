"""Run ids of the guests of one run (spec/parties.md §2, spec/nodes.md §2)."""

from __future__ import annotations

import hashlib
import re

from sealtrain.errors import UsageError

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")


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
    _refuse_other_forms(("run id", run_id, _RUN_ID), ("party", party, _NAME))
    return _id_of(f"sealtrain/party/v1:{run_id}/{party}")


def node_run_id(run_id: str, session: str, node: int) -> str:
    """The id under which a node of a run asks brokers for its keys.

    Args:
        run_id: Of the whole run, 32 hex digits.
        session: Of the meeting in which the node joined, 32 hex digits.
        node: Its number, from 1.

    Returns:
        32 hex digits.

    Raises:
        UsageError: An argument has another form.
    """
    _refuse_other_forms(
        ("run id", run_id, _RUN_ID), ("session", session, _RUN_ID), ("node", str(node), _NUMBER)
    )
    return _id_of(f"sealtrain/node/v1:{run_id}/{session}/{node}")


def _refuse_other_forms(*given: tuple[str, str, re.Pattern[str]]) -> None:
    for what, text, pattern in given:
        if not pattern.fullmatch(text):
            raise UsageError(f"not a {what}", got=text[:80], expected=pattern.pattern)


def _id_of(named: str) -> str:
    return hashlib.sha256(named.encode("ascii")).hexdigest()[:32]
