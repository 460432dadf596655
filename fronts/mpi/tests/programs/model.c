/* Random types of memory and file, against a model: an array in which the same bytes are put one after another. Each
 * process has a file of its own. */
#include "suite.h"

enum { ROUNDS = 150, BLOCKS_MAX = 40, FILE_BYTES = 1 << 20 };

static unsigned state;

static int below(int limit)
{
    state = state * 1103515245 + 12345;
    return (int)((state >> 8) % (unsigned)limit);
}

/* A type of blocks with gaps between them, and where its bytes are. */
struct shape {
    MPI_Datatype type;
    int count, size, extent;
    int lengths[BLOCKS_MAX];
    MPI_Aint starts[BLOCKS_MAX];
};

/* In order, as a view has to be; some are regular, some empty, some touch. */
static void make_shape(struct shape *shape)
{
    MPI_Datatype blocks;
    int is_regular = below(3) == 0, length = 1 + below(60), gap = below(50), end = below(20);
    shape->count = 1 + below(BLOCKS_MAX);
    shape->size = 0;
    for (int block = 0; block < shape->count; block++) {
        shape->lengths[block] = is_regular ? length : below(60);
        shape->starts[block] = end;
        shape->size += shape->lengths[block];
        end += shape->lengths[block] + (is_regular ? gap : below(3) * below(50));
    }
    if (shape->size == 0)
        shape->size = shape->lengths[0] = end = 1;
    shape->extent = end + below(30);
    OK(MPI_Type_create_hindexed(shape->count, shape->lengths, shape->starts, MPI_BYTE, &blocks));
    OK(MPI_Type_create_resized(blocks, 0, shape->extent, &shape->type));
    OK(MPI_Type_commit(&shape->type));
    OK(MPI_Type_free(&blocks));
}

/* Where a byte of a repeated type is. */
static long place_of(const struct shape *shape, long byte)
{
    long tile = byte / shape->size, rest = byte % shape->size;
    int block = 0;
    while (rest >= shape->lengths[block])
        rest -= shape->lengths[block++];
    return tile * shape->extent + shape->starts[block] + rest;
}

/* One access. Returns the bytes that were written or read. */
static void access_file(MPI_File file, unsigned char *model, const struct shape *memory, const struct shape *view,
                        int displacement, long position, int count)
{
    long bytes = (long)count * memory->size;
    unsigned char *buffer = calloc(count, memory->extent), *expected = calloc(count, memory->extent);
    int is_write = below(2), how = below(3);
    MPI_Request request;
    for (long byte = 0; byte < bytes; byte++) {
        long to = displacement + place_of(view, position + byte), from = place_of(memory, byte);
        CHECK(to < FILE_BYTES);
        if (is_write)
            model[to] = buffer[from] = expected[from] = (unsigned char)below(256);
        else
            expected[from] = model[to];
    }
    if (how == 0) {
        OK(MPI_File_seek(file, position, MPI_SEEK_SET));
        OK(is_write ? MPI_File_write(file, buffer, count, memory->type, MPI_STATUS_IGNORE)
                    : MPI_File_read(file, buffer, count, memory->type, MPI_STATUS_IGNORE));
    } else if (how == 1) {
        OK(is_write ? MPI_File_write_at(file, position, buffer, count, memory->type, MPI_STATUS_IGNORE)
                    : MPI_File_read_at(file, position, buffer, count, memory->type, MPI_STATUS_IGNORE));
    } else {
        OK(is_write ? MPI_File_iwrite_at(file, position, buffer, count, memory->type, &request)
                    : MPI_File_iread_at(file, position, buffer, count, memory->type, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    CHECK(memcmp(buffer, expected, (size_t)count * memory->extent) == 0);
    free(buffer);
    free(expected);
}

static void model(const char *place)
{
    char name[32];
    MPI_File file;
    unsigned char *bytes = calloc(1, FILE_BYTES), *read = malloc(FILE_BYTES);
    state = 20260 + rank;
    snprintf(name, sizeof name, "model-%d", rank);
    OK(MPI_File_open(MPI_COMM_SELF, in(place, name), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_size(file, 0));
    OK(MPI_File_set_size(file, FILE_BYTES));
    for (int round = 0; round < ROUNDS; round++) {
        struct shape memory, view;
        int displacement = below(5000);
        make_shape(&memory);
        make_shape(&view);
        OK(MPI_File_set_view(file, displacement, MPI_BYTE, view.type, "native", MPI_INFO_NULL));
        long room = (long)(FILE_BYTES - displacement) / view.extent * view.size; /* bytes of the view in the file */
        int most = (int)(room / 2 / memory.size), count = most > 20 ? 1 + below(20) : 1;
        if (most > 0)
            for (int access = 0; access < 4; access++)
                access_file(file, bytes, &memory, &view, displacement, below((int)(room / 2)), count);
        OK(MPI_Type_free(&memory.type));
        OK(MPI_Type_free(&view.type));
    }
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_read_at(file, 0, read, FILE_BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(read, bytes, FILE_BYTES) == 0);
    OK(MPI_File_close(&file));
    free(bytes);
    free(read);
}

/* More pieces than one call of the library takes, in no stride: 300,000 of one or two bytes. */
static void pieces(const char *place)
{
    enum { MANY = 300000 };
    int *lengths = malloc(MANY * sizeof *lengths), *starts = malloc(MANY * sizeof *starts), end = 0, bytes = 0, count;
    MPI_File file;
    MPI_Datatype view;
    MPI_Status status;
    if (rank != 0)
        return;
    for (int piece = 0; piece < MANY; piece++) {
        lengths[piece] = 1 + piece % 2;
        starts[piece] = end + piece % 3;
        end = starts[piece] + lengths[piece] + 1;
        bytes += lengths[piece];
    }
    unsigned char *written = malloc(bytes), *read = calloc(1, end);
    for (int at = 0; at < bytes; at++)
        written[at] = byte_of(3, at);
    OK(MPI_Type_indexed(MANY, lengths, starts, MPI_BYTE, &view));
    OK(MPI_Type_commit(&view));
    OK(MPI_File_open(MPI_COMM_SELF, in(place, "pieces"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_view(file, 0, MPI_BYTE, view, "native", MPI_INFO_NULL));
    OK(MPI_File_write(file, written, bytes, MPI_BYTE, &status));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(count == bytes);
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_read_at(file, 0, read, end, MPI_BYTE, &status));
    for (int piece = 0, at = 0; piece < MANY; piece++)
        for (int byte = 0; byte < lengths[piece]; byte++)
            CHECK(read[starts[piece] + byte] == written[at++]);
    OK(MPI_File_close(&file));
    OK(MPI_Type_free(&view));
    free(lengths);
    free(starts);
    free(written);
    free(read);
}

enum { LATER_BYTES = 3 << 20, TURNS = 2 };

/* A file of blocks that the processes write by turns, the last block not whole: some are holes, some another process
 * writes again. Fills in what is there in the end, and writes this process's blocks, unless `file` is NULL. */
static void make_later(unsigned char *bytes, MPI_File *file)
{
    memset(bytes, 0, LATER_BYTES);
    for (int turn = 0; turn < TURNS; turn++) {
        state = 77;
        for (int block = 0, start = 0, length; start < LATER_BYTES; block++, start += length) {
            length = 1 + below(9000);
            length = length < LATER_BYTES - start ? length : LATER_BYTES - start;
            if (block % 7 == 6 || (turn > 0 && block % 5 != 0))
                continue;
            for (int at = start; at < start + length; at++)
                bytes[at] = byte_of(turn, at);
            if (file != NULL && (block + turn) % processes == rank)
                OK(MPI_File_write_at(*file, start, bytes + start, length, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        if (file != NULL)
            OK(MPI_File_sync(*file));
    }
}

static void written_for_later(const char *place)
{
    unsigned char *bytes = malloc(LATER_BYTES);
    MPI_File file = made(place, "later");
    make_later(bytes, &file);
    OK(MPI_File_close(&file));
    free(bytes);
}

/* Finds the same, also if it is run by fewer processes than wrote that. */
static void read_later(const char *place)
{
    enum { READS = 2000, LENGTH_MAX = 30000 };
    unsigned char *bytes = malloc(LATER_BYTES), *read = malloc(LENGTH_MAX);
    MPI_File file;
    make_later(bytes, NULL);
    state = 4000 + rank;
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "later"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    for (int index = 0; index < READS; index++) {
        int start = below(LATER_BYTES), wanted = 1 + below(LENGTH_MAX), count;
        int expected = wanted < LATER_BYTES - start ? wanted : LATER_BYTES - start;
        MPI_Status status;
        OK(index % 100 == 0 ? MPI_File_read_at_all(file, start, read, wanted, MPI_BYTE, &status)
                            : MPI_File_read_at(file, start, read, wanted, MPI_BYTE, &status));
        OK(MPI_Get_count(&status, MPI_BYTE, &count));
        CHECK(count == expected || index % 100 == 0); /* ROMIO tells what was wanted of those */
        CHECK(memcmp(read, bytes + start, expected) == 0);
    }
    OK(MPI_File_close(&file));
    free(bytes);
    free(read);
}

const struct test model_tests[] = {
    {"written-for-later", written_for_later},
    {"read-later", read_later},
    {"model", model},
    {"pieces", pieces},
    {NULL, NULL},
};
