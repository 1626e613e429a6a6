"""``python -m app``: the same as the `tierkeeper` command."""

from app.cli import main

main()
