/* Runs the tests that are named, or all: suite PLACE [TEST...] */
#include "suite.h"

int rank, processes;

void expect(const char *file, int line, const char *what, int class, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "no error";
    int got = MPI_SUCCESS, length;
    if (code != MPI_SUCCESS) {
        MPI_Error_class(code, &got);
        MPI_Error_string(code, text, &length);
    }
    if (got != class) {
        fprintf(stderr, "%s:%d: process %d: %s: class %d, not %d: %s\n", file, line, rank, what, got, class, text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

const char *in(const char *place, const char *name)
{
    static char names[4][4096];
    static int next;
    char *text = names[next++ % 4];
    snprintf(text, sizeof names[0], "%s%s", place, name);
    return text;
}

MPI_File made(const char *place, const char *name)
{
    MPI_File file;
    OK(MPI_File_open(MPI_COMM_WORLD, in(place, name), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_size(file, 0));
    return file;
}

unsigned char byte_of(int writer, long long position)
{
    return (unsigned char)(1 + (writer * 131 + position * 7 + position / 251) % 255);
}

int main(int count, char **words)
{
    static const struct test *const all[] = {view_tests, model_tests, mode_tests, lock_tests};
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    CHECK(count >= 2);
    for (size_t list = 0; list < sizeof all / sizeof *all; list++) {
        for (const struct test *test = all[list]; test->name != NULL; test++) {
            int is_meant = count == 2;
            for (int word = 2; word < count; word++)
                is_meant |= strcmp(words[word], test->name) == 0;
            if (!is_meant)
                continue;
            test->run(words[1]);
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0)
                printf("%s holds\n", test->name);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
