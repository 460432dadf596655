/* Opens and closes files, for the test that counts what that asks of the metadata servers: opens PLACE HOW
 *     again    the same file over and over
 *     anew     file after file, each of which the open makes
 * Process 0 says that it is ready, and after ROUNDS of opens that they are done, and goes on when it is told a line. */
#include "../programs/suite.h"

enum { WARM_UP = 3, ROUNDS = 20 };

int rank, processes;
static const char *place;

static void open_and_close(int number)
{
    char name[512];
    MPI_File file;
    snprintf(name, sizeof name, "%sopened-by-%d-%d", place, processes, number);
    CHECK(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    CHECK(MPI_File_close(&file) == MPI_SUCCESS);
}

static void say_and_wait(const char *what)
{
    char line[8];
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts(what);
        fflush(stdout);
        CHECK(fgets(line, sizeof line, stdin) != NULL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    CHECK(count == 3);
    place = words[1];
    int is_anew = strcmp(words[2], "anew") == 0;
    for (int round = 0; round < WARM_UP; round++)
        open_and_close(is_anew ? 1000 + round : 0);
    say_and_wait("ready");
    for (int round = 0; round < ROUNDS; round++)
        open_and_close(is_anew ? 2000 + round : 0);
    say_and_wait("done");
    MPI_Finalize();
    return 0;
}
