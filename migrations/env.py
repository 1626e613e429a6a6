"""Alembic environment: one connection handed over by `app.migrate`, batch mode for SQLite."""

from alembic import context

from app.schema import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with `tierkeeper migrate`")


def render_item(kind: str, item: object, _context: object) -> str | bool:
    """Sealed columns are plain ones to the database: a migration must not need today's code."""
    sealed = {"SecretText": "sa.String()", "SecretJson": "sa.JSON()"}
    return sealed.get(type(item).__name__, False) if kind == "type" else False


context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    render_item=render_item,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
