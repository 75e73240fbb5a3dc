"""sealtrain: train on data you are not allowed to see.

At home, an owner, a recipient or an auditor uses

- ``Owner``: an owner's keys and the brokers that the owner deals with;
- ``seal``: seal an owner's data for one locked recipe;
- ``approve``: approve exactly what a deployment document says;
- ``open``: decrypt a model for its recipient, or a dataset for its owner;
- ``verify``: return the contents of a run's manifest once every check holds;
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
from typing import TYPE_CHECKING, Any

from sealtrain.base.version import VERSION

if TYPE_CHECKING:
    from sealtrain import errors
    from sealtrain.client.approving import approve
    from sealtrain.client.opening import open_sealed as open
    from sealtrain.client.owner import Owner
    from sealtrain.client.sealing import seal
    from sealtrain.guest.lightning import SealedLightning
    from sealtrain.guest.script import SealedLoop, SealedRun, sign_manifest, unwrap_dataset
    from sealtrain.manifest.files import verify_file as verify

__all__ = [
    "Owner",
    "SealedLightning",
    "SealedLoop",
    "SealedRun",
    "approve",
    "errors",
    "open",
    "seal",
    "sign_manifest",
    "unwrap_dataset",
    "verify",
]
__version__ = VERSION

_PLACES = {
    "Owner": "sealtrain.client.owner:Owner",
    "SealedLightning": "sealtrain.guest.lightning:SealedLightning",
    "SealedLoop": "sealtrain.guest.script:SealedLoop",
    "SealedRun": "sealtrain.guest.script:SealedRun",
    "approve": "sealtrain.client.approving:approve",
    "errors": "sealtrain.errors:",
    "open": "sealtrain.client.opening:open_sealed",
    "seal": "sealtrain.client.sealing:seal",
    "sign_manifest": "sealtrain.guest.script:sign_manifest",
    "unwrap_dataset": "sealtrain.guest.script:unwrap_dataset",
    "verify": "sealtrain.manifest.files:verify_file",
}


def __getattr__(name: str) -> Any:
    """Load a name on its first use: importing sealtrain stays light."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
