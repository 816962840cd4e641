/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/vmath.h - exponential, hyperbolic tangent and logarithm of attention, on vectors.
 *
 * Model. GNU C vector extensions only. VM_BYTES (16, 32 or 64; default: what the target has) is the width of a vector;
 * every function exists as ..._f64 (double) and ..._f32 (float), written once in vmath_type.h, which this file includes
 * twice. The functions work lane by lane, so a lane's result does not depend on the other lanes, on VM_BYTES, or (on
 * targets with FMA) on the instruction set: each expression has exactly one way to be contracted, and nothing calls
 * libm.
 *
 * The softmax reference of a row. Softmax needs exp(S - m) with some m near the row's maximum. Here m = base +
 * shift*ln2 with an integer `shift`: p = exp(S - base) * 2^-shift. For ordinary maxima base is 0 and S enters
 * unrounded; the reference moves in powers of two, so rescaling an online softmax is exact. A maximum too large for
 * that (beyond VM_SHIFT_MAX powers of two) becomes the base itself with shift 0. How a row is processed, tile by tile:
 *     max = -(largest finite), l = 0, O = 0, ref = vm_ref(max)          (once)
 *     max = vm_max(max, the tile's scores);  new = vm_ref(max)
 *     alpha = vm_alpha(ref, new);  l = l*alpha + sum(p);  O = O*alpha + P V      with p = vm_exp(S, new)
 *     ref = new
 *     logsumexp = vm_lse(ref, l)                                         (at the end; l = 0: no visible key)
 *
 * Guarantees (tests/unit/test_vmath.c measures them against 113-bit arithmetic):
 *   exp   <= 1 ulp. exp(0) with shift 0 is exactly 1. Results below 2^-1021.5 (f64), 2^-125.5 (f32) are exactly 0, never
 *         subnormal. -infinity (a hidden key) gives exactly 0, NaN stays NaN, a score of +infinity gives NaN. Callers
 *         keep S at or below the row's maximum, so there is no overflow side.
 *   tanh  <= 1 ulp, odd to the bit, +-1 for large arguments; -0 and NaN are kept.
 *   lse   <= 1 ulp of the result as a function of (base, shift, l); l = 0 gives -infinity, NaN stays NaN.
 *   max   ignores NaN: max(m, NaN) = m. The NaN is not lost: vm_exp of it is NaN and poisons l and O of its row.
 * Targets without FMA (plain x86-64) use shorter constants and a lower VM_SHIFT_MAX; their bits differ, and exp stays
 * within 1.25 ulp.
 *
 * What this does not do: subnormal results, general exp or log (the domains are those above), scalars.
 */
#ifndef MHA_KERNELS_VMATH_H
#define MHA_KERNELS_VMATH_H

#include <stddef.h>
#include <stdint.h>

#ifndef VM_BYTES
#if defined(__AVX512F__)
#define VM_BYTES 64
#elif defined(__AVX__)
#define VM_BYTES 32
#else
#define VM_BYTES 16
#endif
#endif

#if defined(__FMA__) || defined(__aarch64__)
#define VM_HAS_FMA 1
#else
#define VM_HAS_FMA 0
#endif

typedef double vm_f64 __attribute__((vector_size(VM_BYTES), may_alias));
typedef float vm_f32 __attribute__((vector_size(VM_BYTES), may_alias));
typedef int64_t vm_i64 __attribute__((vector_size(VM_BYTES), may_alias));
typedef int32_t vm_i32 __attribute__((vector_size(VM_BYTES), may_alias));

/* Everything here is small and must end up in the caller's loop. */
#define VM_INLINE static inline __attribute__((always_inline, unused))

/* Vectors that vm_exp_n takes at most. */
enum { VM_EXP_MAX = 4 };

/* Columns of a score tile that vm_max_rows takes: whole vectors. */
#ifndef VM_COLUMN_VECTORS
#define VM_COLUMN_VECTORS 3
#endif

/* gcc turns a comparing loop into vector maxima only at -O3. */
#if defined(__GNUC__) && !defined(__clang__)
#define VM_VECTORIZED __attribute__((noinline, unused, optimize("O3")))
#else
#define VM_VECTORIZED __attribute__((noinline, unused))
#endif

/* Loops over a constant number of vectors, which must stay in registers. */
#if defined(__clang__)
#define VM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VM_UNROLL _Pragma("GCC unroll 16")
#endif

/* Keeps a product from being fused into the sum that follows. Through memory, so that it works for any VM_BYTES; not
 * for hot loops. */
#define VM_PIN(x) __asm__("" : "+m"(x))

/* ---- double ------------------------------------------------------------------------------------------------------ */

/* Coefficients: tests/tools/minimax.py. */

/* e^r for |r| <= ln2/2 (1 + 2^-8), from the highest power down. */
static const double vm_exp_poly_f64[] = {
    0x1.ad848dc279474p-26,
    0x1.28af0bc1d7ca8p-22,
    0x1.71df24649644ep-19,
    0x1.a01998602a60bp-16,
    0x1.a01a0129c14a4p-13,
    0x1.6c16c184c22f9p-10,
    0x1.1111111128071p-7,
    0x1.55555555505e2p-5,
    0x1.55555555554f8p-3,
    0x1.000000000000ap-1,
    1.0,
    1.0,
};

/* tanh(x)/x - 1 for y = x*x, |x| <= 0.7. */
VM_INLINE vm_f64 vm_tanh_poly_f64(vm_f64 y) {
    vm_f64 p = y * 0x1.42288fda7b181p-18 - 0x1.c620ca5114c3p-16;
    p = p * y + 0x1.71a026e1af411p-14;
    p = p * y - 0x1.ec7e1f9bc0f26p-13;
    p = p * y + 0x1.3495bf04aa005p-11;
    p = p * y - 0x1.7d8c9553d7e23p-10;
    p = p * y + 0x1.d6d1f935d7828p-9;
    p = p * y - 0x1.226e2896d10dap-7;
    p = p * y + 0x1.664f481167c3dp-6;
    p = p * y - 0x1.ba1ba1b7cca1bp-5;
    p = p * y + 0x1.111111110e0a8p-3;
    p = p * y - 0x1.5555555555529p-2;
    return p * y;
}

/* log(f)/s - 2 for s = (f-1)/(f+1), z = s*s, f in [sqrt(1/2), sqrt(2)]. */
VM_INLINE vm_f64 vm_log_poly_f64(vm_f64 z) {
    vm_f64 p = z * 0x1.2f02a6aa31e6ep-3 + 0x1.39a204262923dp-3;
    p = p * z + 0x1.74663be3f27dp-3;
    p = p * z + 0x1.c71c52190fca8p-3;
    p = p * z + 0x1.24924941dc4bdp-2;
    p = p * z + 0x1.999999997ff57p-2;
    p = p * z + 0x1.5555555555592p-1;
    return p * z;
}

#define VM_T        double
#define VM_V        vm_f64
#define VM_I        vm_i64
#define VM_INT      int64_t
#define VM_SIGN     INT64_MIN
#define VM(name)    name##_f64
#define VM_MANTISSA 52
#define VM_BIAS     1023
#define VM_LOG2E    0x1.71547652b82fep+0
#if VM_HAS_FMA
#define VM_LN2_HI    0x1.62e42fefa39efp-1
#define VM_LN2_LO    0x1.abc9e3b39803fp-56
#define VM_SHIFT_MAX 0x1p40
#else
#define VM_LN2_HI    0x1.62e42ffp-1
#define VM_LN2_LO    -0x1.718432a1b0e26p-35
#define VM_SHIFT_MAX 0x1p18
#endif
#define VM_SQRT_HALF  0x1.6a09e667f3bcdp-1
#define VM_TANH_SMALL 0x1.62e42fefa39efp-1 /* where e^-2x = 1/4 */
#define VM_SPLITTER   0x1.0000002p27       /* 2^27 + 1 (Veltkamp) */
#include "vmath_type.h"

/* ---- float ------------------------------------------------------------------------------------------------------- */

static const float vm_exp_poly_f32[] = {
    0x1.6a49e4p-10f, 0x1.123b32p-7f, 0x1.5558b6p-5f, 0x1.55549p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f,
};

VM_INLINE vm_f32 vm_tanh_poly_f32(vm_f32 y) {
    vm_f32 p = y * 0x1.f2551cp-10f - 0x1.02972ap-7f;
    p = p * y + 0x1.617fecp-6f;
    p = p * y - 0x1.b9bb3cp-5f;
    p = p * y + 0x1.110f52p-3f;
    p = p * y - 0x1.55555p-2f;
    return p * y;
}

VM_INLINE vm_f32 vm_log_poly_f32(vm_f32 z) {
    vm_f32 p = z * 0x1.31e03cp-2f + 0x1.995ed8p-2f;
    p = p * z + 0x1.55557ap-1f;
    return p * z;
}

#define VM_T        float
#define VM_V        vm_f32
#define VM_I        vm_i32
#define VM_INT      int32_t
#define VM_SIGN     INT32_MIN
#define VM(name)    name##_f32
#define VM_MANTISSA 23
#define VM_BIAS     127
#define VM_LOG2E    0x1.715476p+0f
#if VM_HAS_FMA
#define VM_LN2_HI    0x1.62e43p-1f
#define VM_LN2_LO    -0x1.05c61p-29f
#define VM_SHIFT_MAX 0x1p15f
#else
#define VM_LN2_HI    0x1.62ep-1f
#define VM_LN2_LO    0x1.0bfbe8p-15f
#define VM_SHIFT_MAX 0x1p10f
#endif
#define VM_SQRT_HALF  0x1.6a09e6p-1f
#define VM_TANH_SMALL 0x1.62e43p-1f
#define VM_SPLITTER   0x1.002p12f
#include "vmath_type.h"

#endif
