! Fortran: each process writes its numbers into a file, and reads those of the next one.
program records
   use mpi
   implicit none
   integer, parameter :: many = 1000
   integer :: rank, processes, file, code, next, index
   integer :: status(MPI_STATUS_SIZE), count
   integer(kind=MPI_OFFSET_KIND) :: offset, size
   integer :: numbers(many)
   character(len=512) :: name

   call MPI_Init(code)
   call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
   call MPI_Comm_size(MPI_COMM_WORLD, processes, code)
   call get_command_argument(1, name)

   call MPI_File_open(MPI_COMM_WORLD, trim(name), ior(MPI_MODE_CREATE, MPI_MODE_RDWR), MPI_INFO_NULL, file, code)
   if (code /= MPI_SUCCESS) stop 1
   numbers = [(rank * many + index, index = 1, many)]
   offset = int(rank, MPI_OFFSET_KIND) * many * 4
   call MPI_File_write_at_all(file, offset, numbers, many, MPI_INTEGER, status, code)
   if (code /= MPI_SUCCESS) stop 2
   call MPI_Get_count(status, MPI_INTEGER, count, code)
   if (count /= many) stop 3
   call MPI_File_sync(file, code)
   call MPI_Barrier(MPI_COMM_WORLD, code)
   next = mod(rank + 1, processes)
   offset = int(next, MPI_OFFSET_KIND) * many * 4
   call MPI_File_read_at(file, offset, numbers, many, MPI_INTEGER, status, code)
   if (code /= MPI_SUCCESS) stop 4
   if (any(numbers /= [(next * many + index, index = 1, many)])) stop 5
   call MPI_File_get_size(file, size, code)
   if (size /= int(processes, MPI_OFFSET_KIND) * many * 4) stop 6
   call MPI_File_close(file, code)
   if (code /= MPI_SUCCESS) stop 7
   if (rank == 0) print '(a)', 'records hold'
   call MPI_Finalize(code)
end program records
