"""sealtrain: train on data you are not allowed to see.

At home, an owner, an engineer, a recipient or an auditor uses the objects of the command line:

- ``Identity``: an owner's keys, made, saved and loaded;
- ``Consortium``: owners and thresholds, founded, saved and loaded;
- ``Owner``: seals, approves, revokes, withdraws, watches ledgers, opens what it receives;
- ``Recipe`` and ``LockedRecipe``: what is trained, as the engineer writes it and as owners read it;
- ``Run``: a run's folder, where it stands and whether it verifies;
- ``SubmittedRun``: a run that a broker was asked for, awaited, stopped and fetched from anywhere;
- ``pin_trust``, ``verify_manifest``, ``verify_chain``, ``examine_manifest``, ``report``,
  ``audit_ledger``: auditors;
- ``rehearsal``: brokers and guests on the simulator, to play all of it on one machine;
- ``errors``: what these raise.

Inside a run (``sealtrain train``), a training script uses

- ``unwrap_dataset``: records of a sealed dataset, decrypted in memory;
- ``SealedRun``: a trainer callback with sealed checkpoints, exact resume and released metrics;
- ``SealedLightning``: the same for a trainer of Lightning;
- ``SealedLoop``: the same for a PyTorch loop without a trainer;
- ``sign_manifest``: seal the model to its recipients and sign what happened.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # not typing's: until the entry point runs, Ctrl-C shows a traceback

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sealtrain import errors
    from sealtrain.consortium.members import Consortium
    from sealtrain.guest.lightning import SealedLightning
    from sealtrain.guest.script import SealedLoop, sign_manifest, unwrap_dataset
    from sealtrain.guest.trainer import SealedRun
    from sealtrain.keys.identity import Identity
    from sealtrain.manifest.trust import Trust
    from sealtrain.manifest.verify import Report, VerifiedManifest
    from sealtrain.owner.auditing import (
        audit_ledger,
        examine_manifest,
        pin_trust,
        report,
        verify_manifest,
    )
    from sealtrain.owner.chains import VerifiedChain, verify_chain
    from sealtrain.owner.owner import Owner
    from sealtrain.owner.owner_files import AtEach
    from sealtrain.owner.recipe import Recipe
    from sealtrain.owner.run import Run
    from sealtrain.owner.sealing import Publication
    from sealtrain.owner.series_place import Beginning
    from sealtrain.owner.standing import StandingRequest
    from sealtrain.owner.submitted import SubmittedRun
    from sealtrain.recipe.lock import LockedRecipe
    from sealtrain.sealing.sealer import SealOptions

    __version__: str

    rehearsal: Callable[..., Any]  # of a room, sealtrain_rehearsal

__all__ = [
    "AtEach",
    "Beginning",
    "Consortium",
    "Identity",
    "LockedRecipe",
    "Owner",
    "Publication",
    "Recipe",
    "Report",
    "Run",
    "SealOptions",
    "SealedLightning",
    "SealedLoop",
    "SealedRun",
    "StandingRequest",
    "SubmittedRun",
    "Trust",
    "VerifiedChain",
    "VerifiedManifest",
    "audit_ledger",
    "errors",
    "examine_manifest",
    "pin_trust",
    "rehearsal",
    "report",
    "sign_manifest",
    "unwrap_dataset",
    "verify_chain",
    "verify_manifest",
]

_PLACES = {
    "__version__": "sealtrain.base.version:VERSION",
    "AtEach": "sealtrain.owner.owner_files:AtEach",
    "Beginning": "sealtrain.owner.series_place:Beginning",
    "Consortium": "sealtrain.consortium.members:Consortium",
    "Identity": "sealtrain.keys.identity:Identity",
    "LockedRecipe": "sealtrain.recipe.lock:LockedRecipe",
    "Owner": "sealtrain.owner.owner:Owner",
    "Publication": "sealtrain.owner.sealing:Publication",
    "Recipe": "sealtrain.owner.recipe:Recipe",
    "Report": "sealtrain.manifest.verify:Report",
    "Run": "sealtrain.owner.run:Run",
    "SealOptions": "sealtrain.sealing.sealer:SealOptions",
    "SealedLightning": "sealtrain.guest.lightning:SealedLightning",
    "SealedLoop": "sealtrain.guest.script:SealedLoop",
    "SealedRun": "sealtrain.guest.trainer:SealedRun",
    "StandingRequest": "sealtrain.owner.standing:StandingRequest",
    "SubmittedRun": "sealtrain.owner.submitted:SubmittedRun",
    "Trust": "sealtrain.manifest.trust:Trust",
    "VerifiedChain": "sealtrain.owner.chains:VerifiedChain",
    "VerifiedManifest": "sealtrain.manifest.verify:VerifiedManifest",
    "audit_ledger": "sealtrain.owner.auditing:audit_ledger",
    "errors": "sealtrain.errors:",
    "examine_manifest": "sealtrain.owner.auditing:examine_manifest",
    "pin_trust": "sealtrain.owner.auditing:pin_trust",
    "report": "sealtrain.owner.auditing:report",
    "sign_manifest": "sealtrain.guest.script:sign_manifest",
    "unwrap_dataset": "sealtrain.guest.script:unwrap_dataset",
    "verify_chain": "sealtrain.owner.chains:verify_chain",
    "verify_manifest": "sealtrain.owner.auditing:verify_manifest",
}


def __getattr__(name: str) -> object:
    """Load a name on its first use: importing sealtrain stays light."""
    if name == "rehearsal":  # of a room, which may be absent
        from sealtrain.base.distributions import REHEARSAL, load

        rehearsal: object = load(f"{REHEARSAL}.simulation:rehearsal")
        return rehearsal
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    found = import_module(module)
    loaded: object = getattr(found, attribute) if attribute else found
    return loaded
