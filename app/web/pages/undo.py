"""The button of a toast: takes back what was just done."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.errors import TierkeeperError
from app.web.frame import FormValues, OperatorFrame, one

router = APIRouter(prefix="/undo")


@router.post("")
def undo(frame: OperatorFrame, values: FormValues) -> Response:
    """What can be taken back only operators and admins could do; that the role still suffices, the store sees to."""
    try:
        found = frame.undo.take(one(values, "key") or "", frame.principal)
    except TierkeeperError as error:
        return frame.refused("/", error)
    try:
        found.take_back(frame.actor)
    except TierkeeperError as error:
        return frame.refused(found.path, error)
    return frame.done(found.path, found.said)
