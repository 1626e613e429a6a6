"""The engine's client, its completions and its poll, under one name: what other rooms import."""

from __future__ import annotations

from app.vllm.calls import ALLOWED, EngineHealth, ModelCard, ResetAnswer, Tokens, VLLMClient
from app.vllm.completions import CompletionAnswer, CompletionRequest, EngineRefusal, KVStats, token_id_of
from app.vllm.facts import EngineFacts
from app.vllm.polling import EngineReading, poll_engine

__all__ = [
    "ALLOWED",
    "CompletionAnswer",
    "CompletionRequest",
    "EngineFacts",
    "EngineHealth",
    "EngineReading",
    "EngineRefusal",
    "KVStats",
    "ModelCard",
    "ResetAnswer",
    "Tokens",
    "VLLMClient",
    "poll_engine",
    "token_id_of",
]
