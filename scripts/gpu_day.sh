#!/usr/bin/env bash
# Tests and benchmarks palm on a GPU that is available for a few minutes: one command, nine minutes, no network.
#
#   scripts/gpu_day.sh FOLDER            versions, tests/gpu in two minutes, benchmarks/gpu.py in the rest
#   scripts/gpu_day.sh FOLDER --quick    the same on any machine, with tiny encoders
#   scripts/gpu_day.sh --wheels          beforehand, with a network: fetch what that machine may lack
#
# PYTHON names the interpreter (python3 by default); palm is used from this folder and not installed. Packages
# that are missing or too old are taken from build/wheels (made by --wheels) and unpacked into FOLDER/packages.
# Results appear in FOLDER while they are measured: versions.txt, tests.txt, report.md, benchmark.txt.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
wheels=build/wheels

if [ "${1:-}" = --wheels ]; then
    exec "$python" -m pip download --no-deps --only-binary=:all: --python-version 3.12 --dest "$wheels" \
        filelock pytest pytest-xdist execnet iniconfig pluggy packaging pygments hypothesis sortedcontainers \
        attrs tqdm safetensors accelerate psutil
fi
if [ $# -lt 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
quick=${2:-}
began=$SECONDS
export PYTHONPATH=$PWD:$folder/packages HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1

"$python" scripts/gpu_day_packages.py "$wheels" "$folder/packages" 2>&1 | tee "$folder/versions.txt"
if [ "${PIPESTATUS[0]}" -ne 0 ]; then
    exit 1
fi
nvidia-smi 2>&1 | tee -a "$folder/versions.txt" | head -15

# The benchmark runs even if a test fails.
cores=$(nproc)
timeout --kill-after=5 120 "$python" -m pytest tests/gpu -q -p no:cacheprovider -n $((cores < 4 ? cores : 4)) --durations=5 2>&1 |
    tee "$folder/tests.txt" | tail -25
tests=${PIPESTATUS[0]}

left=$((540 - (SECONDS - began)))
minutes=$("$python" -c "print($left / 60)")
timeout --kill-after=5 "$left" "$python" benchmarks/gpu.py $quick --minutes "$minutes" --output "$folder/report.md" \
    2>&1 | tee "$folder/benchmark.txt"
benchmark=${PIPESTATUS[0]}

echo "tests/gpu ended with $tests, benchmarks/gpu.py with $benchmark, after $((SECONDS - began)) s" |
    tee -a "$folder/versions.txt"
[ "$tests" -eq 0 ] && [ "$benchmark" -eq 0 ]
