"""Check 13 of a release, for recipes whose runs begin with the model of the run before.

See spec/schedule.md §4.1. Pure, as ``release.decide``. A broker that serves such a recipe has one
chain of runs for it: a run follows the newest one whose manifest the broker recorded, and no other.
"""

from __future__ import annotations

from sealtrain.errors import RunChainBroken, RunMismatch
from sealtrain.release.facts import Known, Measured
from sealtrain.release.request_facts import Asks
from sealtrain.signing.continues import Continues


def follows_newest(asks: Asks, measured: Measured, known: Known) -> Continues | None:
    """The run whose model's key a run is to be given.

    1. only a recipe with ``continue: last`` asks for one;
    2. a resume asks for the model that its run began with;
    3. it is the model of the newest run that was recorded, or of none where none was. The run
       itself may be the newest: then it is the one that it followed.

    Args:
        asks: The request.
        measured: What the guest runs.
        known: The newest run, and which one a run followed that is resumed.

    Raises:
        RunChainBroken: The request names another run than the newest, or none.
        RunMismatch: A resume names another run than it began with.
    """
    asked = _place(asks)
    if not measured.follows:
        if asked is not None:
            raise _broken("continues", asked.manifest_digest, "no model: each run begins anew")
        return None
    if known.run is not None and asked != known.began:
        raise RunMismatch(
            "this run began with the model of another run",
            check="continues",
            got="the recipe's model" if asked is None else asked.manifest_digest,
            expected="the recipe's model" if known.began is None else known.began.manifest_digest,
            hint="resume with the run ticket that the run began with",
        )
    newest = known.newest
    if newest is not None and known.run is not None and newest.run_id == asks.run_id:
        return asked
    expected = None if newest is None else newest.next
    if asked != expected:
        raise _broken(
            "newest run",
            "the recipe's model" if asked is None else f"{asked.number}:{asked.manifest_digest}",
            "the recipe's model"
            if expected is None
            else f"{expected.number}:{expected.manifest_digest}",
        )
    return asked


def _place(asks: Asks) -> Continues | None:
    named = asks.continues
    if named is None:
        return None
    return Continues(manifest_digest=named.manifest_digest, number=named.number)


def _broken(check: str, got: str, expected: str) -> RunChainBroken:
    return RunChainBroken(
        "the run does not begin with the model of the newest run of its chain",
        check=check,
        got=got,
        expected=expected,
        hint="name the newest manifest of the chain in the run ticket, or wait for it",
    )
