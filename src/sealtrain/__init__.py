"""sealtrain: train on data you are not allowed to see.

Inside a run (``sealtrain train``), a training script uses

- ``unwrap_dataset``: records of a sealed dataset, decrypted in memory;
- ``SealedRun``: a trainer callback with sealed checkpoints, exact resume and released metrics;
- ``SealedLoop``: the same for a PyTorch loop without a trainer;
- ``sign_manifest``: seal the model to its recipients and sign what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.base.version import VERSION

if TYPE_CHECKING:
    from sealtrain.guest.script import SealedLoop, SealedRun, sign_manifest, unwrap_dataset

__all__ = ["SealedLoop", "SealedRun", "sign_manifest", "unwrap_dataset"]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Load the training names on first use: importing sealtrain stays light."""
    if name in __all__:
        from sealtrain.guest import script

        return getattr(script, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
