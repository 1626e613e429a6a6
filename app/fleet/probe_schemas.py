"""What answers at an address: the request and the answer of ``POST /probes``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.fleet.schemas import CaText, Headers, Secret, Url
from app.shapes import ApiModel, InputModel

ProbeKind = Literal[
    "lmcache_http",
    "lmcache_prometheus_only",
    "lmcache_coordinator",
    "lmcache_message_port",
    "vllm",
    "vllm_with_connector",
    "vllm_in_process",
    "other",
    "nothing",
]


class ProbeRequest(InputModel):
    """POST /probes."""

    url: Url
    api_key: Secret | None = None
    headers: Headers = Field(default_factory=dict)
    tls_verify: bool = True
    tls_ca: CaText | None = None


class ProbeView(ApiModel):
    """What answers at an address and what to enter. `register_as` is null when nothing there can be registered;
    `suggested_urls` are then the addresses to enter instead (all that are known), `suggested_url` the first of them."""

    url: str
    kind: ProbeKind
    title: str
    detail: str
    version: str | None = None
    model_names: list[str]
    register_as: Literal["server", "engine"] | None
    suggested_url: str | None
    suggested_urls: list[str] = Field(default_factory=list)
    evidence: list[str]
