"""Pictures of every page, light and dark, wide and narrow, into a folder outside git (default var/screenshots).

``python scripts/screenshots.py`` starts a demo of its own (a fresh data directory, a free port) and signs in.
``--base-url URL --password PASSWORD`` (or ``--cookie``) looks at a running panel instead; ``--preview`` shows the
pages of the unit tests, in every state, without any service. ``--docs`` renews the pictures that docs/PAGES.md shows,
small WebP files in docs/images. Needs system Chromium.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
THEMES = ("light", "dark")

#: Name of a picture -> path. ``first:LIST:PREFIX[:SUFFIX]`` is the first link of a list page that begins with PREFIX.
PATHS = {
    "overview": "/",
    "servers": "/servers",
    "server": "first:/servers:/servers/",
    "history": "first:/servers:/servers/:/history",
    "engines": "/engines",
    "engine": "first:/engines:/engines/",
    "stores": "/stores",
    "store": "first:/stores:/stores/",
    "records": "first:/stores:/stores/:/records",
    "record": "first:@records:/records/",
    "quarantine": "first:/stores:/stores/:/quarantine",
    "welcome": "/welcome",
    "cleanup": "/cleanup",
    "policy": "first:/cleanup:/cleanup/policies/",
    "policy-new": "/cleanup/policies/new",
    "run": "first:/cleanup:/cleanup/runs/",
    "plan": "first:/cleanup:/cleanup/plans/",
    "acceptance": "/acceptance",
    "acceptance-new": "/acceptance/new",
    "acceptance-readiness": "/acceptance/readiness",
    "acceptance-canaries": "/acceptance/canaries",
    "acceptance-hooks": "/acceptance/hooks",
    "acceptance-run": "first:/acceptance:/acceptance/runs/",
    "checks": "/checks",
    "check-rules": "/checks/rules",
    "benchmark": "/benchmark",
    "experiments": "/experiments",
    "sizing": "/sizing",
    "launch": "/launch",
    "alarms": "/alarms",
    "alarm-rules": "/alarms/rules",
    "alarm-rule": "/alarms/rules/hit_rate_low",
    "alarm-history": "/alarms/history",
    "alarm-quiet": "/alarms/quiet",
    "alarm-notifiers": "/alarms/notifiers",
    "alarm-facts": "/alarms/facts",
    "activity": "/activity",
    "schedules": "/schedules",
    "settings": "/settings",
    "users": "/settings/users",
    "search": "/search?q=sandbox",
    "style": "/style",
    "help": "/help",
    "help-runbooks": "/help/runbooks",
}
DOCS = ROOT / "docs" / "images"
DOCS_SIZE = (1280, 880)
#: Chromium writes no WebP by itself, but it can encode one: a PNG in, a WebP out.
TO_WEBP = """async (png) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").drawImage(image, 0, 0);
  const blob = await canvas.convertToBlob({type: "image/webp", quality: 0.82});
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def demo(seconds: float) -> Iterator[tuple[str, str]]:
    """A panel with the sandbox on a free port, given `seconds` to gather some history; (URL, password)."""
    port, password = free_port(), secrets.token_urlsafe(12)
    with tempfile.TemporaryDirectory() as data:
        env = {
            **os.environ,
            "TIERKEEPER_DATA_DIR": data,
            "TIERKEEPER_PORT": str(port),
            "TIERKEEPER_ADMIN_PASSWORD": password,
        }
        process = subprocess.Popen([sys.executable, "-m", "app", "demo"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        try:
            wait_for(f"http://127.0.0.1:{port}/readyz", process)
            time.sleep(seconds)
            yield f"http://127.0.0.1:{port}", password
        finally:
            process.terminate()
            process.wait(15)


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"the panel ended with status {process.returncode} before it was ready")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):  # noqa: S310
            return
        time.sleep(0.3)
    raise SystemExit("the panel did not become ready")


@contextlib.contextmanager
def preview() -> Iterator[str]:
    """The pages of the unit tests on a free port, served from a thread."""
    import uvicorn

    sys.path.insert(0, str(ROOT))
    from tests.unit.web.preview import preview_app

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(preview_app(), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(5)


def preview_names() -> list[str]:
    sys.path.insert(0, str(ROOT))
    from tests.unit.web.pages import all_pages

    return list(all_pages())


def resolve(page: Page, base: str, path: str) -> str | None:
    """The address behind a ``first:LIST:PREFIX[:SUFFIX]`` path: the first matching link of the list page."""
    if not path.startswith("first:"):
        return path
    _, where, prefix, *suffix = path.split(":")
    if where.startswith("@"):  # the list is itself a page that has to be found
        found = resolve(page, base, PATHS[where[1:]])
        if found is None:
            return None
        where = found
    page.goto(base + where)
    pattern = re.compile(re.escape(prefix) + r"[^/?#]+$")
    for link in page.locator(f"main a[href*='{prefix}']").all():
        href = (link.get_attribute("href") or "").split("?")[0]
        if pattern.search(href) and not href.endswith("/new"):
            return href + (suffix[0] if suffix else "")
    return None


def sign_in(page: Page, base: str, password: str) -> None:
    page.goto(base + "/login")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", password)
    page.locator("form[action$='/login'] button[type=submit]").first.click()
    page.wait_for_url(re.compile(re.escape(base) + r"/(?!login)"))


def shoot(
    browser: Browser,
    base: str,
    targets: dict[str, str],
    into: Path,
    state: dict[str, object] | None,
    args: argparse.Namespace,
) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for theme in args.themes:
        for size in args.sizes:
            width, height = SIZES[size] if size in SIZES else (int(size), 1000)
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=theme,
                storage_state=state,  # type: ignore[arg-type]
                java_script_enabled=not args.no_script,
                reduced_motion="reduce",
            )
            page = context.new_page()
            problems: list[str] = []
            watch(page, problems)
            for name, path in targets.items():
                problems.clear()
                page.goto(base + path)
                page.wait_for_timeout(args.settle)
                page.screenshot(path=into / f"{name}-{theme}-{size}.png", full_page=True)
                wider = (
                    page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
                    if not args.no_script
                    else False
                )
                if wider:
                    print(f"{name} {theme} {size}: wider than the window")  # noqa: T201
                for problem in problems:
                    print(f"{name} {theme} {size}: {problem}")  # noqa: T201
            context.close()


def docs_pictures(browser: Browser, base: str, targets: dict[str, str], state: dict[str, object] | None) -> None:
    """One light picture of each page that docs/PAGES.md shows, the first window of it."""
    width, height = DOCS_SIZE
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light",
        storage_state=state,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    page, encoder = context.new_page(), context.new_page()
    for name, path in targets.items():
        page.goto(base + path)
        page.wait_for_timeout(600)
        bottom = int(page.evaluate("Math.ceil(document.querySelector('main').getBoundingClientRect().bottom)"))
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, max(bottom + 8, 420))}
        png = base64.b64encode(page.screenshot(clip=clip)).decode()  # type: ignore[arg-type]
        (DOCS / f"{name}.webp").write_bytes(base64.b64decode(encoder.evaluate(TO_WEBP, png)))
    context.close()


def docs_names() -> list[str]:
    """The pictures that docs/PAGES.md shows."""
    return re.findall(r"\(images/([\w-]+)\.webp\)", (ROOT / "docs" / "PAGES.md").read_text("utf-8"))


def watch(page: Page, problems: list[str]) -> None:
    """Collects what the browser complains about."""
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: problems.append(str(e)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url")
    parser.add_argument("--password", default=os.environ.get("TIERKEEPER_ADMIN_PASSWORD"))
    parser.add_argument("--cookie", help="NAME=VALUE of a session")
    parser.add_argument("--preview", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "screenshots")
    parser.add_argument("--only", nargs="*", help="names of pages")
    parser.add_argument("--themes", nargs="*", default=list(THEMES))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), help="wide, narrow or a width in pixels")
    parser.add_argument("--settle", type=int, default=350, help="milliseconds to wait for charts")
    parser.add_argument("--warm-up", type=float, default=45.0, help="seconds of history for the demo")
    parser.add_argument("--docs", action="store_true", help="renew the pictures of docs/PAGES.md")
    parser.add_argument("--no-script", action="store_true", help="with scripts blocked")
    args = parser.parse_args()
    if args.docs:
        args.only = docs_names()
    with contextlib.ExitStack() as stack, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        state: dict[str, object] | None = None
        if args.preview:
            base = stack.enter_context(preview())
            targets = {n: f"/p/{n}" for n in preview_names() if not args.only or n in args.only}
        else:
            base, password = args.base_url, args.password
            if not base:
                base, password = stack.enter_context(demo(args.warm_up))
            base = base.rstrip("/")
            context = browser.new_context()
            page = context.new_page()
            if args.cookie:
                name, _, value = args.cookie.partition("=")
                context.add_cookies([{"name": name, "value": value, "url": base}])
            else:
                if not args.docs:
                    shoot(browser, base, {"login": "/login"}, args.out, None, args)
                sign_in(page, base, password or "")
            targets = {}
            for name, path in PATHS.items():
                if not args.only or name in args.only:
                    found = resolve(page, base, path)
                    if found:
                        targets[name] = found
                    else:
                        print(f"{name}: no such page yet")  # noqa: T201
            state = context.storage_state()  # type: ignore[assignment]
        if args.docs:
            docs_pictures(browser, base, targets, state)
        else:
            shoot(browser, base, targets, args.out, state, args)
        browser.close()
    print(f"pictures in {DOCS if args.docs else args.out}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
