"""A grid in one HDF5 file: each process writes its rows, all read the next one's.

    weft mpiexec -n 4 python3 grid_h5.py weft:/grid.h5

Needs h5py with parallel HDF5 and mpi4py: Debian's python3-h5py-mpi and python3-mpi4py, which are built for Open MPI.
"""
import sys

import h5py
import numpy
from mpi4py import MPI

ROWS, COLUMNS = 50, 400

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


def rows(process):
    first = process * ROWS * COLUMNS
    return numpy.arange(first, first + ROWS * COLUMNS).reshape(ROWS, COLUMNS)


with h5py.File(sys.argv[1], "w", driver="mpio", comm=comm) as file:
    grid = file.create_dataset("grid", (size * ROWS, COLUMNS), dtype="i8")
    with grid.collective:
        grid[rank * ROWS:(rank + 1) * ROWS] = rows(rank)
following = (rank + 1) % size
with h5py.File(sys.argv[1], "r", driver="mpio", comm=comm) as file:
    with file["grid"].collective:
        got = file["grid"][following * ROWS:(following + 1) * ROWS]
all_right = comm.allreduce(bool((got == rows(following)).all()), op=MPI.LAND)
if rank == 0:
    print(f"{size} processes, {size * ROWS} rows: {'all there' if all_right else 'some are wrong'}")
sys.exit(not all_right)
