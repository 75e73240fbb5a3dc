"""A classifier trained in the clear on a third of 569 real biopsies, measured on two others."""

from __future__ import annotations

from pathlib import Path

import torch
from making import tables
from sklearn.datasets import load_breast_cancer

from sealtrain.training.models.tabular import TabularClassifier, TabularConfig

LABELS = ["malignant", "benign"]


def prepare(folder: Path) -> dict[str, Path]:
    """Write one CSV file a dataset, and the model folder."""
    records = load_breast_cancer()
    names = [str(name) for name in records.feature_names[:10]]
    rows = [
        ([float(value) for value in values[:10]], str(records.target_names[target]))
        for values, target in zip(records.data, records.target, strict=True)
    ]
    _train(rows[0::3], folder / "models" / "classifier")
    written = [[*values, label] for values, label in rows]
    shares = {"hospital-b.biopsies": written[1::3], "hospital-c.biopsies": written[2::3]}
    return tables(folder, [*names, "diagnosis"], shares)


def _train(rows: list[tuple[list[float], str]], place: Path) -> None:
    torch.manual_seed(3)
    features = torch.tensor([values for values, _ in rows])
    labels = torch.tensor([LABELS.index(label) for _, label in rows])
    config = TabularConfig(
        num_features=10,
        hidden_size=16,
        num_hidden_layers=1,
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
    )
    model = TabularClassifier(config)
    model.standardise(features.mean(0), features.std(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        model(features, labels).loss.backward()
        optimizer.step()
    model.save_pretrained(place)
