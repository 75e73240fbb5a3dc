"""Sealed data that lies elsewhere: HTTP(S), S3 and whatever else fsspec reaches.

``address`` reads URLs, ``connect`` opens them, ``http`` and ``s3`` are fsspec filesystems with
bounded range requests, ``folder`` reads a sealed folder through any filesystem with patience,
``publish`` writes one. All that comes back is unverified ciphertext: ``sealing`` checks
it as it checks a disk.
"""
