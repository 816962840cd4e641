/* SPDX-License-Identifier: Apache-2.0
 *
 * api/base64.c - see base64.h. Whole groups of four characters go through a table in a plain loop; everything at the edges
 * (groups cut by the end of a piece, padding, errors) goes one character at a time.
 */
#include "base64.h"

#include <string.h>

static const char alphabet[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#define VALID 64 /* set in the table for characters of the alphabet, so that 0 means none */

/* clang-format off */
#define V(n) (VALID | (n))
static const unsigned char sextet_of[256] = {
    ['A'] = V(0),  ['B'] = V(1),  ['C'] = V(2),  ['D'] = V(3),  ['E'] = V(4),  ['F'] = V(5),  ['G'] = V(6),  ['H'] = V(7),
    ['I'] = V(8),  ['J'] = V(9),  ['K'] = V(10), ['L'] = V(11), ['M'] = V(12), ['N'] = V(13), ['O'] = V(14), ['P'] = V(15),
    ['Q'] = V(16), ['R'] = V(17), ['S'] = V(18), ['T'] = V(19), ['U'] = V(20), ['V'] = V(21), ['W'] = V(22), ['X'] = V(23),
    ['Y'] = V(24), ['Z'] = V(25), ['a'] = V(26), ['b'] = V(27), ['c'] = V(28), ['d'] = V(29), ['e'] = V(30), ['f'] = V(31),
    ['g'] = V(32), ['h'] = V(33), ['i'] = V(34), ['j'] = V(35), ['k'] = V(36), ['l'] = V(37), ['m'] = V(38), ['n'] = V(39),
    ['o'] = V(40), ['p'] = V(41), ['q'] = V(42), ['r'] = V(43), ['s'] = V(44), ['t'] = V(45), ['u'] = V(46), ['v'] = V(47),
    ['w'] = V(48), ['x'] = V(49), ['y'] = V(50), ['z'] = V(51), ['0'] = V(52), ['1'] = V(53), ['2'] = V(54), ['3'] = V(55),
    ['4'] = V(56), ['5'] = V(57), ['6'] = V(58), ['7'] = V(59), ['8'] = V(60), ['9'] = V(61), ['+'] = V(62), ['/'] = V(63),
};
#undef V
/* clang-format on */

static unsigned sextet(const char *p) { return sextet_of[(unsigned char)*p]; }

void base64_decode_begin(struct base64_decoder *decoder) { memset(decoder, 0, sizeof *decoder); }

/* The group has its four characters, `padding` of them '=': one to three bytes. */
static enum base64_status finish_group(struct base64_decoder *decoder, unsigned char **out) {
    uint32_t bits = decoder->bits << 6 * decoder->padding;
    uint32_t stray = decoder->padding == 0 ? 0 : bits & (decoder->padding == 1 ? 0xFF : 0xFFFF);
    if (stray != 0) return BASE64_STRAY_BITS;
    for (uint32_t i = 0; i < 3 - decoder->padding; i++) *(*out)++ = (unsigned char)(bits >> (16 - 8 * i));
    decoder->bits = 0;
    decoder->place = 0;
    return BASE64_OK;
}

static enum base64_status take(struct base64_decoder *decoder, const char *p, unsigned char **out) {
    if (*p == '=') {
        if (decoder->place < 2) return BASE64_BAD_PADDING; /* also behind a padded group, which left place at 0 */
        decoder->padding++;
    } else {
        if (sextet(p) == 0) return BASE64_BAD_CHARACTER;
        if (decoder->padding > 0) return BASE64_BAD_PADDING;
        decoder->bits = decoder->bits << 6 | (sextet(p) & ~(unsigned)VALID);
    }
    decoder->place++;
    return decoder->place == 4 ? finish_group(decoder, out) : BASE64_OK;
}

/* Whole groups of alphabet characters only; stops at anything else. Returns the characters taken. */
static size_t take_groups(const char *text, size_t length, unsigned char **out) {
    unsigned char *o = *out;
    size_t i = 0;
    for (; length - i >= 4; i += 4, o += 3) {
        unsigned a = sextet(text + i), b = sextet(text + i + 1), c = sextet(text + i + 2), d = sextet(text + i + 3);
        if ((a & b & c & d & VALID) == 0) break;
        uint32_t bits = (a & 63) << 18 | (b & 63) << 12 | (c & 63) << 6 | (d & 63);
        o[0] = (unsigned char)(bits >> 16);
        o[1] = (unsigned char)(bits >> 8);
        o[2] = (unsigned char)bits;
    }
    *out = o;
    return i;
}

enum base64_status base64_decode_feed(struct base64_decoder *decoder, const char *text, size_t length,
                                      unsigned char *out, size_t *written) {
    unsigned char *o = out;
    size_t i = 0;
    while (decoder->status == BASE64_OK && i < length) {
        if (decoder->place == 0 && decoder->padding == 0) {
            size_t whole = take_groups(text + i, length - i, &o);
            i += whole;
            decoder->offset += whole;
            if (i == length) break;
        }
        decoder->status = take(decoder, text + i, &o);
        if (decoder->status != BASE64_OK) break; /* offset stays at the character */
        i++;
        decoder->offset++;
    }
    *written = (size_t)(o - out);
    return decoder->status;
}

enum base64_status base64_decode_end(struct base64_decoder *decoder) {
    if (decoder->status == BASE64_OK && decoder->place != 0) decoder->status = BASE64_TRUNCATED;
    return decoder->status;
}

size_t base64_encode(char *out, const void *data, size_t bytes) {
    const unsigned char *in = data;
    char *o = out;
    for (; bytes >= 3; bytes -= 3, in += 3, o += 4) {
        uint32_t bits = (uint32_t)in[0] << 16 | (uint32_t)in[1] << 8 | in[2];
        o[0] = alphabet[bits >> 18];
        o[1] = alphabet[bits >> 12 & 63];
        o[2] = alphabet[bits >> 6 & 63];
        o[3] = alphabet[bits & 63];
    }
    if (bytes > 0) {
        uint32_t bits = (uint32_t)in[0] << 16 | (bytes > 1 ? (uint32_t)in[1] << 8 : 0);
        o[0] = alphabet[bits >> 18];
        o[1] = alphabet[bits >> 12 & 63];
        o[2] = bytes > 1 ? alphabet[bits >> 6 & 63] : '=';
        o[3] = '=';
        o += 4;
    }
    return (size_t)(o - out);
}
