"""Released metrics as a TensorBoard event file, made in memory to be sealed beside the model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

_VERSION = "brain.Event:2"


def event_file(history: Iterable[Mapping[str, Any]], started: int) -> tuple[str, bytes]:
    """Name and content of the event file.

    Args:
        history: ``{"step": int, "values": {name: number or None}}`` by rising step; values that
            are not finite are left out, because TensorBoard does not draw them.
        started: Seconds since the epoch. Every event has this time: the release policy allows the
            steps to leave, but not their times.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter, register_writer_factory

    file = io.BytesIO()
    register_writer_factory("memory", _Memory(file))
    writer = RecordWriter("memory://run")
    writer.write(Event(wall_time=started, file_version=_VERSION).SerializeToString())
    for point in history:
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(point["values"].items())
            if value is not None
        ]
        if values:
            event = Event(wall_time=started, step=point["step"], summary=Summary(value=values))
            writer.write(event.SerializeToString())
    return f"events.out.tfevents.{started}.sealtrain", file.getvalue()


class _Memory:
    """A file system that holds this file only."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def open(self, _path: str) -> io.BytesIO:
        return self._file
