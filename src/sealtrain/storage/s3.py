"""S3 and its likes as an fsspec filesystem, on boto3: bounded ranges, checksums on writing.

Credentials, region, ``endpoint_url`` and ``ca_bundle`` come from the places every AWS tool reads
(``AWS_ENDPOINT_URL_S3`` for other stores); without credentials requests are not signed. boto3 makes
and signs requests and parses answers; ``base.http`` exchanges them, for boto3's own client has no
limit for a whole exchange and uses the proxies of the environment.
"""

from __future__ import annotations

import io
import re
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
import botocore.session
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.awsrequest import AWSResponse
from botocore.client import Config

from sealtrain.base.http import Bounds, HttpClient
from sealtrain.errors import UsageError
from sealtrain.storage.errors import StorageRefused
from sealtrain.storage.rangestore import BOUNDS, RangeStore, seconds_for, storage_error
from sealtrain.storage.retry import Busy

PART_BYTES = 64 << 20
_MAX_DOCUMENT_BYTES = 64 << 10
_WRITE_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_LATER = {
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottlingException",
}
_UNKNOWN_CHECKSUM = {
    "InvalidArgument",
    "InvalidRequest",
    "MalformedTrailerError",
    "MethodNotAllowed",
    "NotImplemented",
    "UnsupportedArgument",
    "XNotImplemented",
}
"""Codes of stores that do not know checksums in headers or trailers."""
_OF_CREDENTIALS = {
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}


class S3FileSystem(RangeStore):
    """Objects by ``s3://bucket/key``."""

    protocol = "s3"

    def __init__(self, *, bounds: Bounds = BOUNDS) -> None:
        """Find credentials and make a client; nothing is asked of the store yet.

        Args:
            bounds: Of one exchange; what it carries adds to the total.

        Raises:
            UsageError: What is configured for AWS, an endpoint or a profile, cannot be used.
        """
        super().__init__()
        try:
            session = botocore.session.get_session()
            authorities = session.get_config_variable("ca_bundle")
            self._client = HttpClient(
                bounds,
                failed=storage_error,
                tls=ssl.create_default_context(cafile=authorities) if authorities else True,
            )
            self._store = _store(session, self._client, bounds)
            self._plain = False
        except (botocore.exceptions.BotoCoreError, ValueError, OSError) as error:
            # Its message may quote what was configured.
            raise UsageError(
                "the configuration for S3 cannot be used",
                check="storage",
                got=type(error).__name__,
                expected="AWS_ENDPOINT_URL_S3 as https://host, and a profile that exists",
                hint="see AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_PROFILE and ~/.aws/config",
            ) from None

    def endpoint(self, bucket: str) -> str:
        """URL of the server that will be asked for this bucket."""
        signed: str = self._store.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": "x"}
        )
        parts = urlsplit(signed)
        return f"{parts.scheme}://{parts.netloc}"

    def _range(self, path: str, start: int, end: int) -> bytes:
        bucket, key = _parts(path)
        with _store_errors():
            try:
                answer = self._store.get_object(
                    Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}"
                )
            except botocore.exceptions.ClientError as error:
                if error.response["Error"]["Code"] == "InvalidRange":
                    return b""
                raise
            with answer["Body"] as body:
                data: bytes = body.read(end - start + 1)
        told = str(answer.get("ContentRange", ""))
        if not told.startswith(f"bytes {start}-{start + len(data) - 1}/"):
            raise ConnectionError("the store answers with another range than was asked for")
        return data

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """``size`` and ``mtime`` of an object, as the store claims. Raises as ``cat_file``."""
        bucket, key = _parts(path)
        with _store_errors():
            answer = self._store.head_object(Bucket=bucket, Key=key)
        modified = answer.get("LastModified")
        return {
            "name": path,
            "type": "file",
            "size": int(answer["ContentLength"]),
            "mtime": modified.timestamp() if isinstance(modified, datetime) else None,
        }

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Write an object, in parts where it is large; the store checks SHA-256 of each.

        A store that knows no additional checksums gets none: SHA-256 of each part is in what is
        signed. Readers check every byte by themselves.
        """
        bucket, key = _parts(rpath)
        if not self._plain:
            try:
                self._upload(lpath, bucket, key, {"ChecksumAlgorithm": "SHA256"})
            except boto3.exceptions.S3UploadFailedError as error:
                if not _knows_no_checksum(error.__context__ or error.__cause__):
                    with _store_errors():
                        raise
            else:
                return
        with _store_errors():
            self._upload(lpath, bucket, key, {})
        self._plain = True

    def _upload(self, lpath: str, bucket: str, key: str, checksum: dict[str, str]) -> None:
        self._store.upload_file(
            lpath,
            bucket,
            key,
            ExtraArgs=checksum,
            Config=TransferConfig(
                multipart_threshold=PART_BYTES,
                multipart_chunksize=PART_BYTES,
                max_concurrency=2,
            ),
        )

    def rm_file(self, path: str) -> None:
        """Delete an object. Raises as ``cat_file``."""
        bucket, key = _parts(path)
        with _store_errors():
            self._store.delete_object(Bucket=bucket, Key=key)


class _store_errors:  # noqa: N801  # reads as a statement
    """botocore's errors as Python's own. Names of errors only: a message may quote a credential."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, boto3.exceptions.S3UploadFailedError):
            error = error.__context__ or error.__cause__ or ConnectionError("upload failed")
        if isinstance(error, botocore.exceptions.ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))[:40]
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status == 404 or code in ("NoSuchKey", "NoSuchBucket"):
                raise FileNotFoundError(code) from None
            if status == 501 or code == "NotImplemented":
                raise _refuse(f"S3 {code or status}", "this store cannot do what is needed")
            if code in _LATER or status >= 500 or status == 429:
                raise Busy(f"S3 {code}") from None
            if code == "RequestTimeTooSkewed":
                raise _refuse(f"S3 {code}", "set this machine's clock")
            if status in (401, 403) or code in _OF_CREDENTIALS:
                raise PermissionError(f"S3 {code or status}") from None
            raise _refuse(f"S3 {code or status}", "compare the URL with the store's documentation")
        if isinstance(error, botocore.exceptions.NoCredentialsError):
            raise PermissionError("no credentials") from None
        if isinstance(error, _NEVER_SENT):
            raise _refuse(type(error).__name__, "compare bucket, region and endpoint") from None
        if isinstance(error, botocore.exceptions.BotoCoreError):
            raise ConnectionError(type(error).__name__) from None


_NEVER_SENT = (
    botocore.exceptions.EndpointProviderError,
    botocore.exceptions.InvalidRegionError,
    botocore.exceptions.NoRegionError,
    botocore.exceptions.ParamValidationError,
    botocore.exceptions.UnsupportedS3ConfigurationError,
)
"""Errors of requests that boto3 did not make, and never will."""


def _refuse(got: str, hint: str) -> StorageRefused:
    return StorageRefused(
        "the store refuses this request for good", check="storage", got=got, hint=hint
    )


def _knows_no_checksum(error: BaseException | None) -> bool:
    if not isinstance(error, botocore.exceptions.ClientError):
        return False
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = error.response.get("Error", {}).get("Code", "")
    return status in (400, 405, 501) and (code in _UNKNOWN_CHECKSUM or not code.isalpha())


def _store(session: botocore.session.Session, client: HttpClient, bounds: Bounds) -> Any:
    """A boto3 client whose requests ``client`` exchanges."""
    session = boto3.session.Session(botocore_session=session)
    signature = {} if session.get_credentials() else {"signature_version": UNSIGNED}
    store = session.client(
        "s3",
        region_name=session.region_name or "us-east-1",
        config=Config(
            retries={"total_max_attempts": 1},  # the caller retries
            # Stores of other makers may know no checksum but that of the signature.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": True},
            **signature,
        ),
    )
    # What a handler of this event returns is the answer; nothing is sent beside it.
    store.meta.events.register("before-send.s3", partial(_exchange, client, bounds))
    return store


def _exchange(client: HttpClient, bounds: Bounds, request: Any, **_: Any) -> AWSResponse:
    """The answer to a request of boto3's making."""
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    headers.pop("expect", None)  # the client does not wait before it sends the body
    asked = _RANGE.fullmatch(headers.get("range", ""))
    length = int(asked[2]) + 1 - int(asked[1]) if asked else 0
    sent = headers.get("x-amz-decoded-content-length", headers.get("content-length", "0"))

    def cap(status: int, _headers: Mapping[str, str]) -> int | None:
        if status == 206:
            return length
        return None if asked and status == 200 else _MAX_DOCUMENT_BYTES

    answer = client.ask(
        request.method,
        request.url,
        cap=cap,
        content=_content(request.body),
        headers=headers,
        total=seconds_for(max(length, int(sent)), bounds),
    )
    if 300 <= answer.status < 400:
        # boto3 would ask the bucket for its region, be sent elsewhere again, and so on without end.
        raise UsageError(
            "the store does not serve this bucket itself",
            check="storage",
            got=f"HTTP {answer.status}",
            expected="an answer; redirects are not followed",
            hint="set AWS_DEFAULT_REGION to the bucket's region, or name the store's own endpoint",
        )
    return AWSResponse(request.url, answer.status, dict(answer.headers), _Body(answer.body))


def _content(body: Any) -> Any:
    """The body of a request: bytes, or the blocks of a file."""
    if body is None or isinstance(body, bytes | bytearray | str):
        return body.encode("utf-8") if isinstance(body, str) else body and bytes(body)

    def blocks() -> Iterator[bytes]:
        yield from iter(lambda: body.read(_WRITE_BYTES), b"")

    return blocks


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


class _Body(io.BytesIO):
    """A body as boto3 reads it."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def _parts(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return bucket, key
