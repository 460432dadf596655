/* Hints of files in a file system that lies over a directory: hints PLACE
 *     own-0 ... own-3        split files of process 0, whose parts are at its own node
 *     spread-0 ... spread-3  those whose parts go to one node after the other
 *     scratch                a file of all processes that no drain writes
 *     again                  one that is opened so first, and as one that drains write later
 *     kept, usual, unknown   with the hint that drains write it, without, and with a value that is none */
#include "../programs/suite.h"

enum { FILES = 4, BYTES = 100000 };

int rank, processes;
static const char *place;

static MPI_File opened(MPI_Comm group, const char *name, const char *key, const char *value)
{
    char path[512];
    MPI_Info info;
    MPI_File file;
    MPI_Info_create(&info);
    MPI_Info_set(info, "weft_layout", "split");
    if (key != NULL)
        MPI_Info_set(info, key, value);
    snprintf(path, sizeof path, "%s%s", place, name);
    CHECK(MPI_File_open(group, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file) == MPI_SUCCESS);
    MPI_Info_free(&info);
    return file;
}

/* `expected`: NULL, if the hint is not told. */
static void write_and_close(MPI_File file, const char *key, const char *expected)
{
    static char bytes[BYTES];
    char value[MPI_MAX_INFO_VAL + 1] = "";
    int is_set;
    MPI_Info info;
    CHECK(MPI_File_get_info(file, &info) == MPI_SUCCESS);
    MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &is_set);
    MPI_Info_free(&info);
    CHECK(is_set == (expected != NULL) && (!is_set || strcmp(value, expected) == 0));
    memset(bytes, 'a' + rank, BYTES);
    CHECK(MPI_File_write_at_all(file, rank * BYTES, bytes, BYTES, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(MPI_File_close(&file) == MPI_SUCCESS);
}

static void placed(const char *value)
{
    for (int index = 0; index < FILES; index++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%d", value, index);
        write_and_close(opened(MPI_COMM_SELF, name, "weft_placement", value), "weft_placement", value);
    }
}

static void drained(const char *name, const char *value, const char *told)
{
    write_and_close(opened(MPI_COMM_WORLD, name, value != NULL ? "weft_drain" : NULL, value), "weft_drain", told);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    CHECK(count == 2);
    place = words[1];
    if (rank == 0) {
        placed("own");
        placed("spread");
    }
    drained("scratch", "never", "never");
    drained("again", "never", "never");
    drained("again", "background", "background");
    drained("kept", "background", "background");
    drained("usual", NULL, NULL);
    drained("unknown", "later", NULL);
    if (rank == 0)
        puts("hints hold");
    MPI_Finalize();
    return 0;
}
