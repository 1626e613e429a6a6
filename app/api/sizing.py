"""/sizing: bytes of a token, what fits where, when loading pays, and where two prompts part. Saves nothing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from app.api.deps import Operator, ServicesDep
from app.api.responses import BODY, problem
from app.sizing.schemas import PrefixInput, PrefixView, SizingInput, SizingView
from app.sizing.service import SizingService

router = APIRouter(prefix="/sizing", tags=["sizing"])
_ASKS = {**BODY, 502: problem("The target did not answer as expected")}


def _sizing(services: ServicesDep) -> SizingService:
    return services.sizing


Sizing = Annotated[SizingService, Depends(_sizing)]


@router.post("", responses=_ASKS)
def size(body: SizingInput, sizing: Sizing, principal: Operator) -> SizingView:
    """From a pasted config.json, a registered layout, or plain bytes per token."""
    return sizing.size(body)


@router.post("/prefix", responses=_ASKS)
def compare_prompts(body: PrefixInput, sizing: Sizing, principal: Operator) -> PrefixView:
    """Where two prompts part, what can be reused, and what to move down."""
    return sizing.compare_prompts(body)
