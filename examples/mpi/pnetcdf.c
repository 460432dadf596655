/* One variable of a PnetCDF file, written in rows.
 *
 *     mpicc -o pnetcdf pnetcdf.c $(pkg-config --cflags --libs pnetcdf)
 *     weft mpiexec -n 4 ./pnetcdf /mnt/job/grid.nc
 *
 * Each process writes its rows, and reads those of the next process from the file that is opened again. PnetCDF opens
 * the file by open(2), too, so the file system has to be mounted. Debian's pnetcdf is for Open MPI. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 50, COLUMNS = 400 };

#define OK(call) \
    do { \
        int code = (call); \
        if (code != NC_NOERR) { \
            fprintf(stderr, "%s: %s\n", #call, ncmpi_strerror(code)); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

int main(int count, char **words)
{
    int rank, processes, file, dimensions[2], variable;
    static int numbers[ROWS][COLUMNS];
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            numbers[row][column] = (rank * ROWS + row) * COLUMNS + column;
    MPI_Offset start[2] = {(MPI_Offset)rank * ROWS, 0}, block[2] = {ROWS, COLUMNS};
    OK(ncmpi_create(MPI_COMM_WORLD, words[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    OK(ncmpi_def_dim(file, "row", (MPI_Offset)processes * ROWS, &dimensions[0]));
    OK(ncmpi_def_dim(file, "column", COLUMNS, &dimensions[1]));
    OK(ncmpi_def_var(file, "number", NC_INT, 2, dimensions, &variable));
    OK(ncmpi_enddef(file));
    OK(ncmpi_put_vara_int_all(file, variable, start, block, &numbers[0][0]));
    OK(ncmpi_close(file));

    int next = (rank + 1) % processes, wrong = 0, all_wrong;
    start[0] = (MPI_Offset)next * ROWS;
    OK(ncmpi_open(MPI_COMM_WORLD, words[1], NC_NOWRITE, MPI_INFO_NULL, &file));
    OK(ncmpi_inq_varid(file, "number", &variable));
    OK(ncmpi_get_vara_int_all(file, variable, start, block, &numbers[0][0]));
    OK(ncmpi_close(file));
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            wrong += numbers[row][column] != (next * ROWS + row) * COLUMNS + column;
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("pnetcdf %s\n", all_wrong == 0 ? "holds" : "is wrong");
    MPI_Finalize();
    return all_wrong != 0;
}
