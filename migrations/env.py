"""Alembic environment: one connection handed over by `app.migrate`, batch mode for SQLite."""

from alembic import context

from app.schema import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `tierkeeper migrate`")

context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
