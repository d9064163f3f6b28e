"""A Hugging Face Hub: its API lists a commit's files, its resolve URLs serve their bytes.

HF_ENDPOINT names another Hub than the public one. HF_TOKEN has the token, or the file that `hf auth login`
writes.
"""

import json
from typing import Any
from urllib.parse import quote

import aiohttp
from huggingface_hub import constants, get_token, hf_hub_url

from millrace_fetch.errors import FetchError, RefusedError, SourceError
from millrace_fetch.plan.manifest import Checksum, Manifest, RemoteFile
from millrace_fetch.plan.uri import HubModel
from millrace_fetch.progress import Say
from millrace_fetch.sources.source import read_small
from millrace_fetch.transfer.client import Client, find_origin

_TOKEN_ADVICE = "put a token that may read it into HF_TOKEN"  # noqa: S105  the advice, not a token


class HubSource:
    """A model's repository on a Hub."""

    certificates = None

    def __init__(self, model: HubModel, endpoint: str | None = None) -> None:
        self._model = model
        self._token = get_token()
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._origin = find_origin(self._endpoint, "HF_ENDPOINT")

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send the token only to the Hub: the hosts of its large files get none."""
        if self._token and request.url.origin() == self._origin:
            # Set here: aiohttp refuses a caller's header if ~/.netrc names the same host.
            request.headers["Authorization"] = f"Bearer {self._token}"
        return await handler(request)

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return the present commit of the revision, and its files.

        It uses our client instead of HfApi, which blocks in a thread that SIGTERM can't end, and makes
        requests that a fetch does not need.
        """
        if constants.HF_HUB_OFFLINE:
            raise SourceError("HF_HUB_OFFLINE is set, so the Hub is not asked: unset it to fetch")
        answer = await read_small(client, RemoteFile("the Hub's answer", self._api_url(), None), say)
        try:
            info = json.loads(answer)
            commit = str(info["sha"])
            return Manifest(commit, tuple(self._announce(file, commit) for file in info["siblings"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"the Hub names no commit and no files of {self._model}") from error

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that explains a Hub's status, and where to put the token."""
        match refusal.code, refusal.status:
            case ("GatedRepo", _) | (_, 403):
                return self._gated()
            case "RevisionNotFound", _:
                return self._no_revision()
            case ("RepoNotFound", _) | ("", 404):
                return self._not_found()
            case _, 401:
                return self._unauthorized()
        return refusal

    def _api_url(self) -> str:
        revision = self._model.revision
        at = f"/revision/{quote(revision, safe='')}" if revision else ""
        return f"{self._endpoint}/api/models/{self._model.repository}{at}?blobs=true"

    def _announce(self, file: dict[str, Any], commit: str) -> RemoteFile:
        name, size = str(file["rfilename"]), file.get("size")
        url = hf_hub_url(self._model.repository, name, revision=commit, endpoint=self._endpoint)
        return RemoteFile(name, url, None if size is None else int(size), _checksum_of(file))

    def _gated(self) -> SourceError:
        repository = self._model.repository
        return SourceError(
            f"{repository} is gated: ask for access at {self._endpoint}/{repository}, then {_TOKEN_ADVICE}"
        )

    def _no_revision(self) -> SourceError:
        repository = self._model.repository
        return SourceError(
            f"{repository} has no revision '{self._model.revision}': write a branch, a tag or a commit "
            f"that is listed at {self._endpoint}/{repository}"
        )

    def _unauthorized(self) -> SourceError:
        if self._token:
            return SourceError(f"the Hub refused the token for {self._model.repository}: {_TOKEN_ADVICE}")
        return SourceError(f"{self._model.repository} is not public: {_TOKEN_ADVICE}")

    def _not_found(self) -> SourceError:
        return SourceError(
            f"{self._endpoint} shows no model {self._model.repository}: check its name; if it is private, "
            f"{_TOKEN_ADVICE}"
        )


def _checksum_of(file: dict[str, Any]) -> Checksum | None:
    if lfs := file.get("lfs"):
        return Checksum("sha256", str(lfs["sha256"]))
    return Checksum("git-sha1", str(file["blobId"])) if file.get("blobId") else None
