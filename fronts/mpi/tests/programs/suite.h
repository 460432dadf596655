/* Shared by the parts of the suite. Each test is collective; it gets the place of its files, as `weft:/dir/`. */
#ifndef SUITE_H
#define SUITE_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int rank, processes;

/* Ends the program where something does not hold. */
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: process %d: does not hold: %s\n", __FILE__, __LINE__, rank, #what); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

/* A call that has to succeed, and one that has to fail with this class. */
#define OK(call) expect(__FILE__, __LINE__, #call, MPI_SUCCESS, call)
#define FAILS(class, call) expect(__FILE__, __LINE__, #call, class, call)

void expect(const char *file, int line, const char *what, int class, int code);

/* The name of a file; good until the fourth next call. */
const char *in(const char *place, const char *name);

/* Opens a file of all processes, empty, for reading and writing. */
MPI_File made(const char *place, const char *name);

/* Bytes that tell writer and position. */
unsigned char byte_of(int writer, long long position);

struct test {
    const char *name;
    void (*run)(const char *place);
};

extern const struct test view_tests[], model_tests[], mode_tests[], lock_tests[];

#endif
