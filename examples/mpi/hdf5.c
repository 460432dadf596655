/* One data set of a parallel HDF5 file, written in columns.
 *
 *     mpicc -o hdf5 hdf5.c $(pkg-config --cflags --libs hdf5-mpich)     # hdf5-openmpi, where mpicc is Open MPI's
 *     weft mpiexec -n 4 ./hdf5 weft:/grid.h5
 *
 * Each process writes its columns. Then it reads those of the next process, after a barrier, and once more from the
 * file that is opened again. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

enum { ROWS = 200, COLUMNS = 50 };

/* Writes or reads this process's columns of the data set. */
static void columns(hid_t set, int rank, int is_write, H5FD_mpio_xfer_t transfer, int *numbers)
{
    hsize_t start[2] = {0, (hsize_t)rank * COLUMNS}, count[2] = {ROWS, COLUMNS};
    hid_t file_space = H5Dget_space(set), memory_space = H5Screate_simple(2, count, NULL);
    hid_t how = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(how, transfer);
    H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL);
    CHECK((is_write ? H5Dwrite(set, H5T_NATIVE_INT, memory_space, file_space, how, numbers)
                    : H5Dread(set, H5T_NATIVE_INT, memory_space, file_space, how, numbers)) >= 0);
    H5Pclose(how);
    H5Sclose(memory_space);
    H5Sclose(file_space);
}

/* Reads what the next process has written. */
static void check_next(hid_t set, int rank, int processes, H5FD_mpio_xfer_t transfer, int *numbers)
{
    int next = (rank + 1) % processes;
    columns(set, next, 0, transfer, numbers);
    for (int index = 0; index < ROWS * COLUMNS; index++)
        CHECK(numbers[index] == next * ROWS * COLUMNS + index);
}

int main(int count, char **words)
{
    int rank, processes;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    CHECK(count == 2);
    int *numbers = malloc(ROWS * COLUMNS * sizeof *numbers);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hsize_t sizes[2] = {ROWS, (hsize_t)processes * COLUMNS};
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    hid_t file = H5Fcreate(words[1], H5F_ACC_TRUNC, H5P_DEFAULT, access);
    CHECK(file >= 0);
    hid_t space = H5Screate_simple(2, sizes, NULL);
    hid_t set = H5Dcreate2(file, "grid", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int index = 0; index < ROWS * COLUMNS; index++)
        numbers[index] = rank * ROWS * COLUMNS + index;
    columns(set, rank, 1, H5FD_MPIO_COLLECTIVE, numbers);
    MPI_Barrier(MPI_COMM_WORLD);
    check_next(set, rank, processes, H5FD_MPIO_INDEPENDENT, numbers);
    H5Dclose(set);
    H5Sclose(space);
    CHECK(H5Fclose(file) >= 0);

    file = H5Fopen(words[1], H5F_ACC_RDONLY, access);
    CHECK(file >= 0);
    set = H5Dopen2(file, "grid", H5P_DEFAULT);
    check_next(set, rank, processes, H5FD_MPIO_COLLECTIVE, numbers);
    H5Dclose(set);
    CHECK(H5Fclose(file) >= 0);
    H5Pclose(access);
    if (rank == 0)
        printf("hdf5 holds\n");
    free(numbers);
    MPI_Finalize();
    return 0;
}
