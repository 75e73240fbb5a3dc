#!/bin/sh
# Make an environment in which a backend trains: tools/backends/install.sh NAME [FOLDER]
#
# NAME is unsloth or axolotl; FOLDER is .venv-NAME here when left out. PYTHON chooses the interpreter.
# Their packages ask for other versions of the training stack than sealtrain is tested with, so
# they are installed on top of it, at pinned versions, without what they ask for.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
name=${1:-}
pins=$here/$name.txt
if [ -z "$name" ] || [ ! -f "$pins" ]; then
    echo "usage: tools/backends/install.sh NAME [FOLDER], NAME one of:" >&2
    for one in "$here"/*.txt; do echo "  $(basename "$one" .txt)" >&2; done
    exit 2
fi
folder=${2:-.venv-$name}
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
extras="[broker,quantize,remote,simulator,train,validation]"
if [ -f "$root/pyproject.toml" ]; then
    $pip install -q -c "$root/constraints.txt" -e "$root$extras"
else # installed from a wheel: the same version again
    version=$("${PYTHON:-python3}" -c 'from importlib.metadata import version; print(version("sealtrain"))')
    $pip install -q -c "$root/constraints.txt" "sealtrain$extras==$version"
fi
$pip install -q --no-deps -r "$pins"
# Axolotl imports triton on any machine; torch's build for CPUs brings none.
if [ "$name" = axolotl ] && ! "$folder/bin/python" -c "import triton" 2>/dev/null; then
    $pip install -q --no-deps triton==3.9.0
fi
echo "$folder trains with backend $name: run $folder/bin/sealtrain"
