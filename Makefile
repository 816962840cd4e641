# mhad - one Makefile: `make help` lists the targets.
#
# Layers: libmha.a (core) <- libapi.a (api) <- mhad (server). Every core/kernels/*.c is compiled once per instruction set
# (KERNEL_ISA is defined to its suffix); everything else once. Each build variant (sanitizers, other compilers) has its own
# folder: make BUILD=build/asan SAN=address,undefined

BUILD   ?= build
CC      ?= cc
VERSION := 1.0.0
ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)

# -std=gnu11 and -ffp-contract=fast are not a matter of taste: -std=c11 silently drops every FMA.
STD      := -std=gnu11 -ffp-contract=fast
WARN     := -Wall -Wextra -Wshadow -Wconversion
OPT      ?= -O2 -g
HARDEN   ?= -fPIE -fstack-protector-strong -D_FORTIFY_SOURCE=2 -fno-plt
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all,)
ifneq ($(SAN),)
HARDEN   := -fPIE
endif
WERROR   ?= $(if $(CI),-Werror,)
CPPFLAGS += -D_GNU_SOURCE -DMHA_VERSION='"$(VERSION)"'
ALLFLAGS  = $(STD) $(OPT) $(WARN) $(WERROR) $(HARDEN) $(SANFLAGS) $(CPPFLAGS) $(CFLAGS) -MMD -MP
LDFLAGS  += -pie $(SANFLAGS) $(if $(SAN),,-Wl,-z,relro,-z,now,-z,noexecstack)

SERVER_LIBS := $(shell pkg-config --libs libmicrohttpd libcjson 2>/dev/null) -lpthread -lm
TEST_LIBS   := -lcmocka $(shell pkg-config --libs libcurl libcjson 2>/dev/null) -lpthread -lquadmath -lm

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

CORE_SRC   := $(wildcard core/*.c)
KERNEL_SRC := $(wildcard core/kernels/*.c)
API_SRC    := $(wildcard api/*.c)
SERVER_SRC := $(wildcard server/*.c)
UNIT_SRC   := $(wildcard tests/unit/test_*.c)

obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
CORE_OBJ   := $(call obj,$(CORE_SRC)) $(foreach i,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(i).o,$(KERNEL_SRC)))
API_OBJ    := $(call obj,$(API_SRC))
SERVER_OBJ := $(call obj,$(SERVER_SRC))
UNIT_BIN   := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(UNIT_SRC))

all: $(BUILD)/libmha.a $(if $(SERVER_SRC),$(BUILD)/mhad)

$(BUILD)/libmha.a: $(CORE_OBJ)
	@rm -f $@ && ar rcs $@ $^ && echo "AR $@"
$(BUILD)/libapi.a: $(API_OBJ)
	@rm -f $@ && ar rcs $@ $^ && echo "AR $@"
$(BUILD)/mhad: $(SERVER_OBJ) $(BUILD)/libapi.a $(BUILD)/libmha.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(SERVER_LIBS) && echo "LINK $@"

define kernel_rule
$(BUILD)/core/kernels/%.$(1).o: core/kernels/%.c
	@mkdir -p $$(@D) && $(CC) $$(ALLFLAGS) $$(ISA_FLAGS_$(1)) -DKERNEL_ISA=$(1) -c -o $$@ $$< && echo "CC $$@"
endef
$(foreach i,$(ISAS),$(eval $(call kernel_rule,$(i))))

$(BUILD)/%.o: %.c
	@mkdir -p $(@D) && $(CC) $(ALLFLAGS) -c -o $@ $< && echo "CC $@"

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(BUILD)/libapi.a $(BUILD)/libmha.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) && echo "LINK $@"

unit: $(UNIT_BIN)
	@set -e; for t in $(UNIT_BIN); do $$t; done

clean:
	rm -rf $(BUILD)

.PHONY: all unit clean
.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
