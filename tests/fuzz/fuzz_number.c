/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/fuzz/fuzz_number.c - any bytes through the number reader, any values through the number writer.
 *
 * Beyond not crashing: what is read must be what strtod and strtof read; what is refused must break the grammar of RFC 8259,
 * section 6, as spelled out again here; float64 with its tie must round to the float32 of the text; what is written must
 * read back to the same bits and be no longer than printf's shortest try.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/number.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

static const char *skip_digits(const char *p) {
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

/* The end of the JSON number at p, NULL if there is none or it goes on with a byte of numbers. */
static const char *grammar(const char *p) {
    if (*p == '-') p++;
    const char *digits = p;
    p = skip_digits(p);
    if (p == digits || (*digits == '0' && p - digits > 1)) return NULL;
    if (*p == '.') {
        digits = ++p;
        p = skip_digits(p);
        if (p == digits) return NULL;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        digits = p;
        p = skip_digits(p);
        if (p == digits) return NULL;
    }
    return *p != '\0' && strchr("0123456789+-.eE", *p) != NULL ? NULL : p;
}

static void check_tie(const char *text, size_t length, double expected) {
    double wide;
    size_t used;
    int tie;
    must(number_read_f64_tie(text, length, &wide, &used, &tie) == NUMBER_OK && wide == expected);
    float narrow = (float)wide;
    if (tie > 0 && (double)narrow < wide) narrow = nextafterf(narrow, INFINITY);
    if (tie < 0 && (double)narrow > wide) narrow = nextafterf(narrow, -INFINITY);
    must(narrow == strtof(text, NULL));
}

static void check_reading(const char *text, size_t length) {
    const char *end = grammar(text);
    double f64 = 0;
    float f32 = 0;
    size_t used = 0;
    enum number_status status = number_read_f64(text, length, &f64, &used);
    enum number_status narrow = number_read_f32(text, length, &f32, &used);
    if (end == NULL) {
        must(status == NUMBER_SYNTAX && narrow == NUMBER_SYNTAX);
        return;
    }
    must(used == (size_t)(end - text));
    double wanted =
        strtod(text, NULL); /* as far as the grammar goes, strtod agrees where the number ends, but for "0x" */
    float wanted_f32 = strtof(text, NULL);
    if (*end == 'x' || *end == 'X') return;
    must(status == (isinf(wanted) ? NUMBER_OVERFLOW : NUMBER_OK));
    must(narrow == (isinf(wanted_f32) ? NUMBER_OVERFLOW : NUMBER_OK));
    if (status == NUMBER_OK) must(memcmp(&f64, &wanted, sizeof f64) == 0);
    if (narrow == NUMBER_OK) must(memcmp(&f32, &wanted_f32, sizeof f32) == 0);
    if (status == NUMBER_OK) check_tie(text, length, wanted);
}

static void check_writing(double value) {
    char *room = malloc(NUMBER_ROOM), text[NUMBER_ROOM + 1], other[64];
    must(room != NULL);
    size_t length = number_write_f64(room, value), used;
    must(length < NUMBER_ROOM);
    memcpy(text, room, length);
    text[length] = '\0';
    must(grammar(text) == text + length);
    double back;
    must(number_read_f64(text, length + 1, &back, &used) == NUMBER_OK && memcmp(&back, &value, sizeof back) == 0);
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(other, sizeof other, "%.*g", precision, value);
        if (strtod(other, NULL) == value) break;
    }
    must(length <= strlen(other));
    float single = (float)value, single_back;
    if (isfinite(single)) {
        length = number_write_f32(room, single);
        must(length < NUMBER_ROOM);
        memcpy(text, room, length);
        text[length] = '\0';
        must(number_read_f32(text, length + 1, &single_back, &used) == NUMBER_OK);
        must(memcmp(&single_back, &single, sizeof single) == 0);
    }
    free(room);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size) {
    char *text = malloc(size + 1); /* exactly the text and its delimiter, for ASan */
    must(text != NULL);
    if (size > 0) memcpy(text, bytes, size);
    text[size] = '\0';
    check_reading(text, size + 1);
    free(text);
    double value;
    if (size >= sizeof value) {
        memcpy(&value, bytes, sizeof value);
        if (isfinite(value)) check_writing(value);
    }
    return 0;
}
