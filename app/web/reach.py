"""What it takes to reach a target, as forms say it: address, key, headers, certificates."""

from __future__ import annotations

from typing import Any

from app.fleet.probe_schemas import ProbeRequest
from app.web.frame import Values, build_input, one, pairs

REACH_FIELDS = ("url", "api_key", "headers", "tls_ca", "tls_unverified")


def tls_of_form(values: Values) -> dict[str, Any]:
    """`tls_ca` and `tls_verify` of the API."""
    return {"tls_ca": one(values, "tls_ca"), "tls_verify": "tls_unverified" not in values}


def reach_of_form(values: Values) -> dict[str, Any]:
    """All of it, as bodies of the API take it. Raises InvalidInput naming a header line that cannot be read."""
    body: dict[str, Any] = {"url": one(values, "url") or "", "api_key": one(values, "api_key"), **tls_of_form(values)}
    if headers := pairs(values, "headers", ":"):
        body["headers"] = headers
    return body


def probe_request(values: Values) -> ProbeRequest:
    """What "What answers there?" asks: everything that was typed counts."""
    return build_input(ProbeRequest, reach_of_form(values))
