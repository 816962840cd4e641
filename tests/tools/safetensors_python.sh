#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/safetensors_python.sh BUILD ST_COPY - our safetensors files against the Python package's, in a private virtual
# environment; says so and succeeds where no package index can be reached.
set -euo pipefail
here=$(dirname "$0")
status=0
python=$("$here/venv.sh" "$1/venv-safetensors" numpy safetensors) || status=$?
[ $status -ne 77 ] || exit 0
[ $status -eq 0 ] || exit $status
exec "$python" "$here/safetensors_python.py" "$2"
