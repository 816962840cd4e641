/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_base64.c - base64 both ways: the vectors of RFC 4648 section 10, an encoder written bit by bit as the
 * independent route, every split, and everything a strict decoder must refuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/base64.h"

static uint64_t random_state = 3;

static uint64_t random_below(uint64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

/* Decodes text in pieces of `most` (0: at once) from and into memory of exactly the sizes promised. */
static enum base64_status decode(const char *text, size_t length, size_t most, unsigned char *out, size_t *size,
                                 uint64_t *offset) {
    struct base64_decoder decoder;
    base64_decode_begin(&decoder);
    *size = 0;
    for (size_t at = 0; at < length && decoder.status == BASE64_OK;) {
        size_t piece = most == 0 || most > length - at ? length - at : most, written;
        char *from = malloc(piece);
        unsigned char *to = malloc(base64_decoded_max(piece));
        assert_non_null(from);
        assert_non_null(to);
        memcpy(from, text + at, piece);
        base64_decode_feed(&decoder, from, piece, to, &written);
        assert_true(written <= base64_decoded_max(piece));
        memcpy(out + *size, to, written);
        *size += written;
        free(from);
        free(to);
        at += piece;
    }
    enum base64_status status = base64_decode_end(&decoder);
    *offset = decoder.offset;
    return status;
}

static void the_vectors_of_rfc_4648_hold(void **state) {
    (void)state;
    static const char *const plain[] = {"", "f", "fo", "foo", "foob", "fooba", "foobar"};
    static const char *const coded[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        char text[16];
        size_t length = base64_encode(text, plain[i], strlen(plain[i]));
        assert_int_equal(length, strlen(coded[i]));
        assert_int_equal(length, base64_encoded_size(strlen(plain[i])));
        assert_memory_equal(text, coded[i], length);
        unsigned char back[16];
        size_t size;
        uint64_t offset;
        assert_int_equal(decode(coded[i], length, 0, back, &size, &offset), BASE64_OK);
        assert_int_equal(size, strlen(plain[i]));
        assert_memory_equal(back, plain[i], size);
    }
}

/* Six bits at a time, straight from the definition. */
static size_t encode_by_bits(char *out, const unsigned char *data, size_t size) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = 0;
    for (size_t bit = 0; bit < size * 8; bit += 6) {
        unsigned sextet = 0;
        for (size_t k = bit; k < bit + 6; k++)
            sextet = sextet << 1 | (k < size * 8 ? (unsigned)data[k / 8] >> (7 - k % 8) & 1 : 0u);
        out[length++] = alphabet[sextet];
    }
    while (length % 4 != 0) out[length++] = '=';
    return length;
}

static void random_bytes_survive_every_split(void **state) {
    (void)state;
    for (size_t size = 0; size < 200; size++) {
        unsigned char data[200] = {0}, back[200 + 3];
        char text[300], expected[300];
        for (size_t i = 0; i < size; i++) data[i] = (unsigned char)random_below(256);
        size_t length = base64_encode(text, data, size);
        assert_int_equal(length, encode_by_bits(expected, data, size));
        assert_memory_equal(text, expected, length);
        for (size_t most = 0; most < 12; most++) {
            size_t got;
            uint64_t offset;
            assert_int_equal(decode(text, length, most, back, &got, &offset), BASE64_OK);
            assert_int_equal(got, size);
            assert_memory_equal(back, data, size);
            assert_int_equal(offset, length);
        }
    }
}

static void pieces_of_a_multiple_of_three_concatenate(void **state) {
    (void)state;
    unsigned char data[100];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)random_below(256);
    char whole[200], pieces[200];
    size_t length = base64_encode(whole, data, sizeof data), at = 0;
    for (size_t i = 0; i < sizeof data; i += 27)
        at += base64_encode(pieces + at, data + i, sizeof data - i < 27 ? sizeof data - i : 27);
    assert_int_equal(at, length);
    assert_memory_equal(pieces, whole, length);
}

static void what_strictness_forbids_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum base64_status status;
        uint64_t offset;
    } cases[] = {
        {"Zm9 v", BASE64_BAD_CHARACTER, 3},   {"Zm9v\n", BASE64_BAD_CHARACTER, 4},
        {"Zm-v", BASE64_BAD_CHARACTER, 2},    {"Zm_v", BASE64_BAD_CHARACTER, 2},
        {"Zm9v\\/", BASE64_BAD_CHARACTER, 4}, {"Zm9vZm9v\xC3\xA4", BASE64_BAD_CHARACTER, 8},
        {"=", BASE64_BAD_PADDING, 0},         {"Z=", BASE64_BAD_PADDING, 1},
        {"Z===", BASE64_BAD_PADDING, 1},      {"Zg=v", BASE64_BAD_PADDING, 3},
        {"Zg===", BASE64_BAD_PADDING, 4},     {"Zm8=Zm9v", BASE64_BAD_PADDING, 4},
        {"Zm9v=", BASE64_BAD_PADDING, 4},     {"Zm8==", BASE64_BAD_PADDING, 4},
        {"Zh==", BASE64_STRAY_BITS, 3},       {"Zm9=", BASE64_STRAY_BITS, 3},
        {"Z", BASE64_TRUNCATED, 1},           {"Zg", BASE64_TRUNCATED, 2},
        {"Zg=", BASE64_TRUNCATED, 3},         {"Zm9vZm8", BASE64_TRUNCATED, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t most = 0; most < 6; most++) {
            unsigned char out[32];
            size_t size;
            uint64_t offset;
            enum base64_status status = decode(cases[i].text, strlen(cases[i].text), most, out, &size, &offset);
            if (status != cases[i].status || offset != cases[i].offset)
                fail_msg("\"%s\" by %zu: status %d at %d", cases[i].text, most, (int)status, (int)offset);
        }
    }
}

static void every_byte_outside_the_alphabet_is_refused(void **state) {
    (void)state;
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int c = 0; c < 256; c++) {
        char text[] = "AAAA";
        text[1] = (char)c;
        unsigned char out[8];
        size_t size;
        uint64_t offset;
        bool good = c != 0 && strchr(alphabet, c) != NULL;
        assert_int_equal(decode(text, 4, 0, out, &size, &offset) == BASE64_OK, good);
        if (good) assert_int_equal((out[0] & 3) << 4 | out[1] >> 4, strchr(alphabet, c) - alphabet);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors_of_rfc_4648_hold),
        cmocka_unit_test(random_bytes_survive_every_split),
        cmocka_unit_test(pieces_of_a_multiple_of_three_concatenate),
        cmocka_unit_test(what_strictness_forbids_is_refused_with_its_place),
        cmocka_unit_test(every_byte_outside_the_alphabet_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
