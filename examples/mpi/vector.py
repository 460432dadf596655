"""A vector in one file: each process writes its part, all read the next one's.

    weft mpiexec -n 4 python3 vector.py weft:/vector

Needs mpi4py. Debian's python3-mpi4py is for Open MPI; for mpich: MPICC=mpicc.mpich pip install --no-binary mpi4py mpi4py
"""
import sys
from array import array

from mpi4py import MPI

PART = 1000

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
part = array("d", (rank * PART + index for index in range(PART)))
following = (rank + 1) % size
got = array("d", bytes(PART * part.itemsize))
file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
file.Write_at_all(rank * PART * part.itemsize, part)
file.Sync()
comm.Barrier()
file.Sync()
file.Read_at_all(following * PART * got.itemsize, got)
file.Close()
is_right = all(value == following * PART + index for index, value in enumerate(got))
all_right = comm.allreduce(is_right, op=MPI.LAND)
if rank == 0:
    print(f"{size} processes, {size * PART} numbers: {'all there' if all_right else 'some are wrong'}")
sys.exit(not all_right)
