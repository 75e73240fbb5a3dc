"""Sealed datasets: everything a caller needs, in one place.

A dataset is a folder: ``index.sealed`` (its header carries the stanzas of the data key, its payload
says what lies where), ``shard-00000.sealed`` …, optionally ``commitments.sealed``, and
``dataset.json``, the owner's signature over the description and so over the root.
"""

from __future__ import annotations

from sealtrain.sealing.commitments import record_commitment
from sealtrain.sealing.description import (
    INDEX_NAME,
    MANIFEST_NAME,
    DatasetDescription,
    ShardInfo,
    dataset_root,
)
from sealtrain.sealing.export import export
from sealtrain.sealing.opened import SealedDataset, contains_record
from sealtrain.sealing.rewrap import read_stanzas, rewrap
from sealtrain.sealing.sealer import NewDataset, SealOptions, seal_dataset

__all__ = [
    "INDEX_NAME",
    "MANIFEST_NAME",
    "DatasetDescription",
    "NewDataset",
    "SealOptions",
    "SealedDataset",
    "ShardInfo",
    "contains_record",
    "dataset_root",
    "export",
    "read_stanzas",
    "record_commitment",
    "rewrap",
    "seal_dataset",
]
