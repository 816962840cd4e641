#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/bench_layers.sh BUILD PROGRAM - the bench of resident layers beside FastAPI + orjson + NumPy in a private virtual
# environment; without them where no package index can be reached (it says so).
set -euo pipefail
here=$(dirname "$0")
status=0
python=$("$here/venv.sh" "$1/venv-fastapi" fastapi uvicorn uvloop httptools orjson numpy safetensors) || status=$?
[ $status -eq 0 ] || [ $status -eq 77 ] || exit $status
[ $status -eq 77 ] || export BENCH_PEER_PYTHON=$python
exec "$2"
