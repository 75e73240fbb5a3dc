"""Challenges, decisions, datasets, runs, leases, reservations, manifests, cosignatures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "challenges",
        sa.Column("challenge", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("challenge", name=op.f("pk_challenges")),
    )
    op.create_index(op.f("ix_challenges_expires_at"), "challenges", ["expires_at"])
    op.create_index(
        "ix_challenges_waiting",
        "challenges",
        ["expires_at"],
        sqlite_where=sa.text("used_at IS NULL"),
        postgresql_where=sa.text("used_at IS NULL"),
    )
    op.create_table(
        "cosigned",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_cosigned")),
    )
    op.create_table(
        "datasets",
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("compose_hash", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", "app_id", "compose_hash", name=op.f("pk_datasets")),
    )
    op.create_table(
        "decisions",
        sa.Column("sequence", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("compose_hash", sa.Text(), nullable=False),
        sa.Column("recipe_hash", sa.Text(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_decisions")),
        sa.UniqueConstraint("digest", name=op.f("uq_decisions_digest")),
    )
    op.create_table(
        "reservations",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_reservations")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("compose_hash", sa.Text(), nullable=False),
        sa.Column("recipe_hash", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_counter", sa.BigInteger()),
        sa.Column("checkpoint_digest", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
    )
    op.create_table(
        "cosignatures",
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["size"], ["cosigned.size"], name=op.f("fk_cosignatures_size_cosigned")
        ),
        sa.PrimaryKeyConstraint("size", "owner", name=op.f("pk_cosignatures")),
    )
    op.create_table(
        "leases",
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.Column("superseded_at", sa.BigInteger()),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_leases_run_id_runs")),
        sa.PrimaryKeyConstraint("lease_id", name=op.f("pk_leases")),
    )
    op.create_index(op.f("ix_leases_run_id"), "leases", ["run_id"])
    op.create_table(
        "manifests",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("fk_manifests_run_id_runs")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_manifests")),
    )
    op.create_index(op.f("ix_manifests_run_id"), "manifests", ["run_id"])
