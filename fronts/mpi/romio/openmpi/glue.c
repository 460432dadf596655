/* Glue between ROMIO and Open MPI: what the ROMIO of mpich has, and that of Open MPI lacks.
 *
 *     choice of the component   weft_romio_is_ours(), which the component asks before Open MPI's own MPI-IO is chosen
 *     requests                  extended generalized requests (ompi_grequestx.h), polled by Open MPI's progress loop
 *
 * Not here: the driver (../../driver/), and the edits to ROMIO and the component (scripts/mpi-driver.sh). */
#include "adio.h"
#include "ompi_grequestx.h"
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>

#undef PMPI_Grequest_complete

int ad_weft_is_mounted(MPI_Comm comm, const char *name);
int weft_romio_is_ours(MPI_Comm comm, const char *name);
int opal_progress_register(int (*callback)(void));

/* Returns whether a file is one of Weft's. Collective. */
int weft_romio_is_ours(MPI_Comm comm, const char *name)
{
    return strncasecmp(name, "weft:", 5) == 0 || ad_weft_is_mounted(comm, name);
}

/* ---- Extended generalized requests ---- */

/* Maximum number of classes: two of ROMIO's collective calls, one of the driver. */
#define CLASSES_MAX 8

static struct {
    MPI_Grequest_query_function *query;
    MPI_Grequest_free_function *free_state;
    MPI_Grequest_cancel_function *cancel;
    MPIX_Grequest_poll_function *poll;
} classes[CLASSES_MAX]; /* by class; ROMIO takes class 0 as not created */
static int class_count = 1;

/* A request that is not complete. */
struct pending {
    MPI_Request request;
    MPIX_Grequest_poll_function *poll;
    void *state;
    struct pending *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by `mutex`, which is not held while a request is polled. */
static struct pending *first, **end = &first;
static int pending_count, is_registered;
static int is_polling;           /* polling calls MPI, which calls progress() */
static struct pending *polled;   /* the one that is polled, which is not in the list */
static int is_polled_complete;

int weft_romio_class_create(MPI_Grequest_query_function *query, MPI_Grequest_free_function *free_state,
                            MPI_Grequest_cancel_function *cancel, MPIX_Grequest_poll_function *poll,
                            MPIX_Grequest_wait_function *wait, MPIX_Grequest_class *class)
{
    (void)wait;
    if (class_count == CLASSES_MAX)
        return MPI_ERR_INTERN;
    classes[class_count].query = query;
    classes[class_count].free_state = free_state;
    classes[class_count].cancel = cancel;
    classes[class_count].poll = poll;
    *class = class_count++;
    return MPI_SUCCESS;
}

static void append(struct pending *pending)
{
    pending->next = NULL;
    *end = pending;
    end = &pending->next;
}

static struct pending *take_first(void)
{
    struct pending *taken = first;
    first = taken->next;
    if (first == NULL)
        end = &first;
    return taken;
}

/* Polls each pending request once. Called by Open MPI wherever a process waits or tests; returns the number of requests
 * that have completed. */
static int progress(void)
{
    int completed = 0;
    if (__atomic_load_n(&pending_count, __ATOMIC_RELAXED) == 0)
        return 0;
    pthread_mutex_lock(&mutex);
    int left = is_polling ? 0 : pending_count;
    if (left > 0)
        is_polling = 1;
    int is_mine = left > 0;
    for (; left > 0 && first != NULL; left--) {
        MPI_Status status;
        struct pending *pending = take_first();
        polled = pending;
        is_polled_complete = 0;
        pthread_mutex_unlock(&mutex);
        pending->poll(pending->state, &status);
        pthread_mutex_lock(&mutex);
        polled = NULL;
        if (is_polled_complete) {
            free(pending);
            completed++;
        } else {
            append(pending);
        }
    }
    if (is_mine)
        is_polling = 0;
    pthread_mutex_unlock(&mutex);
    return completed;
}

int weft_romio_class_allocate(MPIX_Grequest_class class, void *state, MPI_Request *request)
{
    struct pending *pending = calloc(1, sizeof *pending);
    if (pending == NULL || class <= 0 || class >= class_count) {
        free(pending);
        return MPI_ERR_INTERN;
    }
    int error = PMPI_Grequest_start(classes[class].query, classes[class].free_state, classes[class].cancel, state,
                                    request);
    if (error != MPI_SUCCESS) {
        free(pending);
        return error;
    }
    pending->request = *request;
    pending->poll = classes[class].poll;
    pending->state = state;
    pthread_mutex_lock(&mutex);
    int is_first = !is_registered;
    is_registered = 1;
    append(pending);
    __atomic_add_fetch(&pending_count, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
    return is_first && opal_progress_register(progress) != 0 ? MPI_ERR_INTERN : MPI_SUCCESS;
}

/* Forgets a request. Before it is complete: afterwards another thread may free it. */
static void forget(MPI_Request request)
{
    pthread_mutex_lock(&mutex);
    struct pending **link = &first;
    while (*link != NULL && (*link)->request != request)
        link = &(*link)->next;
    if (polled != NULL && polled->request == request) {
        is_polled_complete = 1;
        __atomic_sub_fetch(&pending_count, 1, __ATOMIC_RELAXED);
    } else if (*link != NULL) {
        struct pending *gone = *link;
        *link = gone->next;
        if (gone->next == NULL)
            end = link;
        free(gone);
        __atomic_sub_fetch(&pending_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&mutex);
}

int weft_romio_complete(MPI_Request request)
{
    forget(request);
    return PMPI_Grequest_complete(request);
}
