/* Programs that go wrong: faults FILE WHAT
 *     killed    process 1 dies between its write and its close
 *     full      all write until there is no space
 *     refused   the file is below a read-only mount
 *     denied    process 0 has a key of a user who may read the file only */
#include "../programs/suite.h"
#include <signal.h>
#include <unistd.h>

int rank, processes;

static int class_of(int code)
{
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    return class;
}

static int opened(const char *name, int mode, MPI_File *file)
{
    return class_of(MPI_File_open(MPI_COMM_WORLD, name, mode, MPI_INFO_NULL, file));
}

/* A file that can be opened for reading only. */
static void read_only(const char *name, int class)
{
    MPI_File file;
    char bytes[2];
    CHECK(opened(name, MPI_MODE_RDWR, &file) == class);
    CHECK(opened(name, MPI_MODE_CREATE | MPI_MODE_WRONLY, &file) == class);
    CHECK(opened(name, MPI_MODE_RDONLY, &file) == MPI_SUCCESS);
    CHECK(MPI_File_read_at_all(file, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MPI_File_close(&file);
}

static void killed(MPI_File file)
{
    CHECK(MPI_File_write_at(file, rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    MPI_File_close(&file);
}

/* Each process gets the class, in its write or in its close. */
static void full(MPI_File file)
{
    enum { BYTES = 1 << 20, MANY = 256 };
    char *bytes = calloc(1, BYTES);
    int class = MPI_SUCCESS;
    for (int index = 0; index < MANY && class == MPI_SUCCESS; index++) {
        MPI_Offset offset = ((MPI_Offset)index * processes + rank) * BYTES;
        class = class_of(MPI_File_write_at(file, offset, bytes, BYTES, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    int at_close = class_of(MPI_File_close(&file));
    CHECK(class == MPI_ERR_NO_SPACE || (class == MPI_SUCCESS && at_close == MPI_ERR_NO_SPACE));
    free(bytes);
}

int main(int count, char **words)
{
    MPI_File file;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    CHECK(count == 3);
    if (strcmp(words[2], "refused") == 0) {
        CHECK(class_of(MPI_File_delete(words[1], MPI_INFO_NULL)) == MPI_ERR_READ_ONLY);
        read_only(words[1], MPI_ERR_READ_ONLY);
    } else if (strcmp(words[2], "denied") == 0) {
        read_only(words[1], MPI_ERR_ACCESS);
    } else {
        CHECK(opened(words[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, &file) == MPI_SUCCESS);
        strcmp(words[2], "full") == 0 ? full(file) : killed(file);
    }
    if (rank == 0)
        printf("as expected\n");
    MPI_Finalize();
    return 0;
}
