"""A folder of an S3 bucket, at Amazon or at another endpoint.

Credentials, region and endpoint come from the settings of all AWS tools. Requests without credentials are not
signed, which suffices for a public bucket.
"""

import asyncio
import base64
import re
from functools import partial

import aiohttp

from millrace_fetch.errors import ChangedError, FetchError, RefusedError, SourceError, UnavailableError
from millrace_fetch.plan.manifest import Algorithm, Checksum, Manifest, RemoteFile, hash_state
from millrace_fetch.plan.uri import S3Folder
from millrace_fetch.progress import Say
from millrace_fetch.sources.aws import Bucket, Listed, Page
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.concurrency import call_in_thread
from millrace_fetch.transfer.retry import with_tries

MAX_OBJECTS = 100_000
"""In a folder. No model has more."""
PAGE_SECONDS = 150.0
"""For one page of the list. botocore gives up on a silent server earlier."""
_CHECKSUM_BYTES: dict[Algorithm, int] = {"sha256": 32, "crc64nvme": 8, "crc32c": 4, "crc32": 4}
"""The checksums that a fetch compares, with their lengths. It uses the first one that an object has."""

_CODE = re.compile(r"<Code>(\w+)</Code>")
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_BY_STATUS = {301: "PermanentRedirect", 403: "AccessDenied", 404: "NoSuchKey"}
"""An answer to HEAD has no body, and so no code: these stand in for it."""
_ADVICE = {
    "NoSuchBucket": "there is no such bucket: check its name, and AWS_ENDPOINT_URL if it is not Amazon's",
    "PermanentRedirect": "the bucket is in another region: write that region into AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region: write that region into AWS_REGION",
    "InvalidAccessKeyId": f"the server does not know the access key: check {_KEYS}, and AWS_ENDPOINT_URL",
    "SignatureDoesNotMatch": f"the secret does not belong to the access key: check {_KEYS}",
    "ExpiredToken": "the credentials have expired: get new ones, and AWS_SESSION_TOKEN with them",
    "InvalidToken": "AWS_SESSION_TOKEN does not belong to the access key: get new credentials",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "InvalidObjectState": "it is archived: restore it first",
    "InvalidBucketName": "no bucket can have that name: write s3://bucket/folder",
}


def explain_refusal(refusal: RefusedError, folder: S3Folder, *, has_credentials: bool) -> FetchError:
    """Return an error that explains a refusal of an S3 server."""
    found = _CODE.search(refusal.reason)
    code = refusal.code or (found[1] if found else _BY_STATUS.get(refusal.status, ""))
    if code in ("AccessDenied", "403"):
        return _denied(folder, has_credentials=has_credentials)
    if code == "NoSuchKey":
        return ChangedError(f"{refusal}: an object of {folder} was deleted during the fetch; run it again")
    if advice := _ADVICE.get(code):
        return SourceError(f"{folder}: {advice} ({code})")
    if refusal.status == 404:
        return SourceError(f"{folder}: {refusal}; check AWS_ENDPOINT_URL, and the bucket's name")
    if 300 <= refusal.status < 400:
        return SourceError(f"{folder}: {refusal}: a redirect to no bucket; check AWS_ENDPOINT_URL")
    # The text of a refused listing already contains its code.
    return SourceError(f"{folder}: {refusal} {'' if refusal.code else code}".rstrip())


def _denied(folder: S3Folder, *, has_credentials: bool) -> SourceError:
    if has_credentials:
        return SourceError(
            f"the credentials may not read {folder}: they need s3:ListBucket and s3:GetObject (AccessDenied)"
        )
    return SourceError(
        f"{folder} is not public, and no credentials were found: set {_KEYS}, or give the pod a role "
        "(AccessDenied)"
    )


class S3Source:
    """A model's folder in a bucket."""

    def __init__(self, folder: S3Folder) -> None:
        self._folder = folder
        self._bucket = Bucket(folder.bucket)
        self.certificates = self._bucket.certificates

    async def authorize(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Sign each request at the time of its sending: a long download may need renewed credentials."""
        if request.url.origin() == self._bucket.origin:
            amazon = {name: value for name, value in request.headers.items() if _is_amazons(name)}
            sign = partial(self._bucket.sign, request.method, str(request.url), amazon)
            request.headers.update(await call_in_thread(sign))
        return await handler(request)

    async def resolve(self, client: Client, say: Say) -> Manifest:
        """Return the present objects below the prefix."""
        listed = [item for item in await self._list(say) if not item.key.endswith("/")]
        if not listed:
            raise SourceError(f"there is nothing at {self._folder}: write the folder with config.json")
        files = tuple(self._announce(client, item) for item in listed)
        return Manifest(hash_state(files), files)

    def explain(self, refusal: RefusedError) -> FetchError:
        """Return an error that explains an S3 server's answer."""
        return explain_refusal(refusal, self._folder, has_credentials=self._bucket.has_credentials)

    async def _list(self, say: Say) -> list[Listed]:
        listed: list[Listed] = []
        token: str | None = ""
        while token is not None:
            page = await with_tries(partial(self._ask_page, token), say)
            listed += page.items
            token = page.next_token
            if len(listed) > MAX_OBJECTS:
                raise SourceError(
                    f"{self._folder} has more than {MAX_OBJECTS} objects: write the model's own folder"
                )
        return listed

    async def _ask_page(self, token: str) -> Page:
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                ask = partial(self._bucket.list_page, self._folder.prefix, token)
                return await call_in_thread(ask)
        except TimeoutError as error:
            raise UnavailableError(
                f"{self._bucket.endpoint}: no page of the list within {PAGE_SECONDS:g} s"
            ) from error

    def _announce(self, client: Client, item: Listed) -> RemoteFile:
        """Return an object of the listing. Not all servers list their checksums there."""
        url, name = self._bucket.url_of(item.key), item.key.removeprefix(self._folder.prefix)
        ask = partial(_ask_checksum, client, url)
        return RemoteFile(name, url, item.size_bytes, None, item.etag, ask_checksum=ask)


def _is_amazons(name: str) -> bool:
    return name.lower().startswith("x-amz-")


async def _ask_checksum(client: Client, url: str) -> Checksum | None:
    """Return the object's SHA-256, else a CRC. A composite checksum, of its parts', is not used."""
    try:
        async with client.request("HEAD", url, {"x-amz-checksum-mode": "ENABLED"}) as response:
            headers = response.headers
    except RefusedError:  # an answer to HEAD has no body: the GET of the bytes will have the reason
        return None
    if headers.get("x-amz-checksum-type", "") == "COMPOSITE":
        return None
    for algorithm, num_bytes in _CHECKSUM_BYTES.items():
        if digest := _read_digest(headers.get(f"x-amz-checksum-{algorithm}", ""), num_bytes):
            return Checksum(algorithm, digest.hex())
    return None


def _read_digest(text: str, num_bytes: int) -> bytes | None:
    try:
        digest = base64.b64decode(text, validate=True)
    except ValueError:  # composite: it ends with the number of parts
        return None
    return digest if len(digest) == num_bytes else None
