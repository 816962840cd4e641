#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/results.sh SECTION < TEXT - replaces one section of tests/bench/RESULTS.md by TEXT.
#
# A section is what stands between <!-- SECTION --> and <!-- /SECTION -->; the rest of the file stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."

file=tests/bench/RESULTS.md
section=$1
for mark in "$section" "/$section"; do
    if ! grep -qxF "<!-- $mark -->" $file; then
        echo "results.sh: $file has no <!-- $mark -->" >&2
        exit 1
    fi
done
text=$(mktemp)
trap 'rm -f "$text" "$text.new"' EXIT
cat >"$text"
awk -v open="<!-- $section -->" -v close_="<!-- /$section -->" -v text="$text" '
    $0 == close_ { inside = 0 }
    !inside { print }
    $0 == open { inside = 1; print ""; while ((getline line < text) > 0) print line; print "" }
' $file >"$text.new"
cat "$text.new" >$file
