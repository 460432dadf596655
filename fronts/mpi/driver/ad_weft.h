/* ad_weft.h - internal header of the ROMIO driver.
 *
 * ROMIO calls a file system through a table of functions (`struct ADIOI_Fns_struct` of its adio.h). The driver
 * implements this table over the C library (weft.h) and uses nothing else of Weft. Each process connects once per file
 * system. Rank 0 of a communicator opens a file, the other ranks import its handle (open.c).
 *
 *     table.c        function tables and supported features
 *     name.c         file names: weft:/path, weft:NAME:/path, paths below a mount
 *     connection.c   connections of this process, one per file system
 *     open.c         open, close, delete
 *     hints.c        MPI_Info hints
 *     pattern.c      flattens memory and file types to extent lists and strides
 *     transfer.c     blocking reads and writes
 *     request.c      nonblocking reads and writes
 *     control.c      size, sync, atomic mode, locks
 *     publish.c      publishes what ranks have written to split files
 *     error.c        errno to MPI error class
 *
 * Not here: ROMIO itself, which scripts/mpi-driver.sh fetches and builds, its glue to libmpich and Open MPI, and what
 * refuses programs of another MPI (../romio/). The same sources are compiled for both ROMIOs.
 */
#ifndef AD_WEFT_H
#define AD_WEFT_H

#include "adio.h"
#include <limits.h>
#include <weft.h>

/* The ROMIO of Open MPI is older: its locks and `dirty_write` are added by scripts/mpi-driver.sh, the rest is here. */
#ifndef ADIO_IMMEDIATELY_VISIBLE
#define AD_WEFT_OLD_ROMIO
#define MPL_MIN ADIOI_MIN
#define MPL_MAX ADIOI_MAX
#endif

/* Connection to a file system. One per name, kept until the process exits. */
struct ad_weft_connection {
    char *name;           /* NULL: the only one that runs */
    weft_t fs;
    weft_queue_t queue;   /* nonblocking requests; 0 until the first one */
    struct ad_weft_connection *next;
};

/* `fs_ptr` of an open ADIO_File. */
struct ad_weft_file {
    struct ad_weft_connection *connection;
    weft_file_t file;
    int is_split;    /* each rank has a part */
    int is_deferred; /* and publishes what it writes there when it synchronizes or closes */
    int is_single;   /* there are no other ranks */
    int agrees_on_errors; /* collective reads and writes of a split file wait for all ranks, and fail at all */
    int has_written; /* since the last collective read of such a file */
    int failed;      /* -errno of a collective write of a split file, which the other ranks are not told of yet */
    int is_exchanging;  /* ROMIO makes a collective access with an exchange of data between ranks */
    int exchange_error; /* -errno of the first access of this rank that failed meanwhile; 0 outside */
    MPI_Comm node;   /* the ranks of this machine, or MPI_COMM_NULL before they have published together */
};

static inline struct ad_weft_file *ad_weft_file(ADIO_File fd)
{
    return fd->fs_ptr;
}

static inline void ad_weft_wrote(ADIO_File fd)
{
    fd->dirty_write = 1;
    ad_weft_file(fd)->has_written = 1;
}

/* ---- error.c ---- */

/* Size of an error text, with its terminating zero. */
#define AD_WEFT_TEXT 256

/* Returns the MPI error code for a failed call of weft.h. `error` is its return value, `text` its weft_strerror(), or
 * NULL to call that. */
int ad_weft_error(const char *where, const char *name, int error, const char *text);

/* The same for a failed weft_connect(), whose -ENOENT does not mean the file. */
int ad_weft_connect_error(const char *where, const char *name, int error, const char *text);

/* Reduces a value over all ranks, as MPI_Allreduce() does. Where ranks share processors, those that look for each other
 * in MPI without a pause take them from the ranks that they wait for: so one that waits longer sleeps in between. */
int ad_weft_reduce(ADIO_File fd, int value, MPI_Op op);

/* Agrees on the result of a collective call, 0 or -errno: returns the least of all ranks'. Waits for all ranks. */
int ad_weft_agree(ADIO_File fd, int error);

/* Takes note of the result of a collective write of a split file that waits for nobody, a count or -errno. If it has
 * failed, the next collective call that waits for all ranks fails at all of them. */
void ad_weft_note_failed(struct ad_weft_file *open, ssize_t result);

/* Returns `error`, or if that is 0, what was noted, which is forgotten then. */
int ad_weft_with_failed(ADIO_File fd, int error);

/* Returns the MPI error code for an agreed error; `own` is this rank's result. */
int ad_weft_agreed_error(const char *where, const char *name, int own, int agreed);

/* ---- name.c ---- */

struct ad_weft_name {
    char file_system[256]; /* empty: the only one that runs */
    char path[PATH_MAX];
    int is_read_only;      /* below a mount that is */
};

/* Parses a name without the prefix `weft:`. Returns 0 or -errno. */
int ad_weft_parse(const char *name, struct ad_weft_name *parsed);

/* Translates a local path below a mount. Returns 0, or -ENOENT if it is not below a mount of Weft. */
int ad_weft_parse_mounted(const char *path, struct ad_weft_name *parsed);

/* Returns the name that ad_weft_parse() parses to this, allocated with ADIOI_Malloc. */
char *ad_weft_name_text(const struct ad_weft_name *parsed);

/* ---- connection.c ---- */

/* Returns the connection to a file system, and connects if there is none. Errors are those of weft_connect(). */
int ad_weft_connect(const struct ad_weft_name *name, struct ad_weft_connection **connection);

/* ---- open.c ---- */

void ad_weft_open(ADIO_File fd, int *error_code);
void ad_weft_open_coll(ADIO_File fd, int rank, int access_mode, int *error_code);
void ad_weft_close(ADIO_File fd, int *error_code);
void ad_weft_delete(const char *name, int *error_code);
void ad_weft_delete_mounted(const char *path, int *error_code);

/* ---- hints.c ---- */

/* Size of a hint string for weft_openat(), with its terminating zero. */
#define AD_WEFT_WORDS 128

void ad_weft_set_info(ADIO_File fd, MPI_Info info, int *error_code);

/* Hint strings for weft_openat(): layout of a new file; what concerns the handle alone. Empty if none was given. */
void ad_weft_layout_words(ADIO_File fd, char words[AD_WEFT_WORDS]);
void ad_weft_handle_words(ADIO_File fd, char words[AD_WEFT_WORDS]);

/* Marks a file for drains, as its hint says; one message, none without the hint. Returns whether the hint is obeyed. */
int ad_weft_set_drain(ADIO_File fd, weft_t fs, const char *path);

/* Stripe count (1: not striped) and stripe size in bytes (0: not striped); whether each writer has a part. */
struct ad_weft_layout {
    int width;
    int stripe;
    int is_split;
};

/* Asks nobody. */
struct ad_weft_layout ad_weft_layout(weft_file_t file);

/* Returns whether each write of a split file is to be visible when it returns, not after a sync only: as the hint says,
 * else whether this process has a library that relies on it. */
int ad_weft_is_immediate(ADIO_File fd);

/* Returns whether collective reads and writes of a split file wait for all ranks, and fail at all: as the hint says. */
int ad_weft_agrees_on_errors(ADIO_File fd);

/* Sets the hints to the values in use, which MPI_File_get_info() returns, and of which collective buffering takes those
 * of the layout. */
void ad_weft_set_used_hints(ADIO_File fd, struct ad_weft_layout layout, int obeys_drain);

/* ---- pattern.c ---- */

/* Maximum number of extents per library call (6 MiB of extents). Strided patterns are not limited. */
#define AD_WEFT_EXTENTS_MAX ((size_t)1 << 18)

/* Iterator over the blocks of a flattened datatype, which repeats with its extent. */
struct ad_weft_walk {
    const ADIO_Offset *starts, *lengths;
    MPI_Count blocks;
    ADIO_Offset extent;    /* of the type */
    ADIO_Offset origin;    /* address or file offset of the first repetition */
    ADIO_Offset tile;      /* current repetition */
    MPI_Count block;       /* current block in it */
    ADIO_Offset used;      /* bytes of the block behind the iterator */
    ADIO_Offset single[2]; /* start and length of a contiguous type */
};

/* A read or write of a buffer through a view. Must not be copied: the iterators may point into it. */
struct ad_weft_access {
    struct ad_weft_walk memory, file;
    ADIO_Offset left;        /* bytes ahead of the iterators */
    struct weft_extent kept; /* extent that did not fit into the previous pattern; length 0: none */
    MPI_Datatype type;       /* of the memory */
};

/* The part of an access for one library call: `regular` if its count is not 0, else an extent list. */
struct ad_weft_pattern {
    struct weft_strided regular;
    struct weft_extent *extents;
    size_t count, room;
    ADIO_Offset bytes;
};

/* Starts an access of `count` times `datatype` at `buf`, at an offset in etypes or at the individual file pointer.
 * Returns 0 or -errno. */
int ad_weft_begin(struct ad_weft_access *access, ADIO_File fd, const void *buf, int count, MPI_Datatype datatype,
                  int file_ptr_type, ADIO_Offset offset);

/* Ends an access that was started. */
void ad_weft_end(struct ad_weft_access *access);

/* Fills in the next pattern. Returns 1, 0 at the end of the access, or -ENOMEM. */
int ad_weft_next(struct ad_weft_access *access, struct ad_weft_pattern *pattern);

/* Converts a strided pattern to an extent list. Returns 0 or -ENOMEM. */
int ad_weft_to_list(struct ad_weft_pattern *pattern);

void ad_weft_free_pattern(struct ad_weft_pattern *pattern);

/* Current address or file offset. */
ADIO_Offset ad_weft_walk_position(const struct ad_weft_walk *walk);
/* Advances by `bytes` bytes of data. */
void ad_weft_walk_on(struct ad_weft_walk *walk, ADIO_Offset bytes);

/* ---- transfer.c ---- */

void ad_weft_read_contig(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                         ADIO_Offset offset, ADIO_Status *status, int *error_code);
void ad_weft_write_contig(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Status *status, int *error_code);
void ad_weft_read_strided(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Status *status, int *error_code);
void ad_weft_write_strided(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Status *status, int *error_code);

/* Writes this rank's own access of a collective write of a split file. Returns the number of bytes or -errno. */
ssize_t ad_weft_write_part(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Status *status, int *error_code);

/* Collective: of a split file each rank transfers its own access. They end with an agreement on the error; of a split
 * file the hint weft_errors may say otherwise. */
void ad_weft_read_strided_coll(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                               ADIO_Offset offset, ADIO_Status *status, int *error_code);
void ad_weft_write_strided_coll(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                                ADIO_Offset offset, ADIO_Status *status, int *error_code);

/* ---- request.c ---- */

void ad_weft_iread_contig(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Request *request, int *error_code);
void ad_weft_iwrite_contig(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Request *request, int *error_code);
void ad_weft_iread_strided(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Request *request, int *error_code);
void ad_weft_iwrite_strided(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                            ADIO_Offset offset, ADIO_Request *request, int *error_code);

void ad_weft_iread_strided_coll(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                                ADIO_Offset offset, MPI_Request *request, int *error_code);
void ad_weft_iwrite_strided_coll(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                                 ADIO_Offset offset, MPI_Request *request, int *error_code);

/* ---- control.c ---- */

void ad_weft_fcntl(ADIO_File fd, int flag, ADIO_Fcntl_t *argument, int *error_code);
void ad_weft_flush(ADIO_File fd, int *error_code);
void ad_weft_resize(ADIO_File fd, ADIO_Offset size, int *error_code);
int ad_weft_set_lock(ADIO_File fd, int command, int type, ADIO_Offset offset, int whence, ADIO_Offset length);

/* Returns the file size in bytes, or -errno. */
ADIO_Offset ad_weft_size(ADIO_File fd);

/* ---- publish.c ---- */

/* Publishes what this rank has written to a split file, and has it see what others have published, where that does not
 * happen with each access. Returns 0 or -errno. */
int ad_weft_publish(ADIO_File fd);

/* The same for all ranks of the file, each of which has to call it: one message from each machine. What others publish
 * by this call is seen by all of them only after they have waited for each other. */
int ad_weft_publish_together(ADIO_File fd);

#endif
