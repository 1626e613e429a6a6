"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Url = Annotated[
    str | None,
    typer.Option(envvar="TIERKEEPER_URL", help="A running panel to work through; without it, the data directory."),
]
Token = Annotated[str | None, typer.Option(envvar="TIERKEEPER_TOKEN", help="API token for --url.")]
Filters = Annotated[
    list[str] | None, typer.Option("--filter", help="KEY=VALUE as in the records list, e.g. class=corrupt; repeatable.")
]
PasswordFile = Annotated[
    Path | None, typer.Option(help="File with the password; without it you are asked (or stdin is read).")
]
Removal = Annotated[str, typer.Option(help="quarantine or delete.")]
QuarantineFor = Annotated[
    str | None,
    typer.Option(
        help="With --filter: how long what goes into quarantine is kept, e.g. 14d (7d without it), until a panel that "
        "serves purges it, or the next clean on this data directory; ever: until somebody does."
    ),
]
