/* Runs the tests that are named, or all: suite FILE_SYSTEM [TEST...] */
#include "suite.h"

weft_t connected(const char *file_system)
{
    weft_t fs;
    EXPECT(0, weft_connect(file_system, NULL, &fs));
    return fs;
}

weft_file_t opened(weft_t fs, const char *path, int flags)
{
    weft_file_t file;
    EXPECT(0, weft_open(fs, path, flags, 0666, &file));
    return file;
}

int main(int count, char **words)
{
    static const struct test *const all[] = {use_tests, closing_tests, refusal_tests, memory_tests, process_tests};
    if (count < 2)
        return 2;
    for (size_t list = 0; list < sizeof all / sizeof *all; list++) {
        for (const struct test *test = all[list]; test->name != NULL; test++) {
            int is_meant = count == 2;
            for (int word = 2; word < count; word++)
                is_meant |= strcmp(words[word], test->name) == 0;
            if (is_meant) {
                test->run(words[1]);
                printf("%s holds\n", test->name);
                fflush(stdout);
            }
        }
    }
    return 0;
}
