#!/usr/bin/env bash
# Runs from any working directory; every setting can be given here: bash run.sh --batch_size 16
exec python "$(dirname "${BASH_SOURCE[0]}")/demo.py" "$@"
