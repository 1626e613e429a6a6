"""/launch-commands: command lines, containers and unit files that fit each other. Runs nothing, saves nothing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from app.api.deps import Operator, ServicesDep
from app.api.responses import BODY
from app.launch.schemas import LaunchInput, LaunchView
from app.launch.service import LaunchService

router = APIRouter(prefix="/launch-commands", tags=["launch"])


def _launch(services: ServicesDep) -> LaunchService:
    return services.launch


Launch = Annotated[LaunchService, Depends(_launch)]


@router.post("", responses=BODY)
def generate(body: LaunchInput, launch: Launch, principal: Operator) -> LaunchView:
    """Scenario A (engine alone) and B (with the cache), and what our own checks say of them."""
    return launch.generate(body)
