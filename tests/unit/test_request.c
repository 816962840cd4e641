/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_request.c - every mistake a request can make gets its code, its pointer and words that help; and right
 * requests that look unusual are taken.
 *
 * Model. Tables of bodies. A row of `mistakes` is one input for one problem: code, pointer, and pieces the detail must
 * contain. A row of `pairs` is two spellings of one request whose answers must be the same bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <stdio.h>

#include "support/post.h"

static struct mem_budget budget = {.limit = (size_t)64 << 20};
static const struct api_env env = {.budget = &budget, .max_body = (size_t)1 << 20, .threads = 1};

#define NO_W  "\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":null"
#define ONE   "{\"num_heads\":1," NO_W ",\"Q\":[[1,2]]"       /* a right request but for the brace */
#define TWO   "{\"num_heads\":2," NO_W ",\"Q\":[[1,2],[3,4]]" /* two heads, two tokens */
#define BATCH "{\"num_heads\":1," NO_W ",\"Q\":[[[1,2]],[[3,4]]]"

struct mistake {
    const char *body;
    enum problem_code code;
    const char *pointer;
    const char *words[4];
};

static const struct mistake mistakes[] = {
    /* 400 */
    {"", PROBLEM_JSON_EMPTY, "", {"empty"}},
    {" \n\t ", PROBLEM_JSON_EMPTY, "", {"empty"}},
    {"{\"Q\":[[1 2]]}",
     PROBLEM_JSON_SYNTAX,
     "",
     {"before /Q/0/1 expected ',' or ']'", "'2'", "line 1, column 10, byte 9"}},
    {"{\"Q\":[[1,]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/1", "another element after the comma", "']'"}},
    {"{\"Q\":[[,1]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/0", "an element or ']'", "','"}},
    {"{\"Q\":[[1,01]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/1 is 01, and JSON has no such number", "leading zeros"}},
    {"{\"Q\":[[1.]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/0 is 1., and JSON has no such number"}},
    {"{\"Q\":[[.5]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/0 is .5, and JSON has no such number"}},
    {"{\"Q\":[[+1]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/0 is +1, and JSON has no such number", "plus sign"}},
    {"{\"Q\":[[1,None]]}", PROBLEM_JSON_SYNTAX, "", {"/Q/0/1 is None", "lower case"}},
    {"{\"attn_mask\":[[True]]}", PROBLEM_JSON_SYNTAX, "", {"/attn_mask/0/0 is True", "lower case"}},
    {"{\n \"causal\": tru\n}", PROBLEM_JSON_SYNTAX, "", {"tru", "line 2, column 12, byte 13"}},
    {"{\"causal\":True}", PROBLEM_JSON_SYNTAX, "", {"True", "lower case"}},
    {"{'Q':1}", PROBLEM_JSON_SYNTAX, "", {"double quotes"}},
    {"{\"scale\":1,}", PROBLEM_JSON_SYNTAX, "", {"another name after the comma"}},
    {"{\"return\":[\"output\",]}", PROBLEM_JSON_SYNTAX, "", {"another value after the comma"}},
    {"{\"scale\":01}", PROBLEM_JSON_SYNTAX, "", {"01 is not a number"}},
    {"{\"scale\":1.}", PROBLEM_JSON_SYNTAX, "", {"1. is not a number"}},
    {"{\"scale\":+1}", PROBLEM_JSON_SYNTAX, "", {"'+'"}},
    {"{\"layer\":\"a\tb\"}", PROBLEM_JSON_SYNTAX, "", {"control character"}},
    {"{\"layer\":\"\xC3(\"}", PROBLEM_JSON_SYNTAX, "", {"UTF-8"}},
    {"{\"layer\":\"\xC0\xAF\"}", PROBLEM_JSON_SYNTAX, "", {"UTF-8"}},
    {"{\"layer\":\"\xED\xA0\x80\"}", PROBLEM_JSON_SYNTAX, "", {"UTF-8"}},
    {"{\"layer\":\"\xF4\x90\x80\x80\"}", PROBLEM_JSON_SYNTAX, "", {"UTF-8"}},
    {"{\"layer\":\"\xC3\"}", PROBLEM_JSON_SYNTAX, "", {"UTF-8"}},
    {"{\"layer\":\"\\x\"}", PROBLEM_JSON_SYNTAX, "", {"after a backslash"}},
    {"{\"layer\":\"\\u12G4\"}", PROBLEM_JSON_SYNTAX, "", {"hexadecimal"}},
    {"{\"layer\":\"\\ud800x\"}", PROBLEM_JSON_SYNTAX, "", {"surrogate"}},
    {"{\"layer\":\"\\udc00\"}", PROBLEM_JSON_SYNTAX, "", {"surrogate"}},
    {"\xEF\xBB\xBF{}", PROBLEM_JSON_SYNTAX, "", {"byte order mark"}},
    {"{\"scale\":1", PROBLEM_JSON_SYNTAX, "", {"the body ends", "byte 10"}},
    {"{\"Q\":[[1,2]", PROBLEM_JSON_SYNTAX, "", {"rest of a tensor"}},
    {"{} {}", PROBLEM_JSON_SYNTAX, "", {"after the end"}},
    {"{\"Q\":[[NaN]]}", PROBLEM_JSON_NON_FINITE, "/Q/0/0", {"/Q/0/0", "byte 7"}},
    {"{\"Q\":[[1e999]]}", PROBLEM_JSON_NON_FINITE, "/Q/0/0", {"/Q/0/0"}},
    {"{\"Q\":[[-Infinity]]}", PROBLEM_JSON_NON_FINITE, "/Q/0/0", {"/Q/0/0"}},
    {"{\"attn_mask\":[[-Infinity]]}", PROBLEM_JSON_NON_FINITE, "/attn_mask/0/0", {"null stands for -infinity"}},
    {"{\"scale\":1e999}", PROBLEM_JSON_NON_FINITE, "/scale", {"scale is too large", "byte 9"}},
    {"{\"scale\":-Infinity}", PROBLEM_JSON_NON_FINITE, "/scale", {"scale is -Infinity", "byte 9"}},
    {"{\"scale\":NaN}", PROBLEM_JSON_NON_FINITE, "/scale", {"scale is NaN", "byte 9"}},
    {"{\"Q\":[[[[[[[[[[1]]]]]]]]]]}", PROBLEM_JSON_TOO_DEEP, "/Q", {"Q", "8 deep"}},
    /* 422: fields */
    {"[1]", PROBLEM_WRONG_TYPE, "", {"object"}},
    {"12", PROBLEM_WRONG_TYPE, "", {"object"}},
    {"{}", PROBLEM_MISSING_FIELD, "/Q", {"Q is missing"}},
    {"{\"Q\":null}", PROBLEM_MISSING_FIELD, "/Q", {"Q is missing"}},
    {"{\"Q\":[[1]]}", PROBLEM_MISSING_FIELD, "/W_q", {"W_q is missing", "null"}},
    {"{\"Q\":[[1]]," NO_W "}", PROBLEM_MISSING_FIELD, "/num_heads", {"num_heads is missing"}},
    {"{\"Q\":[[1]],\"num_heads\":1,\"W_q\":null,\"W_k\":null,\"W_v\":null}",
     PROBLEM_MISSING_FIELD,
     "/W_o",
     {"concatenated"}},
    {ONE ",\"past_K\":[[[1,2]]]}", PROBLEM_MISSING_FIELD, "/past_V", {"past_K", "past_V"}},
    {ONE ",\"casual\":true}", PROBLEM_UNKNOWN_FIELD, "/casual", {"causal"}},
    {ONE ",\"mask\":1}", PROBLEM_UNKNOWN_FIELD, "/mask", {"attn_mask"}},
    {ONE ",\"n_head\":1}", PROBLEM_UNKNOWN_FIELD, "/n_head", {"num_heads"}},
    {ONE ",\"WQ\":1}", PROBLEM_UNKNOWN_FIELD, "/WQ", {"W_q"}},
    {ONE ",\"a/b~c\":1}", PROBLEM_UNKNOWN_FIELD, "/a~1b~0c", {"a/b~c"}},
    {ONE ",\"Q\":[[1]]}", PROBLEM_DUPLICATE_FIELD, "/Q", {"twice"}},
    {"{\"\\u0051\":[[1]],\"Q\":[[1]]}", PROBLEM_DUPLICATE_FIELD, "/Q", {"twice"}},
    {ONE ",\"causal\":true,\"causal\":true}", PROBLEM_DUPLICATE_FIELD, "/causal", {"twice"}},
    {ONE ",\"window\":{\"left\":1,\"left\":1}}", PROBLEM_DUPLICATE_FIELD, "/window/left", {"twice"}},
    {ONE ",\"window\":{\"lefty\":1}}", PROBLEM_UNKNOWN_FIELD, "/window/lefty", {"left"}},
    /* 422: types and ranges */
    {"{\"num_heads\":1.5}", PROBLEM_WRONG_TYPE, "/num_heads", {"integer", "1.5"}},
    {"{\"num_heads\":\"8\"}", PROBLEM_WRONG_TYPE, "/num_heads", {"\"8\""}},
    {"{\"num_heads\":true}", PROBLEM_WRONG_TYPE, "/num_heads", {"true"}},
    {"{\"num_heads\":null}", PROBLEM_WRONG_TYPE, "/num_heads", {"null"}},
    {"{\"num_heads\":0}", PROBLEM_OUT_OF_RANGE, "/num_heads", {"0"}},
    {"{\"num_heads\":-1}", PROBLEM_OUT_OF_RANGE, "/num_heads", {"-1"}},
    {"{\"num_heads\":2147483648}", PROBLEM_OUT_OF_RANGE, "/num_heads", {"2147483648", "allowed is 2147483647"}},
    {"{\"num_heads\":1e300}", PROBLEM_OUT_OF_RANGE, "/num_heads", {"num_heads"}},
    {"{\"num_kv_heads\":0}", PROBLEM_OUT_OF_RANGE, "/num_kv_heads", {"0"}},
    {"{\"scale\":\"1\"}", PROBLEM_WRONG_TYPE, "/scale", {"number"}},
    {"{\"softcap\":-1}", PROBLEM_OUT_OF_RANGE, "/softcap", {">= 0", "-1"}},
    {"{\"causal\":1}", PROBLEM_WRONG_TYPE, "/causal", {"true or false"}},
    {"{\"causal_alignment\":\"bottomright\"}", PROBLEM_OUT_OF_RANGE, "/causal_alignment", {"bottom_right"}},
    {"{\"weight_layout\":\"out-in\"}", PROBLEM_OUT_OF_RANGE, "/weight_layout", {"Did you mean \"out_in\""}},
    {"{\"dtype\":\"double\"}", PROBLEM_OUT_OF_RANGE, "/dtype", {"Did you mean \"float64\""}},
    {"{\"dtype\":\"fp32\"}", PROBLEM_OUT_OF_RANGE, "/dtype", {"Did you mean \"float32\""}},
    {"{\"causal_alignment\":\"lower_right\"}",
     PROBLEM_OUT_OF_RANGE,
     "/causal_alignment",
     {"Did you mean \"bottom_right\""}},
    {"{\"return\":[\"weights\"]}", PROBLEM_OUT_OF_RANGE, "/return/0", {"Did you mean \"attention\""}},
    {"{\"attn_mask_kind\":\"float\"}", PROBLEM_OUT_OF_RANGE, "/attn_mask_kind", {"Did you mean \"additive\""}},
    {"{\"window\":3}", PROBLEM_WRONG_TYPE, "/window", {"left"}},
    {"{\"window\":{\"left\":-1}}", PROBLEM_OUT_OF_RANGE, "/window/left", {"-1"}},
    {"{\"window\":{\"left\":0.5}}", PROBLEM_WRONG_TYPE, "/window/left", {"0.5"}},
    {"{\"return\":\"attention\"}", PROBLEM_WRONG_TYPE, "/return", {"[\"attention\"]"}},
    {"{\"return\":[]}", PROBLEM_OUT_OF_RANGE, "/return", {"empty"}},
    {"{\"return\":[\"output\",\"atention\"]}", PROBLEM_OUT_OF_RANGE, "/return/1", {"attention"}},
    {"{\"return\":[1]}", PROBLEM_WRONG_TYPE, "/return/0", {"names"}},
    {"{\"attention_reduce\":\"avg\"}", PROBLEM_OUT_OF_RANGE, "/attention_reduce", {"mean"}},
    {"{\"tensor_format\":\"base-64\"}", PROBLEM_OUT_OF_RANGE, "/tensor_format", {"Did you mean \"base64\""}},
    {"{\"layer\":3}", PROBLEM_WRONG_TYPE, "/layer", {"string"}},
    {"{\"layer\":\"a\\u0000b\"}", PROBLEM_OUT_OF_RANGE, "/layer", {"U+0000"}},
    {"{\"attention_heads\":[0.5],\"return\":[\"attention\"]}", PROBLEM_WRONG_TYPE, "/attention_heads/0", {"0.5"}},
    {"{\"attention_heads\":[],\"return\":[\"attention\"]}", PROBLEM_OUT_OF_RANGE, "/attention_heads", {"empty"}},
    {TWO ",\"attention_heads\":[0,2],\"return\":[\"attention\"]}",
     PROBLEM_OUT_OF_RANGE,
     "/attention_heads/1",
     {"2 heads"}},
    {TWO ",\"attention_heads\":[1,1],\"return\":[\"scores\"]}", PROBLEM_OUT_OF_RANGE, "/attention_heads/1", {"twice"}},
    {ONE ",\"softcap\":1e-50,\"dtype\":\"float32\"}", PROBLEM_OUT_OF_RANGE, "/softcap", {"1e-50", "float64"}},
    {ONE ",\"scale\":1e50,\"dtype\":\"float32\"}", PROBLEM_OUT_OF_RANGE, "/scale", {"1e50", "3.4e38", "float64"}},
    /* 422: conflicts */
    {ONE ",\"attention_heads\":[0]}", PROBLEM_CONFLICT, "/attention_heads", {"return"}},
    {ONE ",\"attention_reduce\":\"mean\"}", PROBLEM_CONFLICT, "/attention_reduce", {"return"}},
    {ONE ",\"attn_mask_kind\":\"additive\"}", PROBLEM_CONFLICT, "/attn_mask_kind", {"no attn_mask"}},
    {ONE ",\"attn_mask\":[[true]],\"attn_mask_kind\":\"additive\"}",
     PROBLEM_CONFLICT,
     "/attn_mask",
     {"true and false"}},
    /* 422: tensors */
    {"{\"Q\":5}", PROBLEM_WRONG_TYPE, "/Q", {"a number", "[n_q, d_q]"}},
    {"{\"Q\":\"AAAA\"}", PROBLEM_WRONG_TYPE, "/Q", {"base64"}},
    {"{\"Q\":true}", PROBLEM_WRONG_TYPE, "/Q", {"true"}},
    {"{\"Q\":[[1,\"2\"]]}", PROBLEM_WRONG_TYPE, "/Q/0/1", {"a string"}},
    {"{\"Q\":[[1,null]]}", PROBLEM_WRONG_TYPE, "/Q/0/1", {"null"}},
    {"{\"Q\":[[1,true]]}", PROBLEM_WRONG_TYPE, "/Q/0/1", {"true"}},
    {"{\"Q\":[[1,{}]]}", PROBLEM_WRONG_TYPE, "/Q/0/1", {"an object"}},
    {"{\"Q\":[[1,2],[3]]}", PROBLEM_RAGGED, "/Q/1", {"1 elements", "2"}},
    {"{\"Q\":[[1],2]}", PROBLEM_RAGGED, "/Q/1", {"equally deep"}},
    {"{\"attn_mask\":[[1,true]]}", PROBLEM_WRONG_TYPE, "/attn_mask/0/1", {"mixes"}},
    {"{\"key_mask\":[256,1]}", PROBLEM_OUT_OF_RANGE, "/key_mask/0", {"0/1", "is 256"}},
    {"{\"key_padding_mask\":[0,1]}", PROBLEM_WRONG_TYPE, "/key_padding_mask/0", {"true/false", "key_mask"}},
    {"{\"key_mask\":[1,null]}", PROBLEM_WRONG_TYPE, "/key_mask/1", {"null"}},
    {"{\"Q\":{\"data\":[1]}}", PROBLEM_MISSING_FIELD, "/Q/shape", {"shape"}},
    {"{\"Q\":{\"shape\":[1]}}", PROBLEM_MISSING_FIELD, "/Q/data", {"data"}},
    {"{\"Q\":{\"shape\":[1],\"base64\":\"\"}}", PROBLEM_MISSING_FIELD, "/Q/dtype", {"dtype"}},
    {"{\"Q\":{\"shape\":[2,3],\"data\":[1,2,3,4,5]}}", PROBLEM_SHAPE_MISMATCH, "/Q/data", {"6", "5"}},
    {"{\"Q\":{\"shape\":[2],\"data\":[[1],[2]]}}", PROBLEM_RANK, "/Q/data", {"data of Q", "flat"}},
    {"{\"Q\":{\"shape\":[-1,2],\"data\":[]}}", PROBLEM_OUT_OF_RANGE, "/Q/shape/0", {"integers from 0", "is -1"}},
    {"{\"Q\":{\"shape\":[1e18,1],\"data\":[]}}", PROBLEM_OUT_OF_RANGE, "/Q/shape/0", {"to 2^53", "is 1e18"}},
    {"{\"Q\":{\"shape\":[1.5],\"data\":[]}}", PROBLEM_OUT_OF_RANGE, "/Q/shape/0", {"integers from 0"}},
    {"{\"Q\":{\"shape\":[[1]],\"data\":[1]}}", PROBLEM_RANK, "/Q/shape", {"shape of Q", "one array"}},
    {"{\"Q\":{\"shape\":[\"1\"],\"data\":[1]}}", PROBLEM_WRONG_TYPE, "/Q/shape/0", {"integers from 0"}},
    {"{\"Q\":{\"shape\":3,\"data\":[1]}}", PROBLEM_WRONG_TYPE, "/Q/shape", {"an array"}},
    {"{\"Q\":{\"shape\":[1],\"data\":{}}}", PROBLEM_WRONG_TYPE, "/Q/data", {"an array"}},
    {"{\"Q\":{\"shape\":[4294967296,4294967296],\"data\":[]}}", PROBLEM_OUT_OF_RANGE, "/Q/shape", {"counted"}},
    {"{\"Q\":{\"shape\":[1,1,1,1,1,1,1,1,1],\"data\":[1]}}", PROBLEM_RANK, "/Q/shape", {"8"}},
    {"{\"Q\":{\"shape\":[1],\"shape\":[1],\"data\":[1]}}", PROBLEM_DUPLICATE_FIELD, "/Q/shape", {"twice"}},
    {"{\"Q\":{\"shpe\":[1]}}", PROBLEM_UNKNOWN_FIELD, "/Q/shpe", {"shape"}},
    {"{\"Q\":{\"shape\":[1],\"data\":[1],\"base64\":\"\"}}", PROBLEM_CONFLICT, "/Q/base64", {"of Q", "send one"}},
    {"{\"Q\":{\"shape\":[1],\"data\":[1],\"dtype\":\"float32\"}}",
     PROBLEM_CONFLICT,
     "/Q/dtype",
     {"dtype of Q", "base64"}},
    {"{\"Q\":{\"shape\":[1],\"dtype\":\"float128\",\"base64\":\"\"}}", PROBLEM_OUT_OF_RANGE, "/Q/dtype", {"bfloat16"}},
    {"{\"Q\":{\"shape\":[1],\"dtype\":\"bool\",\"base64\":\"AQ==\"}}",
     PROBLEM_WRONG_TYPE,
     "/Q/dtype",
     {"dtype of Q", "masks"}},
    {"{\"Q\":{\"shape\":[1,2],\"dtype\":\"float32\",\"base64\":\"AAAA\"}}",
     PROBLEM_SHAPE_MISMATCH,
     "/Q/base64",
     {"8", "3"}},
    {"{\"Q\":{\"shape\":[1],\"dtype\":\"float32\",\"base64\":\"A-AA\"}}",
     PROBLEM_BAD_BASE64,
     "/Q/base64",
     {"character"}},
    {"{\"Q\":{\"shape\":[1],\"dtype\":\"float32\",\"base64\":\"AAA\"}}",
     PROBLEM_BAD_BASE64,
     "/Q/base64",
     {"multiple of four"}},
    {"{\"Q\":{\"shape\":[1],\"dtype\":\"float32\",\"base64\":\"AA=A\"}}", PROBLEM_BAD_BASE64, "/Q/base64", {"padding"}},
    {"{\"Q\":{\"shape\":[1],\"dtype\":\"float32\",\"base64\":\"AB==\"}}",
     PROBLEM_BAD_BASE64,
     "/Q/base64",
     {"stray bits"}},
    {"{\"num_heads\":1," NO_W ",\"Q\":{\"shape\":[1,2],\"dtype\":\"float32\",\"base64\":\"AAAAAAAAwH8=\"}}",
     PROBLEM_NON_FINITE_INPUT,
     "/Q/0/1",
     {"NaN"}},
    {"{\"num_heads\":1," NO_W ",\"Q\":{\"shape\":[1,1],\"dtype\":\"float16\",\"base64\":\"AHw=\"}}",
     PROBLEM_NON_FINITE_INPUT,
     "/Q/0/0",
     {"infinity"}},
    {TWO ",\"dtype\":\"float32\",\"attn_mask\":[[0,-1.7976931348623157e308],[0,0]]}",
     PROBLEM_NON_FINITE_INPUT,
     "/attn_mask/0/1",
     {"float32", "null"}},
    {"{\"dtype\":\"float32\",\"attn_mask\":[[0,-1e39],[0,0]]}",
     PROBLEM_NON_FINITE_INPUT,
     "/attn_mask/0/1",
     {"float32", "null"}},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0,1e39]],\"dtype\":\"float32\"}",
     PROBLEM_NON_FINITE_INPUT,
     "/Q/0/1",
     {"float32"}},
    {"{\"dtype\":\"float32\",\"num_heads\":1," NO_W ",\"Q\":[[0,1e39]]}",
     PROBLEM_NON_FINITE_INPUT,
     "/Q/0/1",
     {"float32"}},
    /* 422: shapes */
    {"{\"num_heads\":1," NO_W ",\"Q\":[1,2]}", PROBLEM_RANK, "/Q", {"rank 1", "[[...]]"}},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[[[1]]]]}", PROBLEM_RANK, "/Q", {"rank 4"}},
    {BATCH ",\"K\":[[1,2]]}", PROBLEM_RANK, "/K", {"batch"}},
    {BATCH ",\"K\":[[[1,2]]]}", PROBLEM_SHAPE_MISMATCH, "/K", {"2 and 1|1 and 2"}},
    {ONE ",\"K\":[[1,2],[3,4]],\"V\":[[1]]}", PROBLEM_SHAPE_MISMATCH, "/V", {"K has 2", "V has 1"}},
    {ONE ",\"V\":[[1,2],[3,4]]}", PROBLEM_SHAPE_MISMATCH, "/V", {"K was not sent"}},
    {"{\"num_heads\":3," NO_W ",\"Q\":[[1,2,3,4]]}", PROBLEM_SHAPE_MISMATCH, "/num_heads", {"4", "3", "1, 2, 4"}},
    {"{\"num_heads\":1," NO_W ",\"Q\":{\"shape\":[1,0],\"data\":[]}}", PROBLEM_SHAPE_MISMATCH, "/Q", {"no features"}},
    {"{\"num_heads\":4,\"num_kv_heads\":3," NO_W ",\"Q\":[[1,2,3,4]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/num_kv_heads",
     {"3", "4"}},
    {"{\"num_heads\":1,\"Q\":[[1,2,3]],\"W_q\":[[1,2,3],[4,5,6]],\"W_k\":null,\"W_v\":null,\"W_o\":null}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_q",
     {"[2,3]", "width 3", "out_in"}},
    {"{\"num_heads\":1,\"Q\":[[1,2,3]],\"W_q\":[[1,2],[4,5]],\"W_k\":null,\"W_v\":null,\"W_o\":null}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_q",
     {"[2,2]", "width 3"}},
    {"{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[[1],[2]],[[3],[4]]],\"W_k\":null,\"W_v\":null,\"W_o\":null}",
     PROBLEM_RANK,
     "/W_q",
     {"rank 3", "head_in_out"}},
    {"{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":null,\"W_k\":[[1],[2]],\"W_v\":null,\"W_o\":null}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_k",
     {"num_kv_heads 1"}},
    {"{\"num_heads\":4,\"Q\":[[1,2,3,4]],\"W_q\":null,\"W_k\":[[1,2],[1,2],[1,2],[1,2]],\"W_v\":null,\"W_o\":null,"
     "\"num_kv_heads\":1}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_k",
     {"d_k", "num_kv_heads 2"}},
    {"{\"num_heads\":1,\"Q\":[[1,2]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":[[1],[2],[3]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_o",
     {"[3,1]", "width 2"}},
    {"{\"num_heads\":1,\"Q\":[[1,2]],\"W_q\":null,\"W_k\":null,\"W_v\":null,\"W_o\":[[1,2]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_o",
     {"transpose", "out_in"}},
    {"{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[[1],[2]],[[3],[4]],[[1],[1]]],\"W_k\":null,\"W_v\":null,\"W_o\":null,"
     "\"weight_layout\":\"head_in_out\"}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_q",
     {"num_heads is 2", "not 3"}},
    {"{\"num_heads\":2,\"num_kv_heads\":1," NO_W ",\"Q\":[[1,2]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/W_k",
     {"W_k being null", "leave num_kv_heads out"}},
    {ONE ",\"b_q\":[1,2,3]}", PROBLEM_SHAPE_MISMATCH, "/b_q", {"3", "2"}},
    {ONE ",\"b_o\":[[1,2]]}", PROBLEM_RANK, "/b_o", {"one dimension", "[2]"}},
    {ONE ",\"sinks\":[1,2]}", PROBLEM_SHAPE_MISMATCH, "/sinks", {"[2]", "[1]"}},
    {ONE ",\"sinks\":[[1]]}", PROBLEM_RANK, "/sinks", {"[1,1]"}},
    {ONE ",\"past_K\":[[1,2]],\"past_V\":[[1,2]]}", PROBLEM_RANK, "/past_K", {"[1,2]", "n_past"}},
    {ONE ",\"past_K\":[[[1,2,3]]],\"past_V\":[[[1,2]]]}", PROBLEM_SHAPE_MISMATCH, "/past_K", {"d_k = 2"}},
    {ONE ",\"past_K\":[[[1,2]]],\"past_V\":[[[1,2],[3,4]]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/past_V",
     {"1 keys", "2 values"}},
    {ONE ",\"past_K\":[[]],\"past_V\":[[]]}", PROBLEM_RANK, "/past_K", {"\"shape\""}},
    {ONE ",\"K\":[]}", PROBLEM_RANK, "/K", {"\"shape\""}},
    {BATCH ",\"past_K\":[[[1,2]]],\"past_V\":[[[1,2]]]}", PROBLEM_RANK, "/past_K", {"[B, h_kv, n_past, d]"}},
    /* 422: masks */
    {TWO ",\"attn_mask\":[[1,0],[0,1]]}", PROBLEM_AMBIGUOUS_MASK, "/attn_mask", {"additive", "true"}},
    {TWO ",\"attn_mask\":[[0,0],[0,0]]}", PROBLEM_AMBIGUOUS_MASK, "/attn_mask", {"additive"}},
    {"{\"dtype\":\"float32\",\"num_heads\":1," NO_W ",\"Q\":[[1]],\"attn_mask\":[[1]]}",
     PROBLEM_AMBIGUOUS_MASK,
     "/attn_mask",
     {"additive"}},
    {TWO ",\"attn_mask\":[[[true,true],[true,true]],[[true,true],[true,true]]]}",
     PROBLEM_AMBIGUOUS_MASK,
     "/attn_mask",
     {"[2,1,2,2]", "[1,2,2,2]"}},
    {TWO ",\"attn_mask\":[true,true]}", PROBLEM_RANK, "/attn_mask", {"key_mask"}},
    {TWO ",\"attn_mask\":[[true,true,true],[true,true,true]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/attn_mask",
     {"[2,3]", "[2,2]"}},
    {TWO ",\"attn_mask\":[[true,true]]}", PROBLEM_SHAPE_MISMATCH, "/attn_mask", {"[1,1,1,2]"}},
    {TWO ",\"attn_mask\":[[[[true,true]],[[true,true]],[[true,true]]]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/attn_mask",
     {"dimension 2", "heads"}},
    {TWO ",\"attn_mask\":[[2,0],[0,1]],\"attn_mask_kind\":\"bool\"}", PROBLEM_OUT_OF_RANGE, "/attn_mask/0/0", {"0/1"}},
    {TWO ",\"attn_mask\":[[null,0],[0,1]],\"attn_mask_kind\":\"bool\"}",
     PROBLEM_OUT_OF_RANGE,
     "/attn_mask/0/0",
     {"null"}},
    {TWO ",\"key_padding_mask\":{\"shape\":[2],\"dtype\":\"float32\",\"base64\":\"AACAPwAAAAA=\"}}",
     PROBLEM_WRONG_TYPE,
     "/key_padding_mask",
     {"booleans", "key_mask"}},
    {TWO ",\"key_mask\":[true]}", PROBLEM_SHAPE_MISMATCH, "/key_mask", {"[2]"}},
    {TWO ",\"key_mask\":[[[true,true]]]}", PROBLEM_RANK, "/key_mask", {"[2]"}},
    {BATCH ",\"key_padding_mask\":[[true]]}", PROBLEM_SHAPE_MISMATCH, "/key_padding_mask", {"[2,1]"}},
    {TWO ",\"past_K\":[[[1]],[[1]]],\"past_V\":[[[1]],[[1]]],\"key_mask\":[true,true]}",
     PROBLEM_SHAPE_MISMATCH,
     "/key_mask",
     {"past and new", "1 + 2"}},
    {TWO ",\"past_K\":[[[1]],[[1]]],\"past_V\":[[[1]],[[1]]],\"attn_mask\":[[true,true],[true,true]]}",
     PROBLEM_SHAPE_MISMATCH,
     "/attn_mask",
     {"1 + 2"}},
    {TWO ",\"key_lengths\":3}", PROBLEM_OUT_OF_RANGE, "/key_lengths", {"0 to 2", "is 3"}},
    {TWO ",\"key_lengths\":1.5}", PROBLEM_OUT_OF_RANGE, "/key_lengths", {"integer"}},
    {TWO ",\"key_lengths\":[-1]}", PROBLEM_OUT_OF_RANGE, "/key_lengths/0", {"0 to 2"}},
    {TWO ",\"key_lengths\":[1,1]}", PROBLEM_SHAPE_MISMATCH, "/key_lengths", {"[1]"}},
    {TWO ",\"key_lengths\":[[1]]}", PROBLEM_RANK, "/key_lengths", {"[1]"}},
    {TWO ",\"key_lengths\":[true]}", PROBLEM_WRONG_TYPE, "/key_lengths/0", {"true"}},
    {TWO ",\"key_lengths\":\"2\"}", PROBLEM_WRONG_TYPE, "/key_lengths", {"a string"}},
    {TWO ",\"attn_mask\":{\"shape\":[2,2],\"dtype\":\"float32\",\"base64\":\"AAAAAAAAAAAAAMB/AAAAAA==\"}}",
     PROBLEM_NON_FINITE_INPUT,
     "/attn_mask/1/0",
     {"-infinity is allowed"}},
    {TWO ",\"key_mask\":{\"shape\":[2],\"dtype\":\"bool\",\"base64\":\"AQI=\"}}",
     PROBLEM_OUT_OF_RANGE,
     "/key_mask/1",
     {"0/1"}},
    /* layers, results, limits */
    {"{\"Q\":[[1,2]],\"layer\":\"encoder.0\"}", PROBLEM_LAYER_NOT_FOUND, "/layer", {"encoder.0"}},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[1e200,1e200]]}", PROBLEM_NON_FINITE_RESULT, "", {"scores", "float64"}},
    {"{\"num_heads\":1," NO_W
     ",\"Q\":{\"shape\":[0,1],\"data\":[]},\"K\":[[1]],\"attn_mask\":{\"shape\":[1,1,0,1],\"data\":[]},"
     "\"sinks\":[1,2]}",
     PROBLEM_SHAPE_MISMATCH,
     "/sinks",
     {"[2]"}},
};

static bool contains_one_of(const char *text, const char *words) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *save, *word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save))
        if (strstr(text, word)) return true;
    return false;
}

static bool judge(const struct mistake *m, const struct answer *a) {
    bool ok = a->code == m->code && a->status == problem_status(m->code) && strcmp(a->problem.pointer, m->pointer) == 0;
    for (size_t i = 0; i < 4 && m->words[i]; i++) ok = ok && contains_one_of(a->problem.detail, m->words[i]);
    cJSON *json = cJSON_Parse(a->text);
    ok = ok && json &&
         strcmp(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "code")), problem_name(m->code)) == 0;
    cJSON_Delete(json);
    if (!ok) printf("  %s\n    wanted %s at \"%s\", got %s\n", m->body, problem_name(m->code), m->pointer, a->text);
    return ok;
}

static void every_mistake_gets_its_code_pointer_and_words(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct answer whole = post(&env, mistakes[i].body);
        struct answer bytes = post_pieces(&env, mistakes[i].body, strlen(mistakes[i].body), 1);
        if (!judge(&mistakes[i], &whole)) wrong++;
        if (strcmp(whole.text, bytes.text) != 0) {
            printf("  %s\n    byte by byte: %s\n    whole: %s\n", mistakes[i].body, bytes.text, whole.text);
            wrong++;
        }
        free(whole.text);
        free(bytes.text);
        assert_int_equal(atomic_load(&budget.used), 0);
    }
    assert_int_equal(wrong, 0);
}

/* Every code of the table that a body can trigger is in `mistakes`, or has a test of its own below. */
static void no_code_lacks_an_input(void **state) {
    (void)state;
    static const enum problem_code elsewhere[] = {PROBLEM_NUMBER_TOO_LONG,  PROBLEM_BODY_TOO_LARGE,
                                                  PROBLEM_RESULT_TOO_LARGE, PROBLEM_MEMORY_TOO_LARGE,
                                                  PROBLEM_MEMORY_BUSY,      PROBLEM_OUT_OF_MEMORY};
    for (int code = PROBLEM_JSON_SYNTAX; code <= PROBLEM_NON_FINITE_RESULT; code++) {
        bool found = code == PROBLEM_SAFETENSORS || code == PROBLEM_HTTP;
        for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
            found = found || elsewhere[i] == (enum problem_code)code;
        for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
            found = found || mistakes[i].code == (enum problem_code)code;
        if (!found) print_error("no input triggers %s\n", problem_name((enum problem_code)code));
        assert_true(found);
    }
}

/* Half precision is not to be had, and whoever asks for it does not mean double. */
static void float16_is_refused_without_a_guess(void **state) {
    (void)state;
    struct answer a = post(&env, "{\"dtype\":\"float16\"}");
    assert_int_equal(a.code, PROBLEM_OUT_OF_RANGE);
    assert_null(strstr(a.problem.detail, "Did you mean"));
    free(a.text);
}

/* ---- limits ---- */

static void a_number_of_more_than_a_thousand_characters_is_refused(void **state) {
    (void)state;
    char body[2200] = "{\"scale\":0.";
    size_t at = strlen(body);
    memset(body + at, '1', 1200);
    strcpy(body + at + 1200, "}");
    struct answer a = post(&env, body);
    assert_int_equal(a.code, PROBLEM_NUMBER_TOO_LONG);
    free(a.text);
    strcpy(body, "{\"Q\":[[0.");
    at = strlen(body);
    memset(body + at, '1', 1200);
    strcpy(body + at + 1200, "]]}");
    a = post(&env, body);
    assert_int_equal(a.code, PROBLEM_NUMBER_TOO_LONG);
    free(a.text);
}

static void a_body_past_the_limit_is_413_with_limit_and_size(void **state) {
    (void)state;
    struct api_env small = env;
    small.max_body = 100;
    char body[201];
    memset(body, ' ', 200);
    body[200] = 0;
    struct answer known = post(&small, body); /* the length was announced */
    assert_int_equal(known.status, 413);
    assert_int_equal(known.problem.limit, 100);
    assert_int_equal(known.problem.size, 200);
    free(known.text);
    struct api_call *call = api_call_open(&small, API_MHA, API_JSON, API_JSON, SIZE_MAX); /* chunked */
    api_call_feed(call, body, 60);
    assert_false(api_call_failed(call));
    api_call_feed(call, body, 60);
    assert_int_equal(api_call_problem(call)->code, PROBLEM_BODY_TOO_LARGE);
    api_call_end(call);
    assert_null(api_call_run(call));
    assert_int_equal(api_call_status(call), 413);
    api_call_close(call);
}

/* Q [n, 1] of zeros in base64. */
static char *tall_query(size_t n, const char *more) {
    size_t characters = (n * 2 + 2) / 3 * 4;
    char *body = malloc(characters + 400 + strlen(more));
    int at = sprintf(body, "{\"num_heads\":1," NO_W "%s,\"Q\":{\"shape\":[%zu,1],\"dtype\":\"float16\",\"base64\":\"",
                     more, n);
    memset(body + at, 'A', characters);
    size_t pad = (3 - n * 2 % 3) % 3;
    memset(body + (size_t)at + characters - pad, '=', pad);
    strcpy(body + (size_t)at + characters, "\"}}");
    return body;
}

static void maps_past_the_limit_are_413_before_anything_is_computed(void **state) {
    (void)state;
    char *body = tall_query(20000, ",\"return\":[\"attention\"]"); /* a map of 3.2 GB */
    struct answer a = post(&env, body);
    assert_int_equal(a.code, PROBLEM_RESULT_TOO_LARGE);
    assert_int_equal(a.status, 413);
    assert_int_equal(a.problem.limit, budget.limit);
    assert_int_equal(a.problem.size, (size_t)20000 * 20000 * 8);
    assert_non_null(strstr(a.problem.detail, "attention"));
    assert_int_equal(atomic_load(&budget.used), 0);
    free(a.text);
    free(body);
}

static void a_tensor_past_the_limit_is_413_and_one_that_others_crowd_out_is_503(void **state) {
    (void)state;
    struct mem_budget small = {.limit = 256 * 1024};
    struct api_env tight = env;
    tight.budget = &small;
    char *body = tall_query(200000, "");
    struct answer a = post(&tight, body);
    assert_int_equal(a.code, PROBLEM_MEMORY_TOO_LARGE);
    assert_int_equal(a.problem.limit, small.limit);
    free(a.text);
    small.limit = (size_t)64 << 20;
    assert_true(mem_charge(&small, (size_t)64 * 1024 * 1024 - 100 * 1024)); /* another request */
    a = post(&tight, body);
    assert_int_equal(a.code, PROBLEM_MEMORY_BUSY);
    assert_int_equal(a.status, 503);
    assert_int_equal(atomic_load(&small.used), (size_t)64 * 1024 * 1024 - 100 * 1024);
    free(a.text);
    free(body);
}

static void options_of_too_much_text_are_refused(void **state) {
    (void)state;
    size_t n = 300 * 1024;
    char *body = malloc(n + 64);
    int at = sprintf(body, "{\"layer\":\"");
    memset(body + at, 'x', n);
    strcpy(body + (size_t)at + n, "\"}");
    struct answer a = post(&env, body);
    assert_int_equal(a.code, PROBLEM_BODY_TOO_LARGE);
    assert_non_null(strstr(a.problem.detail, "layer"));
    free(a.text);
    free(body);
}

/* ---- right requests ---- */

static const struct {
    const char *a, *b;
} pairs[] = {
    /* spellings of a tensor */
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":{\"shape\":[1,2],\"data\":[0.5,-2]}}"},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":{\"data\":[5e-1,-2.0],\"shape\":[1,2]}}"},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":{\"base64\":\"AAAAPwAAAMA=\",\"shape\":[1,2],\"dtype\":\"float32\"}}"},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W
     ",\"Q\":{\"dtype\":\"float64\",\"base64\":\"AAAAAAAA4D8AAAAAAAAAwA==\",\"shape\":[1,2]}}"},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":{\"dtype\":\"float16\",\"base64\":\"ADgAwA==\",\"shape\":[1,2]}}"},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":{\"dtype\":\"bfloat16\",\"base64\":\"AD8AwA==\",\"shape\":[1,2]}}"},
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":{\"dtype\":\"bfloat16\",\"base64\":\"\\u0041D8\\u0041wA==\",\"shape\":[1,2]}}"},
    {"{\"num_heads\":1," NO_W
     ",\"Q\":[[0.5,-0.00000011920928955078125]]}", /* the smallest subnormal of float16, times -2 */
     "{\"num_heads\":1," NO_W ",\"Q\":{\"dtype\":\"float16\",\"base64\":\"ADgCgA==\",\"shape\":[1,2]}}"},
    /* escapes in names */
    {"{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]]}", "{\"num\\u005fheads\":1," NO_W ",\"\\u0051\":[[0.5,-2]]}"},
    /* null options are absent ones, 1.0 is an integer */
    {ONE "}",
     ONE ",\"K\":null,\"b_q\":null,\"window\":null,\"scale\":null,\"layer\":null,\"return\":null,\"attn_mask\":null}"},
    {ONE "}", "{\"num_heads\":1.0,\"num_kv_heads\":1e0," NO_W ",\"Q\":[[1,2]]}"},
    {ONE "}", ONE
     ",\"softcap\":0,\"causal\":false,\"window\":{\"left\":null,\"right\":null},\"return\":[\"output\",\"output\"]}"},
    /* masks said twice and two ways */
    {TWO ",\"attn_mask\":[[true,false],[true,true]]}", TWO ",\"attn_mask\":[[1,0],[1,1]],\"attn_mask_kind\":\"bool\"}"},
    {TWO ",\"attn_mask\":[[true,false],[true,true]]}",
     TWO ",\"attn_mask\":{\"shape\":[2,2],\"dtype\":\"bool\",\"base64\":\"AQABAQ==\"}}"},
    {TWO ",\"attn_mask\":[[true,false],[true,true]]}", TWO ",\"attn_mask\":[[0,null],[0,0]]}"},
    {TWO ",\"attn_mask\":[[0,null],[0,0]]}", /* -infinity in base64 hides as null does */
     TWO ",\"attn_mask\":{\"shape\":[2,2],\"dtype\":\"float32\",\"base64\":\"AAAAAAAAgP8AAAAAAAAAAA==\"}}"},
    {TWO ",\"key_mask\":[true,false]}", TWO ",\"key_padding_mask\":[false,true]}"},
    {TWO ",\"key_mask\":[true,false]}", TWO ",\"key_mask\":[1,0],\"key_padding_mask\":[false,false]}"},
    {TWO ",\"key_mask\":[true,false]}", TWO ",\"key_lengths\":1}"},
    {TWO ",\"key_mask\":[true,false]}", TWO ",\"key_lengths\":[1]}"},
    {TWO ",\"key_mask\":[true,false]}",
     TWO ",\"key_mask\":{\"shape\":[2],\"dtype\":\"float32\",\"base64\":\"AACAPwAAAAA=\"}}"},
    {TWO ",\"causal\":true}", TWO ",\"window\":{\"right\":0}}"},
    /* dtype first or last: one rounding of the text either way. 1 + 2^-24 is a tie that the text lies just above */
    {"{\"dtype\":\"float32\",\"num_heads\":1," NO_W ",\"Q\":[[1.000000059604644775390626]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":[[1.000000059604644775390626]],\"dtype\":\"float32\"}"},
    {"{\"dtype\":\"float32\",\"num_heads\":1," NO_W ",\"Q\":[[1.00000012]]}",
     "{\"num_heads\":1," NO_W ",\"Q\":[[1.000000059604644775390626]],\"dtype\":\"float32\"}"},
    {"{\"dtype\":\"float32\",\"num_heads\":1," NO_W ",\"Q\":[[1.00000012,3]]}",
     "{\"num_heads\":1," NO_W
     ",\"Q\":{\"data\":[1.000000059604644775390626,3],\"shape\":[1,2]},\"dtype\":\"float32\"}"},
    /* float64 in base64 is rounded once */
    {"{\"dtype\":\"float32\",\"num_heads\":1," NO_W ",\"Q\":[[0.1]]}",
     "{\"num_heads\":1," NO_W
     ",\"Q\":{\"shape\":[1,1],\"dtype\":\"float64\",\"base64\":\"mpmZmZmZuT8=\"},\"dtype\":\"float32\"}"},
    /* layouts of the same weights */
    {"{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[1,2],[3,4]],\"W_k\":[[1,2],[3,4]],\"W_v\":[[1,2],[3,4]],\"W_o\":[[1,2,3]"
     ",[4,5,6]]}",
     "{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[1,3],[2,4]],\"W_k\":[[1,3],[2,4]],\"W_v\":[[1,3],[2,4]],\"W_o\":[[1,4],["
     "2,5],[3,6]],"
     "\"weight_layout\":\"out_in\"}"},
    {"{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[1,2],[3,4]],\"W_k\":[[1,2],[3,4]],\"W_v\":[[1,2],[3,4]],\"W_o\":[[1,2,3]"
     ",[4,5,6]]}",
     "{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[[1],[3]],[[2],[4]]],\"W_k\":[[[1],[3]],[[2],[4]]],\"W_v\":[[[1],[3]],[["
     "2],[4]]],"
     "\"W_o\":[[[1,2,3]],[[4,5,6]]],\"weight_layout\":\"head_in_out\"}"},
    {"{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[1,2],[3,4]],\"W_k\":[[1,2],[3,4]],\"W_v\":[[1,2],[3,4]],\"W_o\":[[1,2,3]"
     ",[4,5,6]]}",
     "{\"num_heads\":2,\"Q\":[[1,2]],\"W_q\":[[[1],[2]],[[3],[4]]],\"W_k\":[[[1],[2]],[[3],[4]]],\"W_v\":[[[1],[2]],[["
     "3],[4]]],"
     "\"W_o\":[[[1,2,3]],[[4,5,6]]],\"weight_layout\":\"in_head_out\"}"},
};

static void spellings_of_one_request_give_the_same_bytes(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct answer a = post(&env, pairs[i].a), b = post_pieces(&env, pairs[i].b, strlen(pairs[i].b), 3);
        if (a.status != 200 || b.status != 200 || strcmp(a.text, b.text) != 0) {
            printf("  %s\n    %s  %s\n    %s", pairs[i].a, a.text, pairs[i].b, b.text);
            wrong++;
        }
        free(a.text);
        free(b.text);
    }
    assert_int_equal(wrong, 0);
}

/* ---- the answer ---- */

static void expect_text(const char *body, const char *text) {
    struct answer a = post(&env, body);
    if (strcmp(a.text, text) != 0) print_error("%s\n  wanted %s  got    %s", body, text, a.text);
    assert_string_equal(a.text, text);
    assert_int_equal(a.status, 200);
    free(a.text);
}

static void fields_come_in_the_order_of_the_contract_and_trace_in_that_of_the_paper(void **state) {
    (void)state;
    expect_text("{\"num_heads\":1," NO_W
                ",\"Q\":[[2]],\"scale\":1,\"return\":[\"present\",\"concat\",\"scores\",\"output\"]}",
                "{\"output\":[[2]],\"scores\":[[[4]]],\"concat\":[[2]],\"present\":{\"K\":[[[2]]],\"V\":[[[2]]]}}\n");
    expect_text("{\"num_heads\":1," NO_W ",\"Q\":[[2]],\"scale\":1,\"return\":[\"trace\"]}",
                "{\"projections\":{\"Q\":[[[2]]],\"K\":[[[2]]],\"V\":[[[2]]]},\"scores\":[[[4]]],\"logsumexp\":[[4]],"
                "\"attention\":[[[1]]],\"heads\":[[[2]]],\"concat\":[[2]],\"output\":[[2]]}\n");
}

static void a_batch_of_one_comes_back_with_its_batch_dimension(void **state) {
    (void)state;
    expect_text("{\"num_heads\":1," NO_W
                ",\"Q\":[[[2]]],\"return\":[\"output\",\"attention\",\"logsumexp\"],\"scale\":1}",
                "{\"output\":[[[2]]],\"attention\":[[[[1]]]],\"logsumexp\":[[[4]]]}\n");
    expect_text("{\"num_heads\":1," NO_W
                ",\"Q\":[[2]],\"return\":[\"output\",\"attention\",\"logsumexp\"],\"scale\":1}",
                "{\"output\":[[2]],\"attention\":[[[1]]],\"logsumexp\":[[4]]}\n");
}

static void formats_are_nested_flat_and_base64(void **state) {
    (void)state;
    expect_text("{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]],\"tensor_format\":\"flat\"}",
                "{\"output\":{\"shape\":[1,2],\"data\":[0.5,-2]}}\n");
    expect_text("{\"num_heads\":1," NO_W ",\"Q\":[[0.5,-2]],\"tensor_format\":\"base64\",\"dtype\":\"float32\"}",
                "{\"output\":{\"shape\":[1,2],\"dtype\":\"float32\",\"base64\":\"AAAAPwAAAMA=\"}}\n");
}

static void a_row_without_keys_warns_once_and_its_logsumexp_is_null(void **state) {
    (void)state;
    expect_text(TWO ",\"key_lengths\":0,\"b_o\":[7,8],\"return\":[\"output\",\"logsumexp\"]}",
                "{\"output\":[[7,8],[7,8]],\"logsumexp\":[[null,null],[null,null]],"
                "\"warnings\":[{\"code\":\"fully_masked_rows\",\"count\":4,\"first\":[0,0,0]}]}\n");
}

static void a_non_finite_score_of_a_hidden_key_is_null(void **state) {
    (void)state;
    expect_text("{\"num_heads\":1," NO_W
                ",\"Q\":[[1e200]],\"K\":[[0],[1e200]],\"V\":[[3],[4]],\"key_mask\":[true,false],\"return\":["
                "\"output\",\"scores\"]}",
                "{\"output\":[[3]],\"scores\":[[[0,null]]]}\n");
}

static void empty_dimensions_are_legal(void **state) {
    (void)state;
    expect_text("{\"num_heads\":1," NO_W ",\"Q\":{\"shape\":[0,2],\"data\":[]},\"return\":[\"output\",\"attention\"]}",
                "{\"output\":[],\"attention\":[[]]}\n");
    expect_text("{\"num_heads\":1," NO_W ",\"Q\":{\"shape\":[0,3,2],\"data\":[]}}", "{\"output\":[]}\n");
    expect_text("{\"num_heads\":1," NO_W
                ",\"Q\":[[1]],\"past_K\":{\"shape\":[1,0,1],\"data\":[]},\"past_V\":{\"shape\":[1,0,1],\"data\":[]}}",
                "{\"output\":[[1]]}\n");
}

static void listed_heads_come_in_the_order_asked_for(void **state) {
    (void)state;
    expect_text("{\"num_heads\":2," NO_W
                ",\"Q\":[[1,2]],\"scale\":1,\"attention_heads\":[1,0],\"return\":[\"scores\"]}",
                "{\"scores\":[[[4]],[[1]]]}\n");
    expect_text("{\"num_heads\":2," NO_W ",\"Q\":[[1,2]],\"scale\":1,\"attention_heads\":[1],\"return\":[\"scores\"]}",
                "{\"scores\":[[[4]]]}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_gets_its_code_pointer_and_words),
        cmocka_unit_test(no_code_lacks_an_input),
        cmocka_unit_test(float16_is_refused_without_a_guess),
        cmocka_unit_test(a_number_of_more_than_a_thousand_characters_is_refused),
        cmocka_unit_test(a_body_past_the_limit_is_413_with_limit_and_size),
        cmocka_unit_test(maps_past_the_limit_are_413_before_anything_is_computed),
        cmocka_unit_test(a_tensor_past_the_limit_is_413_and_one_that_others_crowd_out_is_503),
        cmocka_unit_test(options_of_too_much_text_are_refused),
        cmocka_unit_test(spellings_of_one_request_give_the_same_bytes),
        cmocka_unit_test(fields_come_in_the_order_of_the_contract_and_trace_in_that_of_the_paper),
        cmocka_unit_test(a_batch_of_one_comes_back_with_its_batch_dimension),
        cmocka_unit_test(formats_are_nested_flat_and_base64),
        cmocka_unit_test(a_row_without_keys_warns_once_and_its_logsumexp_is_null),
        cmocka_unit_test(a_non_finite_score_of_a_hidden_key_is_null),
        cmocka_unit_test(empty_dimensions_are_legal),
        cmocka_unit_test(listed_heads_come_in_the_order_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
