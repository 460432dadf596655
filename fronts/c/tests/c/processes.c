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
    {"signals", signals},
    {"ends", ends},
    {NULL, NULL},
};
