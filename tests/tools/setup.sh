#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/tools/setup.sh GROUP... - makes sure that this machine has what a make target needs.
#
# Model: each need is a probe (a command, a pkg-config module, a header) and the Debian package that satisfies it. Needs that
# are met cost a few milliseconds; the packages of the rest are installed in one go with apt-get, after saying so. Where there
# is no apt-get, or no way to become root, it prints what is missing and the exact command, and fails.
#
# Groups: build run test lint fuzz image bench cross (the sanitizers come with the compilers). SETUP=0 skips everything (for machines without root).
set -euo pipefail

[ "${SETUP:-1}" != 0 ] || exit 0

# probe<TAB>package, by group. Probes: cmd:NAME, pc:MODULE, file:GLOB.
needs() {
    case $1 in
    build)
        echo "cmd:${CC:-cc} $(compiler_package)"
        echo "cmd:make make"
        echo "cmd:pkg-config pkg-config"
        echo "file:/usr/include/stdio.h libc6-dev"
        echo "pc:libmicrohttpd libmicrohttpd-dev"
        echo "pc:libcjson libcjson-dev"
        echo "pc:gnutls libgnutls28-dev"
        echo "pc:libseccomp libseccomp-dev"
        ;;
    run)
        echo "cmd:curl curl"
        ;;
    test)
        echo "cmd:curl curl"
        echo "pc:cmocka libcmocka-dev"
        echo "pc:libcurl libcurl4-openssl-dev"
        echo "cmd:openssl openssl"
        echo "cmd:timeout coreutils"
        ;;
    lint)
        echo "cmd:clang-format clang-format"
        echo "cmd:cppcheck cppcheck"
        echo "cmd:clang-tidy clang-tidy"
        echo "cmd:shellcheck shellcheck"
        ;;
    fuzz)
        echo "cmd:clang clang"
        echo "file:/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer* libclang-rt-dev|libclang-rt-14-dev|libclang-rt-19-dev"
        echo "cmd:llvm-symbolizer|llvm-symbolizer-14 llvm"
        ;;
    image)
        engine_works || echo "cmd:buildah buildah"
        echo "cmd:debootstrap debootstrap"
        echo "cmd:curl curl"
        ;;
    bench)
        echo "cmd:wrk wrk"
        echo "cmd:g++ g++"
        echo "cmd:python3 python3"
        echo "file:/usr/lib/python3*/ensurepip python3-venv"
        ;;
    cross)
        echo "cmd:aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu"
        echo "file:/usr/aarch64-linux-gnu/include/stdio.h libc6-dev-arm64-cross"
        echo "cmd:qemu-aarch64|qemu-aarch64-static qemu-user"
        ;;
    *)
        echo "setup.sh: no group called $1" >&2
        return 1
        ;;
    esac
}

compiler_package() {
    case ${CC:-cc} in
    *clang*) echo clang ;;
    *) echo gcc ;;
    esac
}

# A client that is there but reaches no engine is as good as none.
engine_works() {
    docker info >/dev/null 2>&1 || podman info >/dev/null 2>&1 || command -v buildah >/dev/null
}

met() { # PROBE
    local kind=${1%%:*} what=${1#*:} each
    case $kind in
    cmd) for each in ${what//|/ }; do command -v "$each" >/dev/null && return 0; done ;;
    pc) command -v pkg-config >/dev/null && pkg-config --exists "$what" ;;
    file) compgen -G "$what" >/dev/null ;;
    esac
}

# Of "a|b" the first that the package lists know.
pick() {
    local each
    for each in ${1//|/ }; do
        if apt-cache show "$each" >/dev/null 2>&1; then
            echo "$each"
            return
        fi
    done
    echo "${1%%|*}"
}

groups=("$@")
missing=()
for group in "${groups[@]}"; do
    list=$(needs "$group")
    while read -r probe package; do
        [ -n "$probe" ] || continue
        met "$probe" || missing+=("$package")
    done <<<"$list"
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "mhad needs these packages (Debian's names): ${missing[*]}" >&2
    echo "This machine has no apt-get: install their equivalents, then run make again (SETUP=0 skips this check)." >&2
    exit 1
fi

root=()
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "mhad needs: ${missing[*]}. Neither root nor sudo here. As root, run:" >&2
        echo "    apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    root=(sudo)
fi

# The same machine may run several make targets at once: one installs, the others wait.
exec 9>"${TMPDIR:-/tmp}/mhad-setup.$(id -u).lock"
command -v flock >/dev/null && flock 9

echo "mhad: installing missing packages with apt-get: ${missing[*]}" >&2
quiet=(-q -o=Dpkg::Use-Pty=0)
"${root[@]}" apt-get "${quiet[@]}" update >&2
packages=()
for package in "${missing[@]}"; do packages+=("$(pick "$package")"); done
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" install -y --no-install-recommends \
    "${packages[@]}" </dev/null >&2
