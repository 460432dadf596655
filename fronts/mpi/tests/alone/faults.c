/* Programs that go wrong: faults FILE WHAT
 *     killed     process 1 dies between its writes and its close; the others go on
 *     left       finds what those have written to a whole file; left-split: to a split one
 *     missing    process 1 dies while the others wait for it in a collective write
 *     full       all write until there is no space
 *     one-full   process 1 writes to a split file until there is no space, the others go on
 *     one-alone  the same, with the hint by which collective writes do not wait for others
 *     one-spills process 1 writes more to a split file than its node has space for, and goes on at other nodes
 *     lost PID   process 0 kills a node between two writes
 *     forked     children of the processes call MPI-IO, and exit
 *     refused    the file is below a read-only mount
 *     denied     process 0 has a key of a user who may read the file only
 *     nowhere    there is no file system of the name */
#include "../programs/suite.h"
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
/* Bytes between the processes' own places in a file. */
static const MPI_Offset SEGMENT = 2 * MIB;

int rank, processes;

static int class_of(int code)
{
    int class = MPI_SUCCESS, length;
    char text[MPI_MAX_ERROR_STRING];
    if (code == MPI_SUCCESS)
        return class;
    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "process %d: %s\n", rank, text);
    return class;
}

static int opened_with(const char *name, int mode, MPI_Info hints, MPI_File *file)
{
    return class_of(MPI_File_open(MPI_COMM_WORLD, name, mode, hints, file));
}

static int opened(const char *name, int mode, MPI_File *file)
{
    return opened_with(name, mode, MPI_INFO_NULL, file);
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

/* MPI ends those who wait. */
static void missing(MPI_File file)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    MPI_File_write_at_all(file, rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE);
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

static int written(MPI_File file, MPI_Offset offset, char *bytes, int value)
{
    memset(bytes, value, MIB);
    return class_of(MPI_File_write_at(file, offset, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE));
}

/* Returns the class of a read of a MiB, whose bytes have to be this value. */
static int read_back(MPI_File file, MPI_Offset offset, char *bytes, int value)
{
    MPI_Status status;
    int moved, class = class_of(MPI_File_read_at(file, offset, bytes, MIB, MPI_BYTE, &status));
    if (class != MPI_SUCCESS)
        return class;
    MPI_Get_count(&status, MPI_BYTE, &moved);
    CHECK(moved == MIB);
    for (int at = 0; at < MIB; at++)
        CHECK(bytes[at] == value);
    return class;
}

/* A launcher that learns of a dead process ends all others. It learns of it by descriptors, which this holds, too. */
static pid_t holder(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(execlp("sleep", "sleep", "250", NULL));
    return child;
}

/* Returns when it is dead. */
static void end(pid_t process)
{
    char name[64], state;
    int is_there = 1;
    snprintf(name, sizeof name, "/proc/%d/stat", (int)process);
    CHECK(kill(process, SIGKILL) == 0);
    while (is_there) {
        FILE *about = fopen(name, "r");
        is_there = about != NULL && fscanf(about, "%*d (%*[^)]) %c", &state) == 1 && state != 'Z';
        if (about != NULL)
            fclose(about);
        sched_yield();
    }
}

/* Process 1 never ends; the others wait until it has begun. */
static void write_until_killed(MPI_File file, char *bytes)
{
    while (rank == 1)
        CHECK(written(file, 0, bytes, 99) == MPI_SUCCESS);
    for (*bytes = 0; *bytes != 99;)
        CHECK(class_of(MPI_File_read_at(file, 0, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_SUCCESS);
}

/* What all have synchronized lies in the first MiB of their segments, what the living have written later in the second,
 * and there is what process 1 had not synchronized. It dies while it locks the second file again and again. */
static void killed(MPI_File file, const char *name)
{
    char *bytes = calloc(1, MIB), other[512];
    pid_t process1[2] = {getpid(), rank == 1 ? holder() : 0};
    MPI_Comm living;
    MPI_File locked;
    MPI_Offset own = rank * SEGMENT, size;
    snprintf(other, sizeof other, "%s-locked", name);
    CHECK(opened(other, MPI_MODE_CREATE | MPI_MODE_RDWR, &locked) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_set_atomicity(locked, 1)) == MPI_SUCCESS);
    CHECK(written(file, own, bytes, 1 + rank) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    CHECK(rank != 1 || written(file, own + MIB, bytes, 99) == MPI_SUCCESS);
    MPI_Bcast(process1, sizeof process1, MPI_BYTE, 1, MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 1, rank, &living);
    write_until_killed(locked, bytes);
    MPI_Barrier(living);
    if (rank == 0)
        end(process1[0]);
    MPI_Barrier(living);
    CHECK(written(file, own + MIB, bytes, 21 + rank) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_get_size(file, &size)) == MPI_SUCCESS); /* publishes; a sync would wait for the dead one */
    CHECK(written(locked, 0, bytes, 21 + rank) == MPI_SUCCESS);
    MPI_Barrier(living);
    if (rank == 0)
        end(process1[1]);
    _exit(0); /* without MPI_Finalize(), which would wait for the dead one */
}

/* Another program finds that. Of a whole file a write that has returned is there, of a split one nothing that was not
 * synchronized. */
static void left(const char *name, int of_the_dead)
{
    char *bytes = calloc(1, MIB), other[512];
    MPI_File file;
    CHECK(opened(name, MPI_MODE_RDWR, &file) == MPI_SUCCESS);
    for (int writer = 0; writer < processes; writer++) {
        CHECK(read_back(file, writer * SEGMENT, bytes, 1 + writer) == MPI_SUCCESS);
        CHECK(read_back(file, writer * SEGMENT + MIB, bytes, writer == 1 ? of_the_dead : 21 + writer) == MPI_SUCCESS);
    }
    CHECK(class_of(MPI_File_close(&file)) == MPI_SUCCESS);
    snprintf(other, sizeof other, "%s-locked", name);
    CHECK(opened(other, MPI_MODE_RDWR, &file) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_set_atomicity(file, 1)) == MPI_SUCCESS);
    CHECK(written(file, 0, bytes, 31) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_close(&file)) == MPI_SUCCESS);
    free(bytes);
}

/* All processes get the same class. */
static int agreed(int class)
{
    int least, most;
    MPI_Allreduce(&class, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&class, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    CHECK(least == most);
    return class;
}

/* Opens a file with a hint, which is told back. */
static MPI_File hinted(const char *name, int mode, const char *key, const char *value)
{
    MPI_File file;
    MPI_Info hints, used;
    char told[16] = "";
    int is_set;
    MPI_Info_create(&hints);
    MPI_Info_set(hints, key, value);
    CHECK(opened_with(name, mode, hints, &file) == MPI_SUCCESS);
    MPI_Info_free(&hints);
    CHECK(MPI_File_get_info(file, &used) == MPI_SUCCESS);
    MPI_Info_get(used, key, sizeof told - 1, told, &is_set);
    CHECK(is_set && strcmp(told, value) == 0);
    MPI_Info_free(&used);
    return file;
}

/* Process 1 writes until there is no space. The others have written before: they may have the same node. Returns the
 * number of writes, the last of which has failed. */
static int fill_one(MPI_File file, char *bytes)
{
    enum { MANY = 256 };
    int class = MPI_SUCCESS, index = 0;
    CHECK(written(file, rank * SEGMENT, bytes, 1 + rank) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    for (; rank == 1 && index < MANY && class == MPI_SUCCESS; index++)
        class = written(file, processes * SEGMENT + (MPI_Offset)index * MIB, bytes, 1 + rank);
    CHECK(rank != 1 || class == MPI_ERR_NO_SPACE);
    MPI_Barrier(MPI_COMM_WORLD);
    return index;
}

/* What was written before there was no space is there, and can be written again. */
static void goes_on(MPI_File file, char *bytes, int writes)
{
    MPI_Offset own = rank * SEGMENT, more = processes * SEGMENT;
    CHECK(written(file, own, bytes, 11 + rank) == MPI_SUCCESS);
    CHECK(agreed(class_of(MPI_File_sync(file))) == MPI_SUCCESS);
    for (int other = 0; other < processes; other++)
        CHECK(read_back(file, other * SEGMENT, bytes, 11 + other) == MPI_SUCCESS);
    for (int before = 0; before < writes - 1; before++)
        CHECK(read_back(file, more + (MPI_Offset)before * MIB, bytes, 1 + rank) == MPI_SUCCESS);
    CHECK(agreed(class_of(MPI_File_close(&file))) == MPI_SUCCESS);
}

/* Starts a collective write and waits for it. Each process gets its own result, of Open MPI in a way of its own. */
static void write_and_wait(MPI_File file, MPI_Offset offset, const char *bytes, int count)
{
    MPI_Request request;
    int class = class_of(MPI_File_iwrite_at_all(file, offset, bytes, count, MPI_BYTE, &request));
    if (class == MPI_SUCCESS)
        class = class_of(MPI_Wait(&request, MPI_STATUS_IGNORE));
#ifndef OPEN_MPI
    CHECK(class == (rank == 1 ? MPI_ERR_NO_SPACE : MPI_SUCCESS));
#endif
}

/* A collective write fails at all processes, once. One that does not wait fails at its process, and the next call that
 * waits at all. */
static void one_full(MPI_File file)
{
    char *bytes = calloc(1, MIB);
    int writes = fill_one(file, bytes), count = rank == 1 ? MIB : 0;
    MPI_Offset next = processes * SEGMENT + (MPI_Offset)writes * MIB;
    CHECK(class_of(MPI_File_write_at_all(file, next, bytes, count, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_NO_SPACE);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    int begun = class_of(MPI_File_write_at_all_begin(file, next, bytes, count, MPI_BYTE));
    int ended = class_of(MPI_File_write_at_all_end(file, bytes, MPI_STATUS_IGNORE));
    CHECK(begun == MPI_ERR_NO_SPACE || ended == MPI_ERR_NO_SPACE);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    write_and_wait(file, next, bytes, count);
    CHECK(class_of(MPI_File_sync(file)) == MPI_ERR_NO_SPACE);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    goes_on(file, bytes, writes);
    free(bytes);
}

/* A collective write fails at its process, and the next call that waits for all at all of them, once. */
static void one_alone(const char *name)
{
    MPI_File file = hinted(name, MPI_MODE_CREATE | MPI_MODE_RDWR, "weft_errors", "own");
    char *bytes = calloc(1, MIB);
    int writes = fill_one(file, bytes), count = rank == 1 ? MIB : 0;
    int expected = rank == 1 ? MPI_ERR_NO_SPACE : MPI_SUCCESS;
    MPI_Offset own = rank * SEGMENT, next = processes * SEGMENT + (MPI_Offset)writes * MIB;
    CHECK(class_of(MPI_File_write_at_all(file, next, bytes, count, MPI_BYTE, MPI_STATUS_IGNORE)) == expected);
    CHECK(class_of(MPI_File_sync(file)) == MPI_ERR_NO_SPACE);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_write_at_all(file, next, bytes, count, MPI_BYTE, MPI_STATUS_IGNORE)) == expected);
    CHECK(class_of(MPI_File_read_at_all(file, own, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_NO_SPACE);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    goes_on(file, bytes, writes);
    free(bytes);
}

/* Small writes are buffered, large ones are not. */
static void one_spills(const char *name)
{
    enum { MANY = 128, SMALL = 1 << 16 };
    MPI_File file = hinted(name, MPI_MODE_CREATE | MPI_MODE_RDWR, "weft_spill", "true");
    MPI_Offset own = rank * SEGMENT, more = processes * SEGMENT;
    char *bytes = calloc(1, MIB);
    CHECK(written(file, own, bytes, 1 + rank) == MPI_SUCCESS);
    for (int index = 0; rank == 1 && index < MANY; index++) {
        MPI_Offset offset = more + (MPI_Offset)index * MIB;
        memset(bytes, index % 100, MIB);
        for (int at = 0; index % 2 == 1 && at < MIB; at += SMALL)
            CHECK(class_of(MPI_File_write_at(file, offset + at, bytes + at, SMALL, MPI_BYTE, MPI_STATUS_IGNORE)) ==
                  MPI_SUCCESS);
        if (index % 2 == 0)
            CHECK(class_of(MPI_File_write_at(file, offset, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_SUCCESS);
    }
    for (int turn = 0; turn < 2; turn++) {
        CHECK(agreed(class_of(MPI_File_sync(file))) == MPI_SUCCESS);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int other = 0; other < processes; other++)
        CHECK(read_back(file, other * SEGMENT, bytes, 1 + other) == MPI_SUCCESS);
    for (int index = rank; index < MANY; index += processes)
        CHECK(read_back(file, more + (MPI_Offset)index * MIB, bytes, index % 100) == MPI_SUCCESS);
    CHECK(agreed(class_of(MPI_File_close(&file))) == MPI_SUCCESS);
    CHECK(opened(name, MPI_MODE_RDONLY, &file) == MPI_SUCCESS);
    for (int index = processes - 1 - rank; index < MANY; index += processes)
        CHECK(read_back(file, more + (MPI_Offset)index * MIB, bytes, index % 100) == MPI_SUCCESS);
    CHECK(agreed(class_of(MPI_File_close(&file))) == MPI_SUCCESS);
    free(bytes);
}

static int read_together(MPI_File file, MPI_Offset offset, char *bytes)
{
    return agreed(class_of(MPI_File_read_at_all(file, offset, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE)));
}

/* Each process's MiB is on a node of its own, one of which is lost: collective calls fail at all processes, also where
 * one process reads and writes for all, in several rounds. */
static void lost_stripe(MPI_File file, char *bytes)
{
    enum { PIECE = 1 << 16 };
    MPI_Datatype pieces;
    MPI_Info hints;
    MPI_Offset own = (MPI_Offset)rank * MIB;
    CHECK(read_together(file, own, bytes) == MPI_ERR_IO);
    int class = class_of(MPI_File_write_at_all(file, own, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(agreed(class) == MPI_ERR_IO);
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "cb_buffer_size", "131072");
    CHECK(MPI_Type_vector(MIB / PIECE, PIECE, PIECE * processes, MPI_BYTE, &pieces) == MPI_SUCCESS);
    CHECK(MPI_Type_commit(&pieces) == MPI_SUCCESS);
    class = class_of(MPI_File_set_view(file, (MPI_Offset)rank * PIECE, MPI_BYTE, pieces, "native", hints));
    CHECK(class == MPI_SUCCESS);
    CHECK(read_together(file, 0, bytes) == MPI_ERR_IO);
    class = class_of(MPI_File_write_at_all(file, 0, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(agreed(class) == MPI_ERR_IO);
    CHECK(read_together(file, 0, bytes) == MPI_ERR_IO);
    MPI_Type_free(&pieces);
    MPI_Info_free(&hints);
    agreed(class_of(MPI_File_close(&file)));
}

/* What lay on the node is lost. Nobody waits for ever, collective calls fail at all processes or at none, and new files
 * can be made. */
static void lost(MPI_File file, const char *name, const char *node)
{
    MPI_Offset own = rank * SEGMENT;
    char *bytes = calloc(1, MIB), again[512];
    snprintf(again, sizeof again, "%s-striped", name);
    MPI_File striped = hinted(again, MPI_MODE_CREATE | MPI_MODE_RDWR, "striping_factor", "4");
    CHECK(written(striped, (MPI_Offset)rank * MIB, bytes, 1 + rank) == MPI_SUCCESS);
    CHECK(written(file, own, bytes, 1 + rank) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        CHECK(kill(atoi(node), SIGKILL) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    int class = written(file, own + MIB, bytes, 1 + rank);
    CHECK(class == MPI_SUCCESS || class == MPI_ERR_IO);
    class = agreed(class_of(MPI_File_sync(file)));
    CHECK(class == MPI_SUCCESS || class == MPI_ERR_IO);
    MPI_Offset wanted = own; /* what cannot be read, if there is something: a process goes on reading its own part */
    int readable = 0, is_any_lost;
    for (int other = 0; other < processes; other++) {
        class = read_back(file, other * SEGMENT, bytes, 1 + other);
        CHECK(class == MPI_SUCCESS || class == MPI_ERR_IO);
        readable += class == MPI_SUCCESS;
        wanted = class == MPI_SUCCESS ? wanted : other * SEGMENT;
    }
    int is_lost = readable < processes;
    MPI_Allreduce(&is_lost, &is_any_lost, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    read_together(file, wanted, bytes); /* fails for the writes, too */
    CHECK(read_together(file, wanted, bytes) == (is_any_lost ? MPI_ERR_IO : MPI_SUCCESS));
    agreed(class_of(MPI_File_close(&file)));
    lost_stripe(striped, bytes);
    snprintf(again, sizeof again, "%s-again", name);
    CHECK(opened(again, MPI_MODE_CREATE | MPI_MODE_RDWR, &file) == MPI_SUCCESS);
    CHECK(written(file, own, bytes, 1 + rank) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    int next = (rank + 1) % processes;
    CHECK(read_back(file, next * SEGMENT, bytes, 1 + next) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_close(&file)) == MPI_SUCCESS);
    printf("process %d: %d of %d segments can be read\n", rank, readable, processes);
    free(bytes);
}

/* A child gets an error, and neither that nor its end touches the parent's file. */
static void forked(MPI_File file)
{
    MPI_Offset own = rank * SEGMENT;
    char *bytes = calloc(1, MIB);
    int status;
    CHECK(written(file, own, bytes, 1 + rank) == MPI_SUCCESS);
    pid_t child = fork();
    if (child == 0)
        exit(written(file, own, bytes, 99) == MPI_SUCCESS);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(system("exit 3") != -1);
    CHECK(written(file, own + MIB, bytes, 11 + rank) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(class_of(MPI_File_sync(file)) == MPI_SUCCESS);
    for (int other = 0; other < processes; other++) {
        CHECK(read_back(file, other * SEGMENT, bytes, 1 + other) == MPI_SUCCESS);
        CHECK(read_back(file, other * SEGMENT + MIB, bytes, 11 + other) == MPI_SUCCESS);
    }
    CHECK(class_of(MPI_File_close(&file)) == MPI_SUCCESS);
    free(bytes);
}

int main(int count, char **words)
{
    MPI_File file;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* of requests */
    CHECK(count == 3 || (count == 4 && strcmp(words[2], "lost") == 0));
    if (strcmp(words[2], "refused") == 0) {
        CHECK(class_of(MPI_File_delete(words[1], MPI_INFO_NULL)) == MPI_ERR_READ_ONLY);
        read_only(words[1], MPI_ERR_READ_ONLY);
    } else if (strcmp(words[2], "denied") == 0) {
        read_only(words[1], MPI_ERR_ACCESS);
    } else if (strcmp(words[2], "nowhere") == 0) {
        CHECK(opened(words[1], MPI_MODE_RDONLY, &file) == MPI_ERR_IO);
    } else if (strcmp(words[2], "left") == 0) {
        left(words[1], 99);
    } else if (strcmp(words[2], "left-split") == 0) {
        left(words[1], 0);
    } else if (strcmp(words[2], "one-spills") == 0) {
        one_spills(words[1]);
    } else if (strcmp(words[2], "one-alone") == 0) {
        one_alone(words[1]);
    } else {
        CHECK(opened(words[1], MPI_MODE_CREATE | MPI_MODE_RDWR, &file) == MPI_SUCCESS);
        if (strcmp(words[2], "full") == 0)
            full(file);
        else if (strcmp(words[2], "one-full") == 0)
            one_full(file);
        else if (strcmp(words[2], "lost") == 0)
            lost(file, words[1], words[3]);
        else if (strcmp(words[2], "forked") == 0)
            forked(file);
        else if (strcmp(words[2], "missing") == 0)
            missing(file);
        else
            killed(file, words[1]);
    }
    if (rank == 0)
        printf("as expected\n");
    MPI_Finalize();
    return 0;
}
