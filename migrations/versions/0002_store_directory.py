"""which directory a store's last scan found"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('store_directory',
    sa.Column('store_id', sa.Integer(), nullable=False),
    sa.Column('identity', sa.String(), nullable=False),
    sa.Column('mark', sa.String(), nullable=True),
    sa.Column('fs_type', sa.String(), nullable=True),
    sa.Column('seen_at', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['store_id'], ['store.id'], name=op.f('fk_store_directory_store_id_store'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('store_id', name=op.f('pk_store_directory'))
    )


def downgrade() -> None:
    op.drop_table('store_directory')
