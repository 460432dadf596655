/* What programs do. */
#define _GNU_SOURCE
#include "suite.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void files(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/files", O_RDWR | O_CREAT | O_TRUNC);
    char text[64] = {0};
    struct statx told;
    EXPECT(5, weft_pwrite(file, "hello", 5, 0));
    EXPECT(5, weft_pwrite(file, "world", 5, 7));
    EXPECT(12, weft_pread(file, text, sizeof text, 0));
    CHECK(memcmp(text, "hello\0\0world", 12) == 0);
    EXPECT(0, weft_pread(file, text, sizeof text, 12));
    EXPECT(0, weft_fsync(file));
    EXPECT(0, weft_fstatx(file, STATX_BASIC_STATS, &told));
    CHECK(told.stx_size == 12 && S_ISREG(told.stx_mode) && (told.stx_mask & STATX_SIZE));
    EXPECT(0, weft_ftruncate(file, 3));
    EXPECT(3, weft_lseek(file, 0, SEEK_END));
    EXPECT(2, weft_write(file, "p!", 2));
    EXPECT(0, weft_lseek(file, -5, SEEK_CUR));
    EXPECT(5, weft_read(file, text, sizeof text));
    CHECK(memcmp(text, "help!", 5) == 0);
    EXPECT(0, weft_close(file));

    file = opened(fs, "/files", O_WRONLY | O_APPEND);
    struct iovec vector[2] = {{"ab", 2}, {"cd", 2}};
    EXPECT(4, weft_pwritev(file, vector, 2, 0));
    EXPECT(1, weft_write(file, "e", 1));
    EXPECT(0, weft_close(file));
    file = opened(fs, "files", O_RDONLY);
    char first[6], second[6];
    struct iovec into[2] = {{first, 6}, {second, 6}};
    EXPECT(10, weft_preadv(file, into, 2, 0));
    CHECK(memcmp(first, "help!a", 6) == 0 && memcmp(second, "bcde", 4) == 0);
    EXPECT(0, weft_close(file));

    struct statvfs space;
    EXPECT(0, weft_statvfs(fs, &space));
    CHECK(space.f_blocks > 0 && space.f_bfree <= space.f_blocks && space.f_namemax == 255);
    EXPECT(0, weft_disconnect(fs));
}

static void names(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t directory, file;
    struct statx told, other;
    char target[32];
    EXPECT(0, weft_mkdir(fs, "/names", 0777));
    EXPECT(0, weft_mkdir(fs, "/names/below", 0700));
    directory = opened(fs, "/names/below", O_RDONLY | O_DIRECTORY);
    EXPECT(0, weft_openat(directory, "file", O_WRONLY | O_CREAT | O_EXCL, 0640, NULL, &file));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_statx(fs, "/names/below/file", 0, STATX_ALL, &told));
    CHECK((told.stx_mode & 07777) == (0640 & ~umask(022)) && told.stx_size == 0);
    EXPECT(0, weft_statxat(directory, "../below/./file", 0, STATX_ALL, &other));
    CHECK(other.stx_ino == told.stx_ino && other.stx_dev_minor == told.stx_dev_minor);
    EXPECT(0, weft_statxat(directory, "/names", 0, STATX_ALL, &other));
    CHECK(S_ISDIR(other.stx_mode) && other.stx_nlink == 3);

    EXPECT(0, weft_symlink(fs, "below/file", "/names/link"));
    EXPECT(10, weft_readlink(fs, "/names/link", target, sizeof target));
    CHECK(memcmp(target, "below/file", 10) == 0);
    EXPECT(4, weft_readlink(fs, "/names/link", target, 4));
    EXPECT(0, weft_statx(fs, "/names/link", AT_SYMLINK_NOFOLLOW, STATX_ALL, &other));
    CHECK(S_ISLNK(other.stx_mode));
    EXPECT(-ELOOP, weft_open(fs, "/names/link", O_RDONLY | O_NOFOLLOW, 0, &file));
    file = opened(fs, "/names/link", O_WRONLY);
    EXPECT(3, weft_write(file, "abc", 3));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_symlink(fs, "made", "/names/dangling"));
    EXPECT(-EEXIST, weft_open(fs, "/names/dangling", O_WRONLY | O_CREAT | O_EXCL, 0666, &file));
    EXPECT(0, weft_close(opened(fs, "/names/dangling", O_WRONLY | O_CREAT)));
    EXPECT(0, weft_statx(fs, "/names/made", 0, STATX_ALL, &other));

    EXPECT(0, weft_link(fs, "/names/below/file", "/names/second"));
    EXPECT(0, weft_statx(fs, "/names/second", 0, STATX_ALL, &other));
    CHECK(other.stx_ino == told.stx_ino && other.stx_nlink == 2 && other.stx_size == 3);
    weft_file_t root;
    EXPECT(0, weft_root(fs, &root));
    EXPECT(-EEXIST, weft_renameat2(root, "names/second", directory, "file", RENAME_NOREPLACE));
    EXPECT(0, weft_renameat2(root, "names/second", root, "names/made", RENAME_EXCHANGE));
    EXPECT(0, weft_rename(fs, "/names/second", "/names/third"));
    EXPECT(-ENOENT, weft_statx(fs, "/names/second", 0, STATX_ALL, &other));
    EXPECT(0, weft_unlink(fs, "/names/third"));
    EXPECT(-ENOTEMPTY, weft_rmdir(fs, "/names"));
    EXPECT(0, weft_unlinkat(directory, "file", 0));
    EXPECT(0, weft_mkdirat(directory, "d", 0700));
    EXPECT(0, weft_unlinkat(directory, "d", AT_REMOVEDIR));
    EXPECT(0, weft_close(root));
    EXPECT(0, weft_close(directory));
    EXPECT(0, weft_unlink(fs, "/names/link"));
    EXPECT(0, weft_unlink(fs, "/names/dangling"));
    EXPECT(0, weft_unlink(fs, "/names/made"));
    EXPECT(0, weft_rmdir(fs, "/names/below"));
    EXPECT(0, weft_rmdir(fs, "/names"));
    EXPECT(0, weft_disconnect(fs));
}

/* Several open what one of them makes: the hints of the others say nothing, also while it is empty and open. */
static void layout_of_who_makes_it(weft_t fs, const char *file_system, weft_file_t root)
{
    weft_t other = connected(file_system);
    weft_file_t there, first, second;
    char value[64];
    EXPECT(0, weft_mkdir(fs, "/parts", 0700));
    EXPECT(0, weft_setxattr(fs, "/parts", "weft.layout", "split", 5, 0));
    EXPECT(0, weft_root(other, &there));
    EXPECT(0, weft_openat(root, "parts/one", O_RDWR | O_CREAT, 0600, "whole", &first));
    EXPECT(0, weft_openat(there, "parts/one", O_RDWR | O_CREAT, 0600, "width=2 stripe=64KiB", &second));
    EXPECT(5, weft_getxattr(fs, "/parts/one", "weft.layout", value, sizeof value));
    CHECK(memcmp(value, "whole", 5) == 0);
    EXPECT(0, weft_close(first));
    EXPECT(0, weft_close(second));
    EXPECT(0, weft_unlink(fs, "/parts/one"));
    EXPECT(0, weft_rmdir(fs, "/parts"));
    EXPECT(0, weft_close(there));
    EXPECT(0, weft_disconnect(other));
}

static void attributes(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t root, file;
    struct statx told;
    char value[64];
    EXPECT(0, weft_root(fs, &root));
    EXPECT(0, weft_openat(root, "attributes", O_WRONLY | O_CREAT, 0600, "width=2 stripe=64KiB rdma=auto", &file));
    EXPECT(0, weft_close(file));
    EXPECT(20, weft_getxattr(fs, "/attributes", "weft.layout", value, sizeof value));
    CHECK(memcmp(value, "width=2 stripe=65536", 20) == 0);
    layout_of_who_makes_it(fs, file_system, root);
    EXPECT(0, weft_chmod(fs, "/attributes", 0444));
    EXPECT(0, weft_access(fs, "/attributes", R_OK));
    EXPECT(-EACCES, weft_access(fs, "/attributes", X_OK));
    EXPECT(0, weft_chmod(fs, "/attributes", 0644));
    EXPECT(0, weft_chown(fs, "/attributes", (uid_t)-1, (gid_t)-1));
    EXPECT(0, weft_truncate(fs, "/attributes", 1000));
    struct timespec times[2] = {{1000, 5}, {-2, 999999999}};
    EXPECT(0, weft_utimens(fs, "/attributes", times));
    EXPECT(0, weft_statx(fs, "/attributes", 0, STATX_ALL, &told));
    CHECK(told.stx_atime.tv_sec == 1000 && told.stx_atime.tv_nsec == 5);
    CHECK(told.stx_mtime.tv_sec == -2 && told.stx_mtime.tv_nsec == 999999999 && told.stx_size == 1000);
    EXPECT(0, weft_utimens(fs, "/attributes", NULL));

    EXPECT(0, weft_setxattr(fs, "/attributes", "user.a", "value", 5, XATTR_CREATE));
    EXPECT(-EEXIST, weft_setxattr(fs, "/attributes", "user.a", "value", 5, XATTR_CREATE));
    EXPECT(-ENODATA, weft_setxattr(fs, "/attributes", "user.b", "value", 5, XATTR_REPLACE));
    EXPECT(5, weft_getxattr(fs, "/attributes", "user.a", NULL, 0));
    EXPECT(-ERANGE, weft_getxattr(fs, "/attributes", "user.a", value, 4));
    EXPECT(7, weft_listxattr(fs, "/attributes", value, sizeof value));
    CHECK(memcmp(value, "user.a", 7) == 0);
    EXPECT(0, weft_removexattr(fs, "/attributes", "user.a"));
    EXPECT(-ENODATA, weft_getxattr(fs, "/attributes", "user.a", value, sizeof value));
    static const char large[(64 << 10) + 1];
    EXPECT(-E2BIG, weft_setxattr(fs, "/attributes", "user.a", large, sizeof large, 0));
    EXPECT(-E2BIG, weft_setxattr(fs, "/attributes", "weft.layout", large, sizeof large, 0));
    EXPECT(-EINVAL, weft_setxattr(fs, "/attributes", "user.a", "", 0, XATTR_CREATE | XATTR_REPLACE));
    EXPECT(-EPERM, weft_removexattr(fs, "/attributes", "weft.layout"));
    EXPECT(0, weft_close(root));
    EXPECT(0, weft_unlink(fs, "/attributes"));
    EXPECT(0, weft_disconnect(fs));
}

/* Counts the names of a cursor in `seen`, by the number at their ends. */
static void list(weft_file_t directory, struct weft_cursor cursor, unsigned mask, int *seen, size_t at_a_time)
{
    struct weft_dirent entries[64];
    ssize_t count;
    while ((count = weft_readdir(directory, &cursor, mask, entries, at_a_time)) > 0) {
        for (ssize_t i = 0; i < count; i++) {
            CHECK(entries[i].type == DT_REG);
            CHECK(mask == 0 ? entries[i].attributes.stx_mask == 0 : entries[i].attributes.stx_ino == entries[i].ino);
            seen[atoi(entries[i].name + 1)]++;
        }
    }
    EXPECT(0, count);
}

static void listings(const char *file_system)
{
    enum { NAMES = 500, PARTS = 4 };
    weft_t fs = connected(file_system);
    char name[32];
    EXPECT(0, weft_mkdir(fs, "/listings", 0700));
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "/listings/f%d", i);
        EXPECT(0, weft_close(opened(fs, name, O_WRONLY | O_CREAT)));
    }
    weft_file_t directory = opened(fs, "/listings", O_RDONLY);
    for (size_t at_a_time = 1; at_a_time <= 64; at_a_time += 21) {
        int seen[NAMES] = {0};
        struct weft_cursor all = WEFT_CURSOR_ALL;
        list(directory, all, at_a_time % 2 ? 0 : STATX_BASIC_STATS, seen, at_a_time);
        for (int i = 0; i < NAMES; i++)
            CHECK(seen[i] == 1);
    }
    int seen[NAMES] = {0};
    struct weft_cursor all = WEFT_CURSOR_ALL, parts[PARTS];
    EXPECT(0, weft_cursor_split(&all, parts, PARTS));
    for (int i = 0; i < PARTS; i++) {
        list(directory, parts[i], STATX_BASIC_STATS, seen, 64);
        int so_far = 0;
        for (int j = 0; j < NAMES; j++)
            so_far += seen[j];
        CHECK(so_far > NAMES * i / PARTS && so_far >= NAMES * (2 * i + 1) / (2 * PARTS));
    }
    for (int i = 0; i < NAMES; i++)
        CHECK(seen[i] == 1);
    EXPECT(0, weft_close(directory));
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "/listings/f%d", i);
        EXPECT(0, weft_unlink(fs, name));
    }
    EXPECT(0, weft_rmdir(fs, "/listings"));
    EXPECT(0, weft_disconnect(fs));
}

static void pieces(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/pieces", O_RDWR | O_CREAT | O_TRUNC);
    char block[12] = "aaabbbcccddd", matrix[24], told[33];
    struct weft_strided columns = {block, 3, 4, 3, 2, 8};
    EXPECT(12, weft_write_strided(file, &columns));
    EXPECT(29, weft_pread(file, told, sizeof told, 0));
    CHECK(memcmp(told, "\0\0aaa\0\0\0\0\0bbb\0\0\0\0\0ccc\0\0\0\0\0ddd", 29) == 0);
    memset(matrix, '.', sizeof matrix);
    struct weft_strided spread = {matrix, 3, 4, 6, 2, 8};
    EXPECT(12, weft_read_strided(file, &spread));
    CHECK(memcmp(matrix, "aaa...bbb...ccc...ddd...", 24) == 0);
    struct weft_extent list[3] = {{told, 3, 26}, {told + 3, 3, 2}, {told + 6, 10, 27}};
    EXPECT(8, weft_read_list(file, list, 3));
    CHECK(memcmp(told, "dddaaadd", 8) == 0);
    struct weft_extent writes[2] = {{"zz", 2, 100}, {"yy", 2, 0}};
    EXPECT(4, weft_write_list(file, writes, 2));
    EXPECT(102, weft_lseek(file, 0, SEEK_END));

    EXPECT(0, weft_fsync(file));
    struct weft_location where[4];
    const char *paths[2] = {"/pieces", "/"};
    EXPECT(1, weft_locate(fs, paths, 1, where, 4));
    CHECK(where[0].file == 0 && where[0].offset == 0 && where[0].node >= 0 && where[0].local == 1);
    CHECK(where[0].length == 102 && where[0].host[0] != 0);
    EXPECT(1, weft_locate(fs, paths, 1, NULL, 0));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_unlink(fs, "/pieces"));
    EXPECT(0, weft_disconnect(fs));
}

static void locks(const char *file_system)
{
    weft_t fs = connected(file_system), other = connected(file_system);
    weft_file_t mine = opened(fs, "/locks", O_RDWR | O_CREAT), theirs = opened(other, "/locks", O_RDWR);
    struct weft_lock two[2] = {{0, 10, 1}, {20, 0, 1}}, between = {10, 10, 1}, shared = {5, 1, 0};
    EXPECT(0, weft_lock(mine, two, 2, 0));
    EXPECT(0, weft_lock(theirs, &between, 1, WEFT_LOCK_NOWAIT));
    EXPECT(-EAGAIN, weft_lock(theirs, &shared, 1, WEFT_LOCK_NOWAIT));
    EXPECT(-EAGAIN, weft_lock(theirs, two, 2, WEFT_LOCK_NOWAIT));
    EXPECT(0, weft_unlock(mine, two, 1));
    EXPECT(0, weft_lock(theirs, &shared, 1, 0));
    EXPECT(0, weft_close(mine));
    EXPECT(0, weft_lock(theirs, two, 2, 0));
    EXPECT(0, weft_close(theirs));
    EXPECT(0, weft_unlink(fs, "/locks"));
    EXPECT(0, weft_disconnect(other));
    EXPECT(0, weft_disconnect(fs));
}

static void queues(const char *file_system)
{
    enum { BLOCKS = 32, BYTES = 4096 };
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/queues", O_RDWR | O_CREAT | O_TRUNC);
    weft_queue_t queue;
    EXPECT(0, weft_queue_create(fs, 4, &queue));
    char *memory = malloc(BLOCKS * BYTES);
    CHECK(memory != NULL);
    struct weft_request requests[BLOCKS];
    struct weft_extent extents[BLOCKS];
    struct weft_completion done[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        memset(memory + i * BYTES, i + 1, BYTES);
        extents[i] = (struct weft_extent){memory + i * BYTES, BYTES, (off_t)i * BYTES};
        requests[i] = (struct weft_request){sizeof *requests, WEFT_WRITE, file, &extents[i], 1, &extents[i]};
    }
    EXPECT(0, weft_wait(queue, done, 1, BLOCKS, -1)); /* nothing is under way */
    EXPECT(0, weft_submit(queue, requests, BLOCKS));
    struct pollfd poller = {weft_queue_eventfd(queue), POLLIN, 0};
    EXPECT(1, poll(&poller, 1, 10000));
    EXPECT(BLOCKS, weft_wait(queue, done, BLOCKS, BLOCKS, 10000));
    EXPECT(0, poll(&poller, 1, 0));
    for (int i = 0; i < BLOCKS; i++) {
        EXPECT(BYTES, done[i].result);
        CHECK(done[i].tag >= (void *)extents && done[i].tag < (void *)(extents + BLOCKS));
    }
    memset(memory, 0, BLOCKS * BYTES);
    for (int i = 0; i < BLOCKS; i++)
        requests[i].operation = WEFT_READ;
    EXPECT(0, weft_submit(queue, requests, BLOCKS));
    ssize_t taken = 0;
    while (taken < BLOCKS) {
        ssize_t count = weft_wait(queue, done + taken, 1, BLOCKS - taken, -1);
        CHECK(count > 0);
        taken += count;
    }
    for (int i = 0; i < BLOCKS * BYTES; i++)
        CHECK(memory[i] == i / BYTES + 1);
    struct weft_request sync = {sizeof sync, WEFT_FSYNC, file, NULL, 0, NULL};
    EXPECT(0, weft_submit(queue, &sync, 1));
    EXPECT(1, weft_wait(queue, done, 1, 1, -1));
    EXPECT(0, done[0].result);

    /* Those that have to wait for others can be cancelled; all of them are heard of. */
    EXPECT(0, weft_submit(queue, requests, BLOCKS));
    ssize_t cancelled = weft_cancel(queue, requests[BLOCKS - 1].tag);
    CHECK(cancelled == 0 || cancelled == 1);
    EXPECT(BLOCKS, weft_wait(queue, done, BLOCKS, BLOCKS, -1));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(done[i].result == (done[i].tag == requests[BLOCKS - 1].tag && cancelled ? -ECANCELED : BYTES));
    EXPECT(0, weft_submit(queue, requests, BLOCKS));
    EXPECT(0, weft_queue_destroy(queue));
    EXPECT(0, weft_close(file));
    free(memory);
    EXPECT(0, weft_unlink(fs, "/queues"));
    EXPECT(0, weft_disconnect(fs));
}

struct share {
    weft_file_t file;
    int index;
};

static void *fill(void *argument)
{
    const struct share *share = argument;
    char block[512], told[512];
    memset(block, 'a' + share->index, sizeof block);
    for (int round = 0; round < 50; round++) {
        off_t offset = ((off_t)round * 8 + share->index) * (off_t)sizeof block;
        EXPECT(sizeof block, weft_pwrite(share->file, block, sizeof block, offset));
        EXPECT(sizeof told, weft_pread(share->file, told, sizeof told, offset));
        CHECK(memcmp(block, told, sizeof told) == 0);
        EXPECT(-EBADF, weft_fsync(NULL));
        CHECK(strstr(weft_strerror(-EBADF), "weft_file_t") != NULL);
    }
    return NULL;
}

static void threads(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/threads", O_RDWR | O_CREAT | O_TRUNC);
    pthread_t thread[8];
    struct share shares[8];
    for (int i = 0; i < 8; i++) {
        shares[i] = (struct share){file, i};
        CHECK(pthread_create(&thread[i], NULL, fill, &shares[i]) == 0);
    }
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    EXPECT(8 * 50 * 512, weft_lseek(file, 0, SEEK_END));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_unlink(fs, "/threads"));
    EXPECT(0, weft_disconnect(fs));
}

const struct test use_tests[] = {
    {"files", files},
    {"names", names},
    {"attributes", attributes},
    {"listings", listings},
    {"pieces", pieces},
    {"locks", locks},
    {"queues", queues},
    {"threads", threads},
    {NULL, NULL},
};
