/* Memory that is registered, and what calls cost: copies, registrations, bytes by their way. */
#define _DEFAULT_SOURCE
#include "suite.h"

#include <errno.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define PIECE (2 * MIB)
#define PIECES 4

static struct weft_counters counted(weft_t fs)
{
    struct weft_counters counters = {.size = sizeof counters};
    EXPECT(0, weft_get_counters(fs, &counters));
    CHECK(counters.size == sizeof counters);
    return counters;
}

static int goes_by(const char *transport)
{
    const char *chosen = getenv("WEFT_TRANSPORT");
    return strcmp(chosen != NULL ? chosen : "auto", transport) == 0;
}

static char *pages(size_t length)
{
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t at = 0; at < length; at++)
        memory[at] = (char)(at * 31 + at / 4096);
    return memory;
}

/* Writes the pieces of memory and reads them back, from the end, so that nothing is prefetched. */
static void transfer(weft_file_t file, char *memory)
{
    for (off_t piece = PIECES - 1; piece >= 0; piece--) {
        char *part = memory + piece * (off_t)PIECE;
        EXPECT(PIECE, weft_pwrite(file, part, PIECE, piece * (off_t)PIECE));
        EXPECT(PIECE, weft_pread(file, part, PIECE, piece * (off_t)PIECE));
    }
}

static void copies(const char *file_system)
{
    weft_t fs = connected(file_system);
    weft_file_t file = opened(fs, "/counted", O_RDWR | O_CREAT);
    const size_t length = 64 * MIB;
    char *memory = pages(length), *back = pages(length);
    memset(back, 0, length);
    struct weft_counters before = counted(fs);
    EXPECT(length, weft_pwrite(file, memory, length, 0));
    struct weft_counters written = counted(fs);
    EXPECT(length, weft_pread(file, back, length, 0));
    struct weft_counters read = counted(fs);
    CHECK(memcmp(memory, back, length) == 0);
    CHECK(read.metadata_calls >= before.metadata_calls && read.data_requests >= before.data_requests);
    if (goes_by("auto")) {
        /* Each byte once, by the kernel, between the caller's memory and the node's file. */
        CHECK(written.descriptor_written - before.descriptor_written == length);
        CHECK(read.descriptor_read - written.descriptor_read == length);
    }
    if (goes_by("tcp"))
        CHECK(written.tcp_written - before.tcp_written == length && read.tcp_read - written.tcp_read == length);
    if (!goes_by("tcp"))
        CHECK(read.tcp_read == 0 && read.tcp_written == 0);
    if (!goes_by("ucx"))
        CHECK(read.rdma_read == 0 && read.rdma_written == 0 && read.rdma_copied == 0 && read.rdma_registrations == 0);
    munmap(memory, length);
    munmap(back, length);
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_disconnect(fs));
}

static void transfers_with(const char *file_system, const char *hint, int is_dynamic)
{
    weft_t fs = connected(file_system);
    weft_file_t root, file;
    EXPECT(0, weft_root(fs, &root));
    EXPECT(0, weft_openat(root, "registered", O_RDWR | O_CREAT, 0600, hint, &file));
    char *memory = pages(PIECES * PIECE);
    const uint64_t count = 2 * PIECES;
    /* All connections are made, and their buffers are as large as they will be. */
    transfer(file, memory);
    struct weft_counters before = counted(fs);
    transfer(file, memory);
    struct weft_counters each = counted(fs);
    weft_memory_t registered;
    EXPECT(0, weft_memory_register(fs, memory, PIECES * PIECE, &registered));
    struct weft_counters after = counted(fs);
    transfer(file, memory);
    struct weft_counters known = counted(fs);
    if (goes_by("ucx")) {
        CHECK(each.rdma_registrations - before.rdma_registrations == (is_dynamic ? count : 0));
        CHECK(each.rdma_copied - before.rdma_copied == (is_dynamic ? 0 : count * PIECE));
        CHECK(after.rdma_registrations - each.rdma_registrations == 1);
        CHECK(known.rdma_registrations == after.rdma_registrations);
        CHECK(known.rdma_copied - after.rdma_copied == (is_dynamic ? 0 : count * PIECE));
    }
    EXPECT(0, weft_memory_unregister(registered));
    REFUSED(EBADF, "weft_memory_t", weft_memory_unregister(registered));
    transfer(file, memory);
    munmap(memory, PIECES * PIECE);
    /* Other memory at the same place is none that was registered. */
    memory = pages(PIECES * PIECE);
    transfer(file, memory);
    munmap(memory, PIECES * PIECE);
    EXPECT(0, weft_close(file));
    EXPECT(0, weft_close(root));
    EXPECT(0, weft_disconnect(fs));
}

static void registered(const char *file_system)
{
    transfers_with(file_system, "rdma=static", 0);
    transfers_with(file_system, "rdma=dynamic", 1);

    weft_t fs = connected(file_system);
    weft_memory_t memory;
    char byte;
    REFUSED(EFAULT, "memory is NULL", weft_memory_register(fs, NULL, 1, &memory));
    REFUSED(EINVAL, "memory of 0 bytes", weft_memory_register(fs, &byte, 0, &memory));
    REFUSED(EINVAL, "memory of", weft_memory_register(fs, &byte, SIZE_MAX, &memory));
    REFUSED(EFAULT, "registered is NULL", weft_memory_register(fs, &byte, 1, NULL));
    REFUSED(EBADF, "weft_memory_t", weft_memory_unregister(NULL));
    REFUSED(EBADF, "weft_memory_t", weft_memory_unregister((weft_memory_t)(void *)fs));
    struct weft_counters small = {.size = 8};
    REFUSED(EINVAL, "sizeof(struct weft_counters)", weft_get_counters(fs, &small));
    REFUSED(EFAULT, "counters is NULL", weft_get_counters(fs, NULL));
    EXPECT(0, weft_disconnect(fs));
}

const struct test memory_tests[] = {
    {"copies", copies},
    {"registered", registered},
    {NULL, NULL},
};
