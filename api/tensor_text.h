/* SPDX-License-Identifier: Apache-2.0
 *
 * api/tensor_text.h - reads one JSON value that is the numbers of a tensor: nested arrays (or one flat array) of numbers,
 * true/false or null, in chunks of any size, straight into memory of the element type.
 *
 * Model. A small automaton (no recursion) with a depth of at most 8. A token cut by the end of a chunk waits in a carry
 * buffer; everything else is read in place. The elements go to a mem_grow of the caller, which grows in place, so the
 * peak is the tensor plus a constant. The first ']' of a level fixes the dimension of that level, any later one with
 * another count is ragged. Nothing is read past a chunk, no padding is asked for.
 *
 * Two kinds of elements exist: reals (numbers, null = -infinity) and booleans (uint8_t 0 or 1). Where a field may hold
 * either (attn_mask), the first element decides and the other kind is an error from then on.
 *
 * When dtype is not known yet, read TENSOR_TEXT_F64_TIES and convert with tensor_text_to_f32 later: the result is the same
 * as TENSOR_TEXT_F32, one rounding of the text and not two.
 *
 * What it does not do: scalars (the first byte must be '['), white space after the value, objects, field names.
 */
#ifndef MHA_API_TENSOR_TEXT_H
#define MHA_API_TENSOR_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory.h"

#define TENSOR_TEXT_RANK_MAX   8
#define TENSOR_TEXT_NUMBER_MAX 1000 /* characters of one number */

enum tensor_text_status {
    TENSOR_TEXT_MORE = 0,        /* all bytes taken, the value goes on                                     */
    TENSOR_TEXT_DONE,            /* the closing ']' was taken; *used says where the rest begins            */
    TENSOR_TEXT_SYNTAX,          /* not JSON: [1 2], [01], [1,], [tru]                                     */
    TENSOR_TEXT_NON_FINITE,      /* NaN, Infinity, -inf as words; 1e999                                    */
    TENSOR_TEXT_OUT_OF_RANGE,    /* finite, but too large for float32 where that is wanted: 1e39           */
    TENSOR_TEXT_NUMBER_TOO_LONG, /* one number of more than TENSOR_TEXT_NUMBER_MAX characters              */
    TENSOR_TEXT_TOO_DEEP,        /* more than TENSOR_TEXT_RANK_MAX levels                                  */
    TENSOR_TEXT_RAGGED,          /* [[1,2],[3]] (`expected` 2, `actual` 1); [[1],2]; [1,[2]]               */
    TENSOR_TEXT_WRONG_TYPE,      /* a string or object inside; true, false or null where not accepted      */
    TENSOR_TEXT_MIXED,           /* booleans and numbers in one tensor                                     */
    TENSOR_TEXT_NOT_ZERO_ONE,    /* TENSOR_TEXT_ZERO_ONE and another number: [256,1]                       */
    TENSOR_TEXT_MEMORY,          /* data or ties could not grow: `memory` says how                         */
};

/* What numbers become. */
enum tensor_text_reals {
    TENSOR_TEXT_F64 = 0,
    TENSOR_TEXT_F32,
    TENSOR_TEXT_F64_TIES, /* float64, and `ties` notes what a later tensor_text_to_f32 must know */
};

/* What the field allows; or'ed. */
enum {
    TENSOR_TEXT_NUMBERS = 1,  /* numbers as reals                               */
    TENSOR_TEXT_NULLS = 2,    /* null, a real of -infinity                      */
    TENSOR_TEXT_BOOLEANS = 4, /* true and false as uint8_t                      */
    TENSOR_TEXT_ZERO_ONE = 8, /* the numbers 0 and 1 as uint8_t; not with NUMBERS */
};

/* What the elements in `data` are. */
enum tensor_text_stored {
    TENSOR_TEXT_STORED_NONE = 0,
    TENSOR_TEXT_STORED_F64,
    TENSOR_TEXT_STORED_F32,
    TENSOR_TEXT_STORED_U8
};

/* What may come next. */
enum tensor_text_expect {
    TENSOR_TEXT_EXPECT_START = 0,
    TENSOR_TEXT_EXPECT_VALUE,          /* after ',' */
    TENSOR_TEXT_EXPECT_VALUE_OR_CLOSE, /* after '[' */
    TENSOR_TEXT_EXPECT_SEPARATOR,      /* after an element or ']' */
};

struct tensor_text {
    /* the result, valid after TENSOR_TEXT_DONE */
    size_t rank;
    size_t dim[TENSOR_TEXT_RANK_MAX]; /* outermost first */
    size_t count;                     /* elements in data */
    enum tensor_text_stored stored;   /* NONE when count is 0 */
    unsigned seen;                    /* TENSOR_TEXT_NUMBERS | NULLS | BOOLEANS that occurred */

    /* the error, valid after any other final status */
    uint64_t offset; /* byte of the offending token, counted from the first byte fed */
    size_t index_length;
    size_t index[TENSOR_TEXT_RANK_MAX]; /* path of the offending element, or of the ragged row: "/Q/0/1" is {0, 1} */
    size_t expected, actual;            /* TENSOR_TEXT_RAGGED by count: elements; both 0 when the depth differs */
    enum tensor_text_expect expect;     /* TENSOR_TEXT_SYNTAX: what should have been there */
    enum mem_status memory;

    /* private */
    struct mem_grow *data, *ties;
    enum tensor_text_reals reals;
    unsigned accept;
    enum tensor_text_status status;
    size_t depth, leaf_depth;
    unsigned fixed;                     /* bit i: dim[i] is known */
    size_t child[TENSOR_TEXT_RANK_MAX]; /* closed children of each open level */
    size_t row_start;                   /* count at the '[' of the open row */
    uint64_t consumed;
    size_t carried;
    char carry[TENSOR_TEXT_NUMBER_MAX + 24];
};

/* Starts a value. `data` and (TENSOR_TEXT_F64_TIES only, else NULL) `ties` are initialised, empty and owned by the caller;
 * they must outlive the reading, their `size` is set here. */
void tensor_text_begin(struct tensor_text *text, struct mem_grow *data, struct mem_grow *ties,
                       enum tensor_text_reals reals, unsigned accept);

/* Takes the next bytes. *used is how many belong to the value: all while MORE, up to and with the last ']' when DONE, no
 * meaning after an error (see offset). Further calls repeat the status and take nothing. */
enum tensor_text_status tensor_text_feed(struct tensor_text *text, const char *bytes, size_t size, size_t *used);

/* After DONE: true if there are elements and every one is the number 0 or 1 (the ambiguous attn_mask). */
bool tensor_text_only_zero_one(const struct tensor_text *text);

/* After DONE of a TENSOR_TEXT_F64_TIES tensor: makes it float32 in place (data shrinks; stored becomes F32, booleans stay).
 * DONE, or OUT_OF_RANGE with index when an element is too large for float32 (offset is then meaningless). */
enum tensor_text_status tensor_text_to_f32(struct tensor_text *text);

/* `value`, which lies exactly between two float32, as a text just above (or below) it is rounded: what `ties` are for. Each note
 * there is a size_t, (element << 1) + (1 if above), in the order of the elements. */
float tensor_text_round_tie(double value, bool above);

/* Path of element number `flat` by the dimensions read. */
void tensor_text_path(const struct tensor_text *text, size_t flat, size_t index[TENSOR_TEXT_RANK_MAX]);

#endif
