/* What processes on several nodes do to the same bytes: atomic mode, shared pointers, syncs. */
#include "suite.h"

/* All processes write the same strided places at once; each reads all of one writer. */
static void atomic(const char *place)
{
    enum { INTS = 200, ROUNDS = 20 };
    MPI_File file = made(place, "atomic");
    MPI_Datatype gaps;
    int written[INTS], read[INTS], is_atomic;
    OK(MPI_File_set_atomicity(file, 1));
    OK(MPI_File_get_atomicity(file, &is_atomic));
    CHECK(is_atomic);
    OK(MPI_Type_vector(INTS, 1, 3, MPI_INT, &gaps));
    OK(MPI_Type_commit(&gaps));
    OK(MPI_File_set_view(file, 0, MPI_INT, gaps, "native", MPI_INFO_NULL));
    for (int round = 0; round < ROUNDS; round++) {
        for (int index = 0; index < INTS; index++)
            written[index] = round * 1000 + rank;
        OK(MPI_File_write_at(file, 0, written, INTS, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_read_at(file, 0, read, INTS, MPI_INT, MPI_STATUS_IGNORE));
        for (int index = 1; index < INTS; index++)
            CHECK(read[index] == read[0]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    for (int round = 0; round < ROUNDS; round++) { /* contiguous */
        OK(MPI_File_write_at(file, 0, written, INTS, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_read_at(file, 0, read, INTS, MPI_INT, MPI_STATUS_IGNORE));
        for (int index = 1; index < INTS; index++)
            CHECK(read[index] == read[0]);
    }
    OK(MPI_Type_free(&gaps));
    OK(MPI_File_close(&file));
}

/* Records at the shared pointer: each is there once, whole. */
static void shared(const char *place)
{
    enum { RECORDS = 25, BYTES = 100 };
    MPI_File file = made(place, "shared");
    int total = processes * RECORDS, *seen = calloc(total, sizeof *seen);
    int record[BYTES / sizeof(int)];
    for (int number = 0; number < RECORDS; number++) {
        for (size_t index = 0; index < sizeof record / sizeof *record; index++)
            record[index] = rank * RECORDS + number;
        OK(MPI_File_write_shared(file, record, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    MPI_Offset position, size;
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &position));
    OK(MPI_File_get_size(file, &size));
    CHECK(position == (MPI_Offset)total * BYTES && size == position);
    for (int number = 0; number < total; number++) {
        OK(MPI_File_read_at(file, (MPI_Offset)number * BYTES, record, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
        for (size_t index = 1; index < sizeof record / sizeof *record; index++)
            CHECK(record[index] == record[0]);
        CHECK(record[0] >= 0 && record[0] < total && seen[record[0]]++ == 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    OK(MPI_File_write_ordered(file, &rank, 1, MPI_INT, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at(file, rank * (MPI_Offset)sizeof(int), record, 1, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(record[0] == rank);
    OK(MPI_File_close(&file));
    free(seen);
}

/* Sync, barrier, sync: the next process sees what this one wrote, round after round. */
static void passed_on(const char *place)
{
    MPI_File file = made(place, "passed-on");
    int left = (rank + processes - 1) % processes;
    for (int round = 1; round <= 20; round++) {
        int value = round * 100 + rank, seen = 0;
        OK(MPI_File_write_at(file, rank * (MPI_Offset)sizeof(int), &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_sync(file));
        OK(MPI_File_read_at(file, left * (MPI_Offset)sizeof(int), &seen, 1, MPI_INT, MPI_STATUS_IGNORE));
        CHECK(seen == round * 100 + left);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
}

/* Record after record, each synchronized, for the test that counts what split files cost. */
static void synced(const char *place)
{
    MPI_File file = made(place, "synced");
    for (int round = 1; round <= 20; round++) {
        int value = round * 100 + rank, seen = 0, other = (rank + 1) % processes;
        MPI_Offset start = round * (MPI_Offset)processes;
        OK(MPI_File_write_at(file, (start + rank) * sizeof(int), &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_sync(file));
        if (round % 10 == 0) {
            OK(MPI_File_read_at(file, (start + other) * sizeof(int), &seen, 1, MPI_INT, MPI_STATUS_IGNORE));
            CHECK(seen == round * 100 + other);
        }
    }
    OK(MPI_File_close(&file));
}

const struct test lock_tests[] = {
    {"atomic", atomic},
    {"shared", shared},
    {"passed-on", passed_on},
    {"synced", synced},
    {NULL, NULL},
};
