/* A grid of numbers in one file, written in tiles and read in rows.
 *
 *     mpicc -o grid grid.c
 *     weft mpiexec -n 4 ./grid weft:/grid 2000
 *
 * Each process has a tile of the grid: its part of every row of the file, in one collective write. Then each reads whole
 * rows, and the sum of all numbers shows that nothing is missing. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The part of `size` that is the `index`-th of `count`. */
static int start_of(int size, int index, int count)
{
    return (int)((long)size * index / count);
}

static void write_tiles(const char *name, int size, int rank, const int processes[2])
{
    int place[2] = {rank / processes[1], rank % processes[1]}, sizes[2] = {size, size}, starts[2], lengths[2];
    MPI_File file;
    MPI_Datatype tile;
    for (int axis = 0; axis < 2; axis++) {
        starts[axis] = start_of(size, place[axis], processes[axis]);
        lengths[axis] = start_of(size, place[axis] + 1, processes[axis]) - starts[axis];
    }
    double *numbers = malloc((size_t)lengths[0] * lengths[1] * sizeof *numbers);
    for (int row = 0; row < lengths[0]; row++)
        for (int column = 0; column < lengths[1]; column++)
            numbers[row * lengths[1] + column] = (double)(starts[0] + row) * size + starts[1] + column;
    MPI_Type_create_subarray(2, sizes, lengths, starts, MPI_ORDER_C, MPI_DOUBLE, &tile);
    MPI_Type_commit(&tile);
    check(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file), name);
    check(MPI_File_set_view(file, 0, MPI_DOUBLE, tile, "native", MPI_INFO_NULL), name);
    check(MPI_File_write_all(file, numbers, lengths[0] * lengths[1], MPI_DOUBLE, MPI_STATUS_IGNORE), name);
    check(MPI_File_close(&file), name);
    MPI_Type_free(&tile);
    free(numbers);
}

static double sum_of_rows(const char *name, int size, int rank, int count)
{
    int first = start_of(size, rank, count), rows = start_of(size, rank + 1, count) - first;
    double *numbers = malloc((size_t)rows * size * sizeof *numbers), own = 0, all = 0;
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), name);
    check(MPI_File_read_at_all(file, (MPI_Offset)first * size * (MPI_Offset)sizeof *numbers, numbers, rows * size,
                               MPI_DOUBLE, MPI_STATUS_IGNORE), name);
    check(MPI_File_close(&file), name);
    for (long index = 0; index < (long)rows * size; index++)
        own += numbers[index];
    MPI_Reduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    free(numbers);
    return all;
}

int main(int argc, char **argv)
{
    int rank, count, processes[2] = {0, 0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    int size = argc == 3 ? atoi(argv[2]) : 0;
    if (size < count) {
        if (rank == 0)
            fprintf(stderr, "usage: grid FILE SIZE (at least the number of processes)\n");
        MPI_Finalize();
        return 2;
    }
    MPI_Dims_create(count, 2, processes);
    write_tiles(argv[1], size, rank, processes);
    double sum = sum_of_rows(argv[1], size, rank, count), cells = (double)size * size;
    if (rank == 0)
        printf("%d processes, %d x %d numbers: %s\n", count, size, size,
               sum == cells * (cells - 1) / 2 ? "all there" : "some are wrong");
    MPI_Finalize();
    return sum != cells * (cells - 1) / 2 && rank == 0;
}
