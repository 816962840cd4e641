#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/venv.sh DIR PACKAGE... - a private Python virtual environment in DIR with these packages; prints the path of its
# python. Exit status 77 and one line on stderr when there is no Python or no package index can be reached: callers then skip.
set -euo pipefail

dir=$1
shift
stamp="$dir/.packages"
if [ -x "$dir/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$*" ]; then
    echo "$dir/bin/python"
    exit 0
fi
skip() {
    echo "skipped: $1" >&2
    exit 77
}
command -v python3 >/dev/null || skip "no python3 here"
mkdir -p "$(dirname "$dir")"
python3 -m venv "$dir" >"$dir.log" 2>&1 || skip "python3 cannot make a virtual environment (Debian: python3-venv)"
"$dir/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 "$@" >>"$dir.log" 2>&1 ||
    skip "no package index gives $* (see $dir.log)"
echo "$*" >"$stamp"
echo "$dir/bin/python"
