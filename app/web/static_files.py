"""Static files with a hash in their address: answered from memory, compressed once, cached for ever.

`StaticFiles(root).url("css/base.css")` is ``/static/css/base.css?v=3f2a91c02b1d``. A request with the right ``v`` is
``immutable``; any other is answered with the file as it is and must be asked again. All files are read at start
(about half a megabyte): the panel serves what it was started with, and no request touches the disk.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_TYPES = {
    ".woff2": "font/woff2",
    ".webp": "image/webp",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".toml": "text/plain",
}
_COMPRESSIBLE = {".css", ".js", ".svg", ".toml", ".json", ".txt"}
_CSS_URL = re.compile(r"""url\((["']?)(?!data:|https?:|#)([^"')?#]+)\1\)""")


@dataclass(frozen=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    packed: bytes | None  # gzip, where it is smaller
    media_type: str
    version: str


class StaticFiles:
    """All files below `root`; an ASGI application to be mounted at `mount`."""

    def __init__(self, root: Path, *, mount: str = "/static", prefix: str = "") -> None:
        self._point = mount
        self._mount = prefix + mount
        self._assets: dict[str, Asset] = {}
        names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        # Style sheets last: they name other files, whose versions become part of their own content.
        for name in sorted(names, key=lambda n: (n.endswith(".css"), n)):
            self._assets[name] = self._load(root, name)

    def url(self, name: str) -> str:
        """The address of a file, with its version. Raises KeyError for a file that is not there."""
        return f"{self._mount}/{name}?v={self._assets[name].version}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every file, relative to the root."""
        return tuple(self._assets)

    def find(self, name: str) -> Asset | None:
        """The file of that name; names are looked up, never joined to a path."""
        return self._assets.get(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"static files cannot answer a {scope['type']} connection")
        await self._answer(Request(scope, receive))(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response("Method Not Allowed", 405, headers={"Allow": "GET, HEAD"})
        # The path may or may not begin with a proxy's prefix: what counts is what follows the mount point.
        asset = self.find(str(request.scope["path"]).partition(f"{self._point}/")[2])
        if asset is None:
            return Response("Not Found", 404, media_type="text/plain")
        etag = f'"{asset.version}"'
        fresh = request.query_params.get("v") == asset.version
        headers = {
            "ETag": etag,
            "Cache-Control": "public, max-age=31536000, immutable" if fresh else "no-cache",
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        body = asset.content
        if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = asset.packed
        return Response(body, headers=headers, media_type=asset.media_type)

    def _load(self, root: Path, name: str) -> Asset:
        content = (root / name).read_bytes()
        suffix = Path(name).suffix
        if suffix == ".css":
            content = self._with_versions(name, content.decode()).encode()
        media_type = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        packed = gzip.compress(content, 9, mtime=0) if suffix in _COMPRESSIBLE else None
        if packed is not None and len(packed) >= len(content):
            packed = None
        return Asset(content, packed, media_type, hashlib.sha256(content).hexdigest()[:12])

    def _with_versions(self, name: str, css: str) -> str:
        folder = posixpath.dirname(name)

        def versioned(match: re.Match[str]) -> str:
            target = posixpath.normpath(posixpath.join(folder, match.group(2)))
            asset = self._assets.get(target)
            return f'url("{match.group(2)}?v={asset.version}")' if asset else match.group(0)

        return _CSS_URL.sub(versioned, css)
