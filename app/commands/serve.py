"""`tierkeeper serve`: the panel in this process, one worker."""

from __future__ import annotations

import logging
import sys

import structlog
import uvicorn

from app.main import create_app
from app.services import Services
from app.settings import Settings


def configure_logging(level: str) -> None:
    """structlog to stderr: for people on a terminal, JSON lines otherwise. stdout belongs to results."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT. The URL and, when one was made, the sign-in are printed once it is ready."""
    configure_logging(settings.log_level)

    def announce(services: Services, made_password: str | None) -> None:
        bound = _bound_port(server) or settings.port
        shown = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
        print(f"Tierkeeper on http://{shown}:{bound}{settings.root_path}", flush=True)
        if made_password is not None:
            print(f"Sign in as admin with the password {made_password} (shown only now)", flush=True)

    app = create_app(settings, on_ready=announce)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        workers=1,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=64 * 1024,
    )
    server = uvicorn.Server(config)
    server.run()
    if not server.started:
        raise SystemExit(3)


def _bound_port(server: uvicorn.Server) -> int | None:
    for bound in getattr(server, "servers", []):
        for sock in bound.sockets:
            return int(sock.getsockname()[1])
    return None
