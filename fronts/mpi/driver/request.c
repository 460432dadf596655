/* Nonblocking reads and writes.
 *
 * Each is submitted to a queue of the C library, whose threads execute it, and is an extended generalized request of
 * mpich: its poll and wait functions reap completions from the queue. The thread that reaps a completion records it in
 * the request it belongs to; only the request's own poll or wait calls MPI_Grequest_complete().
 *
 * Executed synchronously instead: accesses in atomic mode, and lists that do not fit into one call.
 *
 * Locks: `mutex` guards the state of all requests and the creation of queues. It is not held across MPI calls, nor
 * while waiting. */
#include "ad_weft.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "../../mpi-io/mpioimpl.h"
#include "mpiu_greq.h"

/* Maximum number of requests in flight per process and file system; more wait in the queue. */
#define QUEUE_DEPTH 16
#define COMPLETIONS 32

enum state { PENDING, DONE, COMPLETED };

/* WRITE_OF_ALL: a rank's own part of a collective write of a split file. */
enum kind { READ, WRITE, WRITE_OF_ALL };

struct request {
    MPI_Request handle;
    struct ad_weft_connection *connection;
    enum state state;
    ssize_t result;
    enum kind kind;
    struct ad_weft_file *open; /* while the request is active */
    char *name;                /* of the file, for errors */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Reaps completions; waits up to `timeout_ms` for the first one. */
static void reap(weft_queue_t queue, int timeout_ms)
{
    struct weft_completion completions[COMPLETIONS];
    ssize_t count = weft_wait(queue, completions, timeout_ms != 0, COMPLETIONS, timeout_ms);
    pthread_mutex_lock(&mutex);
    for (ssize_t index = 0; index < count; index++) {
        struct request *request = completions[index].tag;
        request->result = completions[index].result;
        request->state = DONE;
    }
    pthread_mutex_unlock(&mutex);
}

static enum state state_of(struct request *request)
{
    pthread_mutex_lock(&mutex);
    enum state state = request->state;
    pthread_mutex_unlock(&mutex);
    return state;
}

/* Completes a request whose I/O is done, once. */
static int complete(struct request *request)
{
    pthread_mutex_lock(&mutex);
    int is_due = request->state == DONE;
    if (is_due)
        request->state = COMPLETED;
    pthread_mutex_unlock(&mutex);
    return is_due ? MPI_Grequest_complete(request->handle) : MPI_SUCCESS;
}

static int poll_request(void *state, MPI_Status *status)
{
    struct request *request = state;
    (void)status;
    if (state_of(request) == PENDING)
        reap(request->connection->queue, 0);
    return complete(request);
}

static void finish(struct request *request)
{
    while (state_of(request) == PENDING) {
        reap(request->connection->queue, -1);
        sched_yield(); /* another thread has reaped it and is about to record it */
    }
}

static int wait_requests(int count, void **states, double timeout, MPI_Status *status)
{
    int result = MPI_SUCCESS;
    (void)timeout;
    (void)status;
    for (int index = 0; index < count; index++) {
        finish(states[index]);
        int error = complete(states[index]);
        if (error != MPI_SUCCESS)
            result = error;
    }
    return result;
}

static int query_request(void *state, MPI_Status *status)
{
    struct request *request = state;
    ssize_t result = request->result;
    MPI_Status_set_elements_x(status, MPI_BYTE, result > 0 ? result : 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    if (result >= 0)
        return MPI_SUCCESS;
    if (request->kind == WRITE_OF_ALL)
        ad_weft_note_failed(request->open, result);
    const char *where = request->kind != READ ? "ad_weft_iwrite" : "ad_weft_iread";
    return ad_weft_error(where, request->name, (int)result, strerror((int)-result));
}

/* A program may free an active request. Its buffer is in use until the I/O is done. */
static int free_request(void *state)
{
    struct request *request = state;
    finish(request);
    ADIOI_Free(request->name);
    ADIOI_Free(request);
    return MPI_SUCCESS;
}

static int make_queue(struct ad_weft_connection *connection)
{
    int error = 0;
    pthread_mutex_lock(&mutex);
    if (connection->queue == 0)
        error = weft_queue_create(connection->fs, QUEUE_DEPTH, &connection->queue);
    pthread_mutex_unlock(&mutex);
    return error;
}

static MPIX_Grequest_class request_class(void)
{
    static MPIX_Grequest_class class; /* guarded by ROMIO's global lock */
    static int is_made;
    if (!is_made)
        MPIX_Grequest_class_create(query_request, free_request, MPIU_Greq_cancel_fn, poll_request, wait_requests,
                                   &class);
    is_made = 1;
    return class;
}

/* Submits an extent list. On -errno the caller falls back to synchronous I/O. */
static int submit(ADIO_File fd, enum kind kind, const struct ad_weft_pattern *part, ADIO_Request *handle)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    int error = make_queue(open->connection);
    if (error < 0)
        return error;
    struct request *request = ADIOI_Calloc(1, sizeof *request);
    request->connection = open->connection;
    request->kind = kind;
    request->open = open;
    request->name = ADIOI_Strdup(fd->filename);
    MPIX_Grequest_class_allocate(request_class(), request, handle);
    request->handle = *handle;
    struct weft_request wanted = {
        sizeof wanted, kind != READ ? WEFT_WRITE : WEFT_READ, open->file, part->extents, part->count, request,
    };
    error = weft_submit(open->connection->queue, &wanted, 1);
    if (error < 0) {
        request->state = COMPLETED;
        MPI_Grequest_complete(request->handle);
        MPI_Request_free(handle);
        return error;
    }
    if (kind != READ)
        ad_weft_wrote(fd);
    return 0;
}

/* Submits an access. On -errno nothing has changed, and the caller falls back to synchronous I/O. */
static int begin(ADIO_File fd, enum kind kind, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                 ADIO_Offset offset, ADIO_Request *request)
{
    struct ad_weft_access access;
    struct ad_weft_pattern part = {0};
    int error = fd->atomicity ? -EAGAIN : ad_weft_begin(&access, fd, buf, count, datatype, file_ptr_type, offset);
    if (error < 0)
        return error;
    error = ad_weft_next(&access, &part) > 0 ? 0 : -EAGAIN;
    if (error == 0 && (access.left > 0 || access.kept.length > 0 || part.regular.count > AD_WEFT_EXTENTS_MAX))
        error = -EAGAIN;
    if (error == 0)
        error = ad_weft_to_list(&part);
    if (error == 0)
        error = submit(fd, kind, &part, request);
    if (error == 0 && file_ptr_type == ADIO_INDIVIDUAL)
        fd->fp_ind = ad_weft_walk_position(&access.file);
    ad_weft_end(&access);
    ad_weft_free_pattern(&part);
    return error;
}

/* Creates a completed request for synchronous I/O. */
static void completed(ADIO_File fd, MPI_Datatype datatype, ADIO_Status *status, ADIO_Request *request, int *error_code)
{
    MPI_Count bytes = 0;
    (void)datatype;
    if (*error_code == MPI_SUCCESS)
        MPI_Get_elements_x(status, MPI_BYTE, &bytes);
    MPIO_Completed_request_create(&fd, bytes, error_code, request);
}

void ad_weft_iread_strided(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Request *request, int *error_code)
{
    ADIO_Status status;
    *error_code = MPI_SUCCESS;
    if (begin(fd, READ, buf, count, datatype, file_ptr_type, offset, request) == 0)
        return;
    ad_weft_read_strided(fd, buf, count, datatype, file_ptr_type, offset, &status, error_code);
    completed(fd, datatype, &status, request, error_code);
}

void ad_weft_iwrite_strided(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                            ADIO_Offset offset, ADIO_Request *request, int *error_code)
{
    ADIO_Status status;
    *error_code = MPI_SUCCESS;
    if (begin(fd, WRITE, buf, count, datatype, file_ptr_type, offset, request) == 0)
        return;
    ad_weft_write_strided(fd, buf, count, datatype, file_ptr_type, offset, &status, error_code);
    completed(fd, datatype, &status, request, error_code);
}

/* Submits a contiguous access, whose offset is in bytes of the file. */
static int begin_contig(ADIO_File fd, enum kind kind, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                        ADIO_Offset offset, ADIO_Request *request)
{
    MPI_Count size;
    MPI_Type_size_x(datatype, &size);
    struct weft_extent extent = {buf, (size_t)size * (size_t)count, offset};
    struct ad_weft_pattern part = {.extents = &extent, .count = 1};
    if (file_ptr_type == ADIO_INDIVIDUAL)
        extent.offset = fd->fp_ind;
    int error = submit(fd, kind, &part, request);
    if (error == 0 && file_ptr_type == ADIO_INDIVIDUAL)
        fd->fp_ind += (ADIO_Offset)extent.length;
    return error;
}

void ad_weft_iread_contig(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, ADIO_Request *request, int *error_code)
{
    ADIO_Status status;
    *error_code = MPI_SUCCESS;
    if (begin_contig(fd, READ, buf, count, datatype, file_ptr_type, offset, request) == 0)
        return;
    ad_weft_read_contig(fd, buf, count, datatype, file_ptr_type, offset, &status, error_code);
    completed(fd, datatype, &status, request, error_code);
}

void ad_weft_iwrite_contig(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                           ADIO_Offset offset, ADIO_Request *request, int *error_code)
{
    ADIO_Status status;
    *error_code = MPI_SUCCESS;
    if (begin_contig(fd, WRITE, (void *)buf, count, datatype, file_ptr_type, offset, request) == 0)
        return;
    ad_weft_write_contig(fd, buf, count, datatype, file_ptr_type, offset, &status, error_code);
    completed(fd, datatype, &status, request, error_code);
}

void ad_weft_iread_strided_coll(ADIO_File fd, void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                                ADIO_Offset offset, MPI_Request *request, int *error_code)
{
    if (ad_weft_file(fd)->is_split)
        ad_weft_iread_strided(fd, buf, count, datatype, file_ptr_type, offset, request, error_code);
    else
        ADIOI_GEN_IreadStridedColl(fd, buf, count, datatype, file_ptr_type, offset, request, error_code);
}

/* Waits for no other rank, here or when the program waits for it: which collective calls of the program lie between is
 * not known, and those of one communicator have to be made in one order. */
static void iwrite_of_all(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                          ADIO_Offset offset, MPI_Request *request, int *error_code)
{
    ADIO_Status status;
    *error_code = MPI_SUCCESS;
    if (begin(fd, WRITE_OF_ALL, buf, count, datatype, file_ptr_type, offset, request) == 0)
        return;
    ssize_t moved = ad_weft_write_part(fd, buf, count, datatype, file_ptr_type, offset, &status, error_code);
    ad_weft_note_failed(ad_weft_file(fd), moved);
    completed(fd, datatype, &status, request, error_code);
}

void ad_weft_iwrite_strided_coll(ADIO_File fd, const void *buf, int count, MPI_Datatype datatype, int file_ptr_type,
                                 ADIO_Offset offset, MPI_Request *request, int *error_code)
{
    if (ad_weft_file(fd)->is_split)
        iwrite_of_all(fd, buf, count, datatype, file_ptr_type, offset, request, error_code);
    else
        ADIOI_GEN_IwriteStridedColl(fd, buf, count, datatype, file_ptr_type, offset, request, error_code);
}
