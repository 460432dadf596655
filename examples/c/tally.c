/* Counts the bytes below a directory, and those that lie on this machine: tally FILE_SYSTEM [DIRECTORY]
 *
 *     cc -o tally tally.c $(pkg-config --cflags --libs weft)
 */
#include <weft.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>

struct sum {
    unsigned long long files, bytes, here;
};

/* Says what went wrong, and returns false, if `result` is a failure. */
static int is_good(long result)
{
    if (result < 0)
        fprintf(stderr, "tally: %s\n", weft_strerror((int)result));
    return result >= 0;
}

static int add_file(weft_t fs, const char *path, const struct weft_dirent *entry, struct sum *sum)
{
    struct weft_location places[64];
    ssize_t count = weft_locate(fs, &path, 1, places, 64);
    if (!is_good(count))
        return 0;
    sum->files++;
    sum->bytes += entry->attributes.stx_size;
    for (ssize_t i = 0; i < count && i < 64; i++) {
        if (places[i].local)
            sum->here += places[i].length;
    }
    return 1;
}

static int add(weft_t fs, const char *directory, struct sum *sum)
{
    struct weft_cursor cursor = WEFT_CURSOR_ALL;
    struct weft_dirent entries[16];
    weft_file_t handle;
    ssize_t count = weft_open(fs, directory, O_RDONLY | O_DIRECTORY, 0, &handle);
    if (!is_good(count))
        return 0;
    while ((count = weft_readdir(handle, &cursor, STATX_BASIC_STATS, entries, 16)) > 0) {
        for (ssize_t i = 0; i < count; i++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", directory, entries[i].name);
            if (entries[i].type == DT_DIR ? !add(fs, path, sum)
                                          : entries[i].type == DT_REG && !add_file(fs, path, &entries[i], sum))
                return 0;
        }
    }
    weft_close(handle);
    return is_good(count);
}

int main(int count, char **words)
{
    weft_t fs;
    struct sum sum = {0, 0, 0};
    if (count < 2) {
        fprintf(stderr, "usage: tally FILE_SYSTEM [DIRECTORY]\n");
        return 2;
    }
    if (!is_good(weft_connect(words[1], NULL, &fs)))
        return 1;
    int result = add(fs, count > 2 ? words[2] : "", &sum);
    weft_disconnect(fs);
    if (result)
        printf("%llu files, %llu bytes, %llu of them on this machine\n", sum.files, sum.bytes, sum.here);
    return result ? 0 : 1;
}
