/*
 * client.c - the C library's side of the suite's part `libraries`: see bench/src/bin/bench-library.rs.
 *
 *   client NAME SIZE REQUEST CALLS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <weft.h>

enum { FILLING = 0x5a, PASSES = 3, BATCHES = 5, SMALL_BYTES = 4096, PAGE = 4096 };
/* From a small read's memory to the next one's: see bench-library.rs. */
enum { STEP = 272 };

struct figures { double write[PASSES], read[PASSES], stat[BATCHES], pread[BATCHES]; };

/* Ends the program if a call failed, or moved another number of bytes. */
static void check(ssize_t result, ssize_t expected, const char *what)
{
    if (result == expected)
        return;
    fprintf(stderr, "%s: %s\n", what, result < 0 ? weft_strerror((int)result) : "another number of bytes");
    exit(2);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void large(weft_t fs, uint64_t size, size_t request, struct figures *found)
{
    weft_file_t file;
    char *buffer = aligned_alloc(PAGE, request);
    if (!buffer)
        exit(2);
    memset(buffer, FILLING, request);
    check(weft_open(fs, "/large", O_RDWR | O_CREAT, 0600, &file), 0, "open");
    for (int pass = 0; pass <= PASSES; pass++) {
        double before = now();
        for (uint64_t offset = 0; offset < size; offset += request) {
            memcpy(buffer, &offset, sizeof offset);
            check(weft_pwrite(file, buffer, request, (off_t)offset), (ssize_t)request, "write");
        }
        double written = now();
        for (uint64_t offset = 0; offset < size; offset += request) {
            check(weft_pread(file, buffer, request, (off_t)offset), (ssize_t)request, "read");
            if (memcmp(buffer, &offset, sizeof offset) != 0) {
                fprintf(stderr, "wrong contents at offset %" PRIu64 "\n", offset);
                exit(2);
            }
        }
        /* The first pass makes the file and its connections, and is not told. */
        if (pass > 0) {
            found->write[pass - 1] = (double)size / (written - before);
            found->read[pass - 1] = (double)size / (now() - written);
        }
    }
    check(weft_close(file), 0, "close");
    free(buffer);
}

static void small(weft_t fs, int calls, struct figures *found)
{
    weft_file_t file;
    struct statx attributes;
    char *memory = malloc(PAGE + SMALL_BYTES);
    if (!memory)
        exit(2);
    memset(memory, FILLING, PAGE + SMALL_BYTES);
    check(weft_open(fs, "/small", O_RDWR | O_CREAT, 0600, &file), 0, "open");
    check(weft_pwrite(file, memory, SMALL_BYTES, 0), SMALL_BYTES, "write");
    check(weft_fsync(file), 0, "flush");
    for (int batch = 0; batch < BATCHES; batch++) {
        double before = now();
        for (int call = 0; call < calls; call++)
            check(weft_statx(fs, "/small", 0, STATX_BASIC_STATS, &attributes), 0, "stat");
        found->stat[batch] = (now() - before) * 1e9 / calls;
        before = now();
        for (int call = 0; call < calls; call++)
            check(weft_pread(file, memory + (size_t)call * STEP % PAGE, SMALL_BYTES, 0), SMALL_BYTES, "read");
        found->pread[batch] = (now() - before) * 1e9 / calls;
    }
    check(weft_close(file), 0, "close");
    free(memory);
}

static void print(const char *name, const double *values, int count, const char *end)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%.3f", i ? ", " : "", values[i]);
    printf("]%s", end);
}

int main(int argc, char **argv)
{
    weft_t fs;
    struct figures found;
    if (argc != 5) {
        fprintf(stderr, "usage: client NAME SIZE REQUEST CALLS\n");
        return 2;
    }
    check(weft_connect(argv[1], NULL, &fs), 0, "connect");
    large(fs, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10), &found);
    small(fs, atoi(argv[4]), &found);
    check(weft_disconnect(fs), 0, "disconnect");
    printf("{");
    print("write", found.write, PASSES, ", ");
    print("read", found.read, PASSES, ", ");
    print("stat", found.stat, BATCHES, ", ");
    print("pread", found.pread, BATCHES, "}\n");
    return 0;
}
