/* Views: who writes which bytes, pointers, counts, ends of files. Each file is read back by another process. */
#include "suite.h"

#define BLOCK 1000
#define BLOCKS 50

/* A view of every `processes`-th block, from this process's first one on. */
static void set_interleaved(MPI_File file, MPI_Datatype *type)
{
    MPI_Datatype blocks;
    OK(MPI_Type_vector(BLOCKS, BLOCK, BLOCK * processes, MPI_BYTE, &blocks));
    OK(MPI_Type_create_resized(blocks, 0, (MPI_Aint)BLOCKS * BLOCK * processes, type));
    OK(MPI_Type_commit(type));
    OK(MPI_Type_free(&blocks));
    OK(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, *type, "native", MPI_INFO_NULL));
}

/* The file is what all processes have written, each `times` over. */
static void check_interleaved(MPI_File file, int times)
{
    MPI_Status status;
    int bytes = BLOCK * BLOCKS * processes * times, count;
    unsigned char *read = malloc(bytes);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_read_at(file, 0, read, bytes, MPI_BYTE, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == bytes);
    for (int at = 0; at < bytes; at++) {
        int block = at / BLOCK, writer = block % processes, position = block / processes * BLOCK + at % BLOCK;
        CHECK(read[at] == byte_of(writer, position));
    }
    free(read);
}

enum how { INDEPENDENT, COLLECTIVE, NOT_WAITED_FOR, COLLECTIVE_NOT_WAITED_FOR };

static void write_interleaved(const char *place, const char *name, enum how how, int gap)
{
    MPI_File file = made(place, name);
    MPI_Datatype view, memory;
    MPI_Status status;
    MPI_Request request;
    int bytes = BLOCK * BLOCKS, count;
    unsigned char *written = malloc(2 * 2 * bytes);
    memset(written, 0, 2 * 2 * bytes);
    for (int at = 0; at < 2 * bytes; at++) /* pieces of 100 bytes, with gaps of as many */
        written[gap ? at / 100 * 200 + at % 100 : at] = byte_of(rank, at);
    OK(MPI_Type_vector(bytes / 100, 100, gap ? 200 : 100, MPI_BYTE, &memory));
    OK(MPI_Type_commit(&memory));
    set_interleaved(file, &view);
    for (int half = 0; half < 2; half++) {
        unsigned char *from = written + half * bytes * (gap ? 2 : 1);
        switch (how) {
        case INDEPENDENT:
            OK(MPI_File_write(file, from, 1, memory, &status));
            break;
        case COLLECTIVE:
            OK(MPI_File_write_all(file, from, 1, memory, &status));
            break;
        case NOT_WAITED_FOR:
            OK(MPI_File_iwrite(file, from, 1, memory, &request));
            OK(MPI_Wait(&request, &status));
            break;
        case COLLECTIVE_NOT_WAITED_FOR:
            OK(MPI_File_iwrite_all(file, from, 1, memory, &request));
            OK(MPI_Wait(&request, &status));
            break;
        }
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == bytes);
    }
    MPI_Offset position;
    OK(MPI_File_get_position(file, &position));
    CHECK(position == 2 * bytes);
    check_interleaved(file, 2);
    OK(MPI_Type_free(&view));
    OK(MPI_Type_free(&memory));
    free(written);
    OK(MPI_File_close(&file));
}

static void interleaved(const char *place)
{
    for (int gap = 0; gap < 2; gap++) {
        write_interleaved(place, "interleaved-alone", INDEPENDENT, gap);
        write_interleaved(place, "interleaved-collective", COLLECTIVE, gap);
        write_interleaved(place, "interleaved-not-waited-for", NOT_WAITED_FOR, gap);
        write_interleaved(place, "interleaved-neither", COLLECTIVE_NOT_WAITED_FOR, gap);
    }
}

/* Reads through a view, in pieces that end within blocks: at offsets and at the individual pointer. */
static void pointers(const char *place)
{
    MPI_File file = made(place, "pointers");
    MPI_Datatype view;
    MPI_Offset position;
    unsigned char *bytes = malloc(BLOCK * BLOCKS), *read = malloc(BLOCK * BLOCKS);
    set_interleaved(file, &view);
    for (int at = 0; at < BLOCK * BLOCKS; at++)
        bytes[at] = byte_of(rank, at);
    OK(MPI_File_write_at_all(file, 0, bytes, BLOCK * BLOCKS, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_seek(file, 0, MPI_SEEK_SET));
    for (int at = 0, step = 1; at < BLOCK * BLOCKS; at += step, step = step * 3 % 2999) {
        int length = at + step < BLOCK * BLOCKS ? step : BLOCK * BLOCKS - at;
        OK(MPI_File_get_position(file, &position));
        CHECK(position == at);
        OK(MPI_File_read(file, read, length, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(memcmp(read, bytes + at, length) == 0);
        OK(MPI_File_read_at(file, at, read, length, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(memcmp(read, bytes + at, length) == 0);
    }
    OK(MPI_File_seek(file, -1500, MPI_SEEK_CUR));
    OK(MPI_File_read(file, read, 1500, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(read, bytes + BLOCK * BLOCKS - 1500, 1500) == 0);
    OK(MPI_Type_free(&view));
    OK(MPI_File_close(&file));
    free(bytes);
    free(read);
}

/* Reads that the end of the file cuts are short: contiguous ones, others, and those that are not waited for. */
static void ends(const char *place)
{
    MPI_File file = made(place, "ends");
    MPI_Status status;
    MPI_Request request;
    MPI_Datatype gaps;
    unsigned char bytes[300] = {0};
    int count;
    if (rank == 0) {
        memset(bytes, 7, sizeof bytes);
        OK(MPI_File_write_at(file, 0, bytes, 150, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at(file, 100, bytes, 100, MPI_BYTE, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == 50);
    OK(MPI_File_read_at(file, 150, bytes, 100, MPI_BYTE, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == 0);
    OK(MPI_File_iread_at(file, 100, bytes, 100, MPI_BYTE, &request));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == 50);
    OK(MPI_Type_vector(10, 10, 20, MPI_BYTE, &gaps)); /* its last bytes are at 180 */
    OK(MPI_Type_commit(&gaps));
    OK(MPI_File_set_view(file, 5, MPI_BYTE, gaps, "native", MPI_INFO_NULL));
    OK(MPI_File_read(file, bytes, 100, MPI_BYTE, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == 75);
    MPI_Offset position;
    OK(MPI_File_get_position(file, &position));
    CHECK(position == 75);
    OK(MPI_Type_free(&gaps));
    OK(MPI_File_close(&file));
}

/* Many requests at a time, completed in another order than they were made; one that nobody waits for. */
static void requests(const char *place)
{
    enum { MANY = 100, BYTES = 5000 };
    MPI_File file = made(place, "requests");
    MPI_Request pending[MANY], dropped;
    MPI_Status status[MANY];
    unsigned char *bytes = malloc(MANY * BYTES), *read = malloc(MANY * BYTES), last[10];
    MPI_Offset start = (MPI_Offset)rank * MANY * BYTES;
    int count, is_done = 0, index;
    for (int at = 0; at < MANY * BYTES; at++)
        bytes[at] = byte_of(rank, at);
    for (int which = 0; which < MANY; which++)
        OK(MPI_File_iwrite_at(file, start + which * BYTES, bytes + which * BYTES, BYTES, MPI_BYTE, &pending[which]));
    for (int which = MANY - 1; which >= MANY / 2; which--)
        OK(MPI_Wait(&pending[which], &status[which]));
    OK(MPI_Waitall(MANY / 2, pending, status));
    for (int which = 0; which < MANY; which++) {
        OK(MPI_Get_count(&status[which], MPI_BYTE, &count));
        CHECK(count == BYTES);
        OK(MPI_File_iread_at(file, start + which * BYTES, read + which * BYTES, BYTES, MPI_BYTE, &pending[which]));
    }
    while (!is_done)
        OK(MPI_Testany(MANY, pending, &index, &is_done, status));
    OK(MPI_Waitall(MANY, pending, status));
    CHECK(memcmp(bytes, read, MANY * BYTES) == 0);
    OK(MPI_File_iread_at(file, start, last, sizeof last, MPI_BYTE, &dropped));
    OK(MPI_Request_free(&dropped));
    OK(MPI_File_close(&file));
    free(bytes);
    free(read);
}

const struct test view_tests[] = {
    {"interleaved", interleaved},
    {"pointers", pointers},
    {"ends", ends},
    {"requests", requests},
    {NULL, NULL},
};
