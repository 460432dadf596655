/* scale - what one file costs more and more ranks, for bench/mpi_scale.py: counts, which a busy machine does not change.
 *
 *     scale FILE RECORDS BYTES segmented|strided
 *
 * Each rank writes RECORDS records of BYTES bytes, to its own segment or in turns with the others, syncs, reads its own back,
 * and closes; then all open and close the file once more. Prints a line of JSON: seconds of opens and closes, and the memory
 * of a rank (the most and the mean of all) before it has opened a file and at the end, in KiB. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Proportional set size of this process, KiB, and what of it the process has written and shares with no other. */
static void memory(long sizes[2])
{
    char line[256];
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    sizes[0] = sizes[1] = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        long value;
        if (sscanf(line, "Pss: %ld", &value) == 1)
            sizes[0] = value;
        if (sscanf(line, "Private_Dirty: %ld", &value) == 1)
            sizes[1] = value;
    }
    if (file != NULL)
        fclose(file);
}

static MPI_File opened(const char *path, double *seconds)
{
    MPI_File file;
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    check(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    *seconds = MPI_Wtime() - begun;
    return file;
}

static double closed(MPI_File file)
{
    double begun = MPI_Wtime();
    check(MPI_File_close(&file), "close");
    return MPI_Wtime() - begun;
}

/* Prints what concerns all ranks. */
static void tell(const double times[4], const long before[2], const long after[2])
{
    double most[4];
    long sums[4], own[] = {before[0], after[0], before[1], after[1]}, highest[4];
    MPI_Reduce(times, most, 4, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(own, sums, 4, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(own, highest, 4, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank != 0)
        return;
    printf("{\"open\": %.6f, \"close\": %.6f, \"open_again\": %.6f, \"close_again\": %.6f, \"pss_before\": %ld, \"pss\": %ld, "
           "\"private_before\": %ld, \"private\": %ld, \"pss_most\": %ld}\n",
           most[0], most[1], most[2], most[3], sums[0] / ranks, sums[1] / ranks, sums[2] / ranks, sums[3] / ranks, highest[1]);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 5) {
        fprintf(stderr, "usage: scale FILE RECORDS BYTES segmented|strided\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    int records = atoi(words[2]), bytes = atoi(words[3]), is_strided = strcmp(words[4], "strided") == 0;
    char *written = malloc((size_t)bytes), *read = malloc((size_t)bytes);
    long before[2], after[2];
    double times[4];
    memory(before);
    MPI_File file = opened(words[1], &times[0]);
    for (int is_read = 0; is_read < 2; is_read++) {
        for (int record = 0; record < records; record++) {
            MPI_Offset place = is_strided ? (MPI_Offset)record * ranks + rank : (MPI_Offset)rank * records + record;
            memset(written, 1 + (rank * 31 + record) % 255, (size_t)bytes);
            if (!is_read)
                check(MPI_File_write_at(file, place * bytes, written, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write");
            else
                check(MPI_File_read_at(file, place * bytes, read, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read");
            if (is_read && memcmp(written, read, (size_t)bytes) != 0) {
                fprintf(stderr, "rank %d: other bytes than were written\n", rank);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
        if (!is_read)
            check(MPI_File_sync(file), "sync");
    }
    memory(after);
    times[1] = closed(file);
    file = opened(words[1], &times[2]);
    times[3] = closed(file);
    tell(times, before, after);
    free(written);
    free(read);
    MPI_Finalize();
    return 0;
}
