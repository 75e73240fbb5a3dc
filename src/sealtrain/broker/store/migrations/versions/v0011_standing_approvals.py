"""Where runs begin in the ledger, and which datasets are members of a series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the columns; null in rows that are older than standing approvals."""
    op.add_column("runs", sa.Column("ledger_index", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_runs_recipe_hash"), "runs", ["recipe_hash"])
    op.add_column("datasets", sa.Column("series", sa.Text(), nullable=True))
    op.create_index(op.f("ix_datasets_series"), "datasets", ["series"])
