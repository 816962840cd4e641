/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/test_memory.c - the budget, the arena and growing blocks: what is charged, what is refused, what is kept.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../api/memory.h"

#define KIB (size_t)1024
#define MIB (KIB * KIB)

static size_t used(struct mem_budget *budget) { return atomic_load(&budget->used); }

static void a_charge_past_the_limit_changes_nothing(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 100};
    assert_true(mem_charge(&budget, 60));
    assert_false(mem_charge(&budget, 41));
    assert_false(mem_charge(&budget, SIZE_MAX));
    assert_int_equal(used(&budget), 60);
    assert_true(mem_charge(&budget, 40));
    assert_true(mem_charge(&budget, 0));
    mem_uncharge(&budget, 100);
    assert_int_equal(used(&budget), 0);
    assert_int_equal(atomic_load(&budget.peak), 100);
}

static void *charge_often(void *arg) {
    struct mem_budget *budget = arg;
    for (int i = 0; i < 20000; i++)
        if (mem_charge(budget, 7)) mem_uncharge(budget, 7);
    return NULL;
}

static void threads_never_charge_past_the_limit_and_leave_nothing(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 20};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, charge_often, &budget), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(used(&budget), 0);
    assert_true(atomic_load(&budget.peak) <= 20);
}

static void blocks_are_aligned_writable_and_apart(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB};
    struct mem_arena *arena = mem_arena_new(&budget);
    enum { N = 60 };
    unsigned char *block[N];
    size_t size[N];
    for (size_t i = 0; i < N; i++) {
        size[i] = i == 50 ? 3 * MIB : i == 51 ? 100 * KIB : i * i * 7;
        block[i] = mem_alloc(arena, size[i], NULL);
        assert_non_null(block[i]);
        assert_int_equal((uintptr_t)block[i] % 64, 0);
        memset(block[i], (int)i, size[i]);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < size[i]; k++)
            if (block[i][k] != i) fail_msg("block %zu was overwritten at %zu", i, k);
    assert_int_equal(used(&budget), mem_arena_used(arena));
    assert_true(used(&budget) >= 3 * MIB + 100 * KIB);
    assert_string_equal(mem_strndup(arena, "hello, world", 5), "hello");
    mem_arena_free(arena);
    mem_arena_free(NULL);
    assert_int_equal(used(&budget), 0);
}

static void what_could_never_fit_is_told_from_what_does_not_fit_now(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 4 * MIB};
    struct mem_arena *a = mem_arena_new(&budget), *b = mem_arena_new(&budget);
    enum mem_status why;
    assert_non_null(mem_alloc(a, 2 * MIB, NULL));
    assert_int_equal(mem_would(b, MIB), MEM_OK);
    assert_int_equal(mem_would(b, 3 * MIB), MEM_BUSY);
    assert_int_equal(mem_would(b, 5 * MIB), MEM_TOO_LARGE);
    assert_int_equal(mem_would(a, 3 * MIB), MEM_TOO_LARGE); /* with the 2 MiB it has */
    assert_null(mem_alloc(b, 3 * MIB, &why));
    assert_int_equal(why, MEM_BUSY);
    assert_null(mem_alloc(b, 5 * MIB, &why));
    assert_int_equal(why, MEM_TOO_LARGE);
    assert_null(mem_alloc(b, SIZE_MAX, &why));
    assert_int_equal(why, MEM_TOO_LARGE);
    mem_arena_free(a);
    assert_non_null(mem_alloc(b, 3 * MIB, &why));
    mem_arena_free(b);
    assert_int_equal(used(&budget), 0);
}

static void an_arena_that_the_budget_refuses_is_null(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = KIB};
    assert_null(mem_arena_new(&budget));
    assert_int_equal(used(&budget), 0);
}

/* Appends n bytes of a pattern in steps and compares them. */
static void grow_to(struct mem_grow *grow, size_t n, size_t step) {
    for (size_t at = grow->size; at < n; at += step) {
        size_t next = at + step < n ? at + step : n;
        assert_int_equal(mem_grow_reserve(grow, next), MEM_OK);
        assert_true(grow->capacity >= next);
        for (size_t i = at; i < next; i++) grow->data[i] = (char)(i * 31 >> 3);
        grow->size = next;
    }
    for (size_t i = 0; i < n; i++)
        if (grow->data[i] != (char)(i * 31 >> 3)) fail_msg("byte %zu was lost", i);
}

static void a_growing_block_keeps_its_bytes_and_its_alignment(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB};
    struct mem_arena *arena = mem_arena_new(&budget);
    struct mem_grow a, b, c;
    assert_true(mem_grow_init(&a, arena) && mem_grow_init(&b, arena) && mem_grow_init(&c, arena));
    grow_to(&a, 3000, 100);
    grow_to(&b, 40 * KIB, 999); /* between: a cannot be extended in place any more */
    grow_to(&a, 200 * KIB, 1234);
    grow_to(&c, 5 * MIB, 60000);
    assert_int_equal((uintptr_t)a.data % 64, 0);
    assert_int_equal((uintptr_t)c.data % 64, 0);
    grow_to(&b, 40 * KIB, 1);
    grow_to(&a, 3 * MIB, 7777);
    mem_arena_free(arena);
    assert_int_equal(used(&budget), 0);
}

static void growing_is_charged_as_it_is_touched_and_trimming_gives_back(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB};
    struct mem_arena *arena = mem_arena_new(&budget);
    struct mem_grow grow;
    mem_grow_init(&grow, arena);
    size_t before = mem_arena_used(arena);
    grow_to(&grow, 10 * MIB + 5, 16 * KIB);
    size_t held = mem_arena_used(arena) - before;
    assert_true(held >= 10 * MIB + 5 && held <= 10 * MIB + 512 * KIB);
    mem_grow_trim(&grow);
    held = mem_arena_used(arena) - before;
    assert_true(held >= 10 * MIB + 5 && held <= 10 * MIB + 8 * KIB + 64 * KIB); /* and the chunk in which it began */
    grow_to(&grow, 10 * MIB + 5, 1);                                            /* still there */
    grow_to(&grow, 11 * MIB, 4096);                                             /* and may go on */
    mem_grow_free(&grow);
    assert_int_equal(mem_arena_used(arena), before + 64 * KIB);
    assert_null(grow.data);
    grow_to(&grow, 100, 10);
    mem_arena_free(arena);
    assert_int_equal(used(&budget), 0);
}

static void blocks_that_outgrow_their_chunk_leave_it_to_the_next_ones(void **state) {
    (void)state;
    enum { BLOCKS = 40 };
    struct mem_budget budget = {.limit = 64 * MIB};
    struct mem_arena *arena = mem_arena_new(&budget);
    struct mem_grow grow[BLOCKS];
    size_t before = mem_arena_used(arena);
    for (int i = 0; i < BLOCKS; i++) {
        mem_grow_init(&grow[i], arena);
        grow_to(&grow[i], 200 * KIB, 5000);
        mem_grow_trim(&grow[i]);
    }
    assert_true(mem_arena_used(arena) - before <= (BLOCKS * 200 + 64) * KIB);
    for (int i = 0; i < BLOCKS; i++) grow_to(&grow[i], 200 * KIB, 1); /* all still there */
    mem_arena_free(arena);
    assert_int_equal(used(&budget), 0);
}

static void a_growth_that_is_refused_leaves_the_block_as_it_was(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 2 * MIB};
    struct mem_arena *arena = mem_arena_new(&budget);
    struct mem_grow grow;
    mem_grow_init(&grow, arena);
    grow_to(&grow, MIB, 16 * KIB);
    size_t held = mem_arena_used(arena), capacity = grow.capacity;
    assert_int_equal(mem_grow_reserve(&grow, 3 * MIB), MEM_TOO_LARGE);
    assert_int_equal(mem_grow_reserve(&grow, SIZE_MAX), MEM_TOO_LARGE);
    assert_int_equal(mem_arena_used(arena), held);
    assert_int_equal(grow.capacity, capacity);
    grow_to(&grow, MIB, 1);
    /* to the last page of the budget, although a whole step would not fit */
    size_t left = (budget.limit - held) / 4096 * 4096;
    assert_int_equal(mem_grow_reserve(&grow, capacity + left), MEM_OK);
    assert_true(used(&budget) <= budget.limit);
    mem_arena_free(arena);
    assert_int_equal(used(&budget), 0);
}

/* Pages of address space, from the kernel: sanitizers do not see mappings leak. */
static size_t address_space(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    return pages;
}

static void mappings_are_given_back_to_the_system(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB};
    size_t before = address_space();
    for (int i = 0; i < 300; i++) {
        struct mem_arena *arena = mem_arena_new(&budget);
        struct mem_grow a, b;
        assert_non_null(mem_alloc(arena, 4 * MIB, NULL));
        mem_grow_init(&a, arena);
        mem_grow_init(&b, arena);
        assert_int_equal(mem_grow_reserve(&a, 4 * MIB), MEM_OK);
        assert_int_equal(mem_grow_reserve(&b, 4 * MIB), MEM_OK);
        mem_grow_free(&b);
        mem_arena_free(arena);
    }
    assert_true(address_space() < before + 200 * MIB / 4096); /* one loop maps 20 MiB, all of them 6 GiB */
}

static size_t calls, refuse_at;
static bool refuse(void *arg) {
    (void)arg;
    return ++calls == refuse_at;
}

static void the_test_hook_refuses_one_allocation(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .refuse = refuse};
    enum mem_status why;
    calls = 0, refuse_at = 1;
    assert_null(mem_arena_new(&budget));
    struct mem_arena *arena = mem_arena_new(&budget);
    assert_non_null(arena);
    calls = 0;
    assert_null(mem_alloc(arena, 10, &why));
    assert_int_equal(why, MEM_FAILED);
    assert_non_null(mem_alloc(arena, 10, &why));
    struct mem_grow grow;
    mem_grow_init(&grow, arena);
    calls = 0;
    assert_int_equal(mem_grow_reserve(&grow, 10), MEM_FAILED);
    assert_int_equal(mem_grow_reserve(&grow, 10), MEM_OK);
    mem_arena_free(arena);
    assert_int_equal(used(&budget), 0);
}

static void a_kept_chunk_is_uncharged_and_serves_the_next_arena(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .keeps_chunk = true};
    for (int round = 0; round < 3; round++) {
        struct mem_arena *one = mem_arena_new(&budget), *two = mem_arena_new(&budget);
        assert_non_null(one);
        assert_non_null(two);
        assert_ptr_not_equal(one, two);
        memset(mem_alloc(one, 20 * KIB, NULL), round, 20 * KIB);
        assert_non_null(mem_alloc(one, 40 * KIB, NULL)); /* a second chunk, which is not kept */
        mem_arena_free(one);
        mem_arena_free(two);
        assert_int_equal(used(&budget), 0);
    }
    mem_budget_close(&budget);
    assert_null(atomic_load(&budget.kept));
    budget.limit = 100;
    assert_null(mem_arena_new(&budget));
    mem_budget_close(&budget);
}

static size_t held(struct mem_budget *budget) { return atomic_load(&budget->mappings.held); }

/* An arena with one block; the arena is the caller's. */
static void *block_of(struct mem_budget *budget, size_t bytes, struct mem_arena **arena) {
    *arena = mem_arena_new(budget);
    assert_non_null(*arena);
    void *block = mem_alloc(*arena, bytes, NULL);
    assert_non_null(block);
    memset(block, 0xA5, bytes);
    return block;
}

static void a_mapping_left_behind_serves_the_next_request_of_its_size(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .mappings.limit = 4 * MIB};
    struct mem_arena *arena;
    void *first = block_of(&budget, MIB, &arena);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), MIB);
    assert_int_equal(used(&budget), 0);
    block_of(&budget, 2 * MIB, &arena); /* too large for it */
    assert_int_equal(held(&budget), MIB);
    assert_ptr_equal(mem_alloc(arena, MIB - 4096, NULL), first);
    assert_int_equal(held(&budget), 0);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 3 * MIB);
    block_of(&budget, 5 * MIB, &arena); /* more than may wait */
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 3 * MIB);
    mem_budget_close(&budget);
    assert_int_equal(held(&budget), 0);
}

static void what_waits_makes_room_before_the_limit_is_passed(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 8 * MIB, .mappings.limit = 4 * MIB};
    struct mem_arena *arena;
    block_of(&budget, 3 * MIB, &arena);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 3 * MIB);
    block_of(&budget, 4 * MIB, &arena);
    assert_int_equal(held(&budget), 3 * MIB); /* 4 + 3 and the chunk fit below 8 */
    assert_non_null(mem_alloc(arena, MIB, NULL));
    assert_int_equal(held(&budget), 0);
    mem_arena_free(arena);
    mem_budget_close(&budget);
}

static size_t lent(struct mem_budget *budget) { return atomic_load(&budget->mappings.lent); }

/* An arena with one block that has grown to `bytes` and asked for `more` besides, trimmed. */
static struct mem_arena *grown(struct mem_budget *budget, struct mem_grow *grow, size_t bytes, size_t more) {
    struct mem_arena *arena = mem_arena_new(budget);
    assert_non_null(arena);
    mem_grow_init(grow, arena);
    grow_to(grow, bytes, 16 * KIB);
    assert_int_equal(mem_grow_reserve(grow, bytes + more), MEM_OK);
    mem_grow_trim(grow);
    return arena;
}

static void what_grew_is_lent_to_the_next_that_grows_and_to_no_other(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .mappings.limit = 16 * MIB};
    struct mem_grow grow, other;
    struct mem_arena *arena = grown(&budget, &grow, 2 * MIB, 64 * KIB);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 2 * MIB);
    block_of(&budget, 2 * MIB, &arena); /* had its size from the start */
    assert_int_equal(held(&budget), 2 * MIB);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 4 * MIB);
    for (int round = 0; round < 3; round++) {
        arena = grown(&budget, &grow, 2 * MIB, 64 * KIB); /* readers ask for more than comes */
        assert_int_equal(held(&budget), 2 * MIB);
        assert_int_equal(lent(&budget), 0);
        struct mem_arena *second = grown(&budget, &other, MIB, 0);
        assert_int_equal(held(&budget), 2 * MIB);
        grow_to(&grow, 2 * MIB, 1);
        mem_arena_free(second);
        mem_arena_free(arena);
        assert_int_equal(held(&budget), 5 * MIB);
        assert_int_equal(used(&budget), 0);
        mappings_empty(&budget.mappings);
        mem_arena_free(grown(&budget, &grow, 2 * MIB, 0));
        block_of(&budget, 2 * MIB, &arena);
        mem_arena_free(arena);
    }
    mem_budget_close(&budget);
}

static void of_a_lent_mapping_only_what_is_used_is_charged(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .mappings.limit = 16 * MIB};
    struct mem_grow grow;
    mem_arena_free(grown(&budget, &grow, 4 * MIB, 0));
    struct mem_arena *arena = mem_arena_new(&budget);
    mem_grow_init(&grow, arena);
    size_t before = used(&budget), kept = held(&budget);
    for (size_t bytes = 100 * KIB; bytes <= 4 * MIB; bytes += 100 * KIB) {
        grow_to(&grow, bytes, 10 * KIB);
        assert_true(used(&budget) - before <= bytes + 400 * KIB);
        assert_int_equal(held(&budget), 0);
        assert_true(lent(&budget) + used(&budget) - before >= kept && lent(&budget) <= kept - bytes);
    }
    mem_arena_free(arena);
    assert_int_equal(lent(&budget), 0);
    assert_int_equal(held(&budget), kept);
    arena = grown(&budget, &grow, 200 * KIB, 0); /* the rest is not held in vain */
    assert_int_equal(lent(&budget), 0);
    assert_true(mem_arena_used(arena) <= 400 * KIB);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 200 * KIB);
    mem_budget_close(&budget);
}

static void a_block_that_outgrows_what_it_was_lent_moves_into_a_larger_one(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .mappings.limit = 16 * MIB};
    struct mem_grow small, large;
    struct mem_arena *one = grown(&budget, &large, 2 * MIB, 0), *two = grown(&budget, &small, 256 * KIB, 0);
    void *mapping = large.data;
    mem_arena_free(one);
    mem_arena_free(two);
    assert_int_equal(held(&budget), 2 * MIB + 256 * KIB);
    one = grown(&budget, &large, 2 * MIB, 0); /* begins in the small one */
    assert_ptr_equal(large.data, mapping);
    assert_true(held(&budget) >= 256 * KIB); /* the small one waits again, as large as it has become */
    assert_true(used(&budget) >= 2 * MIB && used(&budget) <= 2 * MIB + 200 * KIB);
    mem_arena_free(one);
    assert_int_equal(lent(&budget), 0);
    assert_int_equal(used(&budget), 0);
    mem_budget_close(&budget);
}

static void what_is_lent_counts_when_room_is_made(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 10 * MIB, .mappings.limit = 8 * MIB};
    struct mem_grow grow;
    struct mem_arena *arena;
    mem_arena_free(grown(&budget, &grow, 4 * MIB, 0));
    block_of(&budget, 2 * MIB, &arena);
    mem_arena_free(arena);
    assert_int_equal(held(&budget), 6 * MIB);
    arena = mem_arena_new(&budget);
    mem_grow_init(&grow, arena);
    grow_to(&grow, 100 * KIB, 10 * KIB); /* 4 MiB are lent, 2 wait */
    assert_int_equal(held(&budget), 2 * MIB);
    assert_non_null(mem_alloc(arena, 3 * MIB, NULL));
    assert_int_equal(held(&budget), 2 * MIB);
    assert_non_null(mem_alloc(arena, 2 * MIB + MIB / 2, NULL));
    assert_int_equal(held(&budget), 0);
    mem_arena_free(arena);
    mem_budget_close(&budget);
    assert_int_equal(lent(&budget), 0);
}

struct taker {
    struct mem_budget *budget;
    unsigned char mark;
};

static void *take_and_give(void *argument) {
    const struct taker *taker = argument;
    for (int round = 0; round < 2000; round++) {
        struct mem_arena *arena = mem_arena_new(taker->budget);
        const size_t bytes = (size_t)(64 + 32 * (round % 3)) * KIB;
        unsigned char *block = mem_alloc(arena, bytes, NULL);
        block[0] = block[bytes - 1] = taker->mark;
        sched_yield();
        if (block[0] != taker->mark || block[bytes - 1] != taker->mark) return argument; /* somebody else has it too */
        struct mem_grow grow;
        mem_grow_init(&grow, arena);
        for (size_t n = 0; n < bytes; n += 16 * KIB) {
            if (mem_grow_reserve(&grow, n + 16 * KIB) != MEM_OK) return argument;
            grow.size = n + 16 * KIB;
            grow.data[n] = (char)taker->mark;
        }
        sched_yield();
        for (size_t n = 0; n < bytes; n += 16 * KIB)
            if (grow.data[n] != (char)taker->mark) return argument;
        mem_grow_trim(&grow);
        mem_arena_free(arena);
        if (round % 64 == 0) mappings_empty(&taker->budget->mappings);
    }
    return NULL;
}

static void threads_never_get_the_same_mapping(void **state) {
    (void)state;
    struct mem_budget budget = {.limit = 64 * MIB, .mappings.limit = MIB};
    struct taker takers[4];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) {
        takers[i] = (struct taker){&budget, (unsigned char)(i + 1)};
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &takers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        void *failed = &budget;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_true(held(&budget) <= MIB);
    assert_int_equal(lent(&budget), 0);
    mem_budget_close(&budget);
    assert_int_equal(held(&budget), 0);
    assert_int_equal(used(&budget), 0);
}

static void products_and_sums_that_overflow_are_seen(void **state) {
    (void)state;
    size_t out = 42;
    assert_false(mem_mul(SIZE_MAX / 2, 3, &out));
    assert_false(mem_mul((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_false(mem_add(SIZE_MAX, 1, &out));
    assert_true(mem_mul((size_t)1 << 31, (size_t)1 << 32, &out));
    assert_int_equal(out, (size_t)1 << 63);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_charge_past_the_limit_changes_nothing),
        cmocka_unit_test(threads_never_charge_past_the_limit_and_leave_nothing),
        cmocka_unit_test(blocks_are_aligned_writable_and_apart),
        cmocka_unit_test(what_could_never_fit_is_told_from_what_does_not_fit_now),
        cmocka_unit_test(an_arena_that_the_budget_refuses_is_null),
        cmocka_unit_test(a_growing_block_keeps_its_bytes_and_its_alignment),
        cmocka_unit_test(growing_is_charged_as_it_is_touched_and_trimming_gives_back),
        cmocka_unit_test(blocks_that_outgrow_their_chunk_leave_it_to_the_next_ones),
        cmocka_unit_test(a_growth_that_is_refused_leaves_the_block_as_it_was),
        cmocka_unit_test(mappings_are_given_back_to_the_system),
        cmocka_unit_test(the_test_hook_refuses_one_allocation),
        cmocka_unit_test(a_kept_chunk_is_uncharged_and_serves_the_next_arena),
        cmocka_unit_test(a_mapping_left_behind_serves_the_next_request_of_its_size),
        cmocka_unit_test(what_waits_makes_room_before_the_limit_is_passed),
        cmocka_unit_test(what_grew_is_lent_to_the_next_that_grows_and_to_no_other),
        cmocka_unit_test(of_a_lent_mapping_only_what_is_used_is_charged),
        cmocka_unit_test(a_block_that_outgrows_what_it_was_lent_moves_into_a_larger_one),
        cmocka_unit_test(what_is_lent_counts_when_room_is_made),
        cmocka_unit_test(threads_never_get_the_same_mapping),
        cmocka_unit_test(products_and_sums_that_overflow_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
