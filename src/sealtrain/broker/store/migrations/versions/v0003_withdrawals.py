"""Withdrawn datasets, and which run was given which dataset."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "withdrawals",
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", "digest", name=op.f("pk_withdrawals")),
    )
    op.create_index(op.f("ix_withdrawals_digest"), "withdrawals", ["digest"])
    op.create_table(
        "run_datasets",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=op.f("fk_run_datasets_run_id_runs")
        ),
        sa.PrimaryKeyConstraint("run_id", "dataset_id", name=op.f("pk_run_datasets")),
    )
