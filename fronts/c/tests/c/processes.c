/* Processes that fork, and that end. */
#define _GNU_SOURCE
#include "suite.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int status_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void forks(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/forks", O_RDWR | O_CREAT | O_TRUNC);
    EXPECT(6, weft_pwrite(file, "parent", 6, 0));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        REFUSED(ENOTCONN, "fork()", weft_pread(file, &byte, 1, 0));
        REFUSED(ENOTCONN, "weft_connect()", weft_mkdir(fs, "/x", 0700));
        EXPECT(-ENOTCONN, weft_close(file));
        EXPECT(-ENOTCONN, weft_disconnect(fs));
        weft_t own = connected(file_system);
        weft_file_t mine = opened(own, "/forks-child", O_WRONLY | O_CREAT);
        EXPECT(5, weft_pwrite(mine, "child", 5, 0));
        exit(0); /* writes back */
    }
    EXPECT(0, status_of(child));
    char text[16];
    EXPECT(6, weft_pread(file, text, sizeof text, 0));
    EXPECT(0, weft_close(file));
    file = opened(fs, "/forks-child", O_RDONLY);
    EXPECT(5, weft_pread(file, text, sizeof text, 0));
    CHECK(memcmp(text, "child", 5) == 0);
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_unlink(fs, "/forks"));
    EXPECT(0, weft_unlink(fs, "/forks-child"));
    EXPECT(0, weft_disconnect(fs));
}

/* A process that exports a file, tells of it, and waits to be killed. */
static void export_and_wait(const char *file_system, int to)
{
    char handle[256];
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/exported", O_RDWR | O_CREAT | O_TRUNC);
    EXPECT(8, weft_pwrite(file, "exporter", 8, 0));
    ssize_t length = weft_export(file, NULL, 0);
    CHECK(length > 0 && (size_t)length <= sizeof handle);
    REFUSED(ERANGE, "exported handle", weft_export(file, handle, 1));
    EXPECT(length, weft_export(file, handle, sizeof handle));
    CHECK(write(to, handle, length) == length);
    pause();
}

/* A file that is made for others by the call that opens it: what an imported handle has written to a split file others
 * see once it is flushed. */
static void opens_for_others(weft_t fs)
{
    weft_file_t root, file, other, none;
    char handle[256], text[32];
    EXPECT(0, weft_root(fs, &root));
    EXPECT(0, weft_openat(root, "for-others", O_RDWR | O_CREAT, 0644, "split group=split", &file));
    EXPECT(5, weft_layout(file, text, sizeof text));
    CHECK(memcmp(text, "split", 5) == 0);
    EXPECT(5, weft_layout(file, NULL, 0));
    REFUSED(ERANGE, "layout", weft_layout(file, text, 4));
    REFUSED(EISDIR, "directory", weft_layout(root, text, sizeof text));
    ssize_t length = weft_export(file, handle, sizeof handle);
    CHECK(length > 0);
    EXPECT(0, weft_import(fs, handle, length, NULL, &other));
    EXPECT(5, weft_pwrite(file, "group", 5, 0));
    EXPECT(0, weft_flush(file));
    EXPECT(5, weft_pread(other, text, sizeof text, 0));
    CHECK(memcmp(text, "group", 5) == 0);
    REFUSED(EINVAL, "group=", weft_import(fs, handle, length, "group=all", &none));
    EXPECT(0, weft_close(other));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_openat(root, "for-itself", O_RDWR | O_CREAT, 0644, "group=split", &file));
    EXPECT(5, weft_layout(file, text, sizeof text));
    CHECK(memcmp(text, "whole", 5) == 0);
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_close(root));
}

/* The handle of a process that is killed is used by others as long as they have it open, also without its name. */
static void exports(const char *file_system)
{
    int pipes[2];
    char handle[256], text[32];
    weft_t fs = connected(file_system);
    CHECK(pipe(pipes) == 0);
    fflush(stdout);
    pid_t exporter = fork();
    if (exporter == 0) {
        export_and_wait(file_system, pipes[1]);
        _exit(0);
    }
    ssize_t length = read(pipes[0], handle, sizeof handle);
    CHECK(length > 0);
    weft_file_t file, second;
    EXPECT(0, weft_import(fs, handle, length, "rdma=auto", &file));
    EXPECT(8, weft_pread(file, text, sizeof text, 0));
    CHECK(memcmp(text, "exporter", 8) == 0);
    CHECK(kill(exporter, SIGKILL) == 0);
    EXPECT(-1, status_of(exporter));
    EXPECT(0, weft_unlink(fs, "/exported"));
    EXPECT(7, weft_pwrite(file, " killed", 7, 8));
    EXPECT(0, weft_import(fs, handle, length, NULL, &second));
    EXPECT(15, weft_read(second, text, sizeof text));
    CHECK(memcmp(text, "exporter killed", 15) == 0);
    EXPECT(0, weft_fsync(file));
    EXPECT(0, weft_close(file));
    EXPECT(3, weft_pwrite(second, "end", 3, 15));
    opens_for_others(fs);

    weft_file_t none;
    REFUSED(EINVAL, "handle", weft_import(fs, handle, length - 1, NULL, &none));
    REFUSED(EINVAL, "handle", weft_import(fs, "", 0, NULL, &none));
    REFUSED(EINVAL, "layout", weft_import(fs, handle, length, "whole", &none));
    REFUSED(EFAULT, "NULL", weft_import(fs, NULL, length, NULL, &none));
    REFUSED(EFAULT, "place", weft_import(fs, handle, length, NULL, NULL));
    EXPECT(-EBADF, weft_export(none, handle, sizeof handle));
    weft_file_t root;
    EXPECT(0, weft_root(fs, &root));
    REFUSED(EISDIR, "directory", weft_export(root, handle, sizeof handle));
    EXPECT(0, weft_close(root));
    for (ssize_t at = 0; at < length; at++) { /* whatever it is by then, it opens that file or nothing */
        handle[at] ^= 0x20;
        if (weft_import(fs, handle, length, NULL, &none) == 0) {
            weft_pread(none, text, sizeof text, 0);
            EXPECT(0, weft_close(none));
        }
        handle[at] ^= 0x20;
    }
    EXPECT(0, weft_close(second));
    EXPECT(0, weft_disconnect(fs));
}

/* Two clients write to a split file, one of them publishes for both. */
static void together(const char *file_system)
{
    enum { MAX = 4096 };
    weft_t all[2] = {connected(file_system), connected(file_system)};
    weft_file_t first, root, files[2];
    char handle[MAX], bytes[2 * MAX], text[16];
    ssize_t lengths[2], length;
    int results[3] = {7, 7, 7};
    EXPECT(0, weft_root(all[0], &root));
    EXPECT(0, weft_openat(root, "together", O_RDWR | O_CREAT, 0644, "split", &first));
    CHECK((length = weft_export(first, handle, sizeof handle)) > 0);
    EXPECT(0, weft_hand_out(first, NULL, 0)); /* publishes each write by itself */
    for (int of = 0; of < 2; of++) {
        EXPECT(0, weft_import(all[of], handle, length, NULL, &files[of]));
        EXPECT(0, weft_hand_out(files[of], NULL, 0));
        EXPECT(4, weft_pwrite(files[of], of == 0 ? "zero" : "one.", 4, of * 4));
        CHECK((lengths[of] = weft_hand_out(files[of], NULL, 0)) > 0);
        REFUSED(ERANGE, "handed out", weft_hand_out(files[of], bytes, 1));
    }
    EXPECT(lengths[0], weft_hand_out(files[0], bytes, MAX));
    EXPECT(lengths[1], weft_hand_out(files[1], bytes + lengths[0], MAX));
    EXPECT(0, weft_pread(first, text, sizeof text, 0));
    REFUSED(EINVAL, "handed out", weft_publish_for(files[0], bytes, lengths[0] - 1, results, 3));
    REFUSED(EFAULT, "NULL", weft_publish_for(files[0], NULL, 1, results, 3));
    EXPECT(2, weft_publish_for(files[0], bytes, lengths[0] + lengths[1], results, 3));
    CHECK(results[0] == 0 && results[1] == 0 && results[2] == 7);
    EXPECT(8, weft_pread(first, text, sizeof text, 0));
    CHECK(memcmp(text, "zeroone.", 8) == 0);
    EXPECT(0, weft_published(files[0], results[0]));
    EXPECT(0, weft_published(files[1], -EIO)); /* not told: it publishes once more, which changes nothing */
    EXPECT(0, weft_hand_out(files[1], NULL, 0));
    EXPECT(1, weft_publish_for(first, bytes, lengths[0], results, 1));
    EXPECT(-EBADF, results[0]);
    for (int of = 0; of < 2; of++)
        EXPECT(0, weft_close(files[of]));
    EXPECT(0, weft_close(first));
    EXPECT(0, weft_unlinkat(root, "together", 0));
    EXPECT(0, weft_close(root));
    EXPECT(0, weft_disconnect(all[1]));
    EXPECT(0, weft_disconnect(all[0]));
}

enum { CLIENTS = 3, FLAT_BYTES = 1 << 20, LENGTH_MAX = 20000 };

/* A random range of the flat copy. */
static struct weft_extent range(unsigned *state, unsigned char *memory)
{
    off_t start = rand_r(state) % FLAT_BYTES, length = 1 + rand_r(state) % LENGTH_MAX;
    return (struct weft_extent){memory, (size_t)(length < FLAT_BYTES - start ? length : FLAT_BYTES - start), start};
}

/* What several clients write to a split file, over one another and by turns, each reads as from a flat copy. */
static void parts(const char *file_system)
{
    enum { ROUNDS = 15, WRITES = 20, READS = 100 };
    weft_t all[CLIENTS];
    weft_file_t root, files[CLIENTS];
    unsigned char *flat = calloc(1, FLAT_BYTES), *bytes = malloc(2 * LENGTH_MAX);
    unsigned state = 5;
    for (int of = 0; of < CLIENTS; of++) {
        all[of] = connected(file_system);
        EXPECT(0, weft_root(all[of], &root));
        EXPECT(0, weft_openat(root, "in-parts", O_RDWR | O_CREAT, 0644, "split", &files[of]));
        EXPECT(0, weft_close(root));
    }
    EXPECT(0, weft_ftruncate(files[0], FLAT_BYTES));
    for (int round = 0; round < ROUNDS; round++) {
        for (int index = 0; index < WRITES; index++) {
            struct weft_extent next = range(&state, bytes);
            for (size_t at = 0, value = (size_t)rand_r(&state); at < next.length; at++)
                flat[next.offset + (off_t)at] = bytes[at] = (unsigned char)(value + at * 7 + at / 251);
            EXPECT(next.length, weft_pwrite(files[rand_r(&state) % CLIENTS], bytes, next.length, next.offset));
        }
        for (int index = 0; index < READS; index++) {
            struct weft_extent wanted[2] = {range(&state, bytes), range(&state, bytes + LENGTH_MAX)};
            weft_file_t file = files[index % CLIENTS];
            EXPECT(wanted[0].length + wanted[1].length, weft_read_list(file, wanted, 2));
            for (int of = 0; of < 2; of++)
                CHECK(memcmp(wanted[of].memory, flat + wanted[of].offset, wanted[of].length) == 0);
            EXPECT(wanted[0].length, weft_pread(file, bytes + LENGTH_MAX, wanted[0].length, wanted[0].offset));
            CHECK(memcmp(bytes, bytes + LENGTH_MAX, wanted[0].length) == 0);
        }
    }
    for (int of = 0; of < CLIENTS; of++)
        EXPECT(0, weft_close(files[of]));
    EXPECT(0, weft_unlink(all[0], "/in-parts"));
    for (int of = 0; of < CLIENTS; of++)
        EXPECT(0, weft_disconnect(all[of]));
    free(flat);
    free(bytes);
}

static volatile sig_atomic_t handled_by;

static void note(int signal)
{
    (void)signal;
    handled_by = gettid() == getpid() ? 1 : 2;
}

/* Threads of the library take no signals of the program. */
static void signals(const char *file_system)
{
    struct sigaction action = {.sa_handler = note};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/signals", O_RDWR | O_CREAT);
    weft_queue_t queue;
    struct weft_completion done;
    struct weft_extent extent = {"x", 1, 0};
    struct weft_request write = {sizeof write, WEFT_WRITE, file, &extent, 1, NULL};
    EXPECT(0, weft_queue_create(fs, 2, &queue));
    EXPECT(0, weft_submit(queue, &write, 1));
    EXPECT(1, weft_wait(queue, &done, 1, 1, -1));
    for (int round = 0; round < 100; round++) {
        handled_by = 0;
        CHECK(kill(getpid(), SIGUSR1) == 0);
        while (handled_by == 0)
            usleep(10);
        CHECK(handled_by == 1);
    }
    EXPECT(0, weft_queue_destroy(queue));
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_unlink(fs, "/signals"));
    EXPECT(0, weft_disconnect(fs));
}

/* The last of all: this process ends with a file open. The next one to look is the test's own. */
static void ends(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/ends", O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT(9, weft_pwrite(file, "unclosed\n", 9, 0));
}

const struct test process_tests[] = {
    {"forks", forks},
    {"exports", exports},
    {"together", together},
    {"parts", parts},
    {"signals", signals},
    {"ends", ends},
    {NULL, NULL},
};
