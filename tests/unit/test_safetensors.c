/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_safetensors.c - every rule of the format by a crafted file, numbers against arithmetic done
 * otherwise, the writer against hand-laid bytes and against the reader.
 *
 * A crafted header is parsed from a malloc'd copy of exactly its size, so that a read past the end is seen under ASan.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../api/safetensors.h"

static struct st_error error;

static struct st_header *parse_bytes(const char *json, size_t length) {
    char *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    if (length) memcpy(copy, json, length);
    struct st_header *header = st_header_parse(copy, length, &error);
    free(copy);
    return header;
}

static struct st_header *parse(const char *json) { return parse_bytes(json, strlen(json)); }

/* Parsing fails by this rule, and the sentence says `word`. */
static void breaks(const char *json, enum st_rule rule, const char *word) {
    struct st_header *header = parse(json);
    if (header) {
        st_header_free(header);
        fail_msg("accepted: %s", json);
    }
    if (error.rule != rule) fail_msg("%s broke %s, not %s", json, st_rule_name(error.rule), st_rule_name(rule));
    if (!strstr(error.text, word)) fail_msg("%s: \"%s\" does not say \"%s\"", json, error.text, word);
}

static struct st_header *holds(const char *json, size_t n_tensors, size_t data_bytes) {
    struct st_header *header = parse(json);
    if (!header) fail_msg("%s: %s", json, error.text);
    assert_int_equal(header->n_tensors, n_tensors);
    assert_int_equal(header->data_bytes, data_bytes);
    return header;
}

/* ---- the file around the header ---------------------------------------------------------------------------------- */

static char path[] = "/tmp/test_safetensors_XXXXXX";

static void write_file(const void *bytes, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

/* A file of N = length, the header text, `data` bytes of zeros. */
static void write_parts(uint64_t length, const char *json, size_t data) {
    size_t n = strlen(json);
    unsigned char *bytes = calloc(1, 8 + n + data);
    assert_non_null(bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, json, n);
    write_file(bytes, 8 + n + data);
    free(bytes);
}

static void file_breaks(enum st_rule rule, const char *word) {
    struct st_file file;
    bool opened = st_file_open(&file, path, &error);
    st_file_close(&file);
    assert_false(opened);
    if (error.rule != rule) fail_msg("broke %s, not %s", st_rule_name(error.rule), st_rule_name(rule));
    if (!strstr(error.text, word)) fail_msg("\"%s\" does not say \"%s\"", error.text, word);
}

static const char one_f32[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";

static void a_file_shorter_than_8_bytes_is_refused(void **state) {
    (void)state;
    write_file("", 0);
    file_breaks(ST_FILE_TOO_SMALL, "0 bytes");
    write_file("\0\0\0\0\0\0\0", 7);
    file_breaks(ST_FILE_TOO_SMALL, "7 bytes");
}

static void a_header_over_100_million_bytes_is_refused(void **state) {
    (void)state;
    write_parts(100000001, one_f32, 8);
    file_breaks(ST_HEADER_TOO_LARGE, "100000001");
    write_parts(UINT64_MAX, one_f32, 8);
    file_breaks(ST_HEADER_TOO_LARGE, "18446744073709551615");
    size_t length;
    uint64_t most = 100000000;
    unsigned char prefix[8];
    memcpy(prefix, &most, 8);
    assert_int_equal(st_header_length(prefix, &length, &error), ST_OK);
    assert_int_equal(length, 100000000);
}

static void a_header_past_the_end_of_the_file_is_refused(void **state) {
    (void)state;
    write_parts(strlen(one_f32) + 9, one_f32, 8);
    file_breaks(ST_HEADER_PAST_END, "only");
    write_parts(100000000, one_f32, 8);
    file_breaks(ST_HEADER_PAST_END, "only");
}

static void data_that_is_too_short_or_too_long_is_refused(void **state) {
    (void)state;
    write_parts(strlen(one_f32), one_f32, 7);
    file_breaks(ST_DATA_MISSING, "only 7");
    write_parts(strlen(one_f32), one_f32, 9);
    file_breaks(ST_DATA_TRAILING, "1 bytes follow");
    struct st_file file;
    write_parts(strlen(one_f32), one_f32, 8);
    assert_true(st_file_open(&file, path, &error));
    assert_int_equal(file.header->n_tensors, 1);
    st_file_close(&file);
}

static void a_missing_file_a_directory_and_a_fifo_are_errors_and_not_hangs(void **state) {
    (void)state;
    struct st_file file;
    char fifo[64];
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *bad[] = {"/nonexistent/x", "/tmp", fifo};
    for (int i = 0; i < 3; i++) {
        assert_false(st_file_open(&file, bad[i], &error));
        assert_int_equal(error.rule, ST_FILE_ACCESS);
        st_file_close(&file);
    }
    unlink(fifo);
}

static void a_file_rewritten_in_place_is_noticed(void **state) {
    (void)state;
    struct st_file file;
    write_parts(strlen(one_f32), one_f32, 8);
    assert_true(st_file_open(&file, path, &error));
    assert_true(st_file_unchanged(&file));
    assert_int_equal(truncate(path, 3), 0);
    assert_false(st_file_unchanged(&file));
    st_file_close(&file);
}

/* ---- the header's text ------------------------------------------------------------------------------------------- */

static void a_header_that_is_not_utf8_is_refused(void **state) {
    (void)state;
    breaks("{\"\xff\":{}}", ST_HEADER_NOT_UTF8, "0xff");
    breaks("{\"\xc0\xaf\":{}}", ST_HEADER_NOT_UTF8, "0xc0");         /* overlong */
    breaks("{\"\xe0\x80\x80\":{}}", ST_HEADER_NOT_UTF8, "0xe0");     /* overlong */
    breaks("{\"\xed\xa0\x80\":{}}", ST_HEADER_NOT_UTF8, "0xed");     /* a surrogate */
    breaks("{\"\xf4\x90\x80\x80\":{}}", ST_HEADER_NOT_UTF8, "0xf4"); /* above U+10FFFF */
    breaks("{\"\xe2\x82\":{}}", ST_HEADER_NOT_UTF8, "0xe2");         /* cut off */
    breaks("{\"a\":{}}\xe2", ST_HEADER_NOT_UTF8, "byte 8");
    st_header_free(holds("{\"\xe2\x82\xac\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1));
}

static void a_header_that_is_not_json_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",           " ",
        "{",          "{\"a\"",
        "{\"a\":",    "{\"a\":}",
        "{a:1}",      "{\"a\":1",
        "{\"a\":1,}", "{,}",
        "{}}",        "{} {}",
        "{}x",        "nul",
        "{\"a",       "{\"\\x\":1}",
        "{\"\\u12",   "{'a':1}",
        "{\"\t\":1}", "[1 2]",
        "[1,]",       "{\"a\":1 \"b\":2}",
        "{\"a\" 1}",  "{\"\\",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) breaks(bad[i], ST_HEADER_NOT_JSON, "not JSON");
    breaks("{\"\\ud800\":1}", ST_HEADER_NOT_JSON, "surrogate");
    breaks("{\"\\ud800\\u0041\":1}", ST_HEADER_NOT_JSON, "surrogate");
    breaks("{\"\\udc00\":1}", ST_HEADER_NOT_JSON, "surrogate");
    assert_null(parse_bytes("{}\0", 3));
    assert_int_equal(error.rule, ST_HEADER_NOT_JSON);
    assert_null(parse_bytes("{\"\0\":1}", 7));
    assert_int_equal(error.rule, ST_HEADER_NOT_JSON);
}

static void a_nul_in_a_name_is_refused_because_it_would_hide_the_rest(void **state) {
    (void)state;
    breaks("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", ST_HEADER_NOT_JSON, "NUL");
}

static void a_header_of_another_structure_is_refused(void **state) {
    (void)state;
    breaks("[]", ST_HEADER_STRUCTURE, "not an object");
    breaks("5", ST_HEADER_STRUCTURE, "not an object");
    breaks("null", ST_HEADER_STRUCTURE, "not an object");
    breaks("{\"a\":5}", ST_HEADER_STRUCTURE, "\"a\"");
    breaks("{\"a\":[]}", ST_HEADER_STRUCTURE, "\"a\"");
    breaks("{\"a\":{}}", ST_HEADER_STRUCTURE, "\"dtype\" is missing");
    breaks("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", ST_HEADER_STRUCTURE, "\"shape\" is missing");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", ST_HEADER_STRUCTURE, "\"data_offsets\" is missing");
    breaks("{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", ST_HEADER_STRUCTURE, "not a string");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", ST_HEADER_STRUCTURE, "not an array");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", ST_HEADER_STRUCTURE, "not a number");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}", ST_HEADER_STRUCTURE, "not a number");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", ST_HEADER_STRUCTURE, "array of two");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", ST_HEADER_STRUCTURE, "array of two");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,null]}}", ST_HEADER_STRUCTURE, "not a number");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"strides\":[1]}}", ST_HEADER_STRUCTURE,
           "strides");
    breaks("[[[[[]]]]]", ST_HEADER_STRUCTURE, "too deep");
}

static void metadata_is_an_object_of_strings(void **state) {
    (void)state;
    breaks("{\"__metadata__\":5}", ST_HEADER_STRUCTURE, "__metadata__");
    breaks("{\"__metadata__\":[]}", ST_HEADER_STRUCTURE, "__metadata__");
    breaks("{\"__metadata__\":{\"k\":5}}", ST_HEADER_STRUCTURE, "\"k\"");
    breaks("{\"__metadata__\":{\"k\":{}}}", ST_HEADER_STRUCTURE, "\"k\"");
    struct st_header *header = holds("{\"__metadata__\":{\"format\":\"pt\",\"mha\":\"{\\\"num_heads\\\":2}\"}}", 0, 0);
    assert_string_equal(st_metadata_get(header, "mha"), "{\"num_heads\":2}");
    assert_string_equal(st_metadata_get(header, "format"), "pt");
    assert_null(st_metadata_get(header, "Format"));
    st_header_free(header);
}

static void a_number_that_is_no_length_is_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "-1",
        "1.5",
        "1.0",
        "1e2",
        "01",
        "00",
        "9007199254740992",
        "18446744073709551616",
        "-0",
        "+1",
        ".5",
        "99999999999999999999999999999999999999999999999999999999999999999999999",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[256];
        snprintf(json, sizeof json, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,1]}}", bad[i]);
        breaks(json, ST_NUMBER, "not an integer from 0 to 2^53-1");
        snprintf(json, sizeof json, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,%s]}}", bad[i]);
        breaks(json, ST_NUMBER, "not an integer from 0 to 2^53-1");
    }
    /* the largest one is read exactly: it is the shape that then does not fit the offsets */
    breaks("{\"a\":{\"dtype\":\"U8\",\"shape\":[9007199254740991],\"data_offsets\":[0,1]}}", ST_SIZE,
           "9007199254740991");
}

static void duplicates_are_refused_whatever_the_reference_reader_does(void **state) {
    (void)state;
    breaks("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
           ST_DUPLICATE, "\"a\"");
    /* the later one would stand alone and pass */
    breaks("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
           ST_DUPLICATE, "\"a\"");
    breaks("{\"__metadata__\":{},\"__metadata__\":{}}", ST_DUPLICATE, "__metadata__");
    breaks("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", ST_DUPLICATE, "\"k\"");
    breaks("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", ST_DUPLICATE, "dtype");
    breaks("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1,1,1],\"data_offsets\":[0,1]}}", ST_DUPLICATE, "shape");
}

static void an_unknown_dtype_is_refused_by_the_tensors_name(void **state) {
    (void)state;
    breaks("{\"w\\nx\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", ST_DTYPE, "tensor \"w?x\"");
    breaks("{\"w\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", ST_DTYPE, "\"f32\"");
    breaks("{\"w\":{\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,4]}}", ST_DTYPE, "unknown");
}

static void every_dtype_of_the_format_has_its_width(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t bits;
    } all[] = {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
               {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
               {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
               {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
    assert_int_equal(sizeof all / sizeof *all, ST_DTYPE_COUNT);
    for (size_t i = 0; i < ST_DTYPE_COUNT; i++) {
        char json[256];
        snprintf(json, sizeof json, "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%zu]}}", all[i].name,
                 all[i].bits);
        struct st_header *header = holds(json, 1, all[i].bits);
        assert_string_equal(st_dtype_name(header->tensors[0].dtype), all[i].name);
        st_header_free(header);
    }
}

/* ---- sizes and offsets ------------------------------------------------------------------------------------------- */

static void products_that_overflow_are_refused(void **state) {
    (void)state;
    breaks("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", ST_OVERFLOW,
           "product");
    breaks("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}", ST_OVERFLOW,
           "product");
    /* 2^61 elements fit, their 2^67 bits do not */
    breaks("{\"a\":{\"dtype\":\"F64\",\"shape\":[2147483648,1073741824],\"data_offsets\":[0,0]}}", ST_OVERFLOW, "bits");
}

static void elements_that_do_not_fill_bytes_are_refused(void **state) {
    (void)state;
    breaks("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", ST_MISALIGNED, "whole bytes");
    breaks("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", ST_MISALIGNED, "whole bytes");
    st_header_free(holds("{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 1, 3));
}

static void offsets_that_do_not_hold_the_shape_are_refused(void **state) {
    (void)state;
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", ST_SIZE, "8 bytes of F32");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", ST_SIZE, "[0,9]");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,8]}}", ST_SIZE, "4 bytes");
    breaks("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,0],\"data_offsets\":[0,8]}}", ST_SIZE, "0 bytes");
}

#define U8(name, begin, end) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[" begin "," end "]}"

static void holes_overlaps_and_reversed_spans_are_refused(void **state) {
    (void)state;
    breaks("{" U8("a", "1", "3") "}", ST_OFFSETS, "a hole");
    breaks("{" U8("a", "0", "2") "," U8("b", "3", "5") "}", ST_OFFSETS, "tensor \"b\"");
    breaks("{" U8("a", "0", "2") "," U8("b", "1", "3") "}", ST_OFFSETS, "an overlap");
    breaks("{" U8("a", "0", "2") "," U8("b", "0", "2") "}", ST_OFFSETS, "an overlap");
    breaks("{" U8("a", "2", "0") "}", ST_OFFSETS, "backwards");
    /* many tensors over one range: a small file that would be many arrays */
    breaks("{" U8("a", "0", "2") "," U8("b", "0", "2") "," U8("c", "0", "2") "," U8("d", "0", "2") "," U8("e", "0",
                                                                                                          "2") "}",
           ST_OFFSETS, "an overlap");
}

static void the_order_in_the_header_is_free_and_that_of_the_data_is_kept(void **state) {
    (void)state;
    struct st_header *header = holds("{" U8("z", "0", "2") "," U8("a", "4", "6") "," U8("m", "2", "4") "}", 3, 6);
    assert_string_equal(header->tensors[0].name, "z");
    assert_string_equal(header->tensors[1].name, "m");
    assert_string_equal(header->tensors[2].name, "a");
    assert_ptr_equal(st_find(header, "a"), &header->tensors[2]);
    assert_ptr_equal(st_find(header, "m"), &header->tensors[1]);
    assert_ptr_equal(st_find(header, "z"), &header->tensors[0]);
    assert_null(st_find(header, "b"));
    st_header_free(header);
}

static void scalars_empty_tensors_no_tensors_and_white_space_are_fine(void **state) {
    (void)state;
    struct st_header *header = holds("{\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", 1, 8);
    assert_int_equal(header->tensors[0].rank, 0);
    assert_int_equal(header->tensors[0].count, 1);
    st_header_free(header);
    header = holds("{\"e\":{\"dtype\":\"F64\",\"shape\":[2,0,3],\"data_offsets\":[0,0]}," U8("a", "0", "2") "}", 2, 2);
    assert_int_equal(st_find(header, "e")->count, 0);
    char text[32];
    st_shape_text(st_find(header, "e"), text, sizeof text);
    assert_string_equal(text, "[2,0,3]");
    st_shape_text(st_find(header, "e"), text, 4);
    assert_string_equal(text, "[2,");
    st_header_free(header);
    header = holds("{}", 0, 0);
    assert_null(st_find(header, "a"));
    st_header_free(header);
    st_header_free(holds("{}  \n\t\r ", 0, 0));
    st_header_free(holds(" \n{ } ", 0, 0));
}

static void the_data_must_have_the_length_of_the_tensors(void **state) {
    (void)state;
    struct st_header *header = holds(one_f32, 1, 8);
    assert_int_equal(st_header_fits(header, 7, &error), ST_DATA_MISSING);
    assert_int_equal(st_header_fits(header, 9, &error), ST_DATA_TRAILING);
    assert_int_equal(st_header_fits(header, 0, &error), ST_DATA_MISSING);
    assert_int_equal(st_header_fits(header, 8, &error), ST_OK);
    st_header_free(header);
    header = holds("{}", 0, 0);
    assert_int_equal(st_header_fits(header, 1, &error), ST_DATA_TRAILING);
    st_header_free(header);
}

static void a_long_name_is_cut_in_the_message_at_a_character(void **state) {
    (void)state;
    char json[1024] = "{\"";
    for (int i = 0; i < 100; i++) strcat(json, "\xe2\x82\xac");
    strcat(json, "\":5}");
    breaks(json, ST_HEADER_STRUCTURE, "\xe2\x82\xac...\"");
    assert_true(strlen(error.text) < sizeof error.text);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The value of a small float by the definition, (-1)^s * 2^(e-bias) * 1.f, done with ldexp in double. */
static double by_definition(unsigned bits, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned e = (bits >> fraction_bits) & ((1u << exponent_bits) - 1), f = bits & ((1u << fraction_bits) - 1);
    double sign = bits >> (exponent_bits + fraction_bits) ? -1 : 1;
    if (e == (1u << exponent_bits) - 1) return f ? (double)NAN : sign * (double)INFINITY;
    double fraction = (double)f / (double)(1u << fraction_bits);
    return sign * (e == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, (int)e - bias));
}

static bool same(double a, double b) { return isnan(b) ? isnan(a) : a == b && signbit(a) == signbit(b); }

static void all_65536_halves_and_bfloat16s_widen_exactly(void **state) {
    (void)state;
    static uint16_t bits[65536];
    static double wide[65536];
    static float narrow[65536];
    static const struct {
        enum st_dtype dtype;
        int exponent, fraction;
    } kinds[] = {{ST_F16, 5, 10}, {ST_BF16, 8, 7}};
    for (unsigned i = 0; i < 65536; i++) bits[i] = (uint16_t)i;
    for (size_t k = 0; k < 2; k++) {
        assert_true(st_widen(MHA_F64, wide, kinds[k].dtype, bits, 65536));
        assert_true(st_widen(MHA_F32, narrow, kinds[k].dtype, bits, 65536));
        for (unsigned i = 0; i < 65536; i++) {
            double expected = by_definition(i, kinds[k].exponent, kinds[k].fraction);
            if (!same(wide[i], expected) || !same((double)narrow[i], expected))
                fail_msg("%s 0x%04x: %a and %a, not %a", st_dtype_name(kinds[k].dtype), i, wide[i], (double)narrow[i],
                         expected);
        }
    }
}

static void float32_widens_and_float64_rounds_once_to_nearest_even(void **state) {
    (void)state;
    float narrow[4] = {0.1f, -0.0f, 0x1p-149f, 3.4028235e38f}, rounded[5];
    double wide[4], sources[5] = {0.1, 1 + 0x1p-24, 1 + 0x1p-24 + 0x1p-50, 1e300, -0x1p-150};
    assert_true(st_widen(MHA_F64, wide, ST_F32, narrow, 4));
    for (int i = 0; i < 4; i++) assert_true(same(wide[i], (double)narrow[i]));
    assert_true(st_widen(MHA_F32, rounded, ST_F64, sources, 5));
    assert_true(rounded[0] == 0.1f);
    assert_true(rounded[1] == 1.0f);            /* a tie goes to even */
    assert_true(rounded[2] == 1.0f + 0x1p-23f); /* just above it does not */
    assert_true(isinf(rounded[3]));
    assert_true(rounded[4] == 0 && signbit(rounded[4]));
}

static void widening_reads_any_address_and_refuses_other_dtypes(void **state) {
    (void)state;
    unsigned char bytes[64];
    double expected[3] = {1.5, -2.25, 3e100}, out[3];
    for (size_t shift = 0; shift < 8; shift++) {
        memcpy(bytes + shift, expected, sizeof expected);
        assert_true(st_widen(MHA_F64, out, ST_F64, bytes + shift, 3));
        assert_memory_equal(out, expected, sizeof out);
    }
    for (int d = 0; d < ST_DTYPE_COUNT; d++)
        assert_int_equal(st_widen(MHA_F64, out, (enum st_dtype)d, bytes, 1), st_dtype_is_float((enum st_dtype)d));
    assert_true(st_widen(MHA_F64, NULL, ST_F64, NULL, 0));
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void the_writer_lays_out_the_bytes_that_the_format_shows(void **state) {
    (void)state;
    size_t dim[] = {1, 2, 3}, bytes = 0;
    struct st_out six = {.name = "attn.0", .dtype = ST_F32, .rank = 3, .dim = dim};
    static const char golden[] = "{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}";
    size_t text = strlen(golden), padded = (text + 7) / 8 * 8;
    char *header = st_write_header(&six, 1, NULL, 0, &bytes);
    assert_non_null(header);
    assert_int_equal(bytes, 8 + padded);
    assert_int_equal(header[0], padded);
    assert_memory_equal(header + 1, "\0\0\0\0\0\0\0", 7);
    assert_memory_equal(header + 8, golden, text);
    for (size_t i = text; i < padded; i++) assert_int_equal(header[8 + i], ' ');
    free(header);
}

static void the_writer_orders_by_alignment_then_name_and_pads_to_8(void **state) {
    (void)state;
    size_t two[] = {2}, five[] = {5}, none[] = {0, 7}, bytes = 0;
    struct st_out out[] = {{.name = "b", .dtype = ST_BOOL, .rank = 1, .dim = five},
                           {.name = "z", .dtype = ST_F64, .rank = 1, .dim = two},
                           {.name = "h", .dtype = ST_F16, .rank = 1, .dim = five},
                           {.name = "a", .dtype = ST_F64, .rank = 1, .dim = two},
                           {.name = "s", .dtype = ST_F32, .rank = 0, .dim = NULL},
                           {.name = "e", .dtype = ST_F64, .rank = 2, .dim = none}};
    struct st_metadata metadata[] = {{"mha", "{\"x\":\"\\\"\n\"}"}, {"empty", ""}};
    static const char *const order[] = {"a", "e", "z", "s", "h", "b"};
    char *text = st_write_header(out, 6, metadata, 2, &bytes);
    assert_non_null(text);
    assert_int_equal(bytes % 8, 0);
    for (int i = 0; i < 6; i++) assert_string_equal(out[i].name, order[i]);
    struct st_header *header = parse_bytes(text + 8, bytes - 8);
    if (!header) fail_msg("%s", error.text);
    assert_int_equal(header->n_tensors, 6);
    assert_int_equal(header->data_bytes, 16 + 0 + 16 + 4 + 10 + 5);
    assert_string_equal(st_metadata_get(header, "mha"), metadata[0].value);
    assert_string_equal(st_metadata_get(header, "empty"), "");
    for (int i = 0; i < 6; i++) {
        const struct st_tensor *t = st_find(header, out[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, out[i].dtype);
        assert_int_equal(t->begin, out[i].begin);
        assert_int_equal(t->begin % (st_dtype_bits(t->dtype) / 8), 0);
    }
    st_header_free(header);
    free(text);
}

static void the_writer_refuses_sizes_that_overflow(void **state) {
    (void)state;
    size_t huge[] = {1ull << 40, 1ull << 40}, half[] = {1ull << 60}, bytes = 0;
    struct st_out one = {.name = "a", .dtype = ST_F64, .rank = 2, .dim = huge}, many[17];
    assert_null(st_write_header(&one, 1, NULL, 0, &bytes));
    for (int i = 0; i < 17; i++)
        many[i] = (struct st_out){.name = &"abcdefghijklmnopq"[i], .dtype = ST_U8, .rank = 1, .dim = half};
    assert_null(st_write_header(many, 17, NULL, 0, &bytes)); /* each fits, the sum does not */
    char *none = st_write_header(NULL, 0, NULL, 0, &bytes);
    assert_non_null(none);
    assert_int_equal(bytes, 16);
    assert_memory_equal(none + 8, "{}      ", 8);
    free(none);
}

static int make_path(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_shorter_than_8_bytes_is_refused),
        cmocka_unit_test(a_header_over_100_million_bytes_is_refused),
        cmocka_unit_test(a_header_past_the_end_of_the_file_is_refused),
        cmocka_unit_test(data_that_is_too_short_or_too_long_is_refused),
        cmocka_unit_test(a_missing_file_a_directory_and_a_fifo_are_errors_and_not_hangs),
        cmocka_unit_test(a_file_rewritten_in_place_is_noticed),
        cmocka_unit_test(a_header_that_is_not_utf8_is_refused),
        cmocka_unit_test(a_header_that_is_not_json_is_refused),
        cmocka_unit_test(a_nul_in_a_name_is_refused_because_it_would_hide_the_rest),
        cmocka_unit_test(a_header_of_another_structure_is_refused),
        cmocka_unit_test(metadata_is_an_object_of_strings),
        cmocka_unit_test(a_number_that_is_no_length_is_refused),
        cmocka_unit_test(duplicates_are_refused_whatever_the_reference_reader_does),
        cmocka_unit_test(an_unknown_dtype_is_refused_by_the_tensors_name),
        cmocka_unit_test(every_dtype_of_the_format_has_its_width),
        cmocka_unit_test(products_that_overflow_are_refused),
        cmocka_unit_test(elements_that_do_not_fill_bytes_are_refused),
        cmocka_unit_test(offsets_that_do_not_hold_the_shape_are_refused),
        cmocka_unit_test(holes_overlaps_and_reversed_spans_are_refused),
        cmocka_unit_test(the_order_in_the_header_is_free_and_that_of_the_data_is_kept),
        cmocka_unit_test(scalars_empty_tensors_no_tensors_and_white_space_are_fine),
        cmocka_unit_test(the_data_must_have_the_length_of_the_tensors),
        cmocka_unit_test(a_long_name_is_cut_in_the_message_at_a_character),
        cmocka_unit_test(all_65536_halves_and_bfloat16s_widen_exactly),
        cmocka_unit_test(float32_widens_and_float64_rounds_once_to_nearest_even),
        cmocka_unit_test(widening_reads_any_address_and_refuses_other_dtypes),
        cmocka_unit_test(the_writer_lays_out_the_bytes_that_the_format_shows),
        cmocka_unit_test(the_writer_orders_by_alignment_then_name_and_pads_to_8),
        cmocka_unit_test(the_writer_refuses_sizes_that_overflow),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_path, remove_path);
}
