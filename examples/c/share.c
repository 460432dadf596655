/* Several processes write one file, which one of them opens: share FILE_SYSTEM PATH PROCESSES
 *
 *     cc -o share share.c $(pkg-config --cflags --libs weft)
 *
 * Here they are forked; with MPI the bytes of the handle would be broadcast.
 */
#include <weft.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PART = 1 << 20 };

/* Says what went wrong, and ends the process, if `result` is a failure. */
static void check(long result)
{
    if (result < 0) {
        fprintf(stderr, "share: %s\n", weft_strerror((int)result));
        exit(1);
    }
}

/* What each process does: it connects by itself, and writes its part by the handle that it was told. */
static void write_part(const char *name, const void *handle, size_t length, int rank)
{
    weft_t fs;
    weft_file_t file;
    char *part = malloc(PART);
    memset(part, 'a' + rank % 26, PART);
    check(weft_connect(name, NULL, &fs));
    check(weft_import(fs, handle, length, NULL, &file));
    check(weft_pwrite(file, part, PART, (off_t)rank * PART));
    check(weft_close(file));
    check(weft_disconnect(fs));
    free(part);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: share FILE_SYSTEM PATH PROCESSES\n");
        return 2;
    }
    weft_t fs;
    weft_file_t file;
    check(weft_connect(argv[1], NULL, &fs));
    check(weft_open(fs, argv[2], O_RDWR | O_CREAT | O_TRUNC, 0666, &file));
    ssize_t length = weft_export(file, NULL, 0);
    check(length);
    char *handle = malloc(length);
    check(weft_export(file, handle, length));

    int processes = atoi(argv[3]), failed = 0, status;
    for (int rank = 0; rank < processes; rank++) {
        if (fork() == 0) {
            write_part(argv[1], handle, length, rank);
            exit(0);
        }
    }
    while (wait(&status) > 0)
        failed += status != 0;

    struct statx attributes;
    check(weft_fstatx(file, STATX_SIZE, &attributes));
    printf("%d processes wrote %llu bytes, %d failed\n", processes, (unsigned long long)attributes.stx_size, failed);
    free(handle);
    check(weft_close(file));
    check(weft_disconnect(fs));
    return failed > 0;
}
