"""What Alembic runs: the migrations, on the connection that ``store.schema`` gives it."""

from __future__ import annotations

from alembic import context

from sealtrain.broker.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a table by making another; both databases run the same steps.
    render_as_batch=True,
    # All steps are one transaction of the caller: after a crash none or all are done.
    transactional_ddl=True,
)
context.run_migrations()
