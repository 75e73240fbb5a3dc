"""S3 and its likes as an fsspec filesystem, on boto3: bounded ranges, checksums on writing.

Credentials, region and ``endpoint_url`` come from the places every AWS tool reads
(``AWS_ENDPOINT_URL_S3`` for other stores); without credentials requests are not signed.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.client import Config

from sealtrain.errors import UsageError
from sealtrain.storage.patience import Busy
from sealtrain.storage.rangestore import RangeStore

__all__ = ["S3FileSystem"]

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
PART_BYTES = 64 << 20
_LATER = {
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottlingException",
}


class S3FileSystem(RangeStore):
    """Objects by ``s3://bucket/key``."""

    protocol = "s3"

    def __init__(self) -> None:
        """Find credentials and make a client; nothing is asked of the store yet.

        Raises:
            UsageError: What is configured for AWS, an endpoint or a profile, cannot be used.
        """
        super().__init__()
        try:
            self._client = _client()
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
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
        signed: str = self._client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": "x"}
        )
        parts = urlsplit(signed)
        return f"{parts.scheme}://{parts.netloc}"

    def _range(self, path: str, start: int, end: int) -> bytes:
        bucket, key = _parts(path)
        with _store_errors():
            try:
                answer = self._client.get_object(
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
        """``size`` of an object, as the store claims. Raises as ``cat_file``."""
        bucket, key = _parts(path)
        with _store_errors():
            answer = self._client.head_object(Bucket=bucket, Key=key)
        return {"name": path, "type": "file", "size": int(answer["ContentLength"])}

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Write an object, in parts where it is large; the store checks SHA-256 of each."""
        bucket, key = _parts(rpath)
        with _store_errors():
            self._client.upload_file(
                lpath,
                bucket,
                key,
                ExtraArgs={"ChecksumAlgorithm": "SHA256"},
                Config=TransferConfig(
                    multipart_threshold=PART_BYTES,
                    multipart_chunksize=PART_BYTES,
                    max_concurrency=2,
                ),
            )


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
            if code in _LATER or status >= 500 or status == 429:
                raise Busy(f"S3 {code}") from None
            raise PermissionError(f"S3 {code or status}") from None
        if isinstance(error, botocore.exceptions.NoCredentialsError):
            raise PermissionError("no credentials") from None
        if isinstance(
            error, botocore.exceptions.ReadTimeoutError | botocore.exceptions.ConnectTimeoutError
        ):
            raise TimeoutError("no answer in time") from None
        if isinstance(error, botocore.exceptions.BotoCoreError | ConnectionError):
            raise ConnectionError(type(error).__name__) from None


def _client() -> Any:
    session = boto3.session.Session()
    signature = {} if session.get_credentials() else {"signature_version": UNSIGNED}
    return session.client(
        "s3",
        region_name=session.region_name or "us-east-1",
        config=Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": 1},  # whoever asks is patient
            max_pool_connections=16,
            **signature,
        ),
    )


def _parts(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix("s3://").partition("/")
    return bucket, key
