/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/vector.h - the vector type and the tile geometry of one (instruction set, dtype).
 *
 * Model. core/kernels/f64.c and f32.c are compiled once per instruction set, with KERNEL_ISA set to base, v3, v4, neon
 * or wide, and include this with REAL_BITS set. The width of a vector is a constant of the instruction set, so that it
 * can also be asked for where the CPU lacks it: `wide` is the geometry of v4 in whatever the compiler makes of it
 * (slow; tests compare its bytes). A tile is MR rows by NV vectors, as many accumulators as the registers hold; MR
 * depends on how many vectors a row of the tile has.
 */
#ifndef MHA_KERNELS_VECTOR_H
#define MHA_KERNELS_VECTOR_H

#define KERNEL_JOIN_(a, b) a##b
#define KERNEL_JOIN(a, b)  KERNEL_JOIN_(a, b)
#define KERNEL_TEXT_(a)    #a
#define KERNEL_TEXT(a)     KERNEL_TEXT_(a)

/* kernel_code_... : numbers to compare KERNEL_ISA with in the preprocessor */
#define kernel_code_base 1
#define kernel_code_v3   2
#define kernel_code_v4   3
#define kernel_code_neon 4
#define kernel_code_wide 5
#define KERNEL_CODE      KERNEL_JOIN(kernel_code_, KERNEL_ISA)

#if KERNEL_CODE == kernel_code_v4 || KERNEL_CODE == kernel_code_wide
#define VM_BYTES 64
#elif KERNEL_CODE == kernel_code_v3
#define VM_BYTES 32
#else
#define VM_BYTES 16
#endif

#include "vmath.h"

#if REAL_BITS == 64
typedef double real;
typedef vm_f64 vec;
typedef vm_i64 ivec;
typedef double vec_at_any __attribute__((vector_size(VM_BYTES), aligned(8), may_alias));
#define VMF(name)   name##_f64
#define KERNEL_TYPE f64
#else
typedef float real;
typedef vm_f32 vec;
typedef vm_i32 ivec;
typedef float vec_at_any __attribute__((vector_size(VM_BYTES), aligned(4), may_alias));
#define VMF(name)   name##_f32
#define KERNEL_TYPE f32
#endif

enum {
    VL = VM_BYTES / (int)sizeof(real), /* lanes of a vector */
    NV = 3,                            /* vectors of a full tile row */
    NR = NV * VL,
    MR_MAX = 12,
#if KERNEL_CODE == kernel_code_base /* 16 registers, and a product needs one */
    MR3 = 3,
    MR2 = 4,
    MR1 = 8,
#elif KERNEL_CODE == kernel_code_v3 /* 16 registers */
    MR3 = 4,
    MR2 = 6,
    MR1 = 12,
#else                               /* 32 registers */
    MR3 = 8,
    MR2 = 12,
    MR1 = 12,
#endif
};

#define KERNEL_INLINE static inline __attribute__((always_inline))

#define KERNEL_UNROLL VM_UNROLL
#if defined(__clang__)
#define KERNEL_STEPS _Pragma("clang loop unroll_count(4)")
#else
#define KERNEL_STEPS _Pragma("GCC unroll 4")
#endif

/* Keeps a product apart from the sum that follows, so that only one contraction is possible. */
#if KERNEL_CODE == kernel_code_neon
#define KERNEL_PIN(x) __asm__("" : "+w"(x))
#elif KERNEL_CODE == kernel_code_wide || !defined(__x86_64__)
#define KERNEL_PIN(x) __asm__("" : "+m"(x))
#else
#define KERNEL_PIN(x) __asm__("" : "+v"(x))
#endif

/* In this place and order of the program x is in a register (and a and b still are). gcc, left alone, reads vectors of B once
 * per row and moves accumulators about, to the stack and back, in the very loops that take most of the time. */
#if KERNEL_CODE == kernel_code_neon
#define KERNEL_HERE(x)           __asm__ volatile("" : "+w"(x))
#define KERNEL_SUM_HERE(c, a, b) __asm__ volatile("" : "+w"(c) : "w"(a), "w"(b))
#elif KERNEL_CODE == kernel_code_wide || !defined(__x86_64__)
#define KERNEL_HERE(x)           (void)(x)
#define KERNEL_SUM_HERE(c, a, b) (void)(c)
#else
#define KERNEL_HERE(x)           __asm__ volatile("" : "+v"(x))
#define KERNEL_SUM_HERE(c, a, b) __asm__ volatile("" : "+v"(c) : "v"(a), "v"(b))
#endif

KERNEL_INLINE vec load(const real *p) { return *(const vec_at_any *)p; }
KERNEL_INLINE void store(real *p, vec x) { *(vec_at_any *)p = x; }
KERNEL_INLINE vec splat(real x) { return VMF(vm_splat)(x); }

/* A vector that several rows use: read into a register, once. */
KERNEL_INLINE vec load_once(const real *p) {
    vec x = load(p);
    KERNEL_HERE(x);
    return x;
}

/* Is any lane of z not zero? (NaN is not zero.) */
KERNEL_INLINE bool any_lane(vec z) {
    const ivec differs = z != splat(0);
    bool any = false;
    for (int lane = 0; lane < VL; lane++) any |= differs[lane] != 0;
    return any;
}

/* ---- reading ahead ----------------------------------------------------------------------------------------------- */

enum { LINE = 64 };

/* Memory that will be needed next, asked for a few lines at a time while something else is computed. */
struct ahead {
    uintptr_t at;
    size_t lines, per_call;
};

/* `n` numbers from `from` on, in `calls` calls of look_ahead. They need not exist. */
KERNEL_INLINE struct ahead ahead_of(const real *from, size_t n, size_t calls) {
    const size_t lines = (n * sizeof(real) + LINE - 1) / LINE;
    return (struct ahead){(uintptr_t)from, lines, lines / calls + 1};
}

/* Takes the lines of one call: how many, and where they begin. */
KERNEL_INLINE size_t take_lines(struct ahead *ahead, uintptr_t *at) {
    const size_t n = ahead->per_call < ahead->lines ? ahead->per_call : ahead->lines;
    *at = ahead->at;
    ahead->lines -= n;
    ahead->at += n * LINE;
    return n;
}

KERNEL_INLINE void look_ahead(struct ahead *ahead) {
    uintptr_t at;
    for (size_t n = take_lines(ahead, &at); n > 0; n--, at += LINE) __builtin_prefetch((const void *)at, 0, 3);
}

/* The lines of one call of look_ahead, asked for step by step of a loop: `last` again when all have been. */
struct ahead_steps {
    uintptr_t at, last;
};

KERNEL_INLINE struct ahead_steps ahead_steps_of(struct ahead *ahead) {
    uintptr_t at;
    const size_t n = take_lines(ahead, &at);
    return (struct ahead_steps){at, at + (n > 0 ? n - 1 : 0) * LINE};
}

KERNEL_INLINE void step_ahead(const int lines, struct ahead_steps *steps) {
    KERNEL_UNROLL
    for (int i = 0; i < lines; i++) {
        __builtin_prefetch((const void *)steps->at, 0, 2);
        steps->at = steps->at + LINE < steps->last ? steps->at + LINE : steps->last;
    }
}

/* ---- short vectors, for turning rows into columns ---------------------------------------------------------------- */

typedef real few __attribute__((vector_size(16), may_alias));
typedef real few_at_any __attribute__((vector_size(16), aligned(sizeof(real)), may_alias));

enum { FEW = 16 / (int)sizeof(real) }; /* lanes of a short vector, on every instruction set */

KERNEL_INLINE few load_few(const real *p) { return *(const few_at_any *)p; }

/* to[i][lane] = row[lane*stride + i] for i, lane < FEW */
KERNEL_INLINE void load_turned(const real *row, size_t stride, few *to) {
#if REAL_BITS == 64
    const few a = load_few(row), b = load_few(row + stride);
    to[0] = __builtin_shufflevector(a, b, 0, 2);
    to[1] = __builtin_shufflevector(a, b, 1, 3);
#else
    const few a = load_few(row), b = load_few(row + stride);
    const few c = load_few(row + 2 * stride), d = load_few(row + 3 * stride);
    const few ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const few ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    to[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    to[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    to[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    to[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
#endif
}

KERNEL_INLINE void store_few(real *p, few x) { *(few_at_any *)p = x; }

#endif
