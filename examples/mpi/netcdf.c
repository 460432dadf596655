/* One variable of a parallel netCDF-4 file, written in rows.
 *
 *     mpicc -o netcdf netcdf.c $(pkg-config --cflags --libs netcdf-mpi)
 *     weft mpiexec -n 4 ./netcdf weft:/grid.nc
 *
 * Each process writes its rows, and reads those of the next process from the file that is opened again. Debian's
 * netcdf-mpi is for Open MPI, and has its headers in /usr/lib/MACHINE/netcdf/mpi/include, of which pkg-config says
 * nothing. */
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>

enum { ROWS = 50, COLUMNS = 400 };

#define OK(call) \
    do { \
        int code = (call); \
        if (code != NC_NOERR) { \
            fprintf(stderr, "%s: %s\n", #call, nc_strerror(code)); \
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
    size_t start[2] = {(size_t)rank * ROWS, 0}, block[2] = {ROWS, COLUMNS};
    OK(nc_create_par(words[1], NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_def_dim(file, "row", (size_t)processes * ROWS, &dimensions[0]));
    OK(nc_def_dim(file, "column", COLUMNS, &dimensions[1]));
    OK(nc_def_var(file, "number", NC_INT, 2, dimensions, &variable));
    OK(nc_enddef(file));
    OK(nc_var_par_access(file, variable, NC_COLLECTIVE));
    OK(nc_put_vara_int(file, variable, start, block, &numbers[0][0]));
    OK(nc_close(file));

    int next = (rank + 1) % processes, wrong = 0, all_wrong;
    start[0] = (size_t)next * ROWS;
    OK(nc_open_par(words[1], NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_inq_varid(file, "number", &variable));
    OK(nc_get_vara_int(file, variable, start, block, &numbers[0][0]));
    OK(nc_close(file));
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            wrong += numbers[row][column] != (next * ROWS + row) * COLUMNS + column;
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("netcdf %s\n", all_wrong == 0 ? "holds" : "is wrong");
    MPI_Finalize();
    return all_wrong != 0;
}
