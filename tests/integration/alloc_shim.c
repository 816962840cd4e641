/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/integration/alloc_shim.c - preloaded into the real server: every allocation of the process (its libraries' too) goes through
 * here, and the test may have the Nth fail.
 *
 * Model. malloc and its relatives, and anonymous mmap and mremap as called by the program, first ask `refused`. Steering is by a
 * shared page (alloc_shim.h), so that the test can arm it just before a request. Without the page it only passes on.
 * Blocks in use are counted, so that the test can tell a leak.
 */
#include "alloc_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc's own entry points under their other names. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

static struct alloc_shim nobody, *shim = &nobody;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv(ALLOC_SHIM_FILE);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    long page = syscall(SYS_mmap, NULL, sizeof(struct alloc_shim), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    close(fd);
    if (page != -1) shim = (struct alloc_shim *)page;
}

static int refused(void) {
    long left = atomic_load(&shim->countdown);
    if (left == 0) return 0;
    if (left > 0) {
        if (atomic_fetch_sub(&shim->countdown, 1) != 1) return 0;
        if (atomic_load(&shim->persistent)) atomic_store(&shim->countdown, -1);
    } else if (!atomic_load(&shim->persistent)) {
        return 0;
    }
    atomic_fetch_add(&shim->failed, 1);
    errno = ENOMEM;
    return 1;
}

static void *counted(void *block) {
    if (block) atomic_fetch_add(&shim->live, 1);
    return block;
}

void *malloc(size_t size) { return refused() ? NULL : counted(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return refused() ? NULL : counted(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return refused() ? NULL : counted(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **out, size_t alignment, size_t size) {
    void *block = memalign(alignment, size);
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}

void *realloc(void *block, size_t size) {
    if (!block) return malloc(size);
    if (size == 0) {
        free(block);
        return NULL;
    }
    return refused() ? NULL : __libc_realloc(block, size);
}

void *reallocarray(void *block, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(block, bytes);
}

void free(void *block) {
    if (block) atomic_fetch_sub(&shim->live, 1);
    __libc_free(block);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if ((flags & MAP_ANONYMOUS) && refused()) return MAP_FAILED;
    long page = syscall(SYS_mmap, address, size, protection, flags, fd, (long)offset);
    if (page != -1 && (flags & MAP_ANONYMOUS)) atomic_fetch_add(&shim->live, 1);
    return (void *)page;
}

void *mremap(void *old, size_t old_size, size_t new_size, int flags, ...) {
    va_list more;
    va_start(more, flags);
    void *fixed = (flags & MREMAP_FIXED) ? va_arg(more, void *) : NULL;
    va_end(more);
    if (new_size > old_size && refused()) return MAP_FAILED;
    return (void *)syscall(SYS_mremap, old, old_size, new_size, flags, fixed);
}

int munmap(void *address, size_t size) {
    long result = syscall(SYS_munmap, address, size);
    if (result == 0) atomic_fetch_sub(&shim->live, 1);
    return (int)result;
}
