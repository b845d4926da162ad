/* Dies, or fails, at an exact file-system call below one folder. Loaded before libc (LD_PRELOAD); see shim.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long calls, chosen;
static int answer, lasting;
static char last[64];

/* answer: 0 counts only, -1 kills, else the error number; lasting: every later call fails, too. */
void faults_arm(const char *path, long at, int what, int from_then_on) {
    calls = 0; chosen = at; answer = what; lasting = from_then_on; last[0] = 0;
    strncpy(folder, path ? path : "", sizeof folder - 1);
}
long faults_calls(void) { return calls; }
const char *faults_last(void) { return last; }

static int inside(const char *path) {
    size_t length = strlen(folder);
    return length && path && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int inside_fd(int fd) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return inside(path);
}

static int inside_at(int fd, const char *path) {
    return path && path[0] == '/' ? inside(path) : fd == AT_FDCWD ? 0 : inside_fd(fd);
}

/* Whether this call is to fail; makes_room: a full disk does not refuse it. */
static int fails(const char *name, int makes_room) {
    if (answer == ENOSPC && makes_room) return 0;
    calls++;
    if (chosen == 0 || calls < chosen || (calls > chosen && !lasting)) return 0;
    if (calls == chosen) strncpy(last, name, sizeof last - 1);
    if (answer == -1) { kill(getpid(), SIGKILL); pause(); }
    if (answer == 0) return 0;
    errno = answer;
    return 1;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND))
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, int); va_end(more); }

int open(const char *path, int flags, ...) { MODE; REAL(open);
    return WRITES(flags) && inside(path) && fails("open", 0) ? -1 : real(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; REAL(open64);
    return WRITES(flags) && inside(path) && fails("open", 0) ? -1 : real(path, flags, mode); }
int openat(int fd, const char *path, int flags, ...) { MODE; REAL(openat);
    return WRITES(flags) && inside_at(fd, path) && fails("open", 0) ? -1 : real(fd, path, flags, mode); }
int openat64(int fd, const char *path, int flags, ...) { MODE; REAL(openat64);
    return WRITES(flags) && inside_at(fd, path) && fails("open", 0) ? -1 : real(fd, path, flags, mode); }
ssize_t write(int fd, const void *data, size_t size) { REAL(write);
    return inside_fd(fd) && fails("write", 0) ? -1 : real(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t place) { REAL(pwrite);
    return inside_fd(fd) && fails("write", 0) ? -1 : real(fd, data, size, place); }
ssize_t writev(int fd, const struct iovec *parts, int count) { REAL(writev);
    return inside_fd(fd) && fails("write", 0) ? -1 : real(fd, parts, count); }
ssize_t sendfile(int out, int in, off_t *place, size_t size) {
    ssize_t (*real)(int, int, off_t *, size_t) = dlsym(RTLD_NEXT, "sendfile");
    return inside_fd(out) && fails("sendfile", 0) ? -1 : real(out, in, place, size); }
ssize_t sendfile64(int out, int in, off64_t *place, size_t size) {
    ssize_t (*real)(int, int, off64_t *, size_t) = dlsym(RTLD_NEXT, "sendfile64");
    return inside_fd(out) && fails("sendfile", 0) ? -1 : real(out, in, place, size); }
int fsync(int fd) { REAL(fsync); return inside_fd(fd) && fails("fsync", 0) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return inside_fd(fd) && fails("fsync", 0) ? -1 : real(fd); }
int ftruncate(int fd, off_t size) { REAL(ftruncate);
    return inside_fd(fd) && fails("truncate", 0) ? -1 : real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64);
    return inside_fd(fd) && fails("truncate", 0) ? -1 : real(fd, size); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir);
    return inside(path) && fails("mkdir", 0) ? -1 : real(path, mode); }
int mkdirat(int fd, const char *path, mode_t mode) { REAL(mkdirat);
    return inside_at(fd, path) && fails("mkdir", 0) ? -1 : real(fd, path, mode); }
int rename(const char *from, const char *to) { REAL(rename);
    return inside(to) && fails("rename", 1) ? -1 : real(from, to); }
int renameat(int one, const char *from, int two, const char *to) { REAL(renameat);
    return inside_at(two, to) && fails("rename", 1) ? -1 : real(one, from, two, to); }
int renameat2(int one, const char *from, int two, const char *to, unsigned flags) { REAL(renameat2);
    return inside_at(two, to) && fails("exchange", 1) ? -1 : real(one, from, two, to, flags); }
int unlink(const char *path) { REAL(unlink); return inside(path) && fails("unlink", 1) ? -1 : real(path); }
int unlinkat(int fd, const char *path, int flags) { REAL(unlinkat);
    return inside_at(fd, path) && fails("unlink", 1) ? -1 : real(fd, path, flags); }
int rmdir(const char *path) { REAL(rmdir); return inside(path) && fails("rmdir", 1) ? -1 : real(path); }
