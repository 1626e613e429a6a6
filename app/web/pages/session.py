"""Signing in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from app.api.deps import ServicesDep, authenticate, session_cookie_name
from app.audit.service import client_address
from app.errors import NotSignedIn, TooManyRequests
from app.web.contexts import LoginPage
from app.web.forms import FormState
from app.web.frame import FormValues, ViewerFrame, make_shell, one, root_path, safe_next

router = APIRouter()

_EMPTY = FormState.of({"username": "", "password": ""})


def _login(request: Request, form: FormState, target: str, status: int = 200) -> Response:
    context = LoginPage(make_shell(request, ""), form=form, next=target)
    response: Response = request.app.state.templates.response(request, "login.html", context, status=status)
    return response


@router.get("/login")
def login_page(request: Request, services: ServicesDep, next: Annotated[str, Query(max_length=2000)] = "") -> Response:
    if authenticate(request, services) is not None:
        return RedirectResponse(root_path(request) + safe_next(next), 303)
    return _login(request, _EMPTY, next)


@router.post("/login")
def login(request: Request, services: ServicesDep, values: FormValues) -> Response:
    target = one(values, "next") or ""
    username = (values.get("username") or [""])[0].strip()
    try:
        token = services.auth.sign_in(
            username,
            (values.get("password") or [""])[0],
            client_address.get(),
            replaces=request.cookies.get(session_cookie_name(services)),
        )
    except (NotSignedIn, TooManyRequests) as error:
        form = FormState(values={"username": (username,)}, summary=error.detail, fields=_EMPTY.fields)
        return _login(request, form, target, error.status)
    response = RedirectResponse(root_path(request) + safe_next(target), 303)
    secure = services.settings.secure_cookies
    response.set_cookie(
        session_cookie_name(services),
        token,
        # __Host- cookies demand the path /.
        path="/" if secure else root_path(request) or "/",
        httponly=True,
        samesite="lax",
        secure=secure,
        max_age=int(services.settings.session_absolute_seconds),
    )
    return response


@router.post("/logout")
def logout(frame: ViewerFrame) -> Response:
    name = session_cookie_name(frame.services)
    token = frame.request.cookies.get(name)
    if token:
        frame.services.auth.sign_out(token)
    response = RedirectResponse(root_path(frame.request) + "/login", 303)
    secure = frame.services.settings.secure_cookies
    response.delete_cookie(name, path="/" if secure else root_path(frame.request) or "/", secure=secure, httponly=True)
    return response
