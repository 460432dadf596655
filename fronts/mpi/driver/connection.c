/* Connections of this process, one per file system.
 *
 * The first open of a file connects. The connection is kept until the process exits, when the C library flushes and
 * disconnects: connecting costs more than an open, and programs open many files. */
#include "ad_weft.h"
#include <errno.h>
#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ad_weft_connection *connections; /* Guarded by `mutex`. Entries are never freed. */

static int is_named(const struct ad_weft_connection *connection, const char *name)
{
    return strcmp(connection->name != NULL ? connection->name : "", name) == 0;
}

static int make(const char *name, struct ad_weft_connection **made)
{
    struct ad_weft_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return -ENOMEM;
    if (*name != '\0' && (connection->name = strdup(name)) == NULL) {
        free(connection);
        return -ENOMEM;
    }
    int error = weft_connect(connection->name, NULL, &connection->fs);
    if (error < 0) {
        free(connection->name);
        free(connection);
        return error;
    }
    *made = connection;
    return 0;
}

int ad_weft_connect(const struct ad_weft_name *name, struct ad_weft_connection **connection)
{
    int error = 0;
    pthread_mutex_lock(&mutex);
    struct ad_weft_connection *known = connections;
    while (known != NULL && !is_named(known, name->file_system))
        known = known->next;
    if (known == NULL && (error = make(name->file_system, &known)) == 0) {
        known->next = connections;
        connections = known;
    }
    pthread_mutex_unlock(&mutex);
    *connection = known;
    return error;
}
