/* Handles that are closed while threads use them, or have used them. */
#define _GNU_SOURCE
#include "suite.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { HANDLES = 4, READERS = 3, ROUNDS = 300, BYTES = 512 };

static _Atomic(weft_file_t) shared[HANDLES];
static atomic_int ends;
/* Threads that have read something. */
static atomic_int readers;

static void *read_all(void *argument)
{
    char memory[BYTES];
    int has_read = 0;
    (void)argument;
    for (int i = 0; !ends; i = (i + 1) % HANDLES) {
        ssize_t count = weft_pread(shared[i], memory, sizeof memory, 0);
        CHECK(count == BYTES || count == -EBADF);
        for (int byte = 0; byte < count; byte++)
            CHECK(memory[byte] == 'a' + i);
        if (count > 0 && !has_read) {
            has_read = 1;
            readers++;
        }
    }
    return NULL;
}

/* Threads read by handles that another closes and opens anew. */
static void reopened(const char *file_system)
{
    weft_t fs = connected(file_system);
    pthread_t thread[READERS];
    char path[HANDLES][32], memory[BYTES];
    for (int i = 0; i < HANDLES; i++) {
        snprintf(path[i], sizeof path[i], "/reopened%d", i);
        shared[i] = opened(fs, path[i], O_RDWR | O_CREAT | O_TRUNC);
        memset(memory, 'a' + i, sizeof memory);
        EXPECT(BYTES, weft_pwrite(shared[i], memory, sizeof memory, 0));
    }
    ends = readers = 0;
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_create(&thread[i], NULL, read_all, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        int i = round % HANDLES;
        weft_file_t old = shared[i];
        if (round % 2) {
            shared[i] = opened(fs, path[i], O_RDONLY);
            EXPECT(0, weft_close(old));
        } else {
            EXPECT(0, weft_close(old));
            EXPECT(-EBADF, weft_pread(old, memory, sizeof memory, 0));
            shared[i] = opened(fs, path[i], O_RDONLY);
        }
    }
    while (readers < READERS)
        usleep(1000); /* on a busy machine some have not begun */
    ends = 1;
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    for (int i = 0; i < HANDLES; i++) {
        EXPECT(0, weft_close(shared[i]));
        EXPECT(0, weft_unlink(fs, path[i]));
    }
    EXPECT(0, weft_disconnect(fs));
}

struct user {
    weft_file_t file;
    pthread_barrier_t used, end;
};

static void *use_once(void *argument)
{
    struct user *user = argument;
    char byte;
    EXPECT(1, weft_pread(user->file, &byte, 1, 0));
    pthread_barrier_wait(&user->used);
    pthread_barrier_wait(&user->end);
    return NULL;
}

static const struct weft_lock whole = {0, 0, 1};

/* A close closes although another thread has used the handle, and makes no call that would notice: locks are free. */
static void remembered(const char *file_system)
{
    weft_t fs = connected(file_system), other = connected(file_system);
    struct user user = {.file = opened(fs, "/remembered", O_RDWR | O_CREAT)};
    weft_file_t theirs = opened(other, "/remembered", O_RDWR);
    pthread_t thread;
    EXPECT(1, weft_pwrite(user.file, "x", 1, 0));
    EXPECT(0, weft_lock(user.file, &whole, 1, 0));
    CHECK(pthread_barrier_init(&user.used, NULL, 2) == 0 && pthread_barrier_init(&user.end, NULL, 2) == 0);
    CHECK(pthread_create(&thread, NULL, use_once, &user) == 0);
    pthread_barrier_wait(&user.used);
    EXPECT(-EAGAIN, weft_lock(theirs, &whole, 1, WEFT_LOCK_NOWAIT));
    EXPECT(0, weft_close(user.file));
    EXPECT(0, weft_lock(theirs, &whole, 1, WEFT_LOCK_NOWAIT));
    pthread_barrier_wait(&user.end);
    CHECK(pthread_join(thread, NULL) == 0);
    EXPECT(0, weft_close(theirs));
    EXPECT(0, weft_unlink(fs, "/remembered"));
    EXPECT(0, weft_disconnect(other));
    EXPECT(0, weft_disconnect(fs));
}

struct waiter {
    weft_file_t file;
    atomic_int thread;
    int result;
};

static void *wait_for_lock(void *argument)
{
    struct waiter *waiter = argument;
    waiter->thread = gettid();
    waiter->result = weft_lock(waiter->file, &whole, 1, 0);
    return NULL;
}

/* Starts a thread that waits for a lock by a handle. Returns when it sleeps. */
static pthread_t waiting(struct waiter *waiter)
{
    pthread_t thread;
    char path[64], state = 0;
    CHECK(pthread_create(&thread, NULL, wait_for_lock, waiter) == 0);
    while (waiter->thread == 0)
        usleep(10);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", waiter->thread);
    while (state != 'S') {
        FILE *told = fopen(path, "r");
        CHECK(told != NULL && fscanf(told, "%*d (%*[^)]) %c", &state) == 1);
        fclose(told);
    }
    return thread;
}

/* A close under a call in flight: the call goes on, and its return closes. Another handle's call delays no close. */
static void in_flight(const char *file_system)
{
    weft_t fs = connected(file_system), other = connected(file_system);
    weft_file_t mine = opened(fs, "/in-flight", O_RDWR | O_CREAT), third = opened(other, "/in-flight", O_RDWR);
    struct waiter first = {.file = opened(other, "/in-flight", O_RDWR)};
    struct waiter second = {.file = opened(other, "/in-flight", O_RDWR)};

    EXPECT(0, weft_lock(mine, &whole, 1, 0));
    pthread_t thread = waiting(&first);
    EXPECT(0, weft_close(first.file));
    EXPECT(-EBADF, weft_fsync(first.file));
    EXPECT(-EBADF, weft_close(first.file));
    EXPECT(0, weft_unlock(mine, &whole, 1));
    CHECK(pthread_join(thread, NULL) == 0);
    /* It was closed before it began, where it slept before that. */
    CHECK(first.result == 0 || first.result == -EBADF);

    EXPECT(0, weft_lock(mine, &whole, 1, WEFT_LOCK_NOWAIT));
    thread = waiting(&second);
    EXPECT(0, weft_close(mine)); /* has what the other waits for */
    CHECK(pthread_join(thread, NULL) == 0);
    EXPECT(0, second.result);
    EXPECT(-EAGAIN, weft_lock(third, &whole, 1, WEFT_LOCK_NOWAIT));
    EXPECT(0, weft_close(second.file));
    EXPECT(0, weft_lock(third, &whole, 1, WEFT_LOCK_NOWAIT));
    EXPECT(0, weft_close(third));
    EXPECT(0, weft_unlink(fs, "/in-flight"));
    EXPECT(0, weft_disconnect(other));
    EXPECT(0, weft_disconnect(fs));
}

const struct test closing_tests[] = {
    {"reopened", reopened},
    {"remembered", remembered},
    {"in-flight", in_flight},
    {NULL, NULL},
};
