/* ior - the access patterns of IOR (N-1 segmented, N-1 strided, N-N), each round on every target, so that what is
 * compared was measured by the same processes in the same minute.
 *
 *     ior ROUNDS TRANSFER BYTES TARGET...
 *
 * TRANSFER: bytes of one call; BYTES: of one rank, a multiple of that. A target is LABEL=OPTION,...:PATH with
 *
 *     mpi | own | posix       one file of all ranks | a file per rank, by MPI-IO | a file per rank, by pwrite and pread
 *     segmented | strided     a rank's bytes lie together | ranks take turns, transfer by transfer
 *     collective              all ranks make each call together
 *     KEY/VALUE               a hint
 *
 * Each target is written anew, written once more, and read back by who wrote it; the first bytes of each transfer are
 * compared always, all others in the first round. Rank 0 prints a line of JSON for each of the three. The time is that
 * from open to close, of the slowest rank.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum api { MPI, OWN, POSIX };

struct target {
    char label[64];
    enum api api;
    int is_strided, is_collective;
    MPI_Info info;
    const char *path;
};

/* An open target: one of the two. */
struct file {
    MPI_File mpi;
    int posix;
};

static int rank, ranks;
static size_t transfer, bytes;
static char *buffer, *wanted;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "ior: rank %d: %s: %s\n", rank, what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (error == MPI_SUCCESS)
        return;
    MPI_Error_string(error, text, &length);
    fail(what, text);
}

static void check_posix(int failed, const char *what)
{
    if (failed)
        fail(what, strerror(errno));
}

static size_t number(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text == 0 || *end != 0 || value == 0 || value > INT32_MAX)
        fail(text, "no number of bytes or rounds");
    return value;
}

static struct target parsed(char *text)
{
    struct target target = {.info = MPI_INFO_NULL};
    char *options = strchr(text, '='), *path = options == NULL ? NULL : strchr(options, ':');
    if (path == NULL || (size_t)(options - text) >= sizeof target.label)
        fail(text, "no LABEL=OPTION,...:PATH");
    memcpy(target.label, text, (size_t)(options - text));
    target.path = path + 1;
    *path = 0;
    MPI_Info_create(&target.info);
    for (char *word = strtok(options + 1, ","); word != NULL; word = strtok(NULL, ",")) {
        char *value = strchr(word, '/');
        if (value != NULL) {
            *value = 0;
            MPI_Info_set(target.info, word, value + 1);
        } else if (strcmp(word, "mpi") == 0 || strcmp(word, "own") == 0 || strcmp(word, "posix") == 0) {
            target.api = *word == 'm' ? MPI : *word == 'o' ? OWN : POSIX;
        } else if (strcmp(word, "strided") == 0 || strcmp(word, "segmented") == 0) {
            target.is_strided = word[1] == 't';
        } else if (strcmp(word, "collective") == 0) {
            target.is_collective = 1;
        } else {
            fail(word, "no option of a target");
        }
    }
    return target;
}

/* Path of the file that this rank uses. */
static const char *path_of(const struct target *target)
{
    static char path[4096];
    if (target->api == MPI)
        return target->path;
    snprintf(path, sizeof path, "%s.%d", target->path, rank);
    return path;
}

static struct file opened(const struct target *target, int writes)
{
    struct file file = {.posix = -1, .mpi = MPI_FILE_NULL};
    const char *path = path_of(target);
    if (target->api == POSIX) {
        file.posix = open(path, writes ? O_WRONLY | O_CREAT : O_RDONLY, 0666);
        check_posix(file.posix < 0, path);
        return file;
    }
    MPI_Comm all = target->api == MPI ? MPI_COMM_WORLD : MPI_COMM_SELF;
    int mode = writes ? MPI_MODE_WRONLY | MPI_MODE_CREATE : MPI_MODE_RDONLY;
    check(MPI_File_open(all, path, mode, target->info, &file.mpi), path);
    return file;
}

static void closed(const struct target *target, struct file *file)
{
    if (target->api == POSIX)
        check_posix(close(file->posix) != 0, "close");
    else
        check(MPI_File_close(&file->mpi), "close");
}

/* Where the rank's transfer lies in the file. */
static MPI_Offset offset_of(const struct target *target, size_t index)
{
    if (target->api != MPI)
        return (MPI_Offset)(index * transfer);
    if (target->is_strided)
        return (MPI_Offset)((index * (size_t)ranks + (size_t)rank) * transfer);
    return (MPI_Offset)((size_t)rank * bytes + index * transfer);
}

/* What the first bytes of a transfer are. */
static uint64_t stamp(const struct target *target, size_t index, size_t round)
{
    return ((uint64_t)offset_of(target, index) << 20) + ((uint64_t)round << 12) + (uint64_t)rank;
}

static void write_all(const struct target *target, struct file *file, size_t round)
{
    for (size_t index = 0; index < bytes / transfer; index++) {
        MPI_Offset offset = offset_of(target, index);
        uint64_t first = stamp(target, index, round);
        memcpy(buffer, &first, sizeof first);
        if (target->api == POSIX) {
            check_posix(pwrite(file->posix, buffer, transfer, offset) != (ssize_t)transfer, "pwrite");
        } else if (target->is_collective) {
            check(MPI_File_write_at_all(file->mpi, offset, buffer, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE),
                  target->label);
        } else {
            check(MPI_File_write_at(file->mpi, offset, buffer, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE),
                  target->label);
        }
    }
}

static void read_all(const struct target *target, struct file *file, size_t round)
{
    for (size_t index = 0; index < bytes / transfer; index++) {
        MPI_Offset offset = offset_of(target, index);
        uint64_t first = stamp(target, index, round);
        if (target->api == POSIX) {
            check_posix(pread(file->posix, buffer, transfer, offset) != (ssize_t)transfer, "pread");
        } else {
            MPI_Status status;
            int count;
            check(target->is_collective
                      ? MPI_File_read_at_all(file->mpi, offset, buffer, (int)transfer, MPI_BYTE, &status)
                      : MPI_File_read_at(file->mpi, offset, buffer, (int)transfer, MPI_BYTE, &status),
                  target->label);
            MPI_Get_count(&status, MPI_BYTE, &count);
            if (count != (int)transfer)
                fail(target->label, "fewer bytes than were written");
        }
        if (memcmp(buffer, &first, sizeof first) != 0)
            fail(target->label, "other bytes than were written");
        if (round == 0 && memcmp(buffer + sizeof first, wanted + sizeof first, transfer - sizeof first) != 0)
            fail(target->label, "other bytes than were written, behind the first");
    }
}

static void removed(const struct target *target)
{
    if (target->api == POSIX)
        unlink(path_of(target));
    else if (target->api == OWN || rank == 0)
        MPI_File_delete(path_of(target), MPI_INFO_NULL);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* One of the three, timed. */
static void run(const struct target *target, const char *operation, size_t round)
{
    int writes = strcmp(operation, "read") != 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    struct file file = opened(target, writes);
    double open_ = MPI_Wtime();
    if (writes)
        write_all(target, &file, round);
    else
        read_all(target, &file, round);
    double moved = MPI_Wtime();
    closed(target, &file);
    double own[] = {MPI_Wtime() - begun, open_ - begun, moved - open_}, all[3];
    MPI_Reduce(own, all, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"target\": \"%s\", \"round\": %zu, \"operation\": \"%s\", \"seconds\": %.6f, \"open\": %.6f, "
               "\"transfers\": %.6f, \"bytes\": %zu}\n",
               target->label, round, operation, all[0], all[1], all[2], bytes * (size_t)ranks);
        fflush(stdout);
    }
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 5)
        fail("usage", "ior ROUNDS TRANSFER BYTES TARGET...");
    size_t rounds = number(words[1]), targets = (size_t)count - 4;
    transfer = number(words[2]);
    bytes = number(words[3]);
    if (transfer < sizeof(uint64_t) || bytes % transfer != 0)
        fail("BYTES", "no multiple of TRANSFER, or that is less than 8");
    buffer = malloc(transfer);
    wanted = malloc(transfer);
    struct target *target = calloc(targets, sizeof *target);
    if (buffer == NULL || wanted == NULL || target == NULL)
        fail("memory", "there is not enough");
    for (size_t at = 0; at < transfer; at++)
        wanted[at] = (char)(at * 31 + at / 4096 + (size_t)rank);
    for (size_t index = 0; index < targets; index++)
        target[index] = parsed(words[4 + index]);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t turn = 0; turn < targets; turn++) {
            /* Nobody is always the first. */
            const struct target *now = &target[(turn + round) % targets];
            removed(now);
            memcpy(buffer, wanted, transfer);
            run(now, "write", round);
            run(now, "rewrite", round);
            run(now, "read", round);
            removed(now);
        }
    }
    for (size_t index = 0; index < targets; index++)
        MPI_Info_free(&target[index].info);
    free(target);
    free(buffer);
    free(wanted);
    MPI_Finalize();
    return 0;
}
