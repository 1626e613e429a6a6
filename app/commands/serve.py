"""`tierkeeper serve`: the panel in this process, one worker."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TextIO

import structlog
import uvicorn

from app.commands import heap
from app.commands.stopping import REQUEST_GRACE_SECONDS, Deadline
from app.errors import InvalidInput
from app.main import create_app
from app.services import Services
from app.settings import Settings
from app.web.connections import ROOM, guarded
from app.web.warm import warm_overview, warm_rest

log = structlog.get_logger()


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what is stderr at that moment, as our own lines do."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _named(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Says which library speaks."""
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event


def configure_logging(level: str) -> None:
    """structlog to stderr: for people on a terminal, JSON lines otherwise. stdout belongs to results."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        # Looked up at each line: whoever redirects stderr later (a service manager, a test) gets the lines.
        logger_factory=lambda *_args: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # What libraries warn of (a job of the scheduler that was left out, say) is a line of the same form.
    handler = _ToStderr()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _named],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    handler.addFilter(_once_in_a_while())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # A failed start is told by `serve` itself, in one line; requests that crash are logged by app.api.problems.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


#: How long a thread that computes may keep the interpreter when another wants it.
SWITCH_SECONDS = 0.001


def _once_in_a_while(seconds: float = 600.0) -> Callable[[logging.LogRecord], bool]:
    """Lets each warning of a library through once in that time: a job that overruns would bury all else with them."""
    told: dict[tuple[str, object, str], float] = {}

    def passes(record: logging.LogRecord) -> bool:
        # The first argument names the job; later ones are times and counts.
        what = (record.name, record.msg, str(record.args[0]) if isinstance(record.args, tuple) and record.args else "")
        if record.levelno >= logging.ERROR or record.created - told.get(what, -seconds) >= seconds:
            told[what] = record.created
            return True
        return False

    return passes


def tell_of_sandbox(services: Services) -> None:
    """Says how to be rid of the sandbox's targets: only `demo` runs what is behind them, and this is no demo."""
    targets = services.fleet.sandbox_targets()
    if targets:
        log.warning(
            "serve.sandbox_not_running",
            targets=[target.name for target in targets],
            way_out="Settings → Targets → Remove the sandbox; or `tierkeeper demo` runs it again; or serve from "
            "another data directory (TIERKEEPER_DATA_DIR)",
        )


def serve(settings: Settings, *, before_serving: Callable[[Services], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT. The URL and, when one was made, the sign-in are printed once it is reachable."""
    configure_logging(settings.log_level)
    # A page makes a hundred short queries, and each gives the interpreter away: beside a thread that computes (a scan,
    # a plan, the API's document) it would wait Python's 5 ms for every one of them.
    sys.setswitchinterval(SWITCH_SECONDS)
    sock = _bind(settings.host, settings.port)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    url = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}{settings.root_path}"
    sign_in: list[str] = []

    def ready(services: Services, made_password: str | None) -> None:
        if made_password is not None:
            sign_in.append(f"Sign in as admin with the password {made_password} (shown only now)")
        if before_serving is not None:
            before_serving(services)
        else:
            tell_of_sandbox(services)
        warm_overview(app)
        threading.Thread(target=warm_rest, args=(app,), name="warm-pages", daemon=True).start()

    deadline = Deadline()

    class Server(uvicorn.Server):
        """Says where it is once it listens, not before; told to end, it has ended in time."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            deadline.begin()
            if app.state.streams is not None:
                app.state.streams.close()  # else the server would wait for pages that are merely open
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                # What is here by now stays. A scan makes the collector look at everything once in 80,000 files, and
                # nothing else can run meanwhile: 0.2 s each time with the whole program in its way.
                gc.collect()
                gc.freeze()
                print("\n".join([f"Tierkeeper on {url}", *sign_in]), flush=True)

    heap.settle()
    app = create_app(settings, url=url, on_ready=ready)
    protocol = guarded()
    config = uvicorn.Config(
        app,
        http=protocol,
        backlog=max(ROOM, protocol.limit // 2),  # so many may be taken at once before any is looked at
        workers=1,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=REQUEST_GRACE_SECONDS,
    )
    server = Server(config)
    # uvicorn raises the signal that ended it once more when all is closed: by then there is nothing left to do.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    ended = threading.Event()
    threading.Thread(target=heap.keep_small, args=(ended,), name="heap", daemon=True).start()
    try:
        server.run(sockets=[sock])
    except SystemExit:
        if app.state.startup_error is None:
            raise
    finally:
        ended.set()
    if app.state.startup_error is not None:
        raise app.state.startup_error


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket. Raises InvalidInput that names the setting when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: only then does the event loop send the head and the body of an answer without waiting for the
    # client's acknowledgement between them, which takes 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput.field(
            "TIERKEEPER_PORT", f"cannot listen on {host}:{port} ({reason}); stop what uses it or choose another port"
        ) from error
    sock.set_inheritable(True)
    return sock
