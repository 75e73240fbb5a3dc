"""An image with this machine's Python and a program that says what it finds in its container."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import BinaryIO

from programs import found

from sealtrain.image.layer import LayerEntry, write_layer
from sealtrain.image.layout import CONFIG_TYPE, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE, TITLE
from sealtrain.image.own_files import CONFIG

_LEFT_OUT = {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tkinter"}
_LEFT_OUT |= {"dist-packages", "pydoc_data", "turtledemo", "unittest"}
ENDS_WITH = 42

PROGRAM = """
import errno, json, os, signal, socket, sys, time
from pathlib import Path

def tried(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def written(place):
    return tried(lambda: Path(place, "made").write_text("made"))

def asked(path):
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    line.sendall(b"GET /Info HTTP/1.0\\r\\nHost: guest\\r\\n\\r\\n")
    answer = b""
    while part := line.recv(1 << 16):
        answer += part
    return answer.partition(b"\\r\\n\\r\\n")[2].decode()

status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "words": sys.argv[1:],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "ids": [os.getpid(), os.getuid(), os.getgid()],
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "capabilities": [status["CapEff"], status["CapPrm"], status["CapBnd"], status["NoNewPrivs"]],
    "top": sorted(os.listdir("/")),
    "etc": sorted(os.listdir("/etc")),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
    "run": sorted(os.listdir("/run") + os.listdir("/run/sealtrain")),
    "files": {path.name: path.read_text() for path in Path("/run/sealtrain").iterdir()},
    "made": {place: written(place) for place in (
        "/", "/usr", "/etc", "/run", "/run/sealtrain", "/sys", "/proc", "/tmp", "/run-data",
        "/dev/shm")},
    "changed": {place: tried(lambda: open(place, "a").close()) for place in (
        "/run/sealtrain/ticket.json", "/etc/passwd")},
    "mounted": tried(lambda: os.unshare(0x20000)) if hasattr(os, "unshare") else "EPERM",
    "shared": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "guest": asked("/var/run/dstack.sock"),
}), flush=True)
if Path("/run-data/wait").exists():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(120)
sys.exit(42)
"""


def make_toy(layout: Path) -> str:
    """Write the image's OCI layout; returns its digest."""
    python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve()
    files = {str(python): python} | _libraries(python) | _standard_library()
    content: dict[str, tuple[Path | bytes, int]] = {
        name.removeprefix("/"): (path, 0o755 if path.suffix != ".py" else 0o644)
        for name, path in files.items()
    }
    content["usr/local/bin/sealtrain"] = (f"#!{python} -SsE\n{PROGRAM}".encode(), 0o755)
    content["etc/passwd"] = (b"sealtrain:x:65532:65532::/run-data:/nonexistent\n", 0o644)
    links = {"var/run": "/run"}
    folders = {"dev", "proc", "run-data", "run/sealtrain", "sys", "tmp"}
    for name in [*content, *links, *folders]:
        folders |= {str(above) for above in Path(name).parents if str(above) != "."}
    if "lib64" not in folders:
        folders.add("lib64")
    entries = [LayerEntry(name=name, kind="folder", mode=0o755) for name in folders]
    entries += [
        LayerEntry(name=name, kind="link", mode=0o777, target=target)
        for name, target in links.items()
    ]
    for name, (source, mode) in content.items():
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        entries.append(LayerEntry(name=name, kind="file", mode=mode, size=size))

    def opened(entry: LayerEntry) -> BinaryIO:
        source = content[entry.name][0]
        return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")

    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)
    with (blobs / "layer").open("wb") as file:
        diff_id = write_layer(entries, opened, file)
    size = (blobs / "layer").rename(blobs / diff_id).stat().st_size
    layer = {"mediaType": LAYER_TYPE, "digest": f"sha256:{diff_id}", "size": size}
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": dict(CONFIG),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _blob(blobs, CONFIG_TYPE, config),
        "layers": [layer],
        "annotations": {TITLE: "toy"},
    }
    told = _blob(blobs, MANIFEST_TYPE, manifest)
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [told]}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return str(told["digest"])


@cache
def containers_start() -> bool:
    """Whether bubblewrap is there, and this system lets its users make namespaces."""
    programs = found("bubblewrap")
    if programs is None:
        return False
    words = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run([programs["bwrap"], *words], capture_output=True, check=False)
    return done.returncode == 0


def _blob(blobs: Path, kind: str, value: dict[str, object]) -> dict[str, object]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _libraries(program: Path) -> dict[str, Path]:
    """What a program and the modules that ours imports load, by the linker's own words."""
    found = {}
    modules = Path(sysconfig.get_path("platstdlib"), "lib-dynload").glob("_*.so")
    for path in [program, *modules]:
        said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for place in re.findall(r"(/\S+)", said):
            if place.endswith(":") or not Path(place).exists():
                continue
            found[place] = Path(place).resolve()
    return found


def _standard_library() -> dict[str, Path]:
    folder = Path(sysconfig.get_path("stdlib"))
    return {
        str(path): path.resolve()
        for path in folder.rglob("*")
        if path.is_file()
        and not _LEFT_OUT & set(path.relative_to(folder).parts)
        and not path.relative_to(folder).parts[0].startswith("config-")
    }
