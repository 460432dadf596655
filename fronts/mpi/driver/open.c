/* Open, close, delete.
 *
 * A collective open costs one call at the metadata server, independent of the size of the communicator, if the
 * directory is known: rank 0 opens the file for all, exports its handle and broadcasts it; the other ranks import it.
 * The same call makes a new file; its objects come with the first access (docs/decisions/0033).
 * While a file is exported no client caches it, so a write is visible to all ranks when it returns. Of a split file each
 * rank publishes what it has written when it synchronizes or closes. Special cases:
 *
 *     rank 0 cannot open       all ranks fail with its error
 *     rank 0 cannot export     each rank opens the file
 *     a rank cannot import     that rank opens the file (it has another user's key)
 *     one rank                 plain open, unless the file is split; the client may cache under a lease
 *     visible at once          of a split file each rank opens the file, a call each, and so publishes each write
 *                              (weft_visibility)
 *
 * After the open `fd->filename` names file system and path independent of mounts and working directories. ROMIO derives
 * the name of the shared file pointer's file from it, and deletes by it. */
#include "ad_weft.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

extern struct ADIOI_Fns_struct ADIO_WEFT_operations, ADIO_WEFT_MOUNT_operations;

/* Rank that opens. The same that looks for a mount (name.c). */
#define OPENER 0

/* Broadcast by rank 0. */
struct open_result {
    int error;      /* 0 or -errno, explained by `text` */
    int is_connect; /* `error` is that of weft_connect() */
    char text[AD_WEFT_TEXT];
    struct ad_weft_name name;
    struct ad_weft_layout layout;
    int agrees_on_errors;  /* at all ranks or at none, whatever their hints say */
    int obeys_drain;       /* the file is marked for drains as the hint of rank 0 says */
    ADIO_Offset size;      /* for MPI_MODE_APPEND */
    int handle_bytes;      /* 0: no handle, each rank opens the file */
};

/* Maximum size of an exported handle: 64 bytes per node of a striped file. */
#define HANDLE_BYTES_MAX (64 << 10)

static int is_mounted_name(ADIO_File fd)
{
    return fd->fns == &ADIO_WEFT_MOUNT_operations;
}

static int parse(ADIO_File fd, struct ad_weft_name *name)
{
    return is_mounted_name(fd) ? ad_weft_parse_mounted(fd->filename, name) : ad_weft_parse(fd->filename, name);
}

/* Returns whether this is the file of a shared file pointer (ADIOI_Shfp_fname). Each access is by another process, so
 * caching it would only cause recalls. */
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

/* Returns the hint that has rank 0's open be for all ranks, if the layout of the file is one that it exports. */
static const char *group_hint(ADIO_File fd, const struct ad_weft_name *name, int is_single)
{
    if (is_shared_pointer(name))
        return "";
    if (ad_weft_is_immediate(fd))
        return is_single ? "" : " group=unsplit";
    return is_single ? " group=split" : " group=all";
}

/* Opens with hints. Hints are advisory: a layout that is invalid is dropped. */
static int open_with_hints(ADIO_File fd, weft_file_t root, const struct ad_weft_name *name, int flags,
                           const char *group, weft_file_t *file)
{
    char layout[AD_WEFT_WORDS], words[AD_WEFT_WORDS], both[2 * AD_WEFT_WORDS];
    mode_t mode = fd->perm == ADIO_PERM_NULL ? 0666 : (mode_t)fd->perm;
    int is_pointer = is_shared_pointer(name);
    ad_weft_layout_words(fd, layout);
    if (is_pointer)
        strcpy(layout, "whole");
    ad_weft_handle_words(fd, words);
    strcat(words, group);
    if (flags & O_CREAT && *layout != '\0') {
        snprintf(both, sizeof both, "%s %s", layout, words);
        int error = weft_openat(root, name->path, flags, mode, both, file);
        if (error != -EINVAL)
            return error;
    }
    return weft_openat(root, name->path, flags, mode, words, file);
}

/* Makes this the handle of the ADIO_File. */
static void keep(ADIO_File fd, struct ad_weft_connection *connection, weft_file_t file)
{
    struct ad_weft_file *open = ADIOI_Calloc(1, sizeof *open);
    open->connection = connection;
    open->file = file;
    open->node = MPI_COMM_NULL;
    fd->fs_ptr = open;
}

/* Opens the file in this process, or by it for others (group_hint). Collective writes with holes read the holes, so
 * write-only files are opened for reading too if permissions allow it. */
static int open_by_name(ADIO_File fd, struct ad_weft_connection *connection, const struct ad_weft_name *name,
                        int access_mode, const char *group)
{
    weft_file_t root, file;
    int flags = flags_of(access_mode, name);
    int error = weft_root(connection->fs, &root);
    if (error < 0)
        return error;
    error = open_with_hints(fd, root, name, flags, group, &file);
    if (error == -EACCES && access_mode & ADIO_WRONLY)
        error = open_with_hints(fd, root, name, (flags & ~O_ACCMODE) | O_WRONLY, group, &file);
    weft_close(root);
    if (error < 0)
        return error;
    keep(fd, connection, file);
    return 0;
}

static void fail(struct open_result *result, int error, int is_connect)
{
    result->error = error;
    result->is_connect = is_connect;
    snprintf(result->text, sizeof result->text, "%s", weft_strerror(error));
}

/* Exports the handle; on failure `handle_bytes` is 0. */
static void export(struct open_result *result, weft_file_t file, void *handle)
{
    ssize_t bytes = weft_export(file, handle, HANDLE_BYTES_MAX);
    result->handle_bytes = bytes > 0 ? (int)bytes : 0;
}

/* Opens the file at rank 0 and fills in the result. `handle` is the buffer for the exported handle. A single rank
 * needs none, unless the file is split. */
static void open_first(ADIO_File fd, int access_mode, struct open_result *result, void *handle, int is_single)
{
    struct ad_weft_connection *connection;
    int error = parse(fd, &result->name);
    if (error == 0 && result->name.is_read_only && !(access_mode & ADIO_RDONLY))
        error = -EROFS;
    if (error < 0) {
        fail(result, error, 0);
        return;
    }
    if ((error = ad_weft_connect(&result->name, &connection)) < 0) {
        fail(result, error, 1);
        return;
    }
    const char *group = group_hint(fd, &result->name, is_single);
    if ((error = open_by_name(fd, connection, &result->name, access_mode, group)) < 0) {
        fail(result, error, 0);
        return;
    }
    result->layout = ad_weft_layout(ad_weft_file(fd)->file);
    result->agrees_on_errors = ad_weft_agrees_on_errors(fd);
    if (!(access_mode & ADIO_RDONLY) && !is_shared_pointer(&result->name))
        result->obeys_drain = ad_weft_set_drain(fd, connection->fs, result->name.path);
    if (access_mode & ADIO_APPEND)
        result->size = ad_weft_size(fd);
    if (result->layout.is_split ? !ad_weft_is_immediate(fd) : !is_single)
        export(result, ad_weft_file(fd)->file, handle);
}

/* Imports the file at the other ranks, or opens it. */
static int open_next(ADIO_File fd, int access_mode, const struct open_result *result, const void *handle,
                     int *is_connect)
{
    struct ad_weft_connection *connection;
    char words[AD_WEFT_WORDS];
    weft_file_t file;
    int error = ad_weft_connect(&result->name, &connection);
    *is_connect = error < 0;
    if (error < 0)
        return error;
    ad_weft_handle_words(fd, words);
    if (result->handle_bytes == 0 ||
        weft_import(connection->fs, handle, (size_t)result->handle_bytes, words, &file) < 0)
        return open_by_name(fd, connection, &result->name, access_mode & ~(ADIO_CREATE | ADIO_EXCL), "");
    keep(fd, connection, file);
    return 0;
}

static int code(const char *name, int error, int is_connect, const char *text)
{
    return is_connect ? ad_weft_connect_error("ad_weft_open", name, error, text)
                      : ad_weft_error("ad_weft_open", name, error, text);
}

/* Replaces the file name by one that is valid at every rank. */
static void rename_to_path(ADIO_File fd, const struct ad_weft_name *name)
{
    char *text = ad_weft_name_text(name);
    ADIOI_Free(fd->filename);
    fd->filename = text;
    fd->fns = &ADIO_WEFT_operations;
    fd->file_system = ADIO_WEFT;
}

/* Sets up the ADIO_File once the file is open. */
static void finish(ADIO_File fd, int access_mode, const struct open_result *result, int is_single)
{
    rename_to_path(fd, &result->name);
    ad_weft_file(fd)->is_split = result->layout.is_split;
    ad_weft_file(fd)->is_deferred = result->layout.is_split && result->handle_bytes > 0;
    ad_weft_file(fd)->agrees_on_errors = result->agrees_on_errors;
    ad_weft_file(fd)->is_single = is_single;
    ad_weft_set_used_hints(fd, result->layout, result->obeys_drain);
    fd->blksize = result->layout.stripe > 0 ? result->layout.stripe : 4 << 20;
    if (access_mode & ADIO_APPEND)
        fd->fp_ind = result->size;
    fd->is_open = 1;
    fd->dirty_write = 0;
}

/* Opens at rank 0 and broadcasts the result. */
static void open_and_broadcast(ADIO_File fd, int rank, int access_mode, struct open_result *result, void *handle,
                               int is_single)
{
    if (rank == OPENER)
        open_first(fd, access_mode, result, handle, is_single);
    MPI_Bcast(result, (int)sizeof *result, MPI_BYTE, OPENER, fd->comm);
    if (result->handle_bytes > 0)
        MPI_Bcast(handle, result->handle_bytes, MPI_BYTE, OPENER, fd->comm);
}

void ad_weft_open_coll(ADIO_File fd, int rank, int access_mode, int *error_code)
{
    int processes, is_connect = 0;
    MPI_Comm_size(fd->comm, &processes);
    struct open_result *result = ADIOI_Calloc(1, sizeof *result);
    void *handle = ADIOI_Malloc(HANDLE_BYTES_MAX);
    fd->fd_sys = -1;
    fd->fd_direct = -1;
    fd->access_mode = access_mode;
    fd->shared_fp_fname = NULL;
    open_and_broadcast(fd, rank, access_mode, result, handle, processes == 1);
    *error_code = MPI_SUCCESS;
    if (result->error < 0) {
        *error_code = code(fd->filename, result->error, result->is_connect, result->text);
    } else if (rank != OPENER) {
        int error = open_next(fd, access_mode, result, handle, &is_connect);
        if (error < 0)
            *error_code = code(fd->filename, error, is_connect, NULL);
    }
    if (*error_code == MPI_SUCCESS)
        finish(fd, access_mode, result, processes == 1);
    ADIOI_Free(handle);
    ADIOI_Free(result);
}

/* Independent open. ROMIO only uses it for deferred opens, which ADIO_SCALABLE_OPEN disables. */
void ad_weft_open(ADIO_File fd, int *error_code)
{
    struct open_result *result = ADIOI_Calloc(1, sizeof *result);
    fd->fd_sys = -1;
    fd->fd_direct = -1;
    void *handle = ADIOI_Malloc(HANDLE_BYTES_MAX);
    open_first(fd, fd->access_mode, result, handle, 1);
    ADIOI_Free(handle);
    *error_code = result->error < 0 ? code(fd->filename, result->error, result->is_connect, result->text) : MPI_SUCCESS;
    if (result->error == 0)
        finish(fd, fd->access_mode, result, 1);
    ADIOI_Free(result);
}

/* Returns whether all ranks have opened the file, and so close it together: ROMIO names the file of the shared pointer
 * after that. If the open fails at one rank, only the others close. */
static int is_open_everywhere(ADIO_File fd)
{
    return fd->shared_fp_fname != NULL;
}

/* Reports write-back errors. A split file is complete when any rank returns. */
void ad_weft_close(ADIO_File fd, int *error_code)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    *error_code = MPI_SUCCESS;
    if (open == NULL)
        return;
    int is_last = !open->is_deferred; /* whether the close itself is what can fail */
    int error = is_last                  ? weft_close(open->file)
                : is_open_everywhere(fd) ? ad_weft_publish_together(fd)
                                         : ad_weft_publish(fd);
    error = ad_weft_with_failed(fd, error);
    int agreed = is_open_everywhere(fd) ? ad_weft_agree(fd, error) : error;
    int closed = is_last ? 0 : weft_close(open->file);
    if (agreed < 0)
        *error_code = ad_weft_agreed_error("ad_weft_close", fd->filename, error, agreed);
    else if (closed < 0)
        *error_code = ad_weft_error("ad_weft_close", fd->filename, closed, NULL);
    if (open->node != MPI_COMM_NULL)
        MPI_Comm_free(&open->node);
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
