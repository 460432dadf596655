/* Open, close, delete.
 *
 * A collective open is one open at the metadata server, whatever the size of the communicator: process 0, the
 * opener, opens the file, exports its handle and broadcasts an announcement; the others import the handle. Nobody caches
 * the file meanwhile, so writes are seen by all processes as soon as they return. What differs:
 *
 *     the opener cannot open      all fail with its error
 *     the opener cannot export    each opens the file itself
 *     one cannot import           that one opens the file itself, as its user may
 *     a single process            opens it, and may cache it under a lease
 *
 * Afterwards `fd->filename` names the file system and the path in it, wherever the process is and whether it has the
 * mount: ROMIO makes the name of the shared file pointer's file of it, and deletes by it. */
#include "ad_weft.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

extern struct ADIOI_Fns_struct ADIO_WEFT_operations, ADIO_WEFT_MOUNT_operations;

/* Process of the communicator that opens: the one that has looked whether the name is below a mount (name.c). */
#define OPENER 0

/* What the opener tells the others. */
struct announcement {
    int error;      /* 0, or -errno; `text` says more */
    int is_connect; /* the error is of connecting */
    char text[AD_WEFT_TEXT];
    struct ad_weft_name name;
    struct ad_weft_layout layout;
    ADIO_Offset size;      /* of MPI_MODE_APPEND */
    int handle_bytes;      /* 0: there is none */
};

/* Longest handle that is told: of a file on a thousand nodes. */
#define HANDLE_BYTES_MAX (64 << 10)

static int is_mounted_name(ADIO_File fd)
{
    return fd->fns == &ADIO_WEFT_MOUNT_operations;
}

static int parse(ADIO_File fd, struct ad_weft_name *name)
{
    return is_mounted_name(fd) ? ad_weft_parse_mounted(fd->filename, name) : ad_weft_parse(fd->filename, name);
}

/* The file that holds a shared pointer: every access is of another process, so that a cache is only in the way. */
static int is_shared_pointer(const struct ad_weft_name *name)
{
    const char *base = strrchr(name->path, '/');
    return strncmp(base, "/.", 2) == 0 && strstr(base, ".shfp.") != NULL;
}

static int flags_of(int access_mode, const struct ad_weft_name *name)
{
    int flags = access_mode & ADIO_RDONLY ? O_RDONLY : O_RDWR;
    if (access_mode & ADIO_CREATE)
        flags |= O_CREAT;
    if (access_mode & ADIO_EXCL)
        flags |= O_EXCL;
    return is_shared_pointer(name) ? flags | O_DIRECT : flags;
}

/* Opens with hints. A layout that Weft does not know is no reason to fail: hints are advice. */
static int open_with_hints(ADIO_File fd, weft_file_t root, const char *path, int flags, weft_file_t *file)
{
    char layout[AD_WEFT_WORDS], rdma[AD_WEFT_WORDS], both[2 * AD_WEFT_WORDS];
    mode_t mode = fd->perm == ADIO_PERM_NULL ? 0666 : (mode_t)fd->perm;
    ad_weft_layout_words(fd, layout);
    ad_weft_rdma_words(fd, rdma);
    if (flags & O_CREAT && *layout != '\0') {
        snprintf(both, sizeof both, "%s %s", layout, rdma);
        int error = weft_openat(root, path, flags, mode, both, file);
        if (error != -EINVAL)
            return error;
    }
    return weft_openat(root, path, flags, mode, rdma, file);
}

/* Opens by itself. Collective writes with holes read first, even if the program opened for writing only: so it is
 * opened for both, where its permissions allow that. */
static int open_alone(ADIO_File fd, struct ad_weft_connection *connection, const struct ad_weft_name *name,
                      int access_mode)
{
    weft_file_t root, file;
    int flags = flags_of(access_mode, name);
    int error = weft_root(connection->fs, &root);
    if (error < 0)
        return error;
    error = open_with_hints(fd, root, name->path, flags, &file);
    if (error == -EACCES && access_mode & ADIO_WRONLY)
        error = open_with_hints(fd, root, name->path, (flags & ~O_ACCMODE) | O_WRONLY, &file);
    weft_close(root);
    if (error < 0)
        return error;
    struct ad_weft_file *open = ADIOI_Malloc(sizeof *open);
    open->connection = connection;
    open->file = file;
    fd->fs_ptr = open;
    return 0;
}

static void fail(struct announcement *told, int error, int is_connect)
{
    told->error = error;
    told->is_connect = is_connect;
    snprintf(told->text, sizeof told->text, "%s", weft_strerror(error));
}

/* Bytes that open the file for others. A file that cannot be exported is opened by each process. */
static void export(struct announcement *told, weft_file_t file, void *handle)
{
    ssize_t bytes = weft_export(file, handle, HANDLE_BYTES_MAX);
    told->handle_bytes = bytes > 0 ? (int)bytes : 0;
}

/* The opener's part: opens the file and says how. `handle` has room for one; NULL: there are no others. */
static void open_first(ADIO_File fd, int access_mode, struct announcement *told, void *handle)
{
    struct ad_weft_connection *connection;
    int error = parse(fd, &told->name);
    if (error == 0 && told->name.is_read_only && !(access_mode & ADIO_RDONLY))
        error = -EROFS;
    if (error < 0) {
        fail(told, error, 0);
        return;
    }
    if ((error = ad_weft_connect(&told->name, &connection)) < 0) {
        fail(told, error, 1);
        return;
    }
    if ((error = open_alone(fd, connection, &told->name, access_mode)) < 0) {
        fail(told, error, 0);
        return;
    }
    /* While what the open has told may be believed: nobody caches a file that is exported. */
    if (!is_shared_pointer(&told->name))
        told->layout = ad_weft_layout(connection->fs, told->name.path);
    if (access_mode & ADIO_APPEND)
        told->size = ad_weft_size(fd);
    if (handle != NULL)
        export(told, ad_weft_file(fd)->file, handle);
}

/* The others' part: imports what the opener has, or opens it too. */
static int open_next(ADIO_File fd, int access_mode, const struct announcement *told, const void *handle,
                     int *is_connect)
{
    struct ad_weft_connection *connection;
    char rdma[AD_WEFT_WORDS];
    weft_file_t file;
    int error = ad_weft_connect(&told->name, &connection);
    *is_connect = error < 0;
    if (error < 0)
        return error;
    ad_weft_rdma_words(fd, rdma);
    if (told->handle_bytes == 0 ||
        weft_import(connection->fs, handle, (size_t)told->handle_bytes, rdma, &file) < 0)
        return open_alone(fd, connection, &told->name, access_mode & ~(ADIO_CREATE | ADIO_EXCL));
    struct ad_weft_file *open = ADIOI_Malloc(sizeof *open);
    open->connection = connection;
    open->file = file;
    fd->fs_ptr = open;
    return 0;
}

static int code(const char *name, int error, int is_connect, const char *text)
{
    return is_connect ? ad_weft_connect_error("ad_weft_open", name, error, text)
                      : ad_weft_error("ad_weft_open", name, error, text);
}

/* Has ROMIO know the file as every process can name it. */
static void rename_to_path(ADIO_File fd, const struct ad_weft_name *name)
{
    char *text = ad_weft_name_text(name);
    ADIOI_Free(fd->filename);
    fd->filename = text;
    fd->fns = &ADIO_WEFT_operations;
    fd->file_system = ADIO_WEFT;
}

/* What every process does once it has the file open. */
static void finish(ADIO_File fd, int access_mode, const struct announcement *told)
{
    rename_to_path(fd, &told->name);
    ad_weft_tell_layout(fd, told->layout);
    fd->blksize = told->layout.stripe > 0 ? told->layout.stripe : 4 << 20;
    if (access_mode & ADIO_APPEND)
        fd->fp_ind = told->size;
    fd->is_open = 1;
    fd->dirty_write = 0;
}

/* Opens at the opener, and tells the others. */
static void announce(ADIO_File fd, int rank, int access_mode, struct announcement *told, void *handle)
{
    if (rank == OPENER)
        open_first(fd, access_mode, told, handle);
    MPI_Bcast(told, (int)sizeof *told, MPI_BYTE, OPENER, fd->comm);
    if (told->handle_bytes > 0)
        MPI_Bcast(handle, told->handle_bytes, MPI_BYTE, OPENER, fd->comm);
}

void ad_weft_open_coll(ADIO_File fd, int rank, int access_mode, int *error_code)
{
    int processes, is_connect = 0;
    MPI_Comm_size(fd->comm, &processes);
    struct announcement *told = ADIOI_Calloc(1, sizeof *told);
    void *handle = processes > 1 ? ADIOI_Malloc(HANDLE_BYTES_MAX) : NULL;
    fd->fd_sys = -1;
    fd->fd_direct = -1;
    fd->access_mode = access_mode;
    announce(fd, rank, access_mode, told, handle);
    *error_code = MPI_SUCCESS;
    if (told->error < 0) {
        *error_code = code(fd->filename, told->error, told->is_connect, told->text);
    } else if (rank != OPENER) {
        int error = open_next(fd, access_mode, told, handle, &is_connect);
        if (error < 0)
            *error_code = code(fd->filename, error, is_connect, NULL);
    }
    if (*error_code == MPI_SUCCESS)
        finish(fd, access_mode, told);
    if (handle != NULL)
        ADIOI_Free(handle);
    ADIOI_Free(told);
}

/* An open that is not collective. ROMIO makes one where it deferred the collective one, which it does not for drivers
 * with ADIO_SCALABLE_OPEN; other callers may. */
void ad_weft_open(ADIO_File fd, int *error_code)
{
    struct announcement *told = ADIOI_Calloc(1, sizeof *told);
    fd->fd_sys = -1;
    fd->fd_direct = -1;
    open_first(fd, fd->access_mode, told, NULL);
    *error_code = told->error < 0 ? code(fd->filename, told->error, told->is_connect, told->text) : MPI_SUCCESS;
    if (told->error == 0)
        finish(fd, fd->access_mode, told);
    ADIOI_Free(told);
}

/* Errors of earlier writes show here. */
void ad_weft_close(ADIO_File fd, int *error_code)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    *error_code = MPI_SUCCESS;
    if (open == NULL)
        return;
    int error = weft_close(open->file);
    if (error < 0)
        *error_code = ad_weft_error("ad_weft_close", fd->filename, error, NULL);
    ADIOI_Free(open);
    fd->fs_ptr = NULL;
}

static int delete(const char *text, int parse_error, const struct ad_weft_name *name)
{
    struct ad_weft_connection *connection;
    if (parse_error < 0)
        return ad_weft_error("ad_weft_delete", text, parse_error, strerror(-parse_error));
    if (name->is_read_only)
        return ad_weft_error("ad_weft_delete", text, -EROFS, NULL);
    int error = ad_weft_connect(name, &connection);
    if (error < 0)
        return ad_weft_connect_error("ad_weft_delete", text, error, NULL);
    error = weft_unlink(connection->fs, name->path);
    return error < 0 ? ad_weft_error("ad_weft_delete", text, error, NULL) : MPI_SUCCESS;
}

void ad_weft_delete(const char *text, int *error_code)
{
    struct ad_weft_name name;
    *error_code = delete(text, ad_weft_parse(text, &name), &name);
}

void ad_weft_delete_mounted(const char *path, int *error_code)
{
    struct ad_weft_name name;
    *error_code = delete(path, ad_weft_parse_mounted(path, &name), &name);
}
