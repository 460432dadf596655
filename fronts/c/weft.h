/* weft.h - a Weft file system as a library.
 *
 *     weft_t fs;
 *     weft_file_t file;
 *     int error = weft_connect("job", NULL, &fs);
 *     if (error == 0)
 *         error = weft_open(fs, "/result", O_WRONLY | O_CREAT, 0666, &file);
 *     if (error < 0) {
 *         fprintf(stderr, "%s\n", weft_strerror(error));
 *         return 1;
 *     }
 *     weft_pwrite(file, data, bytes, 0);
 *     weft_close(file);
 *     weft_disconnect(fs);
 *
 * What holds for every function:
 *
 * Names and order of arguments are those of POSIX; what is not said here is as there.
 * Results   0 or a count; below 0: -errno. weft_strerror() tells the thread's last failure in full. Nothing sets errno.
 * Handles   are checked. A closed, foreign or zero handle is -EBADF, a NULL pointer that is needed -EFAULT.
 * Paths     begin at the root of the file system, with or without a `/`; the functions with `at` in their names
 *           take those without one as relative to a directory that is open. Symbolic links are followed.
 * Offsets   and lengths are bytes. What would end beyond 2^63 - 1 is -EINVAL.
 * Memory    that is passed in is only used until the function returns, unless it says otherwise.
 * Threads   may use any handle at the same time. A handle that one closes while others use it is closed when they are
 *           done.
 * Signals   do not interrupt calls. None is handled or blocked in the caller's threads.
 * fork()    A child's calls fail with -ENOTCONN and leave the parent's connections alone; it may connect anew.
 * exit()    writes back and disconnects. A process that is killed loses what it wrote and did not fsync or close.
 */
#ifndef WEFT_H
#define WEFT_H

#include <dirent.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles. They are numbers, not addresses: 0 is none. */
typedef struct weft_fs *weft_t;         /* a file system that is connected */
typedef struct weft_file *weft_file_t;  /* an open file or directory */
typedef struct weft_queue *weft_queue_t; /* reads and writes under way */
typedef struct weft_memory *weft_memory_t; /* memory that is registered for RDMA */

/* Version of this header; weft_version() tells the library's, as text. */
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
const char *weft_version(void);

/* What the failure was that the calling thread's last failed call returned as `error`: what was tried, on what, why
 * not. Of another error its general text. Never NULL; holds until the thread's next call that fails. */
const char *weft_strerror(int error);

/* ---- Connecting ---- */

/* How to connect. All zero, but for `size`: as the environment says, else the defaults. */
struct weft_options {
    size_t size;              /* sizeof(struct weft_options) */
    const char *key_file;     /* opens another user's file system; NULL: WEFT_KEY, else none */
    const char *transport;    /* "auto", "sockets", "tcp" or "ucx"; NULL: WEFT_TRANSPORT, else "auto" */
    uint32_t soft_ms;         /* calls fail with -EIO once a node has not answered for so long; 0: 10,000 */
    uint32_t hard;            /* not 0: they wait for ever instead */
    uint64_t write_buffer;    /* bytes that are gathered of small writes before they are sent; 0: 1 MiB */
};

/* Connects to the file system of this name; NULL: the only one. The process's umask of this moment holds for whatever
 * is made. -ENOENT: none is here; -EINVAL: several are, or an option is wrong; -ECONNREFUSED: it does not run (any
 * more); -EACCES: it refuses the key; -EIO: no node answers. */
int weft_connect(const char *name, const struct weft_options *options, weft_t *fs);

/* Writes back what is buffered, closes all connections. Files that are open stay to be closed, and fail. Errors of
 * writing back show here; the handle is gone in any case. */
int weft_disconnect(weft_t fs);

/* Space and number of objects of all nodes together. Blocks of 4,096 bytes. */
int weft_statvfs(weft_t fs, struct statvfs *space);

/* ---- Files ---- */

/* Opens a file or directory. Flags: O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECT,
 * O_DIRECTORY, O_NOFOLLOW, O_SYNC, O_DSYNC; O_CLOEXEC, O_LARGEFILE, O_NOCTTY, O_NOATIME and O_NONBLOCK say nothing
 * here; others are -EINVAL. `mode` is for what O_CREAT makes, less the umask. */
int weft_open(weft_t fs, const char *path, int flags, mode_t mode, weft_file_t *file);

/* Opens relative to a directory, with hints: words with spaces between them, NULL for none.
 *     whole | width=N [stripe=SIZE]   layout of a file that this call makes: on one node, or in stripes over N
 *     split                           likewise: a part for each client that writes, on its node
 *     spill                           writes to a split file go on at another node when the caller's own is full
 *     placement=own|spread            where the caller's part of a split file goes that its writes make: to the caller's
 *                                     own node, the default, or as if it had none: to one node after the other
 *     group=all|split|unsplit         opens a file of such a layout as weft_import() does, and weft_export() of it costs
 *                                     no message; one that cannot be (it is truncated, has no objects yet, or is opened
 *                                     for writing and has set-id bits) is opened as without this hint
 *     rdma=static|dynamic|auto        memory that RDMA registers: the connection's, the caller's, by the size
 * An unknown hint is -EINVAL. A file that is there keeps its layout. */
int weft_openat(weft_file_t directory, const char *path, int flags, mode_t mode, const char *hints, weft_file_t *file);

/* Layout of an open file, in the words of the extended attribute weft.layout, without a terminating zero; no message.
 * With length 0 the length that it would take is returned; -ERANGE: it takes more. */
ssize_t weft_layout(weft_file_t file, char *text, size_t length);

/* The root directory, for functions with `at`. */
int weft_root(weft_t fs, weft_file_t *directory);

/* Writes back and closes. Errors of earlier writes show here; the handle is gone in any case. */
int weft_close(weft_file_t file);

/* One process opens, many use: `weft_export` returns bytes that open the file as this handle has it open, in any process
 * with the same key; `weft_import` makes a handle of them. That costs one message, which opens nothing; reads and writes
 * ask no metadata server. Keep the bytes as secret as the file. With length 0 the length that it would take is returned;
 * -ERANGE: it takes more. A file that is open so counts as open once, until the last of these handles is closed, or its
 * process has ended: it outlives the one that exported it, and its name. Before anybody has imported it, it lasts some
 * 8 s beyond the exporter's close. Nobody caches the file meanwhile. A handle that is locked, or is older than an hour,
 * or whose group has ended opens the file anew, as its user may: -ESTALE, if it is gone. -EINVAL: other bytes, or those
 * of another key or file system. `hints`: `rdma=`, `spill`, `placement=`, NULL for none. Positions are not shared. Of a split file,
 * what an imported handle has written is seen by others once it is synchronized, flushed or closed. */
ssize_t weft_export(weft_file_t file, void *handle, size_t length);
int weft_import(weft_t fs, const void *handle, size_t length, const char *hints, weft_file_t *file);

/* Many write, one publishes. What imported handles of a split file have written is seen once it is published, by each
 * for itself (weft_flush) or by one for several, with one message to the metadata server instead of one of each:
 *
 *     each  bytes = weft_hand_out(file, NULL, 0);       0: nothing; otherwise again, for the bytes
 *     one   weft_publish_for(file, all, length, results, count);       of those of all, one behind the other
 *     each  weft_published(file, its result);
 *
 * `weft_publish_for` returns of how many the bytes were, and stores for the first `max` in their order: 0, or -errno,
 * and then that one is not published, or may be. `weft_published` has it published by then: by another one, if `result`
 * is 0, else by itself, and it flushes as weft_flush() does. What was handed out is published once, whoever does it in
 * the end. -EINVAL: other bytes, or of another version. */
ssize_t weft_hand_out(weft_file_t file, void *bytes, size_t length);
ssize_t weft_publish_for(weft_file_t file, const void *bytes, size_t length, int *results, size_t max);
int weft_published(weft_file_t file, int result);

/* At an offset, straight between the caller's memory and the file. Reads are short at the end of the file only, writes
 * never: they write all or fail. With O_APPEND, writes go to the end, and no other's lands between their bytes. A read
 * sees each write that returned before it began, whoever made it; of one under way it may see a part. */
ssize_t weft_pread(weft_file_t file, void *memory, size_t length, off_t offset);
ssize_t weft_pwrite(weft_file_t file, const void *memory, size_t length, off_t offset);
ssize_t weft_preadv(weft_file_t file, const struct iovec *vector, int count, off_t offset);
ssize_t weft_pwritev(weft_file_t file, const struct iovec *vector, int count, off_t offset);

/* At the handle's position, and move it. Threads that share a handle take turns. */
ssize_t weft_read(weft_file_t file, void *memory, size_t length);
ssize_t weft_write(weft_file_t file, const void *memory, size_t length);
off_t weft_lseek(weft_file_t file, off_t offset, int whence); /* SEEK_SET, SEEK_CUR, SEEK_END */

/* Pieces of memory and the places in the file where they belong, in any order. Returns the sum of bytes. A read stops
 * at the first piece that the file's end cuts. */
struct weft_extent {
    void *memory;
    size_t length;
    off_t offset;
};
ssize_t weft_read_list(weft_file_t file, const struct weft_extent *extents, size_t count);
ssize_t weft_write_list(weft_file_t file, const struct weft_extent *extents, size_t count);

/* `count` blocks, `memory_stride` bytes apart in memory and `file_stride` in the file; as a list of them. */
struct weft_strided {
    void *memory;
    size_t block;
    size_t count;
    size_t memory_stride; /* at least `block` */
    off_t offset;
    off_t file_stride;    /* at least `block` */
};
ssize_t weft_read_strided(weft_file_t file, const struct weft_strided *pattern);
ssize_t weft_write_strided(weft_file_t file, const struct weft_strided *pattern);

/* All that was written is on the storage device, with size and times. */
int weft_fsync(weft_file_t file);

/* All that was written is at the nodes. Of a split file others see it, and an imported handle sees what others have
 * flushed, synchronized or closed before. */
int weft_flush(weft_file_t file);

int weft_ftruncate(weft_file_t file, off_t length);

/* ---- Names ---- */

int weft_mkdir(weft_t fs, const char *path, mode_t mode);
int weft_unlink(weft_t fs, const char *path);
int weft_rmdir(weft_t fs, const char *path);
int weft_rename(weft_t fs, const char *from, const char *to);
int weft_link(weft_t fs, const char *from, const char *to);
int weft_symlink(weft_t fs, const char *target, const char *path);
ssize_t weft_readlink(weft_t fs, const char *path, char *target, size_t length); /* no 0 byte at the end */

int weft_mkdirat(weft_file_t directory, const char *path, mode_t mode);
int weft_unlinkat(weft_file_t directory, const char *path, int flags); /* AT_REMOVEDIR */
int weft_renameat2(weft_file_t directory, const char *from, weft_file_t to_directory, const char *to,
                   unsigned flags); /* RENAME_NOREPLACE, RENAME_EXCHANGE */

/* ---- Attributes ---- */

/* `flags`: AT_SYMLINK_NOFOLLOW. `mask` as of statx(2); all basic fields are filled in whatever it says. */
int weft_statx(weft_t fs, const char *path, int flags, unsigned mask, struct statx *attributes);
int weft_statxat(weft_file_t directory, const char *path, int flags, unsigned mask, struct statx *attributes);
int weft_fstatx(weft_file_t file, unsigned mask, struct statx *attributes);

int weft_access(weft_t fs, const char *path, int mode); /* R_OK, W_OK, X_OK; F_OK */
int weft_chmod(weft_t fs, const char *path, mode_t mode);
int weft_chown(weft_t fs, const char *path, uid_t owner, gid_t group); /* -1: as it is */
int weft_truncate(weft_t fs, const char *path, off_t length);
int weft_utimens(weft_t fs, const char *path, const struct timespec times[2]); /* NULL, UTIME_NOW, UTIME_OMIT */

/* Extended attributes: `user.` and `trusted.`, and the settings `weft.layout` and `weft.placement`. With length 0 the
 * length that it would take is returned. */
ssize_t weft_getxattr(weft_t fs, const char *path, const char *name, void *value, size_t length);
int weft_setxattr(weft_t fs, const char *path, const char *name, const void *value, size_t length, int flags);
ssize_t weft_listxattr(weft_t fs, const char *path, char *names, size_t length); /* each with a 0 byte */
int weft_removexattr(weft_t fs, const char *path, const char *name);

/* ---- Listings ---- */

/* A part of a listing: plain numbers, which another process may go on with. */
struct weft_cursor {
    uint64_t next;
    uint64_t end;
};
#define WEFT_CURSOR_ALL {0, UINT64_MAX}

struct weft_dirent {
    uint64_t ino;
    uint32_t type; /* DT_REG, DT_DIR, DT_LNK */
    uint32_t spare[5];
    struct statx attributes; /* stx_mask is 0 where they were not asked for */
    char name[256];
};

/* The next entries of a directory, without `.` and `..`; 0: the end. With a `mask` that is not 0 also their attributes.
 * Whatever is there all the time is told exactly once, whoever makes and removes other names. */
ssize_t weft_readdir(weft_file_t directory, struct weft_cursor *cursor, unsigned mask, struct weft_dirent *entries,
                     size_t count);

/* Cuts a cursor into `count` parts with about as many names each. */
int weft_cursor_split(const struct weft_cursor *whole, struct weft_cursor *parts, size_t count);

/* ---- Places ---- */

struct weft_location {
    uint64_t file;   /* index of the path */
    uint64_t offset;
    uint64_t length;
    int32_t node;    /* -1: a hole, or no bytes */
    uint32_t local;  /* 1: on this machine */
    uint64_t spare[2];
    char host[256];
    char site[64];
};

/* Where the bytes of files are that were sent there: those of small writes are after a fsync. Returns how many locations there are, of which the first `max` are stored. */
ssize_t weft_locate(weft_t fs, const char *const *paths, size_t path_count, struct weft_location *locations,
                    size_t max);

/* ---- Locks ---- */

/* Of byte ranges, across all clients and mounts, where they are in the way of `fcntl` locks. They are the handle's, and
 * end with it. A session that was cut off for longer than a lease term loses them: then all calls with the handle fail
 * with -EIO until it unlocks. */
struct weft_lock {
    off_t start;
    off_t length; /* 0: to the end of the file, wherever that will be */
    int exclusive;
};
#define WEFT_LOCK_NOWAIT 1 /* -EAGAIN instead of waiting */

/* All of them or none, in one message. Who waits is granted before whoever came later and is in the way. */
int weft_lock(weft_file_t file, const struct weft_lock *locks, size_t count, int flags);
int weft_unlock(weft_file_t file, const struct weft_lock *ranges, size_t count);

/* ---- Reads and writes that are not waited for ---- */

#define WEFT_READ 1
#define WEFT_WRITE 2
#define WEFT_FSYNC 3

struct weft_request {
    size_t size; /* sizeof(struct weft_request) */
    int operation;
    weft_file_t file;
    const struct weft_extent *extents; /* copied; their memory has to stay until completion */
    size_t count;
    void *tag; /* the caller's, for completion and cancel */
};

struct weft_completion {
    void *tag;
    ssize_t result; /* as of weft_read_list(), weft_write_list(), weft_fsync(); -ECANCELED */
};

/* At most `depth` requests (1 to 64) are under way at a time; others wait. */
int weft_queue_create(weft_t fs, unsigned depth, weft_queue_t *queue);

/* Hands requests over, all or none, in any order of execution. -EAGAIN: 4,096 are waiting. */
int weft_submit(weft_queue_t queue, const struct weft_request *requests, size_t count);

/* Takes up to `max` completions; waits until there are `min` of them or `timeout_ms` has passed (-1: without end), and
 * returns how many. Fewer than `min` requests left: does not wait for more than there are. */
ssize_t weft_wait(weft_queue_t queue, struct weft_completion *completions, size_t min, size_t max, int timeout_ms);

/* Cancels requests with this tag that are not under way yet: they complete with -ECANCELED. Returns how many. */
ssize_t weft_cancel(weft_queue_t queue, const void *tag);

/* A descriptor that is readable while completions wait to be taken: for poll and epoll, not for reading. It is the
 * queue's. */
int weft_queue_eventfd(weft_queue_t queue);

/* Cancels what is not under way, waits for the rest. Completions that were not taken are dropped. */
int weft_queue_destroy(weft_queue_t queue);

/* ---- Memory for RDMA, and what went which way ---- */

/* Registers memory that is used again and again: what any handle reads into it or writes from it by RDMA, 64 KiB or more
 * at a time, is neither copied nor registered each time (with the hint `rdma=static` it is copied). Where nothing goes by
 * RDMA it does nothing. The memory stays mapped until weft_memory_unregister() returns, which is called when no call uses
 * it. -ENOMEM: so much may not be locked. Meant for few, large pieces. */
int weft_memory_register(weft_t fs, void *memory, size_t length, weft_memory_t *registered);
int weft_memory_unregister(weft_memory_t registered);

/* What a connection has done since it was made. */
struct weft_counters {
    size_t size;             /* sizeof(struct weft_counters) */
    uint64_t metadata_calls; /* that were waited for */
    uint64_t data_requests;  /* to storage servers */
    /* Bytes, by their way: straight between a file of a node on this machine and the caller's memory (one copy, by the
     * kernel), by Unix sockets, by TCP, by RDMA. */
    uint64_t descriptor_read, descriptor_written;
    uint64_t unix_read, unix_written;
    uint64_t tcp_read, tcp_written;
    uint64_t rdma_read, rdma_written;
    uint64_t rdma_copied;        /* of those by RDMA: through a connection's buffer */
    uint64_t rdma_registrations; /* times that memory was registered */
};
int weft_get_counters(weft_t fs, struct weft_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
