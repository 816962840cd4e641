/* SPDX-License-Identifier: Apache-2.0
 *
 * api/base64.h - base64 (RFC 4648 section 4, standard alphabet), strict: padding required, no bits set behind the last byte,
 * no white space, nothing after the padding. The decoder takes its text in pieces of any size.
 *
 * What it does not do: undo JSON escapes. A document reader must have turned "\/" into "/" before (PHP writes it so).
 */
#ifndef MHA_API_BASE64_H
#define MHA_API_BASE64_H

#include <stddef.h>
#include <stdint.h>

enum base64_status {
    BASE64_OK = 0,
    BASE64_BAD_CHARACTER, /* "ab c", "a-b_"                                    */
    BASE64_BAD_PADDING,   /* "ab=c", "a===", "abcd=", text after the padding   */
    BASE64_STRAY_BITS,    /* "AB==": bits that belong to no byte are not zero  */
    BASE64_TRUNCATED,     /* "abc": the length is not a multiple of four       */
};

struct base64_decoder {
    uint64_t offset; /* characters taken; after an error, the offending one */
    uint32_t bits;   /* private: sextets of the open group */
    uint32_t place;  /* private: characters of the open group */
    uint32_t padding;
    enum base64_status status;
};

/* Bytes that `characters` more of text can become at most, whatever was fed before. */
static inline size_t base64_decoded_max(size_t characters) { return characters / 4 * 3 + 3; }

void base64_decode_begin(struct base64_decoder *decoder);
/* Decodes the next piece into out (room for base64_decoded_max(length)); *written = bytes. Errors repeat. */
enum base64_status base64_decode_feed(struct base64_decoder *decoder, const char *text, size_t length,
                                      unsigned char *out, size_t *written);
/* The text is complete: BASE64_OK or what is wrong with its end. */
enum base64_status base64_decode_end(struct base64_decoder *decoder);

/* Characters of `bytes` encoded, padding included; checked against overflow by the caller (bytes <= SIZE_MAX / 2). */
static inline size_t base64_encoded_size(size_t bytes) { return (bytes + 2) / 3 * 4; }
/* Writes base64_encoded_size(bytes) characters, no NUL. Pieces of a multiple of three bytes concatenate. */
size_t base64_encode(char *out, const void *data, size_t bytes);

#endif
