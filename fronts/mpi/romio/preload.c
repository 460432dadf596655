/* Refuses programs of Open MPI, into which the driver for mpich was preloaded.
 *
 * Their calls of MPI-IO would get here, with Open MPI's handles, and those from here go to Open MPI with mpich's: a
 * segmentation fault in the first one. The loader binds the calls before anything runs, so that the driver cannot step
 * aside any more.
 *
 * Not here: programs that load Open MPI later, as Python does with mpi4py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* Returns the library that has the symbol, or NULL. */
static const void *library_of(const char *symbol)
{
    Dl_info found;
    void *address = dlsym(RTLD_DEFAULT, symbol);
    return address != NULL && dladdr(address, &found) != 0 ? found.dli_fbase : NULL;
}

__attribute__((constructor)) static void refuse_open_mpi(void)
{
    const void *open_mpi = library_of("ompi_mpi_init");
    if (open_mpi == NULL || open_mpi != library_of("MPI_Init"))
        return;
    fprintf(stderr,
            "weft: %s: is a program of Open MPI, and the MPI-IO driver that was preloaded is for mpich\n"
            "  remedy: `weft mpiexec --launcher mpiexec.openmpi ...`, or compile it with mpich's compiler, mpicc.mpich\n",
            program_invocation_name);
    _exit(2);
}
