/* SPDX-License-Identifier: Apache-2.0
 *
 * api/tensor_write.h - writes a tensor as JSON, block by block: call it with a block until it returns 0.
 *
 * Model. The writer is a position (which element, how far inside its surroundings) over borrowed data; each call fills the
 * block as far as whole numbers fit and remembers where it stopped. The bytes are the same whatever the block sizes are.
 *
 *   nested   [[1,2],[3,4]]                                       a zero-length dimension ends the nesting: [2,0,3] is [[],[]]
 *   flat     {"shape":[2,2],"data":[1,2,3,4]}
 *   base64   {"shape":[2,2],"dtype":"float64","base64":"..."}    little-endian, row-major; "float32", "bool" likewise
 *
 * Numbers are the shortest text that reads back to the same value of their type (number.h). NaN and infinities, which JSON
 * cannot say, become null in nested and flat; base64 carries them as they are. Booleans are true and false.
 *
 * What it does not do: allocate, own the data, indent.
 */
#ifndef MHA_API_TENSOR_WRITE_H
#define MHA_API_TENSOR_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TENSOR_WRITE_RANK_MAX  8
#define TENSOR_WRITE_BLOCK_MIN 512 /* smallest block tensor_write accepts */

enum tensor_write_format { TENSOR_WRITE_NESTED = 0, TENSOR_WRITE_FLAT, TENSOR_WRITE_BASE64 };
enum tensor_write_type { TENSOR_WRITE_F64 = 0, TENSOR_WRITE_F32, TENSOR_WRITE_BOOL };

struct tensor_write {
    enum tensor_write_format format;
    enum tensor_write_type type;
    const void *data;
    size_t rank;
    size_t dim[TENSOR_WRITE_RANK_MAX];
    size_t count; /* elements: the product of dim */

    /* private */
    int stage;
    size_t next;                         /* element (bytes for base64) to write next */
    size_t levels, row, row_end;         /* brackets around an element, elements of a row, where this one ends */
    size_t depth;                        /* open brackets */
    size_t child[TENSOR_WRITE_RANK_MAX]; /* children written at each open level */
};

/* `data` [dim[0], ..., dim[rank-1]] is borrowed until the last call; NULL if there are no elements. rank <= 8; the product of
 * dim must have been checked. rank 0 is a bare number in nested. */
void tensor_write_begin(struct tensor_write *writer, enum tensor_write_format format, enum tensor_write_type type,
                        const void *data, size_t rank, const size_t *dim);

/* Fills out (max >= TENSOR_WRITE_BLOCK_MIN) with the next bytes and returns how many; 0 = everything was written. */
size_t tensor_write(struct tensor_write *writer, char *out, size_t max);

#endif
