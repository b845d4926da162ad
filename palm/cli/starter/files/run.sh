#!/usr/bin/env bash
# Check, train, evaluate and predict, with further settings if given: bash run.sh --num_epochs 5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
palm check config.yaml "$@"
palm train config.yaml "$@"
palm evaluate config.yaml "$@"
{predict}
