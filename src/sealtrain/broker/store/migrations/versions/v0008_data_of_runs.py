"""Under which roots a run began with its data."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column; runs that began before have no root that a resume could name."""
    with op.batch_alter_table("run_datasets") as table:
        table.add_column(sa.Column("root", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("run_datasets") as table:
        table.alter_column("root", server_default=None)
