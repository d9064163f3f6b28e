"""A Hugging Face Hub: its API lists a commit's files, its resolve URLs have their bytes.

HF_ENDPOINT names another Hub than the public one. HF_TOKEN has the token, or the file that `hf auth login`
writes.
"""

import asyncio
import ssl

from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from millrace_fetch.client import Client, read_retry_after
from millrace_fetch.errors import FetchError, RefusedError, SourceError, UnavailableError
from millrace_fetch.manifest import Checksum, Manifest, RemoteFile
from millrace_fetch.trying import Say, with_tries
from millrace_fetch.uri import HubModel

_TIMEOUT_SECONDS = 30.0
_TOKEN_ADVICE = "put a token that may read it into HF_TOKEN"  # noqa: S105  the advice, not a token


class HubSource:
    """A model's repository on a Hub."""

    def __init__(self, model: HubModel, endpoint: str | None = None) -> None:
        self._model = model
        self._token = get_token()
        self.origin = (endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def authorization(self) -> str | None:
        """The token, for the Hub alone: the hosts of its large files get none."""
        return f"Bearer {self._token}" if self._token else None

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return the commit that the revision names now, and its files."""
        del client  # the API is asked by the Hub's own library

        async def ask() -> ModelInfo:
            return await asyncio.to_thread(self._ask)

        info = await with_tries(ask, say)
        if not info.sha or info.siblings is None:
            raise SourceError(f"the Hub names no commit and no files of {self._model}")
        commit = info.sha
        return Manifest(commit, tuple(self._announce(sibling, commit) for sibling in info.siblings))

    def explain(self, refusal: RefusedError) -> FetchError:
        """Say what a Hub's status means, and where the token goes."""
        if refusal.code == "GatedRepo" or refusal.status == 403:
            return self._gated()
        if refusal.status == 401:
            return self._unauthorized()
        return refusal

    def _ask(self) -> ModelInfo:
        model = self._model
        api = HfApi(endpoint=self.origin, token=self._token or False, library_name="millrace")
        try:
            return api.model_info(
                model.repository, revision=model.revision, files_metadata=True, timeout=_TIMEOUT_SECONDS
            )
        except GatedRepoError as error:
            raise self._gated() from error
        except RepositoryNotFoundError as error:
            raise self._not_found() from error
        except RevisionNotFoundError as error:
            raise SourceError(
                f"{model.repository} has no revision '{model.revision}': write a branch, a tag or a commit "
                f"that is listed at {self.origin}/{model.repository}"
            ) from error
        except HfHubHTTPError as error:
            raise self._translate(error) from error
        except OfflineModeIsEnabled as error:
            raise SourceError("HF_HUB_OFFLINE is set, so the Hub is not asked: unset it to fetch") from error
        except Exception as error:
            if _is_untrusted(error):
                raise SourceError(
                    f"{self.origin}: its certificate is not trusted; name those to trust in SSL_CERT_FILE"
                ) from error
            # No connection, in the words of whichever HTTP library huggingface_hub uses.
            raise UnavailableError(f"{self.origin} can't be reached ({type(error).__name__})") from error

    def _translate(self, error: HfHubHTTPError) -> FetchError:
        status = error.response.status_code
        message = f"{self.origin} answered {status} when asked for {self._model}"
        if status == 429 or status >= 500:
            return UnavailableError(message, read_retry_after(error.response.headers.get("Retry-After"), 0))
        return self.explain(RefusedError(message, status))

    def _announce(self, sibling: RepoSibling, commit: str) -> RemoteFile:
        url = hf_hub_url(self._model.repository, sibling.rfilename, revision=commit, endpoint=self.origin)
        return RemoteFile(sibling.rfilename, url, sibling.size, _checksum_of(sibling))

    def _gated(self) -> SourceError:
        repository = self._model.repository
        return SourceError(
            f"{repository} is gated: ask for access at {self.origin}/{repository}, then {_TOKEN_ADVICE}"
        )

    def _unauthorized(self) -> SourceError:
        if self._token:
            return SourceError(f"the Hub refused the token for {self._model.repository}: {_TOKEN_ADVICE}")
        return SourceError(f"{self._model.repository} is not public: {_TOKEN_ADVICE}")

    def _not_found(self) -> SourceError:
        return SourceError(
            f"{self.origin} shows no model {self._model.repository}: check its name; if it is private, "
            f"{_TOKEN_ADVICE}"
        )


def _is_untrusted(error: BaseException | None) -> bool:
    while error and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _checksum_of(sibling: RepoSibling) -> Checksum | None:
    if sibling.lfs is not None:
        return Checksum("sha256", sibling.lfs.sha256)
    return Checksum("git-sha1", sibling.blob_id) if sibling.blob_id else None
