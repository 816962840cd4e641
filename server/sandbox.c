/* SPDX-License-Identifier: Apache-2.0
 *
 * server/sandbox.c - see sandbox.h. Built where there is no libseccomp it only sets no_new_privs.
 */
#include "sandbox.h"

#include <errno.h>
#include <sys/prctl.h>

#if __has_include(<seccomp.h>)
#define MHA_SECCOMP 1
#include <seccomp.h>
#include <sys/mman.h>

/* Names and not numbers, because not every architecture has every call; unknown ones are skipped. */
static const char *const allowed[] = {
    /* sockets and files that are open */
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "recvfrom",
    "recvmsg",
    "sendto",
    "sendmsg",
    "sendfile",
    "accept",
    "accept4",
    "shutdown",
    "close",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
    "fcntl",
    "fcntl64",
    "lseek",
    "_llseek",
    "fstat",
    "fstat64",
    "newfstatat",
    "fstatat64",
    "stat",
    "lstat",
    "statx",
    "ioctl",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "flock",
    "dup",
    "dup3",
    /* files by name: certificates, tokens, /proc/self, layers */
    "open",
    "openat",
    "getdents64",
    "getdents",
    "readlink",
    "readlinkat",
    "access",
    "faccessat",
    "faccessat2",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "fchmod",
    "fchmodat",
    "chmod",
    "umask",
    "getcwd",
    "statfs",
    "fstatfs",
    /* waiting */
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_ctl",
    "epoll_create1",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "eventfd2",
    "futex",
    "futex_waitv",
    "nanosleep",
    "clock_nanosleep",
    "restart_syscall",
    "sched_yield",
    /* memory: mmap, mprotect and mremap have rules of their own */
    "brk",
    "munmap",
    "madvise",
    "msync",
    "mincore",
    "membarrier",
    "mlock",
    "munlock",
    /* time, identity, limits */
    "clock_gettime",
    "clock_gettime64",
    "clock_getres",
    "gettimeofday",
    "time",
    "getpid",
    "gettid",
    "getppid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getrusage",
    "times",
    "getrlimit",
    "ugetrlimit",
    "prlimit64",
    "sysinfo",
    "uname",
    "getrandom",
    "sched_getaffinity",
    "getcpu",
    "getpriority",
    "rseq",
    "set_robust_list",
    "arch_prctl",
    /* signals and the end */
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigpending",
    "rt_sigtimedwait",
    "sigaltstack",
    "signalfd4",
    "tgkill",
    "exit",
    "exit_group",
};

static int allow_memory(scmp_filter_ctx filter, int call) {
    return seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
}

static int add_rules(scmp_filter_ctx filter) {
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        int call = seccomp_syscall_resolve_name(allowed[i]);
        if (call == __NR_SCMP_ERROR) continue;
        int status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
        if (status != 0 && status != -EDOM && status != -EOPNOTSUPP) return status;
    }
    int status = allow_memory(filter, SCMP_SYS(mmap));
    if (status == 0) status = allow_memory(filter, SCMP_SYS(mprotect));
    if (status == 0) status = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mremap), 0);
    return status;
}

static const char *enter_filter(void) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (!filter) return "none: libseccomp cannot make a filter";
    seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1); /* the workers too */
    int status = add_rules(filter);
    if (status == 0) status = seccomp_load(filter);
    seccomp_release(filter);
    return status == 0 ? "seccomp" : "none: the kernel or the container refuses a seccomp filter";
}
#endif

const char *sandbox_enter(bool filter) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
#ifdef MHA_SECCOMP
    return filter ? enter_filter() : "off";
#else
    return filter ? "none: built without libseccomp" : "off";
#endif
}
