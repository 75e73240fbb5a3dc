"""Records in and out: tables, folders of images and tar files as streams of Arrow record batches.

Every reader streams in bounded memory, infers one schema for all its input before it yields the
first batch, and reports a bad record by position, never by content.
"""
