/* Size, sync, atomic mode, locks.
 *
 * Locks are byte-range locks of weft.h, which exclude processes on all nodes. ROMIO takes them for contiguous accesses
 * in atomic mode and for shared file pointers, transfer.c for strided accesses. */
#include "ad_weft.h"
#include <errno.h>
#include <string.h>

int MPIO_Err_create_code(int last, int fatal, const char *where, int line, int class, const char *generic,
                         const char *specific, ...);

/* Size of a write of zeros. */
#define ZEROS_BYTES ((size_t)4 << 20)

ADIO_Offset ad_weft_size(ADIO_File fd)
{
    struct statx attributes;
    int error = ad_weft_publish(fd);
    if (error < 0)
        return error;
    error = weft_fstatx(ad_weft_file(fd)->file, STATX_SIZE, &attributes);
    return error < 0 ? error : (ADIO_Offset)attributes.stx_size;
}

/* Extends the file with zeros up to `size`. Holes before its end are not filled. ROMIO calls it at rank 0 only: of a
 * split file zeros would be that rank's own bytes, published after those of other ranks perhaps, so it gets its size and
 * no more. */
static int preallocate(ADIO_File fd, ADIO_Offset size)
{
    ADIO_Offset end = ad_weft_size(fd);
    if (end < 0 || end >= size)
        return end < 0 ? (int)end : 0;
    if (ad_weft_file(fd)->is_split)
        return weft_ftruncate(ad_weft_file(fd)->file, size);
    char *zeros = ADIOI_Calloc(1, ZEROS_BYTES);
    ssize_t written = 0;
    for (; end < size && written >= 0; end += written) {
        ADIO_Offset bytes = MPL_MIN(size - end, (ADIO_Offset)ZEROS_BYTES);
        written = weft_pwrite(ad_weft_file(fd)->file, zeros, (size_t)bytes, end);
    }
    ADIOI_Free(zeros);
    if (written < 0)
        return (int)written;
    ad_weft_wrote(fd);
    return 0;
}

void ad_weft_fcntl(ADIO_File fd, int flag, ADIO_Fcntl_t *argument, int *error_code)
{
    static const char where[] = "ad_weft_fcntl";
    int error = 0;
    *error_code = MPI_SUCCESS;
    switch (flag) {
    case ADIO_FCNTL_GET_FSIZE:
        argument->fsize = ad_weft_size(fd);
        error = argument->fsize < 0 ? (int)argument->fsize : 0;
        break;
    case ADIO_FCNTL_SET_DISKSPACE:
        error = preallocate(fd, argument->diskspace);
        break;
    case ADIO_FCNTL_SET_ATOMICITY:
        fd->atomicity = argument->atomicity != 0;
        break;
    default:
        *error_code = MPIO_Err_create_code(MPI_SUCCESS, MPIR_ERR_RECOVERABLE, where, __LINE__, MPI_ERR_ARG, "**flag",
                                           "**flag %d", flag);
    }
    if (error < 0)
        *error_code = ad_weft_error(where, fd->filename, error, NULL);
}

/* Syncs what this process has written. Of a split file a process that has written nothing sees from now on what others
 * have synced. Collective. */
void ad_weft_flush(ADIO_File fd, int *error_code)
{
    int is_due = fd->is_open && (fd->dirty_write || ad_weft_file(fd)->is_deferred);
    int error = ad_weft_publish_together(fd);
    int synced = is_due ? weft_fsync(ad_weft_file(fd)->file) : 0;
    error = ad_weft_with_failed(fd, error < 0 ? error : synced);
    int agreed = ad_weft_agree(fd, error);
    *error_code = MPI_SUCCESS;
    if (error == 0)
        fd->dirty_write = 0;
    if (agreed < 0)
        *error_code = ad_weft_agreed_error("ad_weft_flush", fd->filename, error, agreed);
}

/* Collective: one rank truncates and broadcasts the result. Of a split file all ranks have published before, so that
 * nothing of before comes back, and ask for its extents anew after that. */
void ad_weft_resize(ADIO_File fd, ADIO_Offset size, int *error_code)
{
    struct {
        int error;
        char text[AD_WEFT_TEXT];
    } result = {0, ""};
    int rank, root = fd->hints->ranklist[0];
    int error = ad_weft_with_failed(fd, ad_weft_publish_together(fd)), agreed = 0;
    MPI_Comm_rank(fd->comm, &rank);
    if (ad_weft_file(fd)->is_split && (agreed = ad_weft_agree(fd, error)) < 0) {
        *error_code = ad_weft_agreed_error("ad_weft_resize", fd->filename, error, agreed);
        return;
    }
    if (rank == root && (result.error = weft_ftruncate(ad_weft_file(fd)->file, size)) < 0)
        snprintf(result.text, sizeof result.text, "%s", weft_strerror(result.error));
    MPI_Bcast(&result, (int)sizeof result, MPI_BYTE, root, fd->comm);
    error = ad_weft_publish(fd);
    *error_code = MPI_SUCCESS;
    if (error < 0)
        *error_code = ad_weft_error("ad_weft_resize", fd->filename, error, NULL);
    if (result.error < 0)
        *error_code = ad_weft_error("ad_weft_resize", fd->filename, result.error, result.text);
}

/* Arguments as of fcntl(2); `whence` is always SEEK_SET. */
int ad_weft_set_lock(ADIO_File fd, int command, int type, ADIO_Offset offset, int whence, ADIO_Offset length)
{
    weft_file_t file = ad_weft_file(fd)->file;
    struct weft_lock lock = {offset, length, type == F_WRLCK};
    int error;
    (void)whence;
    if (length == 0)
        return MPI_SUCCESS;
    if (type == F_UNLCK)
        error = weft_unlock(file, &lock, 1);
    else
        error = weft_lock(file, &lock, 1, command == F_SETLK ? WEFT_LOCK_NOWAIT : 0);
    return error < 0 ? ad_weft_error("ad_weft_set_lock", fd->filename, error, NULL) : MPI_SUCCESS;
}
