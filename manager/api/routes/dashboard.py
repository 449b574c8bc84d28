"""The dashboard: one page for every address that is not the API's, and the files that `webui/` was built into.

The page finds everything by relative links, so that any prefix works. Those of the built index begin at its own folder;
here the way from the requested address to the manager's root is put in front of them, because the security policy
allows no `<base>`. A build that is missing is a fault of the package and reported as such.
"""

import gzip
import mimetypes
import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.convertors import Convertor, register_url_convertor

from proctor.manager.errors import NotFound, Unavailable

router = APIRouter(include_in_schema=False)
api_router = APIRouter(tags=["system"])

STATIC = Path(__file__).parents[2] / "static"
ASSETS = "assets"
LEAST_COMPRESSED_BYTES = 1024
_FOREVER = "public, max-age=31536000, immutable"  # their names have their hashes
_PAGES = re.compile("|nodes|log|compare|trials/[^/]+|experiments/[^/]+(?:/[^/]+)?")
"""The addresses of the page (the routes in `webui/src/app.tsx`); at any other it says that there is none."""


class _PagePath(Convertor[str]):
    """What is no address of the API: there an unknown one is answered with a problem document."""

    regex = f"(?!(?:api|{ASSETS}|metrics)(?:/|$)).*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", _PagePath())


@router.api_route("/" + ASSETS + "/{name}", methods=["GET", "HEAD"])
async def get_dashboard_asset(request: Request, name: str) -> Response:
    """A built file. The guard lets it through without a token: it holds nothing of the user's."""
    found = _assets().get(name)
    if found is None:
        raise NotFound(f"there is no asset {name}; the page was built anew: reload it")
    plain, compressed = found
    takes_gzip = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if compressed is None or not takes_gzip:
        return Response(plain, media_type=media_type, headers=headers)
    return Response(compressed, media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})


@router.api_route("/{path:page}", methods=["GET", "HEAD"])
async def get_dashboard(path: str) -> HTMLResponse:
    """The page, for whatever address in it."""
    is_known = _PAGES.fullmatch(path.removesuffix("/")) is not None
    return HTMLResponse(index_for(path), status_code=200 if is_known else 404, headers={"Cache-Control": "no-store"})


@api_router.get("/saved-page", summary="The dashboard as one file, without data", response_class=HTMLResponse)
async def get_saved_page() -> HTMLResponse:
    """It asks no manager and loads nothing. A client puts the data of an experiment into its element `snapshot`."""
    return HTMLResponse(_read_built("saved.html"))


def index_for(path: str) -> str:
    """The index whose links are relative to `path`, which is below the manager's root."""
    return read_index().replace('="./', f'="{"../" * path.count("/") or "./"}')


@cache
def read_index() -> str:
    """The index as it was built: its links begin with `./`."""
    return _read_built("index.html")


def _read_built(name: str) -> str:
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Unavailable(f"the page is not built: {STATIC} has no {name}; run `make webui` in a checkout") from error


@cache
def _assets() -> dict[str, tuple[bytes, bytes | None]]:
    """Every built file by name, as it is and compressed where that is worth it."""
    found: dict[str, tuple[bytes, bytes | None]] = {}
    for path in (STATIC / ASSETS).glob("*"):
        data = path.read_bytes()
        found[path.name] = data, gzip.compress(data, mtime=0) if len(data) >= LEAST_COMPRESSED_BYTES else None
    return found
