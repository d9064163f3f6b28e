"""AWS through botocore: credentials, region, endpoint, addresses and signatures.

Every call may block, so callers use a thread.
"""

import os
import re
from time import time
from typing import Any, NamedTuple

import botocore.session
from botocore import UNSIGNED, exceptions
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.parsers import ResponseParserError

from millrace_fetch.errors import FetchError, RefusedError, SourceError, UnavailableError
from millrace_fetch.transfer.client import (
    ADVICE,
    UNREACHABLE,
    WANTS_PASSWORD,
    explain_proxy,
    find_origin,
    read_retry_after,
)
from millrace_fetch.transfer.retry import is_busy

_DEFAULT_REGION = "us-east-1"
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_CONNECT_SECONDS = 15
_READ_SECONDS = 60
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_BUSY = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "InternalError")


class Listed(NamedTuple):
    """An object in a listing."""

    key: str
    size_bytes: int
    etag: str


class Page(NamedTuple):
    """One page of a listing, of at most 1000 objects."""

    items: list[Listed]
    next_token: str | None
    """The continuation token of the next page; None after the last."""


class Bucket:
    """A bucket, reached with the credentials of the environment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.certificates = os.environ.get("AWS_CA_BUNDLE") or None
        try:
            self._session = botocore.session.Session()
            self._credentials = self._session.get_credentials()
            region = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
            self._connect(region or _DEFAULT_REGION)
        except (exceptions.BotoCoreError, ValueError) as error:
            _check_endpoints()
            raise _translate_library(error, "AWS") from error

    @property
    def has_credentials(self) -> bool:
        """Whether the environment has credentials. Without them, requests are not signed."""
        return self._credentials is not None

    def list_page(self, prefix: str, token: str) -> Page:
        """Return a page of the objects below a prefix. Raises RefusedError, SourceError, UnavailableError."""
        more = {"ContinuationToken": token} if token else {}
        try:
            answer = self._client.list_objects_v2(Bucket=self._name, Prefix=prefix, **more)
        except exceptions.ClientError as error:
            raise _translate_answer(error, self.endpoint) from error
        except (exceptions.BotoCoreError, ResponseParserError, RecursionError) as error:
            raise _translate_library(error, self.endpoint) from error
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        self._follow(headers.get("x-amz-bucket-region"))
        items = [Listed(item["Key"], item["Size"], item["ETag"]) for item in answer.get("Contents", ())]
        return Page(items, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None)

    def url_of(self, key: str) -> str:
        """Return the address of an object, without a signature."""
        arguments = {"Bucket": self._name, "Key": key}
        url: str = self._addresses.generate_presigned_url("get_object", Params=arguments)
        return url

    def sign(self, method: str, url: str, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers with a signature of the present time. Expired credentials are renewed."""
        if self._credentials is None:
            return headers
        request = AWSRequest(method=method, url=url, headers=headers)
        try:
            frozen = self._credentials.get_frozen_credentials()
        except exceptions.ClientError as error:
            raise _translate_answer(error, "STS") from error
        except exceptions.BotoCoreError as error:
            raise _translate_library(error, "STS") from error
        S3SigV4Auth(frozen, "s3", self._region).add_auth(request)
        return dict(request.headers.items())

    def _connect(self, region: str) -> None:
        self._region = region
        self._client = self._make_client(None if self.has_credentials else UNSIGNED, {})
        self.endpoint: str = self._client.meta.endpoint_url
        # An unsigned client presigns the plain address, by all of botocore's rules for addresses.
        self._addresses = self._make_client(UNSIGNED, self._choose_style())
        self.origin = find_origin(self.url_of("config.json"), _ENDPOINTS[0])
        """The host of the bucket, in either addressing style."""

    def _choose_style(self) -> dict[str, str]:
        """Choose the style for Amazon: without one, botocore presigns for its global endpoint."""
        has_style = "addressing_style" in (self._client.meta.config.s3 or {})
        return {} if has_style or not self._is_amazons else {"addressing_style": "virtual"}

    @property
    def _is_amazons(self) -> bool:
        return self.endpoint.endswith(_AMAZON)

    def _make_client(self, signature: Any, style: dict[str, str]) -> Any:
        # One attempt: our own retries are shown to the user.
        config = Config(
            signature_version=signature,
            s3=style,
            retries={"total_max_attempts": 1},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            user_agent="millrace-fetch",
        )
        trusted = self.certificates or os.environ.get("SSL_CERT_FILE") or None
        return self._session.create_client("s3", region_name=self._region, config=config, verify=trusted)

    def _follow(self, region: str | None) -> None:
        """Continue in the bucket's own region, as botocore does by itself."""
        if region and region != self._region and self._is_amazons:
            self._connect(region)


def _check_endpoints() -> None:
    """Raise UsageError for a variable without a valid address. botocore does not name the wrong setting."""
    for name in _ENDPOINTS:
        if address := os.environ.get(name):
            find_origin(address, name)


def _translate_answer(error: exceptions.ClientError, place: str) -> FetchError:
    answer = error.response
    is_of_role = error.operation_name.startswith("AssumeRole")
    if is_of_role:  # botocore assumes the role in the first call that needs credentials
        place = "STS"
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == WANTS_PASSWORD:
        return explain_proxy(place, status)
    code = str(answer.get("Error", {}).get("Code", ""))
    # botocore uses the status as the code of an answer without one.
    message = f"{place} answered {status}" + (f" {code}" if code and not code.isdecimal() else "")
    if is_busy(status) or code in _BUSY:
        after = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after")
        return UnavailableError(message, read_retry_after(after, time()))
    if is_of_role and status < 500:
        return SourceError(
            f"AWS refuses the role in AWS_ROLE_ARN to this pod ({code}): check the role's trust policy, and "
            "the token in AWS_WEB_IDENTITY_TOKEN_FILE"
        )
    return RefusedError(message, status, code)


def _translate_library(error: Exception, place: str) -> FetchError:
    """Return the error of a request without an answer. botocore's texts may hold secrets: none is used."""
    match error:
        case exceptions.SSLError():
            return SourceError(f"{place}: its certificate is not trusted; {ADVICE}")
        case ResponseParserError():
            return SourceError(f"{place} does not answer like S3: check AWS_ENDPOINT_URL")
        case RecursionError():  # botocore repeats a request for ever after a 301 that names no region
            return SourceError(f"{place}: the bucket is in another region: write that region into AWS_REGION")
        case exceptions.ParamValidationError():
            return SourceError(f"{place} can't have a bucket of that name: write s3://bucket/folder")
        case exceptions.ConnectionError() | exceptions.HTTPClientError():
            return _translate_connection(error, place)
    kind = type(error).__name__
    return SourceError(
        f"the AWS settings of the environment can't be used ({kind}): check the AWS_… variables"
    )


def _translate_connection(error: exceptions.BotoCoreError, place: str) -> FetchError:
    """Return the error of a failed connection. Only the text of the inner error has a proxy's status."""
    if not isinstance(error, exceptions.ProxyConnectionError):
        return UnavailableError(f"{place} can't be reached ({type(error).__name__})")
    refused = re.search(r"Tunnel connection failed: (\d{3})", str(error.kwargs.get("error")))
    return explain_proxy(place, int(refused[1])) if refused else UnavailableError(f"{place}: {UNREACHABLE}")
