/* System calls that fail when they are told to. Preloaded into the process that scripts/faults.py controls.
 *
 * Only calls count that concern files below one of the roots, or standard output and error; they are numbered from 1
 * on. At the chosen number the call fails, does half of what it was asked for, or is preceded by a signal. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum fault { NOTHING, FAIL, HALF, STRIKE };

static enum fault kind;
static int number;                 /* errno, or a signal's number */
static long chosen;                /* the call that is hit; 0: only count */
static atomic_long calls;
static int spent;
static int armed;
static int log_fd = -1;
static char roots[8][512];
static int root_count;
static unsigned char watched[65536]; /* by descriptor */

void faults_arm(const char *below, enum fault what, int which, long at, int log) {
    root_count = 0;
    for (const char *start = below; *start && root_count < 8;) {
        const char *end = strchr(start, ':');
        size_t length = end ? (size_t)(end - start) : strlen(start);
        snprintf(roots[root_count++], sizeof roots[0], "%.*s", (int)length, start);
        start += length + (end != NULL);
    }
    kind = what, number = which, chosen = at, log_fd = log;
    calls = 0;
    spent = 0;
    armed = 1;
}

long faults_disarm(void) {
    armed = 0;
    return calls;
}

static int below_root(const char *path) {
    for (int i = 0; path && i < root_count; i++)
        if (!strncmp(path, roots[i], strlen(roots[i]))) return 1;
    return 0;
}

static int is_watched(int fd) { return fd == 1 || fd == 2 || (fd >= 0 && fd < 65536 && watched[fd]); }

/* A name in a directory that is open. */
static int is_below(int at, const char *path) { return below_root(path) || (path && *path != '/' && is_watched(at)); }

/* Threads change the order of calls: what can only happen to some of them happens to the next one of these. */
static int may_happen(const char *name) {
    static const char transfers[] = " read write pread pread64 preadv preadv64v2 pwrite pwrite64 pwritev64v2 ";
    static const char interrupted[] = " open close fsync fdatasync ftruncate64 posix_fallocate64 ";
    static const char growing[] = " write pwrite64 posix_fallocate64 ftruncate64 mkdir link rename symlink fsync ";
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    if (kind == HALF) return strstr(transfers, word) != NULL;
    if (kind == FAIL && number == EINTR) return strstr(transfers, word) || strstr(interrupted, word);
    if (kind == FAIL && number == ENOSPC) return strstr(growing, word) != NULL;
    return 1;
}

/* Counts a call and says what is to become of it. */
static enum fault hit(const char *name, const char *path) {
    long mine = ++calls;
    if (log_fd >= 0) {
        char line[700];
        int length = snprintf(line, sizeof line, "%ld %s %s\n", mine, name, path ? path : "");
        static ssize_t (*real)(int, const void *, size_t);
        if (!real) real = dlsym(RTLD_NEXT, "write");
        if (real(log_fd, line, length) < 0) abort();
    }
    if (mine < chosen || spent || !may_happen(name)) return NOTHING;
    spent = 1;
    if (kind == STRIKE) {
        kill(getpid(), number);
        return NOTHING;
    }
    return kind;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define FAILS(condition, label, path, result) \
    do { \
        if (armed && (condition) && hit(label, path) == FAIL) { \
            errno = number; \
            return result; \
        } \
    } while (0)

#define OPEN(name, condition, parameters, arguments, ...) \
    int name parameters { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        REAL(int, name, __VA_ARGS__); \
        int mine = armed && (condition); \
        FAILS(mine, "open", path, -1); \
        int fd = real arguments; \
        if (fd >= 0 && fd < 65536) watched[fd] = mine; \
        return fd; \
    }

OPEN(open, below_root(path), (const char *path, int flags, ...), (path, flags, mode), const char *, int, ...)
OPEN(open64, below_root(path), (const char *path, int flags, ...), (path, flags, mode), const char *, int, ...)
OPEN(openat, is_below(at, path), (int at, const char *path, int flags, ...), (at, path, flags, mode), int, const char *, int, ...)
OPEN(openat64, is_below(at, path), (int at, const char *path, int flags, ...), (at, path, flags, mode), int, const char *, int, ...)

int close(int fd) {
    REAL(int, close, int);
    int mine = armed && fd > 2 && is_watched(fd);
    enum fault what = mine ? hit("close", NULL) : NOTHING;
    if (fd >= 0 && fd < 65536) watched[fd] = 0;
    int result = real(fd); /* Linux closes it, whatever it then says */
    if (what == FAIL) {
        errno = number;
        return -1;
    }
    return result;
}

#define TRANSFER(name, buffer, offset_parameter, offset_argument, ...) \
    ssize_t name(int fd, buffer data, size_t nbytes offset_parameter) { \
        REAL(ssize_t, name, __VA_ARGS__); \
        enum fault what = armed && is_watched(fd) ? hit(#name, fd <= 2 ? "stdio" : NULL) : NOTHING; \
        if (what == FAIL) { \
            errno = number; \
            return -1; \
        } \
        if (what == HALF && nbytes > 1) nbytes /= 2; \
        return real(fd, data, nbytes offset_argument); \
    }

#define COMMA ,
TRANSFER(read, void *, , , int, void *, size_t)
TRANSFER(write, const void *, , , int, const void *, size_t)
TRANSFER(pread, void *, COMMA off_t offset, COMMA offset, int, void *, size_t, off_t)
TRANSFER(pread64, void *, COMMA off64_t offset, COMMA offset, int, void *, size_t, off64_t)
TRANSFER(pwrite, const void *, COMMA off_t offset, COMMA offset, int, const void *, size_t, off_t)
TRANSFER(pwrite64, const void *, COMMA off64_t offset, COMMA offset, int, const void *, size_t, off64_t)

#define VECTOR(name, offset_parameters, offset_arguments, ...) \
    ssize_t name(int fd, const struct iovec *parts, int count offset_parameters) { \
        REAL(ssize_t, name, __VA_ARGS__); \
        enum fault what = armed && is_watched(fd) ? hit(#name, fd <= 2 ? "stdio" : NULL) : NOTHING; \
        if (what == FAIL) { \
            errno = number; \
            return -1; \
        } \
        if (what == HALF && count == 1 && parts[0].iov_len > 1) { \
            struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2}; \
            return real(fd, &half, 1 offset_arguments); \
        } \
        return real(fd, parts, count offset_arguments); \
    }

VECTOR(preadv, COMMA off_t offset, COMMA offset, int, const struct iovec *, int, off_t)
VECTOR(preadv64v2, COMMA off64_t offset COMMA int flags, COMMA offset COMMA flags, int, const struct iovec *, int,
       off64_t, int)
VECTOR(pwritev64v2, COMMA off64_t offset COMMA int flags, COMMA offset COMMA flags, int, const struct iovec *, int,
       off64_t, int)

#define BY_DESCRIPTOR(name, parameters, arguments, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        FAILS(is_watched(fd), #name, NULL, -1); \
        return real arguments; \
    }

BY_DESCRIPTOR(fsync, (int fd), (fd), int)
BY_DESCRIPTOR(fdatasync, (int fd), (fd), int)
BY_DESCRIPTOR(flock, (int fd, int operation), (fd, operation), int, int)
BY_DESCRIPTOR(ftruncate, (int fd, off_t length), (fd, length), int, off_t)
BY_DESCRIPTOR(ftruncate64, (int fd, off64_t length), (fd, length), int, off64_t)
BY_DESCRIPTOR(fstat64, (int fd, struct stat64 *status), (fd, status), int, struct stat64 *)

#define ALLOCATE(name, offset) \
    int name(int fd, offset start, offset length) { \
        REAL(int, name, int, offset, offset); \
        if (armed && is_watched(fd) && hit(#name, NULL) == FAIL) return number; \
        return real(fd, start, length); \
    }

ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

#define BY_PATH(name, parameters, arguments, path, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        FAILS(below_root(path), #name, path, -1); \
        return real arguments; \
    }

/* The same of a name in a directory, which is called as without one. */
#define BY_NAME(name, label, parameters, arguments, at, path, ...) \
    int name parameters { \
        REAL(int, name, __VA_ARGS__); \
        FAILS(is_below(at, path), label, path, -1); \
        return real arguments; \
    }

BY_PATH(mkdir, (const char *path, mode_t mode), (path, mode), path, const char *, mode_t)
BY_PATH(rmdir, (const char *path), (path), path, const char *)
BY_PATH(unlink, (const char *path), (path), path, const char *)
BY_NAME(mkdirat, "mkdir", (int at, const char *path, mode_t mode), (at, path, mode), at, path, int, const char *, mode_t)
BY_NAME(unlinkat, "unlink", (int at, const char *path, int flags), (at, path, flags), at, path, int, const char *, int)
BY_NAME(fchmodat, "chmod", (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags), at, path, int,
        const char *, mode_t, int)
BY_PATH(chmod, (const char *path, mode_t mode), (path, mode), path, const char *, mode_t)
BY_PATH(rename, (const char *from, const char *to), (from, to), to, const char *, const char *)
BY_NAME(renameat, "rename", (int at, const char *from, int other, const char *to), (at, from, other, to), other, to, int,
        const char *, int, const char *)
BY_PATH(link, (const char *from, const char *to), (from, to), to, const char *, const char *)
BY_NAME(linkat, "link", (int at, const char *from, int other, const char *to, int flags), (at, from, other, to, flags),
        other, to, int, const char *, int, const char *, int)
BY_PATH(symlink, (const char *from, const char *to), (from, to), to, const char *, const char *)
BY_PATH(stat64, (const char *path, struct stat64 *status), (path, status), path, const char *, struct stat64 *)
BY_PATH(lstat64, (const char *path, struct stat64 *status), (path, status), path, const char *, struct stat64 *)
BY_NAME(fstatat64, "stat64", (int at, const char *path, struct stat64 *status, int flags), (at, path, status, flags), at,
        path, int, const char *, struct stat64 *, int)
BY_PATH(statvfs64, (const char *path, struct statvfs64 *status), (path, status), path, const char *, struct statvfs64 *)

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    FAILS(below_root(path), "opendir", path, NULL);
    return real(path);
}
