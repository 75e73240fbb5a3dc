"""Sealed data in other places: HTTP(S), S3 and every store that fsspec reaches.

``address`` reads URLs, ``connect`` opens them, ``http`` and ``s3`` are fsspec filesystems with
bounded range requests, ``folder`` reads a sealed folder through any filesystem with retries,
``publish`` writes one. Every answer is unverified ciphertext: ``sealing`` checks
it as it checks a disk.
"""
