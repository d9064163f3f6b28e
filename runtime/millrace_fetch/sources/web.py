"""A folder of a plain web server. HTTP lists no folders, so the source tries a model's usual names.

It requests each name by HEAD. The index names the shards. The revision is a hash over the headers of all
files: it changes with each of them. MILLRACE_HTTP_TOKEN holds the token for a server that demands one.
"""

import os
from collections.abc import Iterable

import aiohttp
from yarl import URL

from millrace_fetch.errors import FetchError, RefusedError, SourceError, UnfitFileError
from millrace_fetch.plan.manifest import Manifest, RemoteFile, hash_state
from millrace_fetch.plan.selection import read_shards
from millrace_fetch.plan.unsafe_names import check_names
from millrace_fetch.plan.uri import WebFolder, redact
from millrace_fetch.progress import Say
from millrace_fetch.sources.source import read_small
from millrace_fetch.transfer.client import Client, find_origin, read_file_bytes, read_validator
from millrace_fetch.transfer.concurrency import run_together
from millrace_fetch.transfer.retry import with_tries
from millrace_fit.files.formats import USUAL_NAMES
from millrace_fit.files.needed import CONFIG, INDEX, SMALL_FILES, TOOL_TEMPLATE, WHOLE

_TOKEN = "MILLRACE_HTTP_TOKEN"  # noqa: S105  the variable, not a token
_ABSENT = (403, 404, 410)
"""Storage without the right to list answers 403 for an absent file."""
_NO_HEAD = (403, 405, 501)
"""Signed addresses are often valid only for GET."""


class WebSource:
    """A model's folder on a web server."""

    certificates = None

    def __init__(self, folder: WebFolder) -> None:
        self._folder = folder
        self._origin = find_origin(folder.base)
        self._has_password = bool(URL(folder.base).password)
        self._token = None if self._has_password else _read_token()

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send the token to the server, and to no host that it redirects to.

        aiohttp itself sends a name and a password in the URL; they take precedence over the token.
        """
        if self._token and request.url.origin() == self._origin:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return await handler(request)

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Request each name that a file of a model may have."""
        config = await self._probe(client, CONFIG, say, is_required=True)
        whole = await self._probe(client, WHOLE, say)
        index = await self._probe(client, INDEX, say)
        shards = await self._list_shards(client, index, say) if index and not whole else []
        others = [name for name in (*SMALL_FILES, TOOL_TEMPLATE, *shards) if name != CONFIG]
        check_names(others)
        found = await self._probe_all(client, others, say)
        if not whole and not {file.name for file in found}.intersection(shards):
            found += await self._probe_all(client, USUAL_NAMES, say)  # so that an error can name the format
        files = tuple(file for file in (config, whole, index, *found) if file)
        return Manifest(hash_state(files), files)

    async def _list_shards(self, client: Client, index: RemoteFile, say: Say) -> list[str]:
        try:
            return sorted(read_shards(await read_small(client, index, say)))
        except UnfitFileError:  # the fetch or the look that reads the file reports it
            return []

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that explains a web server's status."""
        if refusal.status not in (401, 403):
            return refusal
        if self._has_password:
            return SourceError(
                f"{refusal}: the server refuses the name and password of the address; correct them, or leave "
                f"them out to send the token in {_TOKEN}"
            )
        if self._token:
            return SourceError(f"{refusal}: the server refuses the token in {_TOKEN}")
        return SourceError(
            f"{refusal}: the server demands credentials, or the signed address has expired; put a token that "
            f"may read it into {_TOKEN}"
        )

    async def _probe_all(self, client: Client, names: Iterable[str], say: Say) -> list[RemoteFile]:
        """Return the existing files among these names."""
        found = await run_together(self._probe(client, name, say) for name in dict.fromkeys(names))
        return [file for file in found if file]

    async def _probe(
        self, client: Client, name: str, say: Say, *, is_required: bool = False
    ) -> RemoteFile | None:
        url = self._folder.url_of(name)
        try:
            return await with_tries(lambda: self._ask(client, name, url), say)
        except RefusedError as error:
            if error.status in _ABSENT and not (is_required and error.status == 403):
                if is_required:
                    raise SourceError(
                        f"there is no {name} at {self._folder}: write the model's folder"
                    ) from error
                return None
            raise

    async def _ask(self, client: Client, name: str, url: str) -> RemoteFile | None:
        try:
            async with client.request("HEAD", url) as response:
                return _announce(name, url, response)
        except RefusedError as error:
            if error.status not in _NO_HEAD:
                raise
        async with client.request("GET", url, {"Range": "bytes=0-0"}) as response:
            response.close()
            return _announce(name, url, response)


def _read_token() -> str | None:
    """Return the token of the environment, if there is one. Raises SourceError for an invalid one."""
    token = os.environ.get(_TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise SourceError(f"{_TOKEN} holds no token: letters, digits and signs of ASCII in one line")
    return token or None


def _announce(name: str, url: str, response: aiohttp.ClientResponse) -> RemoteFile | None:
    headers = response.headers
    if headers.get("Content-Type", "").startswith("text/html"):
        return None  # a page that says "not found" with status 200
    return RemoteFile(
        name=name,
        url=url,
        size_bytes=read_file_bytes(response, name, 0),
        validator=read_validator(response),
        has_ranges=response.status == 206 or headers.get("Accept-Ranges", "").lower() == "bytes",
        place=redact(url),
    )
