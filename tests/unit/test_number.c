/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_number.c - reading and writing numbers, bit for bit.
 *
 * Independent routes: glibc's strtod, strtof and printf (correctly rounded, C locale); exact decimal expansions of halfway
 * points, where the right answer is known without any reader; a plain layout of digits for the text. Each family draws N
 * values: 30,000, or the first argument (nightly: 3000000, about 10^8 checks); the second is the seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/number.h"
#include "../../api/number_scan.h"

static unsigned long draws = 30000; /* about 10^6 checks in all */

/* ---- tools -------------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t random_below(uint64_t n) { return random_bits() % n; }

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint32_t bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double random_finite(void) {
    double value;
    do value = double_of(random_bits());
    while (!isfinite(value));
    return value;
}

static float random_finite_f32(void) {
    float value;
    do value = float_of((uint32_t)random_bits());
    while (!isfinite(value));
    return value;
}

/* Copies text and its delimiter into a buffer of just that size, so that ASan sees any byte read beyond. */
static char *exact_copy(const char *text, size_t *length) {
    *length = strlen(text) + 1;
    char *copy = malloc(*length);
    assert_non_null(copy);
    memcpy(copy, text, *length - 1);
    copy[*length - 1] = ',';
    return copy;
}

static void expect_f64(const char *text, double expected) {
    size_t length, used = 0;
    char *copy = exact_copy(text, &length);
    double value = -7, tied = -7;
    int tie;
    enum number_status status = number_read_f64(copy, length, &value, &used);
    enum number_status want = isinf(expected) ? NUMBER_OVERFLOW : NUMBER_OK;
    if (status != want || used != length - 1 || (status == NUMBER_OK && bits_of(value) != bits_of(expected)))
        fail_msg("float64 of \"%s\": status %d, %.17g, expected %.17g", text, (int)status, value, expected);
    assert_int_equal(number_read_f64_tie(copy, length, &tied, &used, &tie), want);
    if (status == NUMBER_OK) assert_true(bits_of(tied) == bits_of(expected));
    free(copy);
}

static void expect_f32(const char *text, float expected) {
    size_t length, used = 0;
    char *copy = exact_copy(text, &length);
    float value = -7;
    enum number_status status = number_read_f32(copy, length, &value, &used);
    enum number_status want = isinf(expected) ? NUMBER_OVERFLOW : NUMBER_OK;
    if (status != want || used != length - 1 || (status == NUMBER_OK && bits_of_f32(value) != bits_of_f32(expected)))
        fail_msg("float32 of \"%s\": status %d, %.9g, expected %.9g", text, (int)status, (double)value,
                 (double)expected);
    free(copy);
}

/* float64 with its tie, rounded to float32 by hand, must be the float32 of the text. */
static void expect_tie_heals(const char *text) {
    size_t length, used;
    char *copy = exact_copy(text, &length);
    double wide;
    int tie;
    if (number_read_f64_tie(copy, length, &wide, &used, &tie) == NUMBER_OK) {
        float narrow = (float)wide;
        if (tie > 0 && (double)narrow < wide) narrow = nextafterf(narrow, INFINITY);
        if (tie < 0 && (double)narrow > wide) narrow = nextafterf(narrow, -INFINITY);
        float expected = strtof(text, NULL);
        if (bits_of_f32(narrow) != bits_of_f32(expected)) fail_msg("\"%s\" rounds twice (tie %d)", text, tie);
    }
    free(copy);
}

static void expect_like_strtod(const char *text) {
    expect_f64(text, strtod(text, NULL));
    expect_f32(text, strtof(text, NULL));
    expect_tie_heals(text);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static void random_bit_patterns_read_like_strtod(void **state) {
    (void)state;
    char text[64];
    for (unsigned long i = 0; i < draws; i++) {
        snprintf(text, sizeof text, "%.17g", random_finite());
        expect_like_strtod(text);
        snprintf(text, sizeof text, "%.9g", (double)random_finite_f32());
        expect_like_strtod(text);
    }
}

static void subnormals_read_like_strtod(void **state) {
    (void)state;
    char text[64];
    for (unsigned long i = 0; i < draws; i++) {
        snprintf(text, sizeof text, "%.*g", (int)random_below(20) + 1,
                 double_of(random_bits() >> (12 + random_below(52))));
        expect_like_strtod(text);
        snprintf(text, sizeof text, "%.*g", (int)random_below(20) + 1,
                 (double)float_of((uint32_t)random_bits() >> (9 + random_below(23))));
        expect_like_strtod(text);
    }
}

/* [-]digits[.digits][e[+-]digits], all by chance */
static size_t random_decimal(char *text, size_t most_digits, int most_exponent) {
    char *p = text;
    size_t digits = random_below(most_digits) + 1, point = random_below(digits + 1);
    if (random_below(4) == 0) *p++ = '-';
    if (point == 0) *p++ = '0';
    for (size_t i = 0; i < digits; i++) {
        if (i == point) *p++ = '.';
        char first = (char)(point > 1 && i == 0 ? '1' + random_below(9) : '0' + random_below(10));
        *p++ = first;
    }
    if (random_below(2) == 0) {
        static const char *const sign[] = {"", "+", "-"};
        p += sprintf(p, "%c%s%llu", random_below(2) == 0 ? 'e' : 'E', sign[random_below(3)],
                     (unsigned long long)random_below((uint64_t)most_exponent + 1));
    }
    *p = '\0';
    return (size_t)(p - text);
}

static void random_decimals_read_like_strtod(void **state) {
    (void)state;
    char text[1200];
    for (unsigned long i = 0; i < draws; i++) {
        random_decimal(text, 80, 330);
        expect_like_strtod(text);
        random_decimal(text, 19, 45);
        expect_like_strtod(text);
    }
    for (unsigned long i = 0; i < draws / 10; i++) {
        random_decimal(text, 1000, 330);
        expect_like_strtod(text);
    }
}

static void leading_zeros_do_not_count_as_digits(void **state) {
    (void)state;
    char text[128];
    for (unsigned long i = 0; i < draws; i++) {
        int zeros = (int)random_below(40);
        snprintf(text, sizeof text, "0.%0*d%llu", zeros, 0, (unsigned long long)(random_bits() >> random_below(60)));
        if (random_below(2) == 0) snprintf(text + strlen(text), 16, "e%d", (int)random_below(80) - 40);
        expect_like_strtod(text);
    }
}

/* The last digit that is not 0 made one smaller, then nines: a little below. text must have such a digit. */
static void a_little_below(char *text) {
    size_t i = strcspn(text, "e");
    char tail[32];
    strcpy(tail, text + i);
    while (i > 0 && (text[i - 1] == '0' || text[i - 1] == '.')) i--;
    assert_true(i > 2); /* it stands behind the point in all that are drawn */
    text[i - 1]--;
    sprintf(text + i, "99999%s", tail);
}

static void a_little_above(char *text) {
    size_t i = strcspn(text, "e");
    char tail[32];
    strcpy(tail, text + i);
    sprintf(text + i, "00001%s", tail);
}

/* Above by one digit so far behind that no binary value has digits there. */
static void far_above(char *text) {
    size_t i = strcspn(text, "e");
    char tail[32];
    strcpy(tail, text + i);
    sprintf(text + i, "%0*d%s", 100, 1, tail);
}

/* The point halfway between x and its upper neighbour is exact in long double, printf prints it exactly. */
static void halfway_points_go_to_even_and_a_hair_decides(void **state) {
    (void)state;
    char text[1200];
    for (unsigned long i = 0; i < draws / 4; i++) {
        uint64_t pattern = random_bits() & INT64_MAX;
        if (i % 4 == 0) pattern >>= 11 + random_below(50);                         /* subnormals */
        if (i % 4 == 1) pattern = (1000 + random_below(60)) << 52 | pattern >> 12; /* around one, short expansions */
        double low = double_of(pattern), high = double_of(pattern + 1);
        if (!isfinite(high) || !isfinite(low)) continue;
        long double halfway = (long double)low + ((long double)high - (long double)low) / 2;
        snprintf(text, sizeof text, "%.*Le", 770, halfway);
        expect_f64(text, (pattern & 1) == 0 ? low : high);
        a_little_above(text);
        expect_f64(text, high);
        snprintf(text, sizeof text, "%.*Le", 770, halfway);
        far_above(text);
        expect_f64(text, high);
        snprintf(text, sizeof text, "%.*Le", 770, halfway);
        a_little_below(text);
        expect_f64(text, low);
    }
}

/* Few digits can lie exactly halfway, too: odd * 2^j * 10^q with 54 (25) bits in odd * 5^|q|. */
static void short_halfway_points_go_to_even(void **state) {
    (void)state;
    char text[64];
    for (unsigned long i = 0; i < draws; i++) {
        int bits = i % 2 == 0 ? 54 : 25, most = i % 2 == 0 ? 23 : 10;
        int q = (int)random_below((uint64_t)most + 1);
        uint64_t five = 1;
        for (int k = 0; k < q; k++) five *= 5;
        uint64_t lowest = ((1ull << (bits - 1)) + five - 1) / five, range = (1ull << bits) / five - lowest + 1;
        uint64_t odd = (lowest + random_below(range)) | 1;
        int room = __builtin_clzll(odd);
        snprintf(text, sizeof text, "%llue%d", (unsigned long long)(odd << random_below((uint64_t)room)), q);
        expect_like_strtod(text);
        /* odd / 2^j has j decimals; more than 19 digits come from j above 4 (16 for float32) */
        int shift = (int)random_below(19);
        uint64_t fraction = (random_below(1ull << (bits - 1)) | 1ull << (bits - 1)) | 1;
        snprintf(text, sizeof text, "%.*Lf", shift, (long double)fraction / (long double)(1 << shift));
        expect_like_strtod(text);
    }
}

static void halfway_points_of_float32_go_to_even_and_a_hair_decides(void **state) {
    (void)state;
    char text[400];
    for (unsigned long i = 0; i < draws; i++) {
        uint32_t pattern = (uint32_t)random_bits() & INT32_MAX;
        if (i % 4 == 0) pattern >>= 8 + random_below(22);
        float low = float_of(pattern), high = float_of(pattern + 1);
        if (!isfinite(low)) continue;
        /* above the largest float32 comes 2^128 as far as rounding goes */
        double halfway = ((double)low + (isfinite(high) ? (double)high : 0x1p128)) / 2;
        snprintf(text, sizeof text, "%.*e", 180, halfway);
        expect_f32(text, (pattern & 1) == 0 ? low : high);
        expect_tie_heals(text);
        a_little_above(text);
        expect_f32(text, high);
        expect_tie_heals(text);
        snprintf(text, sizeof text, "%.*e", 180, halfway);
        a_little_below(text);
        expect_f32(text, low);
        expect_tie_heals(text);
    }
}

static void a_tie_is_told_with_its_direction(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int tie;
    } cases[] = {
        {"16777217", 0},
        {"16777217.0", 0},
        {"16777217.0000000000000001", 1},
        {"16777216.9999999999999999", -1},
        {"-16777217.0000000000000001", -1},
        {"-16777216.9999999999999999", 1},
        {"1.000000059604644775390625", 0},
        {"1.00000005960464477539062500001", 1},
        {"1.00000005960464477539062499999", -1},
        {"16777218.0000000000000001", 0},
        {"0.1", 0},
        {"0", 0},
        {"340282356779733661637539395458142568447.9999", -1},
        {"340282356779733661637539395458142568448", 0},
        {"340282387203348067115045031379019497471.9", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t length, used;
        char *copy = exact_copy(cases[i].text, &length);
        double value;
        int tie;
        assert_int_equal(number_read_f64_tie(copy, length, &value, &used, &tie), NUMBER_OK);
        if (tie != cases[i].tie) fail_msg("%s: tie %d, expected %d", cases[i].text, tie, cases[i].tie);
        free(copy);
    }
}

/* V. Paxson, "A program for testing IEEE decimal-binary conversion" (1991), tables 1 to 4: decimals of each length whose
 * conversion is hardest; and inputs that broke well-known readers. */
static void published_hard_cases_read_like_strtod(void **state) {
    (void)state;
    static const char *const texts[] = {
        "5e125",
        "69e267",
        "999e-26",
        "7861e-34",
        "75569e-254",
        "928609e-261",
        "9210917e80",
        "84863171e114",
        "653777767e273",
        "5232604057e-298",
        "27235667517e-109",
        "653532977297e-123",
        "3142213164987e-294",
        "46202199371337e-72",
        "231010996856685e-73",
        "9324754620109615e212",
        "78459735791271921e49",
        "272104041512242479e200",
        "6802601037806061975e198",
        "20505426358836677347e-221",
        "836168422905420598437e-234",
        "4891559871276714924261e222",
        "9e-265",
        "85e-37",
        "623e100",
        "3571e263",
        "81661e153",
        "920657e-23",
        "4603285e-24",
        "87575437e-309",
        "245540327e122",
        "6138508175e120",
        "83356057653e193",
        "619534293513e124",
        "2335141086879e218",
        "36167929443327e-159",
        "609610927149051e-255",
        "3743626360493413e-165",
        "94080055902682397e-242",
        "899810892172646163e283",
        "7120190517612959703e120",
        "25188282901709339043e-252",
        "308984926168550152811e-52",
        "6372891218502368041059e64",
        "5e-20",
        "67e14",
        "985e15",
        "7693e-42",
        "55895e-16",
        "996622e-44",
        "7038531e-32",
        "60419369e-46",
        "702990899e-20",
        "6930161142e-48",
        "25933168707e13",
        "596428896559e20",
        "3e-23",
        "57e18",
        "789e-35",
        "2539e-18",
        "76173e28",
        "887745e-11",
        "5382571e-37",
        "82381273e-35",
        "750486563e-38",
        "3752432815e-39",
        "75224575729e-45",
        "459926601011e15",
        "2.2250738585072011e-308",
        "2.2250738585072012e-308",
        "2.2250738585072014e-308",
        "4.9406564584124654e-324",
        "2.4703282292062327e-324",
        "2.4703282292062328e-324",
        "2.5e-324",
        "1.7976931348623157e308",
        "1.7976931348623158e308",
        "1.7976931348623159e308",
        "1e308",
        "1e309",
        "1e400",
        "1e-400",
        "9007199254740993",
        "9007199254740992.999999999999999999",
        "9007199254740993.00000000000000000001",
        "8.5e22",
        "1e22",
        "1e23",
        "18446744073709551615",
        "18446744073709551616",
        "9999999999999999999",
        "10000000000000000000",
        "3.4028234663852886e38",
        "3.4028235677973366e38",
        "3.4028235677973367e38",
        "1e38",
        "1e39",
        "1.17549435e-38",
        "1.1754943508222874e-38",
        "1.4012984643e-45",
        "7.006492321624085e-46",
        "7.006492321624086e-46",
        "0.000000000000000000000000000000000000000000000000000000000000000000000000000000000001e84",
        "0",
        "-0",
        "0.0",
        "-0.0",
        "0e0",
        "0e999999999999999999999",
        "0e-999999999999999999999",
        "-0e5",
        "1e00000000000000000001",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) expect_like_strtod(texts[i]);
}

static void exponents_and_digits_of_any_length_are_read(void **state) {
    (void)state;
    enum { ZEROS = 100000 };
    char *text = malloc(ZEROS + 64);
    assert_non_null(text);
    memset(text, '0', ZEROS + 2);
    text[1] = '.';
    sprintf(text + ZEROS + 2, "125e%d", ZEROS + 1); /* 0.00...0125e100001 */
    expect_f64(text, 1.25);
    text[0] = '1';
    memset(text + 1, '0', ZEROS);
    sprintf(text + 1 + ZEROS, "e-%d", ZEROS);
    expect_f64(text, 1.0);
    free(text);
    expect_f64("1e-99999999999999999999999999", 0.0);
    expect_f64("1e99999999999999999999999999", (double)INFINITY);
}

static void wrong_numbers_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "01",        "00",        "-01",  "1.",    "-1.",   ".5",        "-.5",
        "+1",        "--1",       "-",    "+",     ".",     "e",         "1e",
        "1e+",       "1e-",       "1E",   "1.e5",  "1.5e",  "e5",        "1.2.3",
        "1e5.5",     "1e5e5",     "1-2",  "1+2",   "1--",   "NaN",       "nan",
        "Infinity",  "-Infinity", "inf",  "-inf",  "",      " 1",        "x",
        "00.5",      "-00",       "1.-5", "1e--5", "1e+-5", "12345678.", "123456789012.",
        "1234567.e",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        size_t length, used;
        char *copy = exact_copy(texts[i], &length);
        double f64;
        float f32;
        if (number_read_f64(copy, length, &f64, &used) != NUMBER_SYNTAX)
            fail_msg("\"%s\" was taken for a float64", texts[i]);
        if (number_read_f32(copy, length, &f32, &used) != NUMBER_SYNTAX)
            fail_msg("\"%s\" was taken for a float32", texts[i]);
        free(copy);
    }
}

static void a_number_ends_at_the_first_byte_that_belongs_to_none(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t used;
        double value;
    } cases[] = {{"0x10", 1, 0}, {"1,2", 1, 1}, {"12]", 2, 12}, {"-3.5 ", 4, -3.5}, {"1e2}", 3, 100}, {"7\n", 1, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value;
        size_t used;
        assert_int_equal(number_read_f64(cases[i].text, strlen(cases[i].text), &value, &used), NUMBER_OK);
        assert_int_equal(used, cases[i].used);
        assert_true(value == cases[i].value);
    }
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

/* digits "d1d2...dn" and the exponent of d1, laid out plainly: fixed unless scientific notation is shorter. */
static void lay_out(char *out, bool negative, const char *digits, int exponent) {
    char fixed[400], scientific[64];
    int n = (int)strlen(digits);
    if (exponent >= n - 1)
        sprintf(fixed, "%s%0*d", digits, exponent - n + 1, 0), fixed[exponent + 1] = '\0';
    else if (exponent >= 0)
        sprintf(fixed, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    else
        sprintf(fixed, "0.%.*s%s", -exponent - 1,
                "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
                "0000000"
                "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
                "0000000"
                "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
                "0000000",
                digits);
    sprintf(scientific, n > 1 ? "%c.%se%d" : "%c%se%d", digits[0], digits + 1, exponent);
    sprintf(out, "%s%s", negative ? "-" : "", strlen(fixed) <= strlen(scientific) ? fixed : scientific);
}

/* The shortest digits by trying: printf rounds right, so the first precision that reads back has them. */
static int digits_by_printf(double magnitude, bool is_f32, char *digits) {
    char text[64];
    int low = 0, high = is_f32 ? 8 : 16;
    while (low < high) { /* precision is monotonic as far as reading back goes, but for powers of two: see below */
        int middle = (low + high) / 2;
        snprintf(text, sizeof text, "%.*e", middle, magnitude);
        bool back = is_f32 ? strtof(text, NULL) == (float)magnitude : strtod(text, NULL) == magnitude;
        if (back)
            high = middle;
        else
            low = middle + 1;
    }
    snprintf(text, sizeof text, "%.*e", low, magnitude);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1);
    *e = '\0';
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p != '.') digits[n++] = *p;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    return exponent;
}

static void check_written(const char *text, double value, bool is_f32) {
    double back = is_f32 ? (double)strtof(text, NULL) : strtod(text, NULL);
    if (bits_of(back) != bits_of(value)) fail_msg("%.17g was written %s, which reads as %.17g", value, text, back);
    if (value == 0) {
        assert_string_equal(text, signbit(value) ? "-0" : "0");
        return;
    }
    char digits[32], expected[512];
    int exponent = digits_by_printf(fabs(value), is_f32, digits);
    lay_out(expected, signbit(value), digits, exponent);
    /* At a power of two the interval is lopsided: the closest text of n digits may not read back while another does. */
    int unused;
    bool power_of_two = frexp(fabs(value), &unused) == 0.5;
    if (power_of_two ? strlen(text) > strlen(expected) : strcmp(text, expected) != 0)
        fail_msg("%.17g was written %s, expected %s", value, text, expected);
}

static void check_f64(double value) {
    char text[NUMBER_ROOM + 1];
    char *room = malloc(NUMBER_ROOM); /* ASan sees anything beyond */
    assert_non_null(room);
    size_t length = number_write_f64(room, value);
    memcpy(text, room, length);
    text[length] = '\0';
    free(room);
    check_written(text, value, false);
    double back;
    size_t used;
    text[length] = ',';
    assert_int_equal(number_read_f64(text, length + 1, &back, &used), NUMBER_OK); /* the JSON grammar, too */
    assert_true(used == length && bits_of(back) == bits_of(value));
}

static void check_f32(float value) {
    char text[NUMBER_ROOM + 1];
    char *room = malloc(NUMBER_ROOM);
    assert_non_null(room);
    size_t length = number_write_f32(room, value);
    memcpy(text, room, length);
    text[length] = '\0';
    free(room);
    check_written(text, (double)value, true);
    float back;
    size_t used;
    text[length] = ',';
    assert_int_equal(number_read_f32(text, length + 1, &back, &used), NUMBER_OK);
    assert_true(used == length && bits_of_f32(back) == bits_of_f32(value));
}

static void random_bit_patterns_are_written_shortest(void **state) {
    (void)state;
    for (unsigned long i = 0; i < draws; i++) {
        check_f64(random_finite());
        check_f32(random_finite_f32());
        check_f64((double)random_finite_f32());
    }
}

static void ordinary_values_are_written_shortest(void **state) {
    (void)state;
    static const double scale[] = {1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e9, 1e12};
    for (unsigned long i = 0; i < draws; i++) {
        double unit = (double)(random_bits() >> 11) * 0x1p-53;
        double decimal = (double)(random_bits() >> (10 + random_below(54))) / scale[random_below(10)];
        check_f64(unit);
        check_f64(unit * 200 - 100);
        check_f64(decimal);
        check_f64(-decimal);
        check_f32((float)unit);
        check_f32((float)decimal);
    }
}

static void integers_are_written_shortest(void **state) {
    (void)state;
    for (int i = 0; i <= 20000; i++) {
        check_f64((double)i);
        check_f64((double)-i * 1000);
        check_f32((float)i * 100);
    }
    for (unsigned long i = 0; i < draws; i++) {
        double integer = (double)(random_bits() >> random_below(64));
        check_f64(integer);
        check_f32((float)integer);
        check_f64(integer * 1000);
    }
}

static void subnormals_and_edges_are_written_shortest(void **state) {
    (void)state;
    for (unsigned long i = 0; i < draws; i++) {
        check_f64(double_of(random_bits() >> (12 + random_below(52))));
        check_f32(float_of((uint32_t)random_bits() >> (9 + random_below(23))));
    }
    for (int field = 0; field < 2047; field++) { /* every power of two and its neighbours */
        uint64_t power = (uint64_t)field << 52;
        check_f64(double_of(power));
        check_f64(double_of(power + 1));
        if (power > 0) check_f64(double_of(power - 1));
    }
    for (uint32_t field = 0; field < 255; field++) {
        check_f32(float_of(field << 23));
        check_f32(float_of((field << 23) + 1));
        if (field > 0) check_f32(float_of((field << 23) - 1));
    }
    char text[16];
    for (int e = -323; e <= 308; e++) {
        snprintf(text, sizeof text, "1e%d", e);
        check_f64(strtod(text, NULL));
    }
    for (int e = -45; e <= 38; e++) {
        snprintf(text, sizeof text, "1e%d", e);
        check_f32(strtof(text, NULL));
    }
}

static void known_values_have_known_texts(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.0, "0"},
        {-0.0, "-0"},
        {5, "5"},
        {-5, "-5"},
        {255, "255"},
        {0.1, "0.1"},
        {0.5, "0.5"},
        {1.5, "1.5"},
        {0.05, "0.05"},
        {0.005, "5e-3"},
        {0.0123, "0.0123"},
        {0.00123, "0.00123"},
        {0.000123, "1.23e-4"},
        {100, "100"},
        {1000, "1e3"},
        {1200, "1200"},
        {120000, "1.2e5"},
        {555557.5, "555557.5"},
        {123456789, "123456789"},
        {12345678901234567890.0, "12345678901234567000"},
        {1e21, "1e21"},
        {1e22, "1e22"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e308"},
        {9007199254740993.0, "9007199254740992"},
        {1.0 / 3, "0.3333333333333333"},
        {-1e-7, "-1e-7"},
        {0.30000000000000004, "0.30000000000000004"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[NUMBER_ROOM];
        size_t length = number_write_f64(text, cases[i].value);
        if (length != strlen(cases[i].text) || memcmp(text, cases[i].text, length) != 0)
            fail_msg("%.17g: %.*s, expected %s", cases[i].value, (int)length, text, cases[i].text);
    }
    char text[NUMBER_ROOM];
    assert_int_equal(number_write_f32(text, 0.1f), 3);
    assert_memory_equal(text, "0.1", 3);
    assert_int_equal(number_write_f32(text, 3.40282347e38f), 12);
    assert_memory_equal(text, "3.4028235e38", 12);
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

/* 10 times a row is the next row, shifted by three or four bits, up to what cutting off loses. */
static void each_row_of_the_table_is_ten_times_the_one_before(void **state) {
    (void)state;
    for (int e = NUMBER_POWER_FIRST; e < NUMBER_POWER_LAST; e++) {
        const uint64_t *row = number_powers[e - NUMBER_POWER_FIRST], *next = row + 2;
        assert_true(row[0] >> 63 == 1);
        assert_true(row[1] != UINT64_MAX && row[0] != UINT64_MAX); /* the writer adds one to either */
        unsigned __int128 low = (unsigned __int128)row[1] * 10,
                          high = (unsigned __int128)row[0] * 10 + (uint64_t)(low >> 64);
        int shift = (uint64_t)(high >> 64) >= 8 ? 4 : 3; /* bits that stick out above 128 */
        unsigned __int128 ten = high << (64 - shift) | (uint64_t)low >> shift;
        unsigned __int128 have = (unsigned __int128)next[0] << 64 | next[1];
        unsigned __int128 off = have > ten ? have - ten : ten - have;
        if (off > 2) fail_msg("the row of 10^%d does not follow from the one before", e + 1);
    }
    const uint64_t *one = number_powers[-NUMBER_POWER_FIRST];
    assert_true(one[0] == 1ull << 63 && one[1] == 0);
}

int main(int argc, char **argv) {
    if (argc > 1) draws = strtoul(argv[1], NULL, 10);
    random_state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_bit_patterns_read_like_strtod),
        cmocka_unit_test(subnormals_read_like_strtod),
        cmocka_unit_test(random_decimals_read_like_strtod),
        cmocka_unit_test(leading_zeros_do_not_count_as_digits),
        cmocka_unit_test(halfway_points_go_to_even_and_a_hair_decides),
        cmocka_unit_test(short_halfway_points_go_to_even),
        cmocka_unit_test(halfway_points_of_float32_go_to_even_and_a_hair_decides),
        cmocka_unit_test(a_tie_is_told_with_its_direction),
        cmocka_unit_test(published_hard_cases_read_like_strtod),
        cmocka_unit_test(exponents_and_digits_of_any_length_are_read),
        cmocka_unit_test(wrong_numbers_are_refused),
        cmocka_unit_test(a_number_ends_at_the_first_byte_that_belongs_to_none),
        cmocka_unit_test(random_bit_patterns_are_written_shortest),
        cmocka_unit_test(ordinary_values_are_written_shortest),
        cmocka_unit_test(integers_are_written_shortest),
        cmocka_unit_test(subnormals_and_edges_are_written_shortest),
        cmocka_unit_test(known_values_have_known_texts),
        cmocka_unit_test(each_row_of_the_table_is_ten_times_the_one_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
