"""The page and its files, and the pictures for link previews.

A link to a run has everything in its fragment, which browsers do not send, so a link preview cannot show the run. For a
preview, the page first uploads a picture that it has drawn, and makes a link that names it. The server stores nothing
but the picture.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException

WEB = Path(__file__).parents[1] / "web"
PNG = b"\x89PNG\r\n\x1a\n"
PLACE = "<!-- preview -->"
TITLE = "unmask: a masked model at work"
ABOUT = "Watch a masked model fill in blanks, in any order: which token comes when, and how sure the model was."


class Pictures:
    """The latest pictures, by name; the oldest are dropped when they exceed ``most`` bytes."""

    def __init__(self, most: int = 2**26) -> None:
        self.most, self._kept = most, OrderedDict[str, bytes]()

    def keep(self, picture: bytes) -> str:
        """The name of a picture; equal pictures have equal names."""
        if not picture.startswith(PNG):
            raise HTTPException(400, "a picture must be a PNG")
        name = hashlib.sha256(picture).hexdigest()[:24]
        self._kept[name] = picture
        self._kept.move_to_end(name)
        while sum(map(len, self._kept.values())) > self.most:
            self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> bytes | None:
        return self._kept.get(name)


def preview(address: str, name: str | None) -> str:
    """The preview for the head of the page: a stored picture, or else the default one."""
    picture = f"{address}web/preview.png" if name is None else f"{address}pictures/{name}.png"
    properties = {"og:type": "website", "og:title": TITLE, "og:description": ABOUT, "og:image": picture}
    properties |= {"og:image:width": "1200", "og:image:height": "630"}
    tags = [f'<meta property="{key}" content="{escape(value)}">' for key, value in properties.items()]
    return "\n  ".join([*tags, '<meta name="twitter:card" content="summary_large_image">'])


def add_page(app: FastAPI, pictures: Pictures | None = None) -> None:
    kept = pictures or Pictures()

    @app.get("/", include_in_schema=False)
    async def page(request: Request, picture: str | None = None) -> Response:
        known = picture if picture is not None and kept.get(picture) is not None else None
        content = (WEB / "index.html").read_text(encoding="utf-8")
        # The page is the same for all, but previews must not be cached: pictures come and go.
        head = {"Cache-Control": "no-cache"}
        return HTMLResponse(content.replace(PLACE, preview(str(request.base_url), known)), headers=head)

    @app.get("/web/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in {path.name for path in WEB.iterdir() if path.is_file()}:
            raise HTTPException(404, f"the page has no part {name!r}")
        return FileResponse(WEB / name)

    @app.post("/pictures", include_in_schema=False)
    async def keep(request: Request) -> dict[str, Any]:
        return {"id": kept.keep(await request.body())}

    @app.get("/pictures/{name}.png", include_in_schema=False)
    async def picture(name: str) -> Response:
        image = kept.get(name)
        if image is None:
            raise HTTPException(404, "this picture is no longer stored")
        return Response(image, media_type="image/png", headers={"Cache-Control": "public, max-age=86400"})
