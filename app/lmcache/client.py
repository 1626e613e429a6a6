"""The cache server's client and its poll, under one name: what other rooms import."""

from __future__ import annotations

from app.lmcache.calls import ALLOWED, MAX_KEYS, ClearAnswer, DeleteAnswer, HealthAnswer, KeyLike, LMCacheClient
from app.lmcache.polling import ServerReading, poll_server

__all__ = [
    "ALLOWED",
    "MAX_KEYS",
    "ClearAnswer",
    "DeleteAnswer",
    "HealthAnswer",
    "KeyLike",
    "LMCacheClient",
    "ServerReading",
    "poll_server",
]
