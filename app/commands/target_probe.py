"""`tierkeeper target probe`: what answers at an address, and what to enter. Needs no panel and saves nothing."""

from __future__ import annotations

import asyncio

from app.commands.target import AddOptions, ca_of, key_of, pairs
from app.fleet import probes
from app.fleet.addresses import parse_address
from app.fleet.certificates import check_ca, tls_of
from app.printable import printable
from app.settings import load_settings


def probe(options: AddOptions, *, as_json: bool = False) -> int:
    """Prints what was found; 0 where it can be registered, 1 where something else answers, 3 where nothing does.
    Raises InvalidInput that names the option."""
    address = parse_address(options.address, field="ADDRESS", allow_link_local=load_settings().allow_link_local)
    key, headers = key_of(options.api_key_env), pairs(options.headers, "--header")
    tls = tls_of(options.tls_verify, check_ca(ca_of(options.tls_ca)))
    found = probes.judge(address, asyncio.run(probes.find(address, api_key=key, headers=headers, tls=tls)))
    if as_json:
        print(found.model_dump_json())
    else:
        print(printable(f"{found.title}{f' (version {found.version})' if found.version else ''}. {found.detail}"))
        for url in found.suggested_urls if found.register_as is None else ():
            print(printable(f"enter instead: {url}"))
        if found.register_as is not None:
            print(printable(f"register it: tierkeeper target add {found.register_as} {found.url}"))
        for line in found.evidence:
            print(printable(f"  {line}"))
    if found.register_as is not None:
        return 0
    return 3 if found.kind == "nothing" else 1
