/* How files are opened, sized, named in errors, and deleted; hints. */
#include "suite.h"

static void exclusive(const char *place)
{
    MPI_File file;
    int fresh = MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY;
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "exclusive"), fresh, MPI_INFO_NULL, &file));
    OK(MPI_File_close(&file));
    FAILS(MPI_ERR_FILE_EXISTS, MPI_File_open(MPI_COMM_WORLD, in(place, "exclusive"), fresh, MPI_INFO_NULL, &file));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        OK(MPI_File_delete(in(place, "exclusive"), MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "exclusive"), fresh, MPI_INFO_NULL, &file));
    OK(MPI_File_close(&file));
}

static void missing(const char *place)
{
    MPI_File file;
    const char *name = in(place, "missing");
    FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_delete(name, MPI_INFO_NULL));
    FAILS(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, in(place, "missing/below"),
                                              MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
}

/* One process makes the file, all open it without MPI_MODE_CREATE. */
static void made_by_one(const char *place)
{
    MPI_File file;
    int value = 0;
    if (rank == processes - 1) {
        OK(MPI_File_open(MPI_COMM_SELF, in(place, "made-by-one"), MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL,
                         &file));
        value = 42;
        OK(MPI_File_write(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_close(&file));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "made-by-one"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    OK(MPI_File_read_at(file, 0, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(value == 42);
    FAILS(MPI_ERR_READ_ONLY, MPI_File_write_at(file, 0, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
}

/* Opened for writing only: collective writes with holes, and no reads. */
static void write_only(const char *place)
{
    MPI_File file;
    MPI_Datatype gaps;
    int values[100], back;
    for (int index = 0; index < 100; index++)
        values[index] = rank * 100 + index;
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "write-only"), MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL,
                     &file));
    OK(MPI_Type_vector(100, 1, 2 * processes, MPI_INT, &gaps));
    OK(MPI_Type_commit(&gaps));
    OK(MPI_File_set_view(file, rank * (MPI_Offset)sizeof(int), MPI_INT, gaps, "native", MPI_INFO_NULL));
    OK(MPI_File_write_all(file, values, 100, MPI_INT, MPI_STATUS_IGNORE));
    FAILS(MPI_ERR_ACCESS, MPI_File_read_at(file, 0, &back, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_Type_free(&gaps));
    OK(MPI_File_close(&file));
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "write-only"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    for (int index = 0; index < 100; index++) {
        OK(MPI_File_read_at(file, (rank + 2 * processes * index) * (MPI_Offset)sizeof(int), &back, 1, MPI_INT,
                            MPI_STATUS_IGNORE));
        CHECK(back == rank * 100 + index);
    }
    OK(MPI_File_close(&file));
}

static void sizes(const char *place)
{
    MPI_File file = made(place, "sizes");
    MPI_Offset size, position;
    unsigned char byte = 9;
    OK(MPI_File_set_size(file, 1000));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 1000);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_preallocate(file, 9 << 20));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 9 << 20);
    OK(MPI_File_read_at(file, (9 << 20) - 1, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(byte == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_preallocate(file, 100));
    OK(MPI_File_get_size(file, &size));
    CHECK(size == 9 << 20);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 77));
    OK(MPI_File_close(&file));
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "sizes"), MPI_MODE_APPEND | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_get_position(file, &position));
    CHECK(position == 77);
    OK(MPI_File_get_position_shared(file, &position));
    CHECK(position == 77);
    OK(MPI_File_close(&file));
}

static void deleted_on_close(const char *place)
{
    MPI_File file;
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE;
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, "deleted"), mode, MPI_INFO_NULL, &file));
    OK(MPI_File_write_at(file, rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
    FAILS(MPI_ERR_NO_SUCH_FILE,
          MPI_File_open(MPI_COMM_WORLD, in(place, "deleted"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
}

/* Open MPI 4 tells the hints of the program, not those that are used. */
static void check_hint(MPI_File file, const char *key, const char *expected)
{
#ifdef OPEN_MPI
    return;
#endif
    MPI_Info used;
    char value[MPI_MAX_INFO_VAL] = "";
    int is_set;
    OK(MPI_File_get_info(file, &used));
    OK(MPI_Info_get(used, key, sizeof value - 1, value, &is_set));
    if (!is_set || strcmp(value, expected) != 0)
        fprintf(stderr, "hint %s is '%s', not '%s'\n", key, value, expected);
    CHECK(is_set && strcmp(value, expected) == 0);
    OK(MPI_Info_free(&used));
}

static MPI_File opened_with(const char *place, const char *name, const char *factor, const char *unit)
{
    MPI_File file;
    MPI_Info hints;
    OK(MPI_Info_create(&hints));
    OK(MPI_Info_set(hints, "striping_factor", factor));
    OK(MPI_Info_set(hints, "striping_unit", unit));
    OK(MPI_Info_set(hints, "weft_rdma", "auto"));
    OK(MPI_Info_set(hints, "colour", "blue"));
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, name), MPI_MODE_CREATE | MPI_MODE_RDWR, hints, &file));
    OK(MPI_Info_free(&hints));
    return file;
}

/* Hints make the layout of a new file, are told, and are ignored where they cannot be obeyed. */
static void hints(const char *place)
{
    MPI_File file = opened_with(place, "striped", "3", "131072");
    check_hint(file, "striping_factor", "3");
    check_hint(file, "striping_unit", "131072");
    check_hint(file, "romio_filesystem_type", "weft");
    OK(MPI_File_write_at_all(file, rank * 400000, calloc(1, 400000), 400000, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
    file = opened_with(place, "striped", "2", "65536"); /* it has a layout */
    check_hint(file, "striping_factor", "3");
    OK(MPI_File_close(&file));
    file = opened_with(place, "whole", "1", "0");
    check_hint(file, "striping_factor", "1");
    OK(MPI_File_close(&file));
    file = opened_with(place, "odd", "2", "1000"); /* no length of a stripe: as without hints */
    check_hint(file, "striping_factor", "1");
    OK(MPI_File_close(&file));
}

/* Hints that nobody has given tell how the file is, too. */
static void unhinted(const char *place)
{
    const char *name = in(place, "unhinted");
    int is_split = strstr(name, "split/") != NULL;
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    check_hint(file, "weft_layout", is_split ? "split" : "whole");
    check_hint(file, "striping_factor", "1");
    check_hint(file, "striping_unit", "0");
    check_hint(file, "weft_visibility", is_split ? "sync" : "immediate");
    check_hint(file, "weft_errors", "agreed");
    check_hint(file, "weft_spill", "false");
    check_hint(file, "weft_placement", "own");
    check_hint(file, "weft_rdma", "auto");
    OK(MPI_File_close(&file));
}

static void meet(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Without a sync: what a process has written others read after a barrier, and write over after one more. */
static void pass_around(MPI_File file, int turn, int is_collective)
{
    enum { BYTES = 47008 };
    static unsigned char own[BYTES], seen[BYTES], expected[BYTES];
    MPI_Offset offset = (MPI_Offset)((rank + turn) % processes) * BYTES;
    int writer = (rank + processes - 1) % processes;
    memset(own, 100 * turn + rank, BYTES);
    memset(expected, 100 * turn + writer, BYTES);
    OK(is_collective ? MPI_File_write_at_all(file, offset, own, BYTES, MPI_BYTE, MPI_STATUS_IGNORE)
                     : MPI_File_write_at(file, offset, own, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    meet();
    offset = (MPI_Offset)((writer + turn) % processes) * BYTES;
    OK(is_collective ? MPI_File_read_at_all(file, offset, seen, BYTES, MPI_BYTE, MPI_STATUS_IGNORE)
                     : MPI_File_read_at(file, offset, seen, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(seen, expected, BYTES) == 0);
    meet();
}

/* Of a new split file. */
static MPI_File split_with(const char *place, const char *name, const char *key, const char *value)
{
    MPI_File file;
    MPI_Info hints;
    OK(MPI_Info_create(&hints));
    OK(MPI_Info_set(hints, "weft_layout", "split"));
    OK(MPI_Info_set(hints, key, value));
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, name), MPI_MODE_CREATE | MPI_MODE_RDWR, hints, &file));
    OK(MPI_Info_free(&hints));
    return file;
}

static void visible_at_once(const char *place)
{
    MPI_File file = split_with(place, "visible", "weft_visibility", "immediate");
    MPI_Offset size;
    check_hint(file, "weft_visibility", "immediate");
    for (int turn = 0; turn < 2 * processes; turn++)
        pass_around(file, turn % 3, turn % 2);
    OK(MPI_File_get_size(file, &size));
    CHECK(size == (MPI_Offset)processes * 47008);
    OK(MPI_File_close(&file));
    file = split_with(place, "visible", "weft_visibility", "sync"); /* another choice for the same file */
    check_hint(file, "weft_visibility", "sync");
    OK(MPI_File_close(&file));
    file = split_with(place, "visible-later", "weft_visibility", "never"); /* no such choice: as without the hint */
    check_hint(file, "weft_visibility", "sync");
    OK(MPI_File_close(&file));
}

/* Whether collective calls wait for all is told, and a value that is none is passed over. */
static void agreement(const char *place)
{
    static const char *const values[][2] = {{"own", "own"}, {"agreed", "agreed"}, {"never", "agreed"}};
    for (size_t index = 0; index < sizeof values / sizeof *values; index++) {
        MPI_File file = split_with(place, "agreement", "weft_errors", values[index][0]);
        check_hint(file, "weft_errors", values[index][1]);
        OK(MPI_File_write_at_all(file, rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE));
        char byte = 0;
        OK(MPI_File_read_at_all(file, (rank + 1) % processes, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(byte == 'x');
        OK(MPI_File_close(&file));
    }
}

const struct test mode_tests[] = {
    {"exclusive", exclusive},
    {"missing", missing},
    {"made-by-one", made_by_one},
    {"write-only", write_only},
    {"sizes", sizes},
    {"deleted-on-close", deleted_on_close},
    {"hints", hints},
    {"unhinted", unhinted},
    {"visible-at-once", visible_at_once},
    {"agreement", agreement},
    {NULL, NULL},
};
