"""Tables of the broker's database. Times are whole seconds since the epoch; no column is secret."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "SCHEMA_VERSION",
    "challenges",
    "cosignatures",
    "cosigned",
    "datasets",
    "decisions",
    "leases",
    "manifests",
    "metadata",
    "reservations",
    "runs",
]

SCHEMA_VERSION = 1

metadata = sa.MetaData()

challenges = sa.Table(
    "challenges",
    metadata,
    sa.Column("challenge", sa.Text, primary_key=True),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("issued_at", sa.Integer, nullable=False),
    sa.Column("expires_at", sa.Integer, nullable=False, index=True),
    sa.Column("used_at", sa.Integer),
)

cosigned = sa.Table(
    "cosigned",
    metadata,
    sa.Column("size", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("note", sa.Text, nullable=False),
)

cosignatures = sa.Table(
    "cosignatures",
    metadata,
    sa.Column("size", sa.Integer, sa.ForeignKey("cosigned.size"), primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("line", sa.Text, nullable=False),
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("app_id", sa.Text, nullable=False),
    sa.Column("compose_hash", sa.Text, nullable=False),
    sa.Column("recipe_hash", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("ledger_index", sa.Integer, nullable=False),
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("dataset_id", sa.Text, primary_key=True),
    sa.Column("app_id", sa.Text, primary_key=True),
    sa.Column("compose_hash", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("ledger_index", sa.Integer, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("app_id", sa.Text, nullable=False),
    sa.Column("compose_hash", sa.Text, nullable=False),
    sa.Column("recipe_hash", sa.Text, nullable=False),
    sa.Column("started_at", sa.Integer, nullable=False),
    sa.Column("checkpoint_counter", sa.Integer),
    sa.Column("checkpoint_digest", sa.Text),
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("ledger_index", sa.Integer, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("lease_id", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
    sa.Column("not_after", sa.Integer, nullable=False),
    sa.Column("superseded_at", sa.Integer),
    sa.Column("instance_id", sa.Text, nullable=False),
)

manifests = sa.Table(
    "manifests",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
    sa.Column("ledger_index", sa.Integer, nullable=False),
)
