#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# docker/rootfs.sh BINARY ROOT - lays out the file system of the image: the stripped binary, the shared libraries and the loader it
# names, the copyright files of the packages these come from, an account for the non-root user. Nothing else.
set -euo pipefail

binary=$1 root=$2
install -D -m 755 "$binary" "$root/usr/bin/mhad"
strip "$root/usr/bin/mhad"

# "libfoo.so.1 => /lib/.../libfoo.so.1 (0x...)" and "/lib64/ld-linux-x86-64.so.2 (0x...)"
ldd "$binary" | sed -nE 's/.*=> (\/[^ ]+) .*/\1/p; s/^[[:space:]]*(\/[^ ]+) .*/\1/p' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
    package=$(dpkg -S "$(realpath "$library")" 2>/dev/null | head -n 1 | cut -d: -f1) || package=
    [ -n "$package" ] || package=$(dpkg -S "*/$(basename "$library")" 2>/dev/null | head -n 1 | cut -d: -f1) || package=
    if [ -n "$package" ] && [ -e "/usr/share/doc/$package/copyright" ]; then
        mkdir -p "$root/usr/share/doc/$package"
        cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
    fi
done
install -D -m 644 LICENSE "$root/usr/share/doc/mhad/copyright"
mkdir -p "$root/etc"
echo 'mhad:x:65532:65532:mhad:/:/nonexistent' >"$root/etc/passwd"
echo 'mhad:x:65532:' >"$root/etc/group"
