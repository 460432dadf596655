/* What is refused. */
#define _GNU_SOURCE
#include "suite.h"

#include <errno.h>
#include <unistd.h>

static void handles(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/handles", O_RDWR | O_CREAT), directory = opened(fs, "/", O_RDONLY);
    weft_queue_t queue;
    char byte;
    struct statx told;
    EXPECT(0, weft_queue_create(fs, 1, &queue));

    REFUSED(EBADF, "none was given", weft_pread(NULL, &byte, 1, 0));
    REFUSED(EBADF, "weft_t", weft_mkdir(NULL, "/x", 0700));
    REFUSED(EBADF, "closed, or no such", weft_pread((weft_file_t)0x1234567890, &byte, 1, 0));
    REFUSED(EBADF, "weft_file_t", weft_pread((weft_file_t)fs, &byte, 1, 0));
    REFUSED(EBADF, "weft_t", weft_mkdir((weft_t)file, "/x", 0700));
    REFUSED(EBADF, "weft_queue_t", weft_wait((weft_queue_t)file, NULL, 0, 0, 0));
    for (uintptr_t bits = 1; bits != 0; bits <<= 1) {
        weft_file_t other = (weft_file_t)((uintptr_t)file ^ bits);
        /* The directory's handle may lie beside the file's: it is as good as that. */
        EXPECT(other == directory ? -EISDIR : -EBADF, weft_fsync(other));
    }
    REFUSED(EISDIR, "directory", weft_pread(directory, &byte, 1, 0));
    REFUSED(ENOTDIR, "of a file", weft_mkdirat(file, "x", 0700));

    EXPECT(0, weft_close(file));
    REFUSED(EBADF, "closed", weft_close(file));
    REFUSED(EBADF, "closed", weft_pread(file, &byte, 1, 0));
    weft_file_t second = opened(fs, "/handles", O_RDWR);
    REFUSED(EBADF, "closed", weft_fstatx(file, STATX_ALL, &told));
    EXPECT(0, weft_queue_destroy(queue));
    EXPECT(-EBADF, weft_queue_destroy(queue));

    EXPECT(0, weft_disconnect(fs));
    EXPECT(-EBADF, weft_disconnect(fs));
    CHECK(weft_pwrite(second, "x", 1, 0) < 0 || weft_fsync(second) < 0);
    EXPECT(-EBADF, weft_mkdir(fs, "/x", 0700));
    CHECK(weft_close(second) <= 0);
    EXPECT(-EBADF, weft_close(second));
    EXPECT(0, weft_close(directory));

    fs = connected(file_system);
    EXPECT(0, weft_unlink(fs, "/handles"));
    EXPECT(0, weft_disconnect(fs));
}

static void arguments(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/arguments", O_RDWR | O_CREAT), root, no_file;
    char byte = 0, *nowhere = NULL;
    struct statx told;
    EXPECT(0, weft_root(fs, &root));

    REFUSED(EFAULT, "path is NULL", weft_open(fs, nowhere, O_RDONLY, 0, &no_file));
    CHECK(no_file == NULL);
    REFUSED(EFAULT, "NULL", weft_open(fs, "/arguments", O_RDONLY, 0, NULL));
    REFUSED(EFAULT, "memory is NULL", weft_pread(file, nowhere, 1, 0));
    REFUSED(EFAULT, "memory is NULL", weft_pwrite(file, nowhere, 1, 0));
    EXPECT(0, weft_pread(file, NULL, 0, 0));
    REFUSED(EFAULT, "attributes is NULL", weft_statx(fs, "/", 0, STATX_ALL, NULL));
    REFUSED(EFAULT, "vector is NULL", weft_preadv(file, NULL, 1, 0));
    REFUSED(EFAULT, "from is NULL", weft_rename(fs, NULL, "/x"));

    REFUSED(EINVAL, "offset", weft_pread(file, &byte, 1, -1));
    REFUSED(EINVAL, "beyond", weft_pwrite(file, &byte, 1, INT64_MAX));
    REFUSED(EINVAL, "more than memory", weft_pread(file, &byte, SIZE_MAX, 0));
    REFUSED(EINVAL, "count is -1", weft_preadv(file, (struct iovec[]){{&byte, 1}}, -1, 0));
    REFUSED(EINVAL, "longer than memory",
            weft_pwritev(file, (struct iovec[]){{&byte, SIZE_MAX}, {&byte, SIZE_MAX}}, 2, 0));
    REFUSED(EINVAL, "whence", weft_lseek(file, 0, 17));
    REFUSED(EINVAL, "no offset", weft_lseek(file, -1, SEEK_SET));
    REFUSED(EINVAL, "length", weft_ftruncate(file, -1));
    REFUSED(EINVAL, "overlap", weft_read_strided(file, &(struct weft_strided){&byte, 2, 2, 1, 0, 2}));
    REFUSED(EINVAL, "offset", weft_write_list(file, &(struct weft_extent){&byte, 1, -5}, 1));

    REFUSED(EINVAL, "flags", weft_open(fs, "/arguments", O_RDONLY | O_PATH, 0, &no_file));
    REFUSED(EINVAL, "O_TRUNC", weft_open(fs, "/arguments", O_RDONLY | O_TRUNC, 0, &no_file));
    REFUSED(EINVAL, "unknown hint 'widht=2'", weft_openat(root, "arguments", O_RDONLY, 0, "widht=2", &no_file));
    REFUSED(EINVAL, "layout", weft_openat(root, "x", O_WRONLY | O_CREAT, 0600, "width=2 stripe=1", &no_file));
    REFUSED(EINVAL, "flags", weft_statx(fs, "/", AT_EMPTY_PATH, STATX_ALL, &told));
    REFUSED(EINVAL, "AT_REMOVEDIR", weft_unlinkat(root, "x", 1));
    REFUSED(EINVAL, "mode", weft_access(fs, "/", 8));
    REFUSED(EINVAL, "nanoseconds",
            weft_utimens(fs, "/", (struct timespec[]){{0, 1000000000}, {0, 0}}));
    REFUSED(EINVAL, "depth", weft_queue_create(fs, 0, &(weft_queue_t){NULL}));
    REFUSED(EINVAL, "beyond", weft_lock(file, &(struct weft_lock){2, INT64_MAX, 1}, 1, 0));
    REFUSED(EINVAL, "WEFT_LOCK_NOWAIT", weft_lock(file, NULL, 0, 7));

    REFUSED(ENOENT, "/no/such", weft_open(fs, "/no/such", O_RDONLY, 0, &no_file));
    REFUSED(ENOTDIR, "not a directory", weft_open(fs, "/arguments/x", O_RDONLY, 0, &no_file));
    EXPECT(-ENOTDIR, weft_open(fs, "/arguments/", O_RDONLY, 0, &no_file));
    EXPECT(-ENOTDIR, weft_open(fs, "/arguments", O_RDONLY | O_DIRECTORY, 0, &no_file));
    EXPECT(-EISDIR, weft_open(fs, "/", O_WRONLY, 0, &no_file));
    EXPECT(-EEXIST, weft_open(fs, "/arguments", O_RDWR | O_CREAT | O_EXCL, 0600, &no_file));
    char name[300];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    EXPECT(-ENAMETOOLONG, weft_mkdir(fs, name, 0700));

    weft_file_t reader = opened(fs, "/arguments", O_RDONLY), writer = opened(fs, "/arguments", O_WRONLY);
    EXPECT(-EBADF, weft_pwrite(reader, &byte, 1, 0));
    EXPECT(-EBADF, weft_ftruncate(reader, 0));
    EXPECT(-EBADF, weft_pread(writer, &byte, 1, 0));
    EXPECT(0, weft_close(reader));
    EXPECT(0, weft_close(writer));
    EXPECT(0, weft_close(root));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_unlink(fs, "/arguments"));
    EXPECT(0, weft_disconnect(fs));
}

static void options(const char *file_system)
{
    weft_t fs;
    struct weft_options options = {sizeof options, NULL, "tcp", 5000, 0, 1 << 16};
    EXPECT(0, weft_connect(file_system, &options, &fs));
    EXPECT(0, weft_disconnect(fs));
    REFUSED(ENOENT, "no-such-fs", weft_connect("no-such-fs", NULL, &fs));
    CHECK(fs == NULL);
    options.size = 8;
    REFUSED(EINVAL, "sizeof(struct weft_options)", weft_connect(file_system, &options, &fs));
    options.size = sizeof options;
    options.transport = "pigeons";
    REFUSED(EINVAL, "pigeons", weft_connect(file_system, &options, &fs));
    options.transport = NULL;
    options.hard = 1;
    REFUSED(EINVAL, "soft_ms", weft_connect(file_system, &options, &fs));
    options.hard = 0;
    options.key_file = "/no/such/key";
    REFUSED(ENOENT, "/no/such/key", weft_connect(file_system, &options, &fs));
    /* A program that was built for a later version, and uses nothing of it. */
    struct {
        struct weft_options options;
        long later;
    } grown = {{sizeof grown, NULL, NULL, 0, 0, 0}, 0};
    EXPECT(0, weft_connect(file_system, &grown.options, &fs));
    EXPECT(0, weft_disconnect(fs));
    grown.later = 1;
    REFUSED(EINVAL, "does not know", weft_connect(file_system, &grown.options, &fs));
    CHECK(strcmp(weft_strerror(0), strerror(0)) == 0 && strcmp(weft_strerror(-EPERM), strerror(EPERM)) == 0);
    CHECK(strncmp(weft_version(), "0.1", 3) == 0);
}

const struct test refusal_tests[] = {
    {"handles", handles},
    {"arguments", arguments},
    {"options", options},
    {NULL, NULL},
};
