"""What the error codes of an S3 server mean, and what to do. Pure."""

import re

from millrace_fetch.errors import ChangedError, FetchError, RefusedError, SourceError
from millrace_fetch.plan.uri import S3Folder

_CODE = re.compile(r"<Code>(\w+)</Code>")
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_BY_STATUS = {301: "PermanentRedirect", 403: "AccessDenied", 404: "NoSuchKey"}
"""An answer to HEAD has no body, and so no code."""
_ADVICE = {
    "NoSuchBucket": "there is no such bucket: check its name, and AWS_ENDPOINT_URL if it is not Amazon's",
    "PermanentRedirect": "the bucket is in another region: write that into AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region: write that into AWS_REGION",
    "InvalidAccessKeyId": f"the server does not know the access key: check {_KEYS}, and AWS_ENDPOINT_URL",
    "SignatureDoesNotMatch": f"the secret is not that of the access key: check {_KEYS}",
    "ExpiredToken": "the credentials have expired: get new ones, and AWS_SESSION_TOKEN with them",
    "InvalidToken": "AWS_SESSION_TOKEN is not that of the access key: get new credentials",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "InvalidObjectState": "it is archived: restore it first",
    "InvalidBucketName": "no bucket can have that name: write s3://bucket/folder",
}


def explain_refusal(refusal: RefusedError, folder: S3Folder, *, has_credentials: bool) -> FetchError:
    """Return an error that says what a refusal means."""
    found = _CODE.search(refusal.reason)
    code = refusal.code or (found[1] if found else _BY_STATUS.get(refusal.status, ""))
    if code in ("AccessDenied", "403"):
        return _denied(folder, has_credentials=has_credentials)
    if code == "NoSuchKey":
        return ChangedError(f"{refusal}: an object of {folder} went away under way; run it again")
    if advice := _ADVICE.get(code):
        return SourceError(f"{folder}: {advice} ({code})")
    if refusal.status == 404:
        return SourceError(f"{folder}: {refusal}; check AWS_ENDPOINT_URL, and the bucket's name")
    if 300 <= refusal.status < 400:
        return SourceError(f"{folder}: {refusal}: a redirect that leads to no bucket; check AWS_ENDPOINT_URL")
    # The text of a refused listing has its code already.
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
