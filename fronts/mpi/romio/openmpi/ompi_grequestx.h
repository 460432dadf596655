/* Extended generalized requests for the ROMIO of Open MPI, in place of Open MPI's header of this name.
 *
 * Debian's libmpi lacks them, and those of Open MPI never return the class that they create. ROMIO and the driver use
 * the names of mpich; glue.c implements them. */
#ifndef OMPI_GREQUESTX_H
#define OMPI_GREQUESTX_H

#include <mpi.h>

#define HAVE_MPI_GREQUEST_EXTENSIONS 1

typedef int (MPIX_Grequest_poll_function)(void *, MPI_Status *);
typedef int (MPIX_Grequest_wait_function)(int, void **, double, MPI_Status *);
typedef int MPIX_Grequest_class;

void opal_progress(void);
int weft_romio_class_create(MPI_Grequest_query_function *query, MPI_Grequest_free_function *free_state,
                            MPI_Grequest_cancel_function *cancel, MPIX_Grequest_poll_function *poll,
                            MPIX_Grequest_wait_function *wait, MPIX_Grequest_class *class);
int weft_romio_class_allocate(MPIX_Grequest_class class, void *state, MPI_Request *request);
int weft_romio_complete(MPI_Request request);

/* ROMIO calls all functions of MPI by their profiling names. */
#define PMPIX_Grequest_class_create weft_romio_class_create
#define PMPIX_Grequest_class_allocate weft_romio_class_allocate
#define PMPI_Grequest_complete weft_romio_complete
#define MPIR_Ext_cs_yield opal_progress

#endif
