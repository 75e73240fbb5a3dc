"""Who has which records: training, validation and test, and the parties' shares of training.

A patient's records stay together in every split, and no text is in two. Test records are those of
the collection; nothing here or in choosing a setting reads them. Validation is a share of the
training patients, the same for every way, seed and partition, so that what is chosen on it is
chosen on the same records.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import numpy as np

from medical_sets import Read, Rows
from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex

Partition = Literal["iid", "dirichlet"]
PARTITIONS: tuple[Partition, ...] = get_args(Partition)
VALIDATION_SHARE, VALIDATION_MOST = 0.1, 400
"""Of the training patients; as many fewer as makes about so many records."""
ALPHA = 0.3
_TRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows of one collection.

    Attributes:
        train: Trained on, all parties' together.
        validation: Chooses learning rates and when to stop.
        test: Measured once training is over.
    """

    train: Rows
    validation: Rows
    test: Rows

    @property
    def labels(self) -> list[str]:
        """All labels of the collection, sorted."""
        return sorted({row["label"] for row in (*self.train, *self.validation, *self.test)})

    @property
    def digest(self) -> str:
        """SHA-256 of all rows, 64 hex digits."""
        return sha256_hex(canonical_json(asdict(self)))


def divided(read: Read, *, train: int | None = None, test: int | None = None) -> Records:
    """Records for training, validation and test.

    Args:
        read: Gives the collection's training and test rows.
        train: Most training rows, validation among them; all when ``None``.
        test: Most test rows; all when ``None``.

    Raises:
        ValueError: A patient has training and test records, or too few patients for a validation
            split.
    """
    once = random.Random(0)  # noqa: S311 - which records, not a secret
    given, tested = (
        rows if most is None or len(rows) <= most else once.sample(rows, most)
        for rows, most in zip(read(), (train, test), strict=True)
    )
    patients = sorted({row["patient"] for row in given})
    both = set(patients) & {row["patient"] for row in tested}
    if both:
        raise ValueError(f"{len(both)} patients have training and test records")
    once.shuffle(patients)
    count = round(min(VALIDATION_SHARE, VALIDATION_MOST / len(given)) * len(patients))
    if not 0 < count < len(patients):
        raise ValueError(f"no validation split of {len(patients)} patients")
    held = set(patients[:count])
    validation = _unlike([row for row in given if row["patient"] in held], tested)
    train = _unlike([row for row in given if row["patient"] not in held], [*tested, *validation])
    return Records(train=train, validation=validation, test=tested)


def _unlike(rows: Rows, others: Rows) -> Rows:
    """Rows whose text none of the others has: patients may have one text, word for word."""
    texts = {row["text"] for row in others}
    return [row for row in rows if row["text"] not in texts]


def shares(rows: Rows, partition: Partition, parties: int, seed: int) -> list[Rows]:
    """Rows by party.

    Args:
        rows: Of training.
        partition: ``iid``: patients are dealt out evenly. ``dirichlet``: of each label, the
            parties get shares drawn from a Dirichlet distribution of ``ALPHA``.
        parties: How many.
        seed: Of the division.

    A Dirichlet draw that leaves a party without a row is drawn again.

    Raises:
        ValueError: No division gives each party a row.
    """
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        kinds[row["patient"]][row["label"]] += 1
    draw = np.random.default_rng([seed, parties])
    for _ in range(_TRIES):
        owner = _owners(kinds, partition, parties, draw)
        parts: list[Rows] = [[] for _ in range(parties)]
        for row in rows:
            parts[owner[row["patient"]]].append(row)
        if all(parts):
            return parts
    raise ValueError(f"no division of {len(rows)} rows gives each of {parties} parties one")


def _owners(
    kinds: dict[str, Counter[str]], partition: Partition, parties: int, draw: np.random.Generator
) -> dict[str, int]:
    """The party of each patient."""
    if partition == "iid":
        patients = draw.permutation(sorted(kinds)).tolist()
        return {patient: number % parties for number, patient in enumerate(patients)}
    by_label: dict[str, list[str]] = defaultdict(list)
    for patient, labels in sorted(kinds.items()):
        by_label[labels.most_common(1)[0][0]].append(patient)
    owner: dict[str, int] = {}
    for _, patients in sorted(by_label.items()):
        mixed = draw.permutation(patients).tolist()
        parts = np.cumsum(draw.dirichlet([ALPHA] * parties))[:-1]
        ends = np.round(parts * len(mixed)).astype(int)
        for party, part in enumerate(np.split(np.asarray(mixed, dtype=object), ends)):
            owner |= dict.fromkeys(part.tolist(), party)
    return owner
