#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# docker/image.sh COMMAND, where COMMAND is
#   build             makes the image
#   test              runs it as it would be run, and asks it for the worked example
#   run [FLAG...]     in the foreground; of docker's flags only -p is looked at, and the port is on 127.0.0.1
#   suite [RELEASE]   `make test` on a bare Debian (trixie, or another) on which there is nothing but make
#
# Engine: docker, podman or buildah, the first that is there and works (a docker client without a daemon does not). Base: the
# registry's debian:trixie-slim, or, where no registry answers, the same thing made with debootstrap (needs root) and imported as
# localhost/mhad-base:trixie; the Dockerfile is built for real either way. buildah needs no daemon (chroot isolation); with it the
# image is run from its mounted file system, in its own mount and PID namespaces, read-only, as its own user, with its own entry
# point and environment, taken from the image's configuration.
#
# Tags: localhost/mhad:latest (IMAGE). The last line of `test` is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."

image=${IMAGE:-localhost/mhad:latest}
release=trixie
limit=$((30 * 1000 * 1000))

if docker info >/dev/null 2>&1; then
    engine=docker
elif podman info >/dev/null 2>&1; then
    engine=podman
elif command -v buildah >/dev/null; then
    engine=buildah
else
    echo "no docker, podman or buildah that works" >&2
    exit 1
fi

work=$(mktemp -d)
cleanup=()
finish() {
    local i
    for ((i = ${#cleanup[@]} - 1; i >= 0; i--)); do eval "${cleanup[i]}" || true; done
    rm -rf "$work"
}
trap finish EXIT

# ---- building --------------------------------------------------------------------------------------------------------

has_image() {
    case $engine in
    docker) docker image inspect "$1" >/dev/null 2>&1 ;;
    podman) podman image exists "$1" ;;
    buildah) buildah inspect --type image "$1" >/dev/null 2>&1 ;;
    esac
}

# The mirror that this machine itself uses.
mirror() {
    local found
    found=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        grep -oE '^(URIs: *|deb (\[[^]]*\] )?)https?://[^ ]+' | grep -oE 'https?://[^ ]+' | grep -E '/debian/?$' | head -n 1)
    echo "${found:-http://deb.debian.org/debian}"
}

make_base() {
    if [ "$(id -u)" != 0 ]; then
        echo "No image registry answers, and making the base image with debootstrap needs root." >&2
        exit 1
    fi
    echo "no image registry answers: making localhost/mhad-base:$release with debootstrap" >&2
    debootstrap --variant=minbase "$release" "$work/root" "$(mirror)" >"$work/debootstrap.log" 2>&1 || {
        tail -n 20 "$work/debootstrap.log" >&2
        exit 1
    }
    rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/{doc,man,locale}/*
    tar -C "$work/root" --numeric-owner -cf "$work/root.tar" .
    rm -rf "$work/root"
    if [ $engine = buildah ]; then
        local container
        container=$(buildah from scratch)
        buildah add -q "$container" "$work/root.tar" / >/dev/null
        buildah config --cmd /bin/bash "$container"
        buildah commit -q --rm "$container" "localhost/mhad-base:$release" >/dev/null
    else
        $engine import "$work/root.tar" "localhost/mhad-base:$release" >/dev/null
    fi
    rm -f "$work/root.tar"
}

choose_base() {
    local official=docker.io/library/debian:$release-slim
    if [ -n "${BASE:-}" ]; then
        base=$BASE
    elif has_image "$official" || timeout 180 $engine pull "$official" >/dev/null 2>&1; then
        base=$official
    else
        has_image "localhost/mhad-base:$release" || make_base
        base=localhost/mhad-base:$release
    fi
}

build() { # TAG [OPTION...]
    local tag=$1
    shift
    choose_base
    : >"$work/apt.conf"
    ! command -v apt-config >/dev/null || apt-config dump | grep -E '^Acquire::(http|https|Check)[^ ]* "[^"]' >"$work/apt.conf" || true
    local options=(--build-arg "BASE=$base" --secret "id=apt_conf,src=$work/apt.conf" -t "$tag" -f Dockerfile)
    case $engine in
    docker) DOCKER_BUILDKIT=1 docker build "${options[@]}" "$@" . ;;
    podman) podman build --format docker --layers "${options[@]}" "$@" . ;;
    buildah) buildah build --isolation chroot --format docker --layers "${options[@]}" "$@" . ;;
    esac
}

# ---- testing ---------------------------------------------------------------------------------------------------------

passed=0 failed=0
check() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$work/check" 2>&1; then
        echo "ok   $what"
        passed=$((passed + 1))
    else
        cat "$work/check"
        echo "FAIL $what"
        failed=$((failed + 1))
    fi
}

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo $port
}

# A member of the image's configuration, one item a line.
config() { # GO-TEMPLATE, relative to the configuration
    case $engine in
    docker | podman) $engine image inspect --format "{{with .Config}}$1{{end}}" "$image" ;;
    buildah) buildah inspect --type image --format "{{with .Docker.Config}}$1{{end}}" "$image" ;;
    esac | grep . || true
}
lines='{{range .}}{{println .}}{{end}}'

# A command in the mounted image: own mount and PID namespaces, the root read-only, as the image's user, in its environment.
inside() {
    # shellcheck disable=SC2016  # the inner shell expands these
    exec env -i "${environment[@]}" MHAD_HOST=127.0.0.1 MHAD_PORT="$port" PATH="$PATH" \
        unshare --mount --pid --fork --kill-child /bin/sh -c '
        root=$1 user=$2; shift 2
        mkdir -p "$root/proc" "$root/dev" && mount --bind "$root" "$root" && mount -t proc proc "$root/proc" &&
        mount --bind /dev "$root/dev" && mount -o remount,bind,ro "$root" && cd "$root" &&
        exec chroot --userspec="$user" --groups= "$root" "$@"' sh "$root" "$user" "$@"
}

# Starts the image on 127.0.0.1:$port; $pid becomes the server's process as this machine sees it.
start() {
    port=${port:-$(free_port)}
    mapfile -t entry < <(config "{{with .Entrypoint}}$lines{{end}}")
    mapfile -t environment < <(config "{{with .Env}}$lines{{end}}")
    mapfile -t probe < <(config "{{with .Healthcheck}}{{with .Test}}$lines{{end}}{{end}}" | tail -n +2)
    user=$(config '{{.User}}')
    if [ $engine != buildah ]; then
        container=$($engine run -d --read-only --cap-drop ALL --security-opt no-new-privileges -p "127.0.0.1:$port:8080" "$image")
        cleanup+=("$engine rm -f $container >/dev/null 2>&1")
        pid=$($engine inspect --format '{{.State.Pid}}' "$container")
        return
    fi
    container=$(buildah from --pull-never "$image")
    cleanup+=("buildah rm $container >/dev/null")
    root=$(buildah mount "$container")
    cleanup+=("buildah umount $container >/dev/null")
    inside "${entry[@]}" >"$work/log" 2>&1 &
    runner=$!
    cleanup+=("kill -9 $runner 2>/dev/null")
    pid=
    local i
    for ((i = 0; i < 100; i++)); do
        pid=$(tr -d ' ' <"/proc/$runner/task/$runner/children" 2>/dev/null) || true
        [ -z "$pid" ] || break
        sleep 0.05
    done
}

show_log() {
    if [ $engine = buildah ]; then cat "$work/log"; else $engine logs "$container" 2>&1; fi
}

ready() {
    local i
    for ((i = 0; i < 200; i++)); do
        curl -sf --noproxy '*' -o /dev/null "http://127.0.0.1:$port/readyz" && return 0
        sleep 0.05
    done
    show_log
    return 1
}

post_example() {
    local w='[[0.1,0.2,0.3,0.4],[0.5,0.6,0.7,0.8],[0.2,0.1,0.4,0.3],[0.6,0.5,0.8,0.7]]' answer
    answer=$(curl -sS --noproxy '*' "http://127.0.0.1:$port/v1/mha" -H 'Content-Type: application/json' -d \
        "{\"Q\":[[1,0,1,0],[0,1,0,1]],\"W_q\":$w,\"W_k\":$w,\"W_v\":$w,\"W_o\":null,\"num_heads\":2,\"return\":[\"attention\",\"output\"]}")
    echo "$answer"
    grep -q '0\.41595249735635' <<<"$answer" && grep -q '1\.37611990104759' <<<"$answer"
}

healthcheck() {
    if [ $engine = buildah ]; then (inside "${probe[@]}"); else $engine exec "$container" "${probe[@]}"; fi
}
unhealthy() { ! healthcheck; }

runs_as_nobody() {
    local ids
    ids=$(sed -n 's/^\(Uid\|Gid\):\s*//p' "/proc/$pid/status" | tr '\t\n' '  ')
    echo "uids and gids: $ids"
    [ "$(tr -s ' ' '\n' <<<"$ids" | grep . | sort -u)" = 65532 ]
}

root_is_read_only() {
    awk '$5 == "/" { split($6, o, ","); mode = o[1] } END { print "the root is mounted", mode; exit mode != "ro" }' "/proc/$pid/mountinfo"
}

is_first_process() { [ "$(awk '/^NSpid:/ { print $NF }' "/proc/$pid/status")" = 1 ]; }

stops() {
    local code i
    if [ $engine = buildah ]; then
        kill -TERM "$pid"
        for ((i = 0; i < 100; i++)); do
            kill -0 "$runner" 2>/dev/null || break
            sleep 0.1
        done
        code=0
        wait "$runner" || code=$?
    else
        $engine stop -t 10 "$container" >/dev/null
        code=$($engine inspect --format '{{.State.ExitCode}}' "$container")
    fi
    echo "exit status $code"
    [ "$code" = 0 ] || { show_log; return 1; }
}

size() {
    if [ $engine = buildah ]; then du -sb "$root" | cut -f1; else $engine image inspect --format '{{.Size}}' "$image"; fi
}
small() {
    local bytes
    bytes=$(size)
    echo "$bytes bytes"
    [ "$bytes" -le $limit ]
}
has_no_shell() { [ $engine != buildah ] || { ! test -e "$root/bin/sh" && ! test -e "$root/usr/bin/sh" && ! test -e "$root/bin/busybox"; }; }

test_image() {
    start
    check "is at most $((limit / 1000000)) MB: $(size) bytes" small
    check "has no shell" has_no_shell
    check "is configured as a non-root numeric user" test "$user" = 65532:65532
    check "has an exec-form entry point: ${entry[*]}" test "${entry[0]}" = /usr/bin/mhad
    check "gets ready" ready
    check "runs as 65532" runs_as_nobody
    check "runs as PID 1" is_first_process
    check "has a read-only file system" root_is_read_only
    check "answers the worked example" post_example
    check "says it is healthy: ${probe[*]}" healthcheck
    check "stops on SIGTERM with exit status 0" stops
    if [ $engine = buildah ]; then check "is not healthy any more" unhealthy; fi
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

case ${1:-} in
build)
    build "$image"
    echo "built $image with $engine on ${base##*/}"
    ;;
suite)
    release=${2:-trixie}
    build localhost/mhad-suite:latest --target test
    ;;
test)
    test_image
    ;;
run)
    port=8080
    while [ $# -gt 0 ]; do
        if [ "$1" = -p ]; then
            port=${2%:*}
            port=${port##*:}
        fi
        shift
    done
    start
    # shellcheck disable=SC2064  # this process, now
    trap "kill -TERM $pid" TERM INT
    echo "mhad runs in the image, on http://127.0.0.1:$port" >&2
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    show_log >&2
    ;;
*)
    echo "usage: docker/image.sh build | test | run [FLAG...] | suite [RELEASE]" >&2
    exit 2
    ;;
esac
