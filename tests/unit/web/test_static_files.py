"""Static files: hashed addresses, caching, compression, and no way out of the folder."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from app.paths import STATIC
from app.web.static_files import StaticFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "css").mkdir()
    (tmp_path / "font.woff2").write_bytes(b"\x00font")
    (tmp_path / "css" / "a.css").write_text('@font-face{src:url("../font.woff2")} .a{color:red}' + " " * 500)
    (tmp_path.parent / "secret.txt").write_text("secret")
    return tmp_path


def client(static: StaticFiles, root_path: str = "") -> httpx.AsyncClient:
    app = Starlette(routes=[Mount("/static", static)])
    transport = httpx.ASGITransport(app=app, root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url="http://panel")


async def test_a_versioned_address_is_kept_for_ever(folder: Path) -> None:
    static = StaticFiles(folder)
    async with client(static) as http:
        answer = await http.get(static.url("css/a.css"))
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"].startswith("text/css")
        stale = await http.get("/static/css/a.css?v=000000000000")
        assert stale.headers["cache-control"] == "no-cache"
        again = await http.get("/static/css/a.css", headers={"If-None-Match": stale.headers["etag"]})
        assert again.status_code == 304
        assert again.content == b""


async def test_compression_is_asked_for_and_gives_the_same_bytes(folder: Path) -> None:
    static = StaticFiles(folder)
    asset = static.find("css/a.css")
    assert asset is not None
    async with client(static) as http:
        packed = await http.get(static.url("css/a.css"), headers={"Accept-Encoding": "gzip"})
        plain = await http.get(static.url("css/a.css"), headers={"Accept-Encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content == asset.content
        font = await http.get(static.url("font.woff2"))
        assert font.headers["content-type"] == "font/woff2"
        assert "content-encoding" not in font.headers
    assert asset.packed is not None
    assert gzip.decompress(asset.packed) == asset.content


def test_style_sheets_name_versioned_files_and_change_with_them(folder: Path) -> None:
    before = StaticFiles(folder)
    font, css = before.find("font.woff2"), before.find("css/a.css")
    assert font is not None
    assert css is not None
    assert f'url("../font.woff2?v={font.version}")'.encode() in css.content
    (folder / "font.woff2").write_bytes(b"\x00another")
    assert StaticFiles(folder).url("css/a.css") != before.url("css/a.css")


@pytest.mark.parametrize(
    "path", ["/static/../secret.txt", "/static/%2e%2e/secret.txt", "/static//etc/passwd", "/static/", "/static/css"]
)
async def test_only_known_names_are_answered(folder: Path, path: str) -> None:
    async with client(StaticFiles(folder)) as http:
        assert (await http.get(path)).status_code == 404


async def test_only_reading(folder: Path) -> None:
    static = StaticFiles(folder)
    async with client(static) as http:
        assert (await http.post(static.url("css/a.css"))).status_code == 405
        head = await http.head(static.url("css/a.css"))
        assert head.status_code == 200


async def test_behind_a_prefix(folder: Path) -> None:
    static = StaticFiles(folder, prefix="/tierkeeper")
    assert static.url("css/a.css").startswith("/tierkeeper/static/css/a.css?v=")
    async with client(static, "/tierkeeper") as http:
        assert (await http.get("/static/css/a.css")).status_code == 200


def test_a_first_visit_stays_small() -> None:
    """Compressed: what every page loads, icons and text font included. Charts and the code font come on top."""
    static = StaticFiles(STATIC)
    sheets = [
        f"css/{name}.css"
        for name in ("tokens", "base", "shell", "components", "states", "controls", "tables", "pictures")
    ]
    names = [*sheets, "js/app.js", "vendor/htmx/htmx.min.js", "vendor/lucide/icons.svg", "favicon.svg"]
    names.append("vendor/inter/inter-latin-wght-normal.woff2")
    total = sum(len(asset.packed or asset.content) for n in names if (asset := static.find(n)))
    assert total < 100_000
    # Uncompressed: a sheet that grows past this holds something that only one page needs (`{% block styles %}`).
    assert sum(len((STATIC / n).read_bytes()) for n in sheets) < 51_000
