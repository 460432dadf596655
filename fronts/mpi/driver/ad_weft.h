/* ad_weft.h - shared by the files of the ROMIO driver.
 *
 * ROMIO calls a file system through a table of functions (`struct ADIOI_Fns_struct` of its adio.h). The driver is such a
 * table over the C library (weft.h) and nothing else of Weft. Each process connects once per file system; a file is
 * opened by one process of its communicator and imported by the others (open.c).
 *
 *     table.c        the tables, and what the driver says it can do
 *     name.c         file names: weft:/path, weft:NAME:/path, paths below a mount
 *     connection.c   file systems that this process is connected to
 *     open.c         open, close, delete
 *     hints.c        hints of MPI_Info
 *     pattern.c      memory and file types as lists and strides of weft.h
 *     transfer.c     blocking reads and writes
 *     request.c      those that are not waited for
 *     control.c      size, sync, atomic mode, locks
 *     error.c        errno as an error class of MPI
 *
 * Not here: ROMIO, which scripts/mpi-driver.sh fetches and builds, and what it needs of libmpich (../romio/).
 */
#ifndef AD_WEFT_H
#define AD_WEFT_H

#include "adio.h"
#include <limits.h>
#include <weft.h>

/* A file system that this process is connected to. One per name, until the process ends. */
struct ad_weft_connection {
    char *name;           /* NULL: the only one that runs */
    weft_t fs;
    weft_queue_t queue;   /* of requests that are not waited for; 0 until there is one */
    struct ad_weft_connection *next;
};

/* `fs_ptr` of an open ADIO_File. */
struct ad_weft_file {
    struct ad_weft_connection *connection;
    weft_file_t file;
};

static inline struct ad_weft_file *ad_weft_file(ADIO_File fd)
{
    return fd->fs_ptr;
}

/* ---- error.c ---- */

/* Longest text of a failure, with its end. */
#define AD_WEFT_TEXT 256

/* The code of MPI for a failed call of weft.h: `error` is what it returned, `text` what weft_strerror() told, or NULL
 * to ask it. */
int ad_weft_error(const char *where, const char *name, int error, const char *text);

/* The same for a file system that cannot be connected to: -ENOENT does not mean the file. */
int ad_weft_connect_error(const char *where, const char *name, int error, const char *text);

/* ---- name.c ---- */

struct ad_weft_name {
    char file_system[256]; /* empty: the only one that runs */
    char path[PATH_MAX];
    int is_read_only;      /* below a mount that is */
};

/* Takes a name without the prefix `weft:` apart. Returns 0, or -errno. */
int ad_weft_parse(const char *name, struct ad_weft_name *parsed);

/* The same of a path of this machine below a mount. -ENOENT: it is below none. */
int ad_weft_parse_mounted(const char *path, struct ad_weft_name *parsed);

/* The name that ad_weft_parse() takes apart so; allocated with ADIOI_Malloc. */
char *ad_weft_name_text(const struct ad_weft_name *parsed);

/* ---- connection.c ---- */

/* Connects, once. Returns 0, or what weft_connect() did. */
int ad_weft_connect(const struct ad_weft_name *name, struct ad_weft_connection **connection);

/* ---- open.c ---- */

void ad_weft_open(ADIO_File fd, int *error_code);
void ad_weft_open_coll(ADIO_File fd, int rank, int access_mode, int *error_code);
void ad_weft_close(ADIO_File fd, int *error_code);
void ad_weft_delete(const char *name, int *error_code);
void ad_weft_delete_mounted(const char *path, int *error_code);

/* ---- hints.c ---- */

/* Longest words of weft_openat(), with their end. */
#define AD_WEFT_WORDS 96

void ad_weft_set_info(ADIO_File fd, MPI_Info info, int *error_code);

/* Hints of weft_openat(): the layout of a file that is made, and whose memory RDMA registers. */
void ad_weft_layout_words(ADIO_File fd, char words[AD_WEFT_WORDS]);
void ad_weft_rdma_words(ADIO_File fd, char words[AD_WEFT_WORDS]);

/* How a file is striped: over how many nodes (1: not), in stripes of so many bytes (0: not). */
struct ad_weft_layout {
    int width;
    int stripe;
};

struct ad_weft_layout ad_weft_layout(weft_t fs, const char *path);

/* Has MPI_File_get_info() and collective buffering know the layout. */
void ad_weft_tell_layout(ADIO_File fd, struct ad_weft_layout layout);

/* ---- pattern.c ---- */

/* Most extents of a call: 6 MiB of them. Regular patterns have no limit. */
#define AD_WEFT_EXTENTS_MAX ((size_t)1 << 18)

/* Where a walk through the blocks of a flattened type is. */
struct ad_weft_walk {
    const ADIO_Offset *starts, *lengths;
    MPI_Count blocks;
    ADIO_Offset extent;   /* of the type, which is repeated */
    ADIO_Offset origin;   /* of the first one */
    MPI_Count block;
    ADIO_Offset tile, used;
    ADIO_Offset single[2]; /* a start and a length, of a type without gaps */
};

/* An access: the bytes of a buffer, and where they belong. Not to be copied: walks point into it. */
struct ad_weft_access {
    struct ad_weft_walk memory, file;
    ADIO_Offset left;        /* bytes that the walks have before them */
    struct weft_extent kept; /* behind them, and in no part yet; length 0: none */
};

/* A part of an access, for one call: `regular`, if its count is not 0, else a list. */
struct ad_weft_pattern {
    struct weft_strided regular;
    struct weft_extent *extents;
    size_t count, room;
    ADIO_Offset bytes;
};

/* Begins an access of `count` times `datatype` at `buf`, at an offset in the view, or at the individual pointer. */
int ad_weft_begin(struct ad_weft_access *access, ADIO_File fd, const void *buf, int count, MPI_Datatype datatype,
                  int file_ptr_type, ADIO_Offset offset);

/* The next part of an access, as much as one call takes. Returns 1, 0 at the end, or -ENOMEM. */
int ad_weft_next(struct ad_weft_access *access, struct ad_weft_pattern *pattern);

/* Has the pattern be a list. Returns 0, or -ENOMEM. */
int ad_weft_to_list(struct ad_weft_pattern *pattern);

void ad_weft_free_pattern(struct ad_weft_pattern *pattern);

/* Where a walk is, in bytes; and `bytes` further on. */
ADIO_Offset ad_weft_walk_position(const struct ad_weft_walk *walk);
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

/* ---- request.c ---- */

void ad_weft_iread_contig(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Request *request, int *error_code);
void ad_weft_iwrite_contig(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Request *request, int *error_code);
void ad_weft_iread_strided(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Request *request, int *error_code);
void ad_weft_iwrite_strided(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                            ADIO_Offset offset, ADIO_Request *request, int *error_code);

/* ---- control.c ---- */

void ad_weft_fcntl(ADIO_File fd, int flag, ADIO_Fcntl_t *argument, int *error_code);
void ad_weft_flush(ADIO_File fd, int *error_code);
void ad_weft_resize(ADIO_File fd, ADIO_Offset size, int *error_code);
int ad_weft_set_lock(ADIO_File fd, int command, int type, ADIO_Offset offset, int whence, ADIO_Offset length);

/* Size of the file in bytes, or -errno. */
ADIO_Offset ad_weft_size(ADIO_File fd);

#endif
