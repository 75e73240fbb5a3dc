"""The Flower app between the guests of a federation: bytes in, the same bytes out.

Runs in Flower's own processes, outside of every guest, and imports nothing of sealtrain: it hands
messages, which are records of attested channels, from one unix socket to another. It needs no
trust; spec/federated-rounds.md §2 has its frames.

``server`` connects to the lead's socket (``relay`` of the run's config), ``client`` to its party's
(``relay`` of the node's config).
"""

import select
import socket
import struct
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

MAX_FRAME = 64 << 20
LENGTH = struct.Struct(">I")
TO_RELAY = struct.Struct(">QII")  # node, number of the message, seconds it may take
FROM_RELAY = struct.Struct(">BI")  # kind, number of the message
NODES, REPLY, LOST = range(3)

_POLL_S = 0.1
_NODES_EVERY_S = 1.0
_AGAIN_S = 3600.0  # for which a lead that ended may be restarted
_RECORD = "sealed"

client = ClientApp()
server = ServerApp()


@client.query()  # type: ignore[untyped-decorator, unused-ignore]
def deliver(message: Message, context: Context) -> Message:
    """Give a message to the party of this node; its answer is the reply, empty if it is gone."""
    record = message.content.config_records[_RECORD]
    data, seconds = record["bytes"], record["seconds"]
    answer = b""
    if isinstance(data, bytes) and isinstance(seconds, int):
        try:
            with socket.socket(socket.AF_UNIX) as party:
                party.settimeout(seconds)
                party.connect(str(context.node_config["relay"]))
                send_frame(party, data)
                answer = receive_frame(party)
        except OSError:
            answer = b""
    return Message(RecordDict({_RECORD: ConfigRecord({"bytes": answer})}), reply_to=message)


@server.main()  # type: ignore[untyped-decorator, unused-ignore]
def carry(grid: Grid, context: Context) -> None:
    """Carry the lead's messages until the run is over; a lead that was restarted is found again."""
    until = time.monotonic()
    while True:
        with socket.socket(socket.AF_UNIX) as lead:
            lead.settimeout(60)
            try:
                lead.connect(str(context.run_config["relay"]))
                if _Carriage(grid, lead).is_over():
                    return
                until = time.monotonic() + _AGAIN_S
            except OSError:
                if time.monotonic() > until:
                    raise
        time.sleep(_NODES_EVERY_S)


class _Carriage:
    """What is on its way, by Flower's id of the message."""

    def __init__(self, grid: Grid, lead: socket.socket) -> None:
        self._grid = grid
        self._lead = lead
        self._waiting: dict[str, tuple[int, float]] = {}

    def is_over(self) -> bool:
        """Carry until the lead hangs up; whether it said that the run is over."""
        looked = 0.0
        while True:
            if time.monotonic() - looked > _NODES_EVERY_S:
                self._tell_nodes()
                looked = time.monotonic()
            if select.select([self._lead], [], [], _POLL_S)[0]:
                try:
                    frame = receive_frame(self._lead)
                except OSError:
                    return False
                if not frame:
                    return True
                self._push(frame)
            self._pull()

    def _tell_nodes(self) -> None:
        nodes = sorted(self._grid.get_node_ids())
        self._tell(NODES, 0, b"".join(node.to_bytes(8, "big") for node in nodes))

    def _push(self, frame: bytes) -> None:
        node, number, seconds = TO_RELAY.unpack_from(frame)
        content = ConfigRecord({"bytes": frame[TO_RELAY.size :], "seconds": seconds})
        message = Message(
            RecordDict({_RECORD: content}),
            dst_node_id=node,
            message_type="query",
            ttl=float(seconds),
        )
        for identity in self._grid.push_messages([message]):
            if identity:
                self._waiting[identity] = (number, time.monotonic() + seconds)
            else:  # the node is gone
                self._tell(LOST, number, b"")

    def _pull(self) -> None:
        for reply in self._grid.pull_messages(list(self._waiting)) if self._waiting else ():
            number, _until = self._waiting.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if number is None:
                continue
            answer = None
            if reply.has_content():
                answer = reply.content.config_records[_RECORD]["bytes"]
            if isinstance(answer, bytes) and answer:
                self._tell(REPLY, number, answer)
            else:
                self._tell(LOST, number, b"")
        for identity, (number, until) in list(self._waiting.items()):
            if time.monotonic() > until:
                del self._waiting[identity]
                self._tell(LOST, number, b"")

    def _tell(self, kind: int, number: int, data: bytes) -> None:
        send_frame(self._lead, FROM_RELAY.pack(kind, number) + data)


def send_frame(sock: socket.socket, data: bytes) -> None:
    """Send bytes behind their length. Raises ``OSError``."""
    sock.sendall(LENGTH.pack(len(data)) + data)


def receive_frame(sock: socket.socket) -> bytes:
    """What was sent by ``send_frame``. Raises ``OSError``, at the end of the stream too."""
    (size,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
    if size > MAX_FRAME:
        raise OSError(f"a frame of {size} bytes")
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError("the stream ended")
        data += part
    return bytes(data)
