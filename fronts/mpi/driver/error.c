/* Maps errors of weft.h to MPI error codes.
 *
 * ADIOI_Err_create_code() maps errno values that have an error class. For the others it only has strerror(); here
 * MPI_ERR_IO carries the text of weft_strerror(): what was tried, at which offset, and why it failed.
 *
 * Blocking collective calls fail at every rank if they fail at one, so that all ranks make the same calls afterwards.
 * Collective accesses that do not wait for all ranks, nonblocking ones and of a split file those with the hint
 * weft_errors = own, fail at the rank alone. After such a write of a split file the next collective call that waits
 * fails at all ranks (docs/decisions/0028).
 */
#include "ad_weft.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* How often a rank looks whether the others have come: at first without a pause, then letting others run in between. */
enum { TESTS = 100, YIELDS = 500 };

int MPIO_Err_create_code(int last, int fatal, const char *where, int line, int class, const char *generic,
                         const char *specific, ...);

static int io_error(const char *where, int error, const char *text)
{
    return MPIO_Err_create_code(MPI_SUCCESS, MPIR_ERR_RECOVERABLE, where, __LINE__, MPI_ERR_IO, "**io", "**io %s",
                                text != NULL ? text : weft_strerror(error));
}

int ad_weft_error(const char *where, const char *name, int error, const char *text)
{
    switch (-error) {
    case EPERM: /* ADIOI_Err_create_code() does not know it */
        return ADIOI_Err_create_code(where, name, EACCES);
    case EACCES:
    case ENAMETOOLONG:
    case ENOENT:
    case EISDIR:
    case EROFS:
    case EEXIST:
    case ENOTDIR:
    case ELOOP:
    case ENOSPC:
    case EDQUOT:
        return ADIOI_Err_create_code(where, name, -error);
    default:
        return io_error(where, error, text);
    }
}

int ad_weft_connect_error(const char *where, const char *name, int error, const char *text)
{
    return -error == EACCES ? ADIOI_Err_create_code(where, name, EACCES) : io_error(where, error, text);
}

void ad_weft_note_failed(struct ad_weft_file *open, ssize_t result)
{
    if (result >= 0 || open->is_single)
        return;
    open->failed = (int)result;
    open->has_written = 1;
}

int ad_weft_with_failed(ADIO_File fd, int error)
{
    int failed = ad_weft_file(fd)->failed;
    ad_weft_file(fd)->failed = 0;
    return error < 0 ? error : failed;
}

int ad_weft_reduce(ADIO_File fd, int value, MPI_Op op)
{
    const struct timespec a_moment = {0, 20000};
    int result = value, is_done = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&value, &result, 1, MPI_INT, op, fd->comm, &request);
    for (int tests = 0; MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !is_done; tests++)
        if (tests >= TESTS + YIELDS)
            nanosleep(&a_moment, NULL);
        else if (tests >= TESTS)
            sched_yield();
    return result;
}

int ad_weft_agree(ADIO_File fd, int error)
{
    return ad_weft_reduce(fd, error, MPI_MIN);
}

int ad_weft_agreed_error(const char *where, const char *name, int own, int agreed)
{
    char text[AD_WEFT_TEXT];
    if (own == agreed)
        return ad_weft_error(where, name, own, NULL);
    snprintf(text, sizeof text, "at another process: %s", strerror(-agreed));
    return ad_weft_error(where, name, agreed, text);
}
