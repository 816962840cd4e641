# SPDX-License-Identifier: Apache-2.0
#
# tests/bench/table.awk - one Markdown table, columns aligned, of the rows that the benchmark programs print (support/rows.h).
# Lines of other forms are theirs who wrote them: the table of bench_number and that of start are taken over too.
BEGIN {
    FS = "\t"
    n = 1
    split("what|ours|yardstick|ratio|target||note", head, "|")
    for (c = 1; c <= 7; c++) cell[1, c] = head[c]
}
function put(what, ours, yardstick, ratio, target, verdict, note) {
    n++
    cell[n, 1] = what; cell[n, 2] = ours; cell[n, 3] = yardstick; cell[n, 4] = ratio
    cell[n, 5] = target; cell[n, 6] = verdict; cell[n, 7] = note
    if (verdict == "met") met++
    if (verdict == "NOT met") missed++
}
function trim(s) { gsub(/^ +| +$/, "", s); return s }
$1 == "row" { put(($2 == "peers" ? "peer: " : "") $3, $4, $5, $6, $7, $8, $9); next }
$1 == "remark" { remarks = remarks "\n" $2; next }
# bench_number: "read float64   17 digits in [0,1)     10.76    14.31    0.75   met", ns a number
/^(read|write) float(32|64) / {
    what = trim(substr($0, 1, 14)) ", " trim(substr($0, 16, 19))
    split(trim(substr($0, 36)), f, / +/)
    reading = $0 ~ /^read/
    put("JSON numbers, " what, f[1] " ns", (reading ? "std::from_chars " : "std::to_chars ") f[2] " ns", f[3] "x",
        f[4] == "" ? "" : reading ? "<= 0.8x" : "<= 0.9x", f[4] == "met" ? "met" : f[4] == "" ? "" : "NOT met", "")
    next
}
# start: "| start to ready, median of 30 |     5.10 ms  |     20 ms  | met |"
/^\| .* \|$/ && !/^\| start and idle/ {
    split($0, f, "|")
    judged = f[2] !~ /fastest|slowest|after one/ # the target is the median's, and idle memory's
    put(trim(f[2]), trim(f[3]), "", "", judged ? "<= " trim(f[4]) : "", judged ? trim(f[5]) : "", "")
    next
}
END {
    for (r = 1; r <= n; r++)
        for (c = 1; c <= 7; c++)
            if (length(cell[r, c]) > width[c]) width[c] = length(cell[r, c])
    for (r = 1; r <= n; r++) {
        line = "|"
        for (c = 1; c <= 7; c++) line = line sprintf(" %-" width[c] "s |", cell[r, c])
        print line
        if (r > 1) continue
        line = "|"
        for (c = 1; c <= 7; c++) { dash = sprintf("%" (width[c] + 2) "s", ""); gsub(/ /, "-", dash); line = line dash "|" }
        print line
    }
    printf "\n%d targets met, %d not met.\n", met, missed
    if (remarks != "") print remarks
}
