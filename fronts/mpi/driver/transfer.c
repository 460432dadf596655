/* Blocking reads and writes.
 *
 * An access is one library call: with a range if it is contiguous in memory and file, else with the whole pattern
 * (pattern.c). There is no data sieving, so an independent write never reads, nor writes bytes that are not the
 * program's.
 *
 * Collective calls exchange no data where the file is split: each rank's bytes belong into its own part, and two-phase
 * would bring them to another node first. Collective calls end with an agreement on the error.
 *
 * Invariant: during ROMIO's two-phase no access returns an error. ROMIO would return at once at the rank that got it,
 * and the other ranks wait for that one's data forever. The error is noted, the rank's other accesses of the call are
 * skipped (what ROMIO would write next may have holes that it could not read), and the agreement reports it.
 *
 * A read at end of file is short, not an error; the status has the byte count. */
#include "ad_weft.h"
#include <errno.h>

static ssize_t contiguous(struct ad_weft_file *open, int is_write, void *memory, size_t length, off_t offset)
{
    return is_write ? weft_pwrite(open->file, memory, length, offset) : weft_pread(open->file, memory, length, offset);
}

/* Transfers one pattern. */
static ssize_t transfer_part(struct ad_weft_file *open, int is_write, const struct ad_weft_pattern *part)
{
    const struct weft_strided *regular = &part->regular;
    if (regular->count == 1)
        return contiguous(open, is_write, regular->memory, regular->block, regular->offset);
    if (regular->count > 0)
        return is_write ? weft_write_strided(open->file, regular) : weft_read_strided(open->file, regular);
    return is_write ? weft_write_list(open->file, part->extents, part->count)
                    : weft_read_list(open->file, part->extents, part->count);
}

/* Transfers an access, up to end of file. Returns the number of bytes or -errno. */
static ssize_t transfer_all(struct ad_weft_file *open, int is_write, struct ad_weft_access *access)
{
    struct ad_weft_pattern part = {0};
    ssize_t sum = 0, moved = 0;
    int more;
    while ((more = ad_weft_next(access, &part)) > 0) {
        moved = transfer_part(open, is_write, &part);
        if (moved < 0)
            break;
        sum += moved;
        if (moved < part.bytes)
            break;
    }
    ad_weft_free_pattern(&part);
    if (more < 0)
        return more;
    return moved < 0 ? moved : sum;
}

/* Returns whether each access of a split file is to see all others: they follow one another by a shared file pointer. */
static int is_shared(ADIO_File fd)
{
    return ad_weft_file(fd)->is_deferred && fd->shared_fp_fd != ADIO_FILE_NULL;
}

/* Before and after an access. If it is such a one, a read sees what was published, a write is published. Return -errno
 * on failure. */
static int begin_access(ADIO_File fd, int is_write)
{
    if (ad_weft_file(fd)->exchange_error < 0)
        return ad_weft_file(fd)->exchange_error;
    return is_shared(fd) && !is_write ? ad_weft_publish(fd) : 0;
}

static ssize_t end_shared(ADIO_File fd, int is_write, ssize_t moved)
{
    int error = is_shared(fd) && is_write && moved >= 0 ? ad_weft_publish(fd) : 0;
    return error < 0 ? error : moved;
}

/* Returns the MPI error code of a failed access, of which ROMIO learns nothing while it exchanges data. */
static int failed(ADIO_File fd, const char *where, int error)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    if (!open->is_exchanging)
        return ad_weft_error(where, fd->filename, error, NULL);
    open->exchange_error = error;
    return MPI_SUCCESS;
}

static void contig(ADIO_File fd, int is_write, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                   ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    MPI_Count size;
    MPI_Type_size_x(datatype, &size);
    if (file_ptr_type == ADIO_INDIVIDUAL)
        offset = fd->fp_ind;
    ssize_t moved = begin_access(fd, is_write);
    if (moved == 0)
        moved = contiguous(ad_weft_file(fd), is_write, buf, (size_t)size * (size_t)count, offset);
    moved = end_shared(fd, is_write, moved);
    fd->fp_sys_posn = -1;
    if (moved < 0) {
        *error_code = failed(fd, is_write ? "ad_weft_write" : "ad_weft_read", (int)moved);
        return;
    }
    if (is_write)
        ad_weft_wrote(fd);
    if (file_ptr_type == ADIO_INDIVIDUAL)
        fd->fp_ind += moved;
    MPIR_Status_set_bytes(status, datatype, moved);
    *error_code = MPI_SUCCESS;
}

/* Returns the range from the first to the last byte of an access, which is locked in atomic mode. */
static struct weft_lock range_of(const struct ad_weft_access *access, int is_write)
{
    struct ad_weft_walk walk = access->file;
    struct weft_lock lock = {ad_weft_walk_position(&walk), 0, is_write};
    ad_weft_walk_on(&walk, access->left - 1);
    lock.length = ad_weft_walk_position(&walk) + 1 - lock.start;
    return lock;
}

/* Advances the individual file pointer by the bytes transferred. */
static void move_pointer(ADIO_File fd, struct ad_weft_walk *walk, ADIO_Offset bytes)
{
    ad_weft_walk_on(walk, bytes);
    fd->fp_ind = ad_weft_walk_position(walk);
}

static ssize_t transfer_locked(ADIO_File fd, int is_write, struct ad_weft_access *access)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    int error = fd->atomicity ? open->exchange_error : begin_access(fd, is_write);
    if (error < 0)
        return error;
    if (!fd->atomicity)
        return end_shared(fd, is_write, transfer_all(open, is_write, access));
    struct weft_lock lock = range_of(access, is_write);
    error = weft_lock(open->file, &lock, 1, 0);
    if (error < 0)
        return error;
    ssize_t moved = transfer_all(open, is_write, access);
    error = weft_unlock(open->file, &lock, 1);
    return moved >= 0 && error < 0 ? error : moved;
}

/* Returns the number of bytes or -errno, which is in `error_code` too, unless ROMIO exchanges data. */
static ssize_t strided(ADIO_File fd, int is_write, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                    ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    const char *where = is_write ? "ad_weft_write_strided" : "ad_weft_read_strided";
    struct ad_weft_access access;
    ssize_t moved = ad_weft_begin(&access, fd, buf, count, datatype, file_ptr_type, offset);
    if (moved == 0 && access.left > 0) {
        struct ad_weft_walk file = access.file;
        moved = transfer_locked(fd, is_write, &access);
        if (moved > 0 && file_ptr_type == ADIO_INDIVIDUAL)
            move_pointer(fd, &file, moved);
        ad_weft_end(&access);
    }
    fd->fp_sys_posn = -1;
    if (moved < 0) {
        *error_code = failed(fd, where, (int)moved);
        return moved;
    }
    if (is_write && moved > 0)
        ad_weft_wrote(fd);
    MPIR_Status_set_bytes(status, datatype, moved);
    *error_code = MPI_SUCCESS;
    return moved;
}

void ad_weft_read_contig(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                         ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    contig(fd, 0, buf, count, datatype, file_ptr_type, offset, status, error_code);
}

void ad_weft_write_contig(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    contig(fd, 1, (void *)buf, count, datatype, file_ptr_type, offset, status, error_code);
}

void ad_weft_read_strided(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    (void)strided(fd, 0, buf, count, datatype, file_ptr_type, offset, status, error_code);
}

void ad_weft_write_strided(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    strided(fd, 1, buf, count, datatype, file_ptr_type, offset, status, error_code);
}

/* Ends a collective access with an agreement on its error. `error` is this rank's own, 0 or -errno. */
static void agree(ADIO_File fd, const char *where, int error, int *error_code)
{
    int agreed = ad_weft_agree(fd, error);
    if (agreed < 0)
        *error_code = ad_weft_agreed_error(where, fd->filename, error, agreed);
}

/* Has a collective read see what the ranks have written before, as it does in other layouts. Returns the error that all
 * ranks have agreed on, or 0; `own` is 0, or the -errno of this rank alone. */
static int share_writes(ADIO_File fd, int *own)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    *own = 0;
    if (fd->access_mode & ADIO_RDONLY || !open->is_deferred)
        return 0;
    int has_written = ad_weft_reduce(fd, open->has_written, MPI_MAX);
    open->has_written = 0;
    if (!has_written)
        return 0;
    int agreed = ad_weft_agree(fd, ad_weft_with_failed(fd, ad_weft_publish_together(fd)));
    if (agreed == 0)
        *own = ad_weft_publish(fd);
    return agreed;
}

static void read_of_all(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                        ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    static const char where[] = "ad_weft_read_strided_coll";
    int own, agreed = share_writes(fd, &own);
    if (agreed < 0) {
        *error_code = ad_weft_error(where, fd->filename, agreed, NULL);
        return;
    }
    ssize_t moved = own;
    if (own < 0)
        *error_code = ad_weft_error(where, fd->filename, own, NULL);
    else
        moved = strided(fd, 0, buf, count, datatype, file_ptr_type, offset, status, error_code);
    if (ad_weft_file(fd)->agrees_on_errors)
        agree(fd, where, (int)MPL_MIN(moved, 0), error_code);
}

ssize_t ad_weft_write_part(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    return strided(fd, 1, buf, count, datatype, file_ptr_type, offset, status, error_code);
}

/* Of a file whose ranks do not wait for each other, the next collective call that waits tells the error to all. */
static void write_of_all(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                         ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    ssize_t moved = ad_weft_write_part(fd, buf, count, datatype, file_ptr_type, offset, status, error_code);
    if (ad_weft_file(fd)->agrees_on_errors)
        agree(fd, "ad_weft_write_strided_coll", (int)MPL_MIN(moved, 0), error_code);
    else
        ad_weft_note_failed(ad_weft_file(fd), moved);
}

static void begin_exchange(ADIO_File fd)
{
    ad_weft_file(fd)->is_exchanging = 1;
}

static void end_exchange(ADIO_File fd, const char *where, int *error_code)
{
    int error = ad_weft_file(fd)->exchange_error;
    ad_weft_file(fd)->is_exchanging = ad_weft_file(fd)->exchange_error = 0;
    agree(fd, where, error, error_code);
}

void ad_weft_read_strided_coll(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                               ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    if (ad_weft_file(fd)->is_split) {
        read_of_all(fd, buf, count, datatype, file_ptr_type, offset, status, error_code);
        return;
    }
    begin_exchange(fd);
    ADIOI_GEN_ReadStridedColl(fd, buf, count, datatype, file_ptr_type, offset, status, error_code);
    end_exchange(fd, "ad_weft_read_strided_coll", error_code);
}

void ad_weft_write_strided_coll(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                                ADIO_Offset offset, ADIO_Status *status, int *error_code)
{
    if (ad_weft_file(fd)->is_split) {
        write_of_all(fd, buf, count, datatype, file_ptr_type, offset, status, error_code);
        return;
    }
    begin_exchange(fd);
    ADIOI_GEN_WriteStridedColl(fd, buf, count, datatype, file_ptr_type, offset, status, error_code);
    end_exchange(fd, "ad_weft_write_strided_coll", error_code);
}
