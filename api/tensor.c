/* SPDX-License-Identifier: Apache-2.0
 *
 * api/tensor.c - element types and the one conversion to the working precision.
 *
 * Widening (float16, bfloat16, float32 -> float64) is exact, bit by bit where C has no type for it. Narrowing rounds once, to
 * nearest even. In place, a widening goes from the last element to the first and a narrowing from the first to the last, so
 * that no element is overwritten before it is read.
 */
#include "tensor.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t size;
} types[TENSOR_TYPE_COUNT] = {
    [TENSOR_F64] = {"float64", 8},   [TENSOR_F32] = {"float32", 4}, [TENSOR_F16] = {"float16", 2},
    [TENSOR_BF16] = {"bfloat16", 2}, [TENSOR_BOOL] = {"bool", 1},
};

size_t tensor_type_size(enum tensor_type type) { return types[type].size; }
const char *tensor_type_name(enum tensor_type type) { return types[type].name; }

enum tensor_type tensor_type_find(const char *name) {
    int type = 0;
    while (type < TENSOR_TYPE_COUNT && strcmp(types[type].name, name) != 0) type++;
    return (enum tensor_type)type;
}

const char *tensor_pointer(char out[PROBLEM_POINTER_MAX], const struct tensor *tensor, const char *name, size_t flat) {
    size_t index[TENSOR_RANK_MAX];
    for (size_t axis = tensor->rank; axis-- > 0;) {
        size_t dim = tensor->dim[axis] ? tensor->dim[axis] : 1;
        index[axis] = flat % dim;
        flat /= dim;
    }
    return problem_pointer_index(out, name, index, tensor->rank);
}

/* ---- one element; data may be unaligned ---- */

static float bits_to_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. Every value is a float32. */
static float f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3FF;
    if (exponent == 31) return bits_to_f32(sign | 0x7F800000u | fraction << 13);
    if (exponent) return bits_to_f32(sign | (exponent + 112) << 23 | fraction << 13);
    float value = (float)fraction * 0x1p-24f; /* subnormal: exact */
    return sign ? -value : value;
}

static double load(enum tensor_type type, const char *data, size_t i) {
    double f64;
    float f32;
    uint16_t half;
    switch (type) {
    case TENSOR_F64:
        memcpy(&f64, data + 8 * i, 8);
        return f64;
    case TENSOR_F32:
        memcpy(&f32, data + 4 * i, 4);
        return (double)f32;
    case TENSOR_F16:
        memcpy(&half, data + 2 * i, 2);
        return (double)f16_to_f32(half);
    case TENSOR_BF16:
        memcpy(&half, data + 2 * i, 2);
        return (double)bits_to_f32((uint32_t)half << 16);
    default:
        return (double)(unsigned char)data[i];
    }
}

static void store(enum mha_dtype dtype, char *data, size_t i, double value) {
    float f32 = (float)value;
    if (dtype == MHA_F64)
        memcpy(data + 8 * i, &value, 8);
    else
        memcpy(data + 4 * i, &f32, 4);
}

/* ---- the conversion ---- */

static bool non_finite(const struct tensor *tensor, const char *name, enum mha_dtype dtype, size_t i, bool too_large,
                       struct problem *problem) {
    char pointer[PROBLEM_POINTER_MAX];
    tensor_pointer(pointer, tensor, name, i);
    bool mask = strcmp(name, "attn_mask") == 0;
    if (too_large)
        return problem_set(
            problem, PROBLEM_NON_FINITE_INPUT, pointer,
            "%s holds a number that is too large for float32 (at %s). Use \"dtype\": \"float64\", or %s.", name,
            pointer, mask ? "write null, which hides the key" : "scale the numbers");
    return problem_set(problem, PROBLEM_NON_FINITE_INPUT, pointer,
                       "%s holds NaN or an infinity (at %s); all inputs must be finite%s (working precision %s).", name,
                       pointer, mask ? ", only -infinity is allowed, which hides a key" : "",
                       dtype == MHA_F64 ? "float64" : "float32");
}

enum { SCAN_BLOCK = 64 }; /* bytes: eight float64, sixteen float32 */

/* Are all elements of a block at most `largest`, and none NaN? */
static inline bool block_is_fine_f64(const char *data, double largest) {
    typedef double block __attribute__((vector_size(SCAN_BLOCK)));
    typedef int64_t bits __attribute__((vector_size(SCAN_BLOCK)));
    block x;
    memcpy(&x, data, sizeof x);
    const bits fine = (block)((bits)x & INT64_MAX) <= largest;
    return (fine[0] & fine[1] & fine[2] & fine[3] & fine[4] & fine[5] & fine[6] & fine[7]) != 0;
}

static inline bool block_is_fine_f32(const char *data) {
    typedef float block __attribute__((vector_size(SCAN_BLOCK)));
    typedef int32_t bits __attribute__((vector_size(SCAN_BLOCK)));
    block x;
    memcpy(&x, data, sizeof x);
    const bits fine = (block)((bits)x & INT32_MAX) <= FLT_MAX;
    int32_t all = -1;
    for (int i = 0; i < 16; i++) all &= fine[i];
    return all != 0;
}

/* How many elements at the beginning come in blocks that need no second look. */
static size_t fine_blocks(enum tensor_type type, const char *data, size_t count, double largest) {
    const size_t size = tensor_type_size(type), blocks = count * size / SCAN_BLOCK;
    size_t b = 0;
    if (type == TENSOR_F64)
        while (b < blocks && block_is_fine_f64(data + b * SCAN_BLOCK, largest)) b++;
    else if (type == TENSOR_F32)
        while (b < blocks && block_is_fine_f32(data + b * SCAN_BLOCK)) b++;
    return b * SCAN_BLOCK / size;
}

/* first_non_finite, inlined per type, so that the loop has no switch in it. */
static inline __attribute__((always_inline)) size_t scan_type(enum tensor_type type, const char *data, size_t count,
                                                              double largest, bool minus_infinity_allowed) {
    size_t i = 0;
    while (i < count) {
        i += fine_blocks(type, data + i * tensor_type_size(type), count - i, largest);
        for (const size_t end = i + SCAN_BLOCK < count ? i + SCAN_BLOCK : count; i < end; i++) {
            double value = load(type, data, i);
            if (!(fabs(value) <= largest) && !(minus_infinity_allowed && value == -INFINITY)) return i;
        }
    }
    return count;
}

/* The largest double that may become a `dtype`: one that rounds to a finite float32 lies below FLT_MAX and half a unit more. */
static double largest_of(enum mha_dtype dtype) {
    return dtype == MHA_F64 ? 0x1.fffffffffffffp1023 : 0x1.fffffefffffffp127;
}

/* The first element that may not be there, or count. */
static size_t first_non_finite(enum tensor_type type, const void *data, size_t count, double largest,
                               bool minus_infinity_allowed) {
    switch (type) {
    case TENSOR_F64:
        return scan_type(TENSOR_F64, data, count, largest, minus_infinity_allowed);
    case TENSOR_F32:
        return scan_type(TENSOR_F32, data, count, largest, minus_infinity_allowed);
    case TENSOR_F16:
        return scan_type(TENSOR_F16, data, count, largest, minus_infinity_allowed);
    case TENSOR_BF16:
        return scan_type(TENSOR_BF16, data, count, largest, minus_infinity_allowed);
    default:
        return count;
    }
}

bool tensor_all_finite(enum tensor_type type, const void *data, size_t count) {
    return first_non_finite(type, data, count, largest_of(MHA_F64), false) == count;
}

/* Whether the elements are known to fit: they came as text, which was read into this type or a smaller one, or were all looked
 * at, and do not get narrower. */
static bool known_to_fit(const struct tensor *tensor, enum mha_dtype dtype) {
    if (tensor->from_text) return dtype == MHA_F64;
    return tensor->finite && tensor_type_size(tensor->type) <= mha_dtype_size(dtype);
}

static inline __attribute__((always_inline)) void convert_type(enum tensor_type type, enum mha_dtype dtype,
                                                               const char *from, char *to, size_t count) {
    if (mha_dtype_size(dtype) > tensor_type_size(type))
        for (size_t i = count; i-- > 0;) store(dtype, to, i, load(type, from, i));
    else
        for (size_t i = 0; i < count; i++) store(dtype, to, i, load(type, from, i));
}

/* From `from` to `to`, which may be the same memory; all elements are known to fit. */
static void convert_all(enum tensor_type type, enum mha_dtype dtype, const char *from, char *to, size_t count) {
    if (dtype == MHA_F64) switch (type) {
        case TENSOR_F64:
            memmove(to, from, 8 * count);
            return;
        case TENSOR_F32:
            convert_type(TENSOR_F32, MHA_F64, from, to, count);
            return;
        case TENSOR_F16:
            convert_type(TENSOR_F16, MHA_F64, from, to, count);
            return;
        default:
            convert_type(TENSOR_BF16, MHA_F64, from, to, count);
            return;
        }
    switch (type) {
    case TENSOR_F64:
        convert_type(TENSOR_F64, MHA_F32, from, to, count);
        return;
    case TENSOR_F32:
        memmove(to, from, 4 * count);
        return;
    case TENSOR_F16:
        convert_type(TENSOR_F16, MHA_F32, from, to, count);
        return;
    default:
        convert_type(TENSOR_BF16, MHA_F32, from, to, count);
        return;
    }
}

/* JSON text read before the precision was known, with notes on how to round once. */
static bool convert_ties(struct tensor *tensor, const char *name, struct problem *problem) {
    if (tensor_text_to_f32(tensor->text) != TENSOR_TEXT_DONE) {
        size_t flat = 0;
        for (size_t axis = 0; axis < tensor->text->index_length && axis < tensor->rank; axis++)
            flat = flat * tensor->dim[axis] + tensor->text->index[axis];
        return non_finite(tensor, name, MHA_F32, flat, true, problem);
    }
    tensor->data = tensor->grow.data;
    tensor->type = TENSOR_F32;
    return true;
}

bool tensor_convert(struct tensor *tensor, const char *name, enum mha_dtype dtype, bool minus_infinity_allowed,
                    struct mem_arena *arena, struct mem_budget *budget, struct problem *problem) {
    enum tensor_type want = dtype == MHA_F64 ? TENSOR_F64 : TENSOR_F32;
    if (!tensor->given || tensor->type == TENSOR_BOOL || tensor->count == 0) return true;
    if (tensor->type == want && tensor->from_text) return true;
    if (tensor->text && want == TENSOR_F32 && tensor->type == TENSOR_F64) return convert_ties(tensor, name, problem);

    if (!known_to_fit(tensor, dtype)) {
        size_t bad =
            first_non_finite(tensor->type, tensor->data, tensor->count, largest_of(dtype), minus_infinity_allowed);
        if (bad < tensor->count)
            return non_finite(tensor, name, dtype, bad, isfinite(load(tensor->type, tensor->data, bad)), problem);
    }
    if (tensor->type == want && (uintptr_t)tensor->data % mha_dtype_size(dtype) == 0) return true;

    size_t bytes;
    if (!mem_mul(tensor->count, mha_dtype_size(dtype), &bytes))
        return problem_memory(problem, MEM_TOO_LARGE, budget, name, SIZE_MAX, name);
    enum mem_status why = MEM_OK;
    char *to;
    if (tensor->grow.data) {
        why = mem_grow_reserve(&tensor->grow, bytes);
        if (why == MEM_OK) tensor->data = tensor->grow.data;
        to = tensor->data;
    } else {
        to = mem_alloc(arena, bytes, &why);
    }
    if (why != MEM_OK) {
        char pointer[PROBLEM_POINTER_MAX];
        return problem_memory(problem, why, budget, problem_pointer_index(pointer, name, NULL, 0), bytes, name);
    }
    convert_all(tensor->type, dtype, tensor->data, to, tensor->count);
    tensor->data = to;
    tensor->type = want;
    if (tensor->grow.data) {
        tensor->grow.size = bytes;
        mem_grow_trim(&tensor->grow);
    }
    return true;
}
