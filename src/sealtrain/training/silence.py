"""Switch off trackers, hubs, telemetry and plaintext caches of training libraries.

Imported before any of them. Environment variables are not a boundary: the sandbox confines the
network as well, and the measured deployment is the boundary.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from sealtrain.errors import EgressRefused

_SETTINGS = {
    "ACCELERATE_DISABLE_RICH": "1",
    "AXOLOTL_DO_NOT_TRACK": "1",
    # Deterministic matrix products on CUDA need it before the library starts.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "COMET_MODE": "DISABLED",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "DO_NOT_TRACK": "1",
    # Transformers then asks the flash-attn package for kernels that give the same bits each time.
    "FLASH_ATTENTION_DETERMINISTIC": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # More would be interpreters of their own, which a run does not start.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    "WANDB_DISABLED": "true",
    "WANDB_MODE": "disabled",
}
_CHATTY = (
    "accelerate",
    "axolotl",
    "bitsandbytes",
    "datasets",
    "peft",
    "sentence_transformers",
    "torch",
    "transformers",
    "trl",
    "unsloth",
    "unsloth_zoo",
)


def silence() -> None:
    """Apply the settings to this process. Idempotent.

    Raises:
        EgressRefused: The hub client is loaded already and has no known switch.
    """
    os.environ.update(_SETTINGS)
    for name in _CHATTY:
        # A library's warning may quote a record; errors are raised, not logged.
        logging.getLogger(name).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
    _take_offline()


def drop_reports() -> None:
    """Give a script's ``report_to`` a callback that does nothing, whichever tracker it names.

    A tracker that is not installed would end the script, and one that is would find no network.
    """
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    trackers = integration_utils.INTEGRATION_TO_CALLBACK
    for name in [*trackers, "all"]:
        trackers[name] = TrainerCallback


def _take_offline() -> None:
    """Correct a hub client that was imported before ``silence`` and read other settings."""
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is None:
        return
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        if not hasattr(constants, name):
            raise EgressRefused(
                "the model hub client cannot be taken offline",
                check="telemetry",
                got=f"no setting {name}",
                hint="install the versions of constraints.txt",
            )
        setattr(constants, name, True)
