/* SPDX-License-Identifier: Apache-2.0
 *
 * core/isa.c - which instruction set the kernels use.
 *
 * Model. One row per set of kernel objects, best first; the first that the CPU can is chosen at the first use, or another
 * by mha_isa_force. The choice is one atomic pointer: threads that race to make it make the same one.
 *
 * What this does not do: tell CPUs of one instruction set apart.
 */
#include "kernels/kernels.h"
#include "mha.h"

#include <stdatomic.h>
#include <string.h>

struct isa {
    const char *name;
    bool (*cpu_has_it)(void);
    const struct mha_kernels *f64, *f32;
};

#define DECLARE_KERNELS(isa) extern const struct mha_kernels mha_kernels_f64_##isa, mha_kernels_f32_##isa
#define KERNELS(isa)         &mha_kernels_f64_##isa, &mha_kernels_f32_##isa

static bool always(void) { return true; }

#if defined(__x86_64__)
DECLARE_KERNELS(base);
DECLARE_KERNELS(v3);
DECLARE_KERNELS(v4);

/* The tile geometry of v4 compiled for v3: slow, there to compare bytes. Only in programs that link its objects. */
extern const struct mha_kernels mha_kernels_f64_wide __attribute__((weak)), mha_kernels_f32_wide __attribute__((weak));

static bool has_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static bool has_v4(void) {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static const struct isa isas[] = {
    {"x86-64-v4", has_v4, KERNELS(v4)},
    {"x86-64-v3", has_v3, KERNELS(v3)},
    {"x86-64", always, KERNELS(base)},
    {"x86-64-v4-emulated", has_v3, KERNELS(wide)},
};
#elif defined(__aarch64__)
DECLARE_KERNELS(neon);
static const struct isa isas[] = {{"neon", always, KERNELS(neon)}};
#else
DECLARE_KERNELS(base);
static const struct isa isas[] = {{"generic", always, KERNELS(base)}};
#endif

static _Atomic(const struct isa *) chosen;

static bool usable(const struct isa *isa) { return isa->f64 != NULL && isa->cpu_has_it(); }

static const struct isa *choice(void) {
    const struct isa *isa = atomic_load_explicit(&chosen, memory_order_acquire);
    if (isa != NULL) return isa;
    isa = isas;
    while (!usable(isa)) isa++; /* "x86-64" always is */
    atomic_store_explicit(&chosen, isa, memory_order_release);
    return isa;
}

const char *mha_isa_name(void) { return choice()->name; }

bool mha_isa_force(const char *name) {
    for (size_t x = 0; x < sizeof isas / sizeof isas[0]; x++) {
        if (strcmp(isas[x].name, name) != 0) continue;
        if (!usable(&isas[x])) return false;
        atomic_store_explicit(&chosen, &isas[x], memory_order_release);
        return true;
    }
    return false;
}

const struct mha_kernels *mha_kernels_of(enum mha_dtype dtype) {
    return dtype == MHA_F32 ? choice()->f32 : choice()->f64;
}
