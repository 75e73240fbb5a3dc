"""Caps of documents that several packages read; other caps stand beside the reader they bound."""

from __future__ import annotations

from typing import Final

MAX_DATASET_BYTES: Final = 4 << 20
"""Of a dataset's signed manifest (``dataset.json``)."""
MAX_DEPLOYMENT_BYTES: Final = 4 << 20
"""Of a deployment document (``app-compose.json``) in a file."""
MAX_MANIFEST_BYTES: Final = 48 << 20
"""Of a run's manifest."""
MAX_RECEIPTS: Final = 4096
"""Of a run's manifest."""
MAX_SETTINGS_BYTES: Final = 8 << 20
"""Of a settings file of a trained model, such as ``config.json``."""
