"""The dashboard: one page for every address that is not the API's, and the files that `webui/` was built into. Plain
Starlette: it is there before the API is built.

The page finds everything by relative links, so that any prefix works. Those of the built index begin at its own folder;
here the way from the requested address to the manager's root is put in front of them, because the security policy
allows no `<base>`. A build that is missing is a fault of the package and reported as such.
"""

import gzip
import mimetypes
import re
from functools import cache
from pathlib import Path

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from proctor.manager.api.groups import Routes
from proctor.manager.errors import NotFound, Unavailable

routes = Routes(tags=["system"])

STATIC = Path(__file__).parents[2] / "static"
ASSETS = "assets"
LEAST_COMPRESSED_BYTES = 1024
_FOREVER = "public, max-age=31536000, immutable"  # their names have their hashes
_PAGES = re.compile("|nodes|log|compare|trials/[^/]+|experiments/[^/]+(?:/[^/]+)?")
"""The addresses of the page (the routes in `webui/src/app.tsx`); at any other it says that there is none."""


_NOT_THE_API = f"(?!(?:api|{ASSETS}|metrics)(?:/|$)).*"
_PAGE_PATH = re.compile(f"/{_NOT_THE_API}")


class _PagePath(Convertor[str]):
    """What is no address of the API: there an unknown one is answered with a problem document."""

    regex = _NOT_THE_API

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", _PagePath())


async def get_dashboard_asset(request: Request) -> Response:
    """A built file. The guard lets it through without a token: it holds nothing of the user's."""
    name = request.path_params["name"]
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


async def get_dashboard(request: Request) -> HTMLResponse:
    """The page, for whatever address in it."""
    path = request.path_params["path"]
    is_known = _PAGES.fullmatch(path.removesuffix("/")) is not None
    return HTMLResponse(index_for(path), status_code=200 if is_known else 404, headers={"Cache-Control": "no-store"})


@routes.get("/saved-page", summary="The dashboard as one file, without data", response_class=HTMLResponse)
async def get_saved_page() -> HTMLResponse:
    """It asks no manager and loads nothing. A client puts the data of an experiment into its element `snapshot`."""
    return HTMLResponse(_read_built("saved.html"))


def is_page(path: str) -> bool:
    """Whether the page is what answers at a path."""
    return _PAGE_PATH.match(path) is not None


PAGE_ROUTES = (
    Route(f"/{ASSETS}/{{name}}", get_dashboard_asset, methods=["GET"]),
    Route("/{path:page}", get_dashboard, methods=["GET"]),
)


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
