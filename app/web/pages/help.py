"""/help: the documentation, inside the panel and without the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.responses import Response

from app.errors import NotFound
from app.web.contexts import Crumb, PageContext
from app.web.frame import Frame, ViewerFrame
from app.web.manual import ManualPage

router = APIRouter(prefix="/help")


@dataclass(frozen=True)
class HelpPage(PageContext):
    """help.html: `page` is None on the contents."""

    pages: tuple[ManualPage, ...]
    page: ManualPage | None


def _manual(frame: Frame) -> Mapping[str, ManualPage]:
    found: Mapping[str, ManualPage] = frame.request.app.state.manual
    return found


@router.get("")
def contents(frame: ViewerFrame) -> Response:
    return frame.page("help.html", HelpPage, "help", pages=tuple(_manual(frame).values()), page=None)


@router.get("/{key}")
def one_page(frame: ViewerFrame, key: str) -> Response:
    manual = _manual(frame)
    page = manual.get(key)
    if page is None:
        raise NotFound.of("help page", key[:80])
    return frame.page("help.html", HelpPage, "help", Crumb(page.title), pages=tuple(manual.values()), page=page)
