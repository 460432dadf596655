/* What the tests of the C library share. */
#ifndef SUITE_H
#define SUITE_H

#include <weft.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program where something does not hold. */
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

/* A call that has to return `value`; what it says where it fails otherwise. */
#define EXPECT(value, call) \
    do { \
        long long wanted_ = (value), result_ = (long long)(call); \
        if (result_ != wanted_) { \
            fprintf(stderr, "%s:%d: %s: %lld, not %lld: %s\n", __FILE__, __LINE__, #call, result_, wanted_, \
                    result_ < 0 ? weft_strerror((int)result_) : "no error"); \
            exit(1); \
        } \
    } while (0)

/* A call that has to fail, with a text that has `part`. */
#define REFUSED(errno_, part, call) \
    do { \
        EXPECT(-(errno_), call); \
        if (strstr(weft_strerror(-(errno_)), part) == NULL) { \
            fprintf(stderr, "%s:%d: %s: \"%s\" is not in \"%s\"\n", __FILE__, __LINE__, #call, part, \
                    weft_strerror(-(errno_))); \
            exit(1); \
        } \
    } while (0)

struct test {
    const char *name;
    void (*run)(const char *file_system);
};

extern const struct test use_tests[], closing_tests[], refusal_tests[], memory_tests[], process_tests[];

weft_t connected(const char *file_system);
weft_file_t opened(weft_t fs, const char *path, int flags);

#endif
