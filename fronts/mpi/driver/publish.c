/* Publication of what ranks have written to a split file.
 *
 * A rank publishes by itself where it is asked alone (size, shared file pointers), and together with the other ranks in
 * collective calls: those of a machine hand out to one of them what they have to publish, and it publishes for all with
 * one message. If that fails, or a rank has nothing to hand out, each does it by itself, and gets its own error. */
#include "ad_weft.h"
#include <errno.h>

/* Rank of a machine's ranks that publishes for them. */
#define PUBLISHER 0

int ad_weft_publish(ADIO_File fd)
{
    return ad_weft_file(fd)->is_deferred ? weft_flush(ad_weft_file(fd)->file) : 0;
}

/* Returns the communicator of this machine's ranks. Collective. */
static MPI_Comm node_of(ADIO_File fd)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    int rank;
    if (open->node == MPI_COMM_NULL) {
        MPI_Comm_rank(fd->comm, &rank);
        MPI_Comm_split_type(fd->comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &open->node);
    }
    return open->node;
}

/* Takes what this rank has to publish, which grows while another thread writes. Returns the number of bytes, 0 if there
 * is nothing, or -errno. */
static int hand_out(weft_file_t file, void **bytes)
{
    ssize_t room, length;
    *bytes = NULL;
    do {
        if (*bytes != NULL)
            ADIOI_Free(*bytes);
        *bytes = NULL;
        room = weft_hand_out(file, NULL, 0);
        if (room <= 0)
            return (int)room;
        *bytes = ADIOI_Malloc((size_t)room);
        length = weft_hand_out(file, *bytes, (size_t)room);
    } while (length == -ERANGE);
    return (int)length;
}

/* Publishes what `ranks` ranks have handed out, and replaces the length of each one's by its result. */
static void publish_for(weft_file_t file, const void *bytes, size_t length, int *lengths, int ranks)
{
    int *results = ADIOI_Calloc((size_t)ranks, sizeof *results);
    ssize_t count = weft_publish_for(file, bytes, length, results, (size_t)ranks);
    int next = 0;
    for (int rank = 0; rank < ranks; rank++)
        if (lengths[rank] > 0)
            lengths[rank] = next < count ? results[next++] : -EIO;
    ADIOI_Free(results);
}

/* Gathers at the publisher what the ranks have handed out, and has it published. Returns this rank's result. */
static int gather_and_publish(weft_file_t file, MPI_Comm node, const void *bytes, int length)
{
    int rank, ranks, result;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &ranks);
    int *lengths = ADIOI_Calloc((size_t)ranks, sizeof *lengths), *starts = ADIOI_Calloc((size_t)ranks, sizeof *starts);
    MPI_Gather(&length, 1, MPI_INT, lengths, 1, MPI_INT, PUBLISHER, node);
    size_t sum = 0;
    for (int of = 0; of < ranks; of++) {
        starts[of] = (int)sum;
        sum += (size_t)lengths[of];
    }
    void *all = ADIOI_Malloc(sum + 1);
    MPI_Gatherv((void *)bytes, length, MPI_BYTE, all, lengths, starts, MPI_BYTE, PUBLISHER, node);
    if (rank == PUBLISHER && sum > 0)
        publish_for(file, all, sum, lengths, ranks);
    MPI_Scatter(lengths, 1, MPI_INT, &result, 1, MPI_INT, PUBLISHER, node);
    ADIOI_Free(all);
    ADIOI_Free(starts);
    ADIOI_Free(lengths);
    return result;
}

int ad_weft_publish_together(ADIO_File fd)
{
    struct ad_weft_file *open = ad_weft_file(fd);
    int ranks;
    if (!open->is_deferred)
        return 0;
    MPI_Comm node = node_of(fd);
    MPI_Comm_size(node, &ranks);
    if (ranks == 1)
        return weft_flush(open->file);
    void *bytes;
    int length = hand_out(open->file, &bytes);
    int result = gather_and_publish(open->file, node, bytes, MPL_MAX(length, 0));
    if (bytes != NULL)
        ADIOI_Free(bytes);
    int error = length > 0 ? weft_published(open->file, result) : weft_flush(open->file);
    return length < 0 ? length : error;
}
