"""Where the database is, so that a copy is noticed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "home",
        sa.Column("identity", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("identity", name=op.f("pk_home")),
    )
