#!/usr/bin/env bash
# What a machine with an NVIDIA GPU says of sealed training, in one call of at most nine minutes.
#
#   tools/gpu_check.sh OUT
#
# Each part writes OUT/PART.json when it ended, and a part that ended is not run again: call it once
# more after a cut or a fault, with the same OUT. OUT/gpu_check.json joins them.
#
#   PYTHON   interpreter with PyTorch for CUDA and the training libraries (python3)
#   SECONDS_ALLOWED   of the whole call (530)
#   PARTS    which, in this order (all): machine border bits ratio delivery ranks pads travelling
#
# Without a GPU every part runs as its twin on the processor, small and slow: it tries the script.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: tools/gpu_check.sh OUT}
python=${PYTHON:-python3}
allowed=${SECONDS_ALLOWED:-530}
parts=${PARTS:-machine border bits ratio delivery ranks pads travelling}
mkdir -p "$out"
export PYTHONPATH=src:packages/sealtrain-nodes:packages/sealtrain-rehearsal:packages/sealtrain-together:benchmarks${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
began=$SECONDS

gpus() { "$python" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0; }

# part NAME MOST_SECONDS COMMAND...
part() {
  local name=$1 most=$2 left status started
  shift 2
  case " $parts " in *" $name "*) ;; *) return 0 ;; esac
  if [ -s "$out/$name.json" ]; then
    echo "$name: ended before" >&2
    return 0
  fi
  left=$((allowed - (SECONDS - began)))
  if [ "$left" -lt 20 ]; then
    echo "$name: no time left; call again with the same folder" >&2
    return 0
  fi
  [ "$left" -lt "$most" ] && most=$left
  echo "$name: at most $most s" >&2
  started=$SECONDS
  timeout -k 5 "$most" "$@" >"$out/$name.out" 2>"$out/$name.err" </dev/null
  status=$?
  "$python" - "$out" "$name" "$status" "$((SECONDS - started))" <<'PY'
import json, sys
from pathlib import Path

folder, name, status, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
said = (folder / f"{name}.out").read_text("utf-8", "replace")
try:
    answer = json.loads(said)
except ValueError:
    answer = said.splitlines()[-12:]
found = {"part": name, "exit": status, "seconds": seconds, "answer": answer}
if status:
    found["errors"] = (folder / f"{name}.err").read_text("utf-8", "replace").splitlines()[-20:]
ended = folder / (f"{name}.json" if status == 0 else f"{name}.failed.json")
ended.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
if status == 0:
    (folder / f"{name}.failed.json").unlink(missing_ok=True)
print(f"{name}: exit {status} after {seconds} s", file=sys.stderr)
PY
}

here=$(gpus)
device=cpu
[ "$here" -gt 0 ] && device=cuda

part machine 40 "$python" -c '
import json
from measured_on import machine
import torch
names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
print(json.dumps({**machine("torch", "transformers", "trl", "peft", "bitsandbytes"),
                  "cuda": torch.version.cuda, "gpus": names}))'
# The closed border beside a driver, and kernels whose bits are told (C283, C284).
part border 60 "$python" -m pytest -q -p no:cacheprovider -m gpu \
  tests/attack/test_border_kernel.py tests/unit/training/checkpoints/test_training_kernels.py \
  tests/unit/collab/pads/test_pads_field.py tests/unit/collab/nodes/test_wire_gpu.py
# The bits of two runs, and of one that was cut and resumed.
part bits 100 "$python" -m pytest -q -p no:cacheprovider -m "" \
  tests/equivalence/test_training_exact.py tests/equivalence/test_bitsandbytes_exact.py
# Tokens a second, waiting, checkpoints and memory, sealed beside plain: LoRA, QLoRA, all weights.
part ratio 220 "$python" benchmarks/gpu.py --rounds 2 --ranks 1 --json
# Memory that the delivery of a model takes beside it, on the machine and on the GPU.
part delivery 40 "$python" benchmarks/delivery.py --json
if [ "$here" -gt 1 ] || [ "$device" = cpu ]; then
  part ranks 90 "$python" benchmarks/gpu.py --rounds 1 --ways lora --ranks 2 --json
fi
part pads 60 "$python" benchmarks/split.py --device "$device" --rounds 1 --hidden 1024 \
  --ways inside pads dealer --json
part travelling 60 "$python" benchmarks/travelling.py --part "$([ $device = cuda ] && echo gpu || echo real)" --row 0 --json

"$python" - "$out" <<'PY'
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
found = {}
for path in sorted(folder.glob("*.json")):
    if path.name != "gpu_check.json":
        found[path.name.removesuffix(".json")] = json.loads(path.read_text("utf-8"))
(folder / "gpu_check.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
print(json.dumps({name: part["exit"] for name, part in found.items()}))
PY
ls "$out"/*.failed.json >/dev/null 2>&1 && exit 1
exit 0
