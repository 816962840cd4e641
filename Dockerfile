# SPDX-License-Identifier: Apache-2.0
#
# mhad as a container image: built on Debian 13, shipped as nothing but the binary and the shared libraries it names.
#
# Stages: build (compiler, headers, make), test (a bare Debian on which `make test` finds its own feet; `--target test`), and the image itself, which has
# no shell, no package manager, no writable file and runs as 65532. The secret apt_conf, if given, is the builder's own apt
# configuration (a proxy, say); it is there while packages are fetched and in no layer.

ARG BASE=debian:trixie-slim
FROM ${BASE} AS build
WORKDIR /src
COPY tests/tools/setup.sh tests/tools/setup.sh
RUN --mount=type=secret,id=apt_conf,target=/etc/apt/apt.conf.d/99builder,required=false \
    tests/tools/setup.sh build
COPY . .
RUN make SETUP=0 BUILD=/build all && docker/rootfs.sh /build/mhad /rootfs

FROM ${BASE} AS test
WORKDIR /src
COPY . .
RUN --mount=type=secret,id=apt_conf,target=/etc/apt/apt.conf.d/99builder,required=false \
    apt-get update && apt-get install -y --no-install-recommends make && make BUILD=/build test

FROM scratch
COPY --from=build /rootfs /
# In a container the loopback address would be nobody's.
ENV MHAD_HOST=0.0.0.0 MHAD_PORT=8080
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/mhad", "--healthcheck"]
ENTRYPOINT ["/usr/bin/mhad"]
LABEL org.opencontainers.image.title="mhad" \
      org.opencontainers.image.description="Multi-head attention as a sidecar" \
      org.opencontainers.image.licenses="Apache-2.0"
