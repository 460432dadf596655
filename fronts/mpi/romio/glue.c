/* Glue between ROMIO and libmpich, in place of ROMIO's mpi-io/glue/mpich/mpio_err.c.
 *
 * Inside libmpich, ROMIO calls functions that libmpich does not export. Here they are implemented on exported ones:
 *
 *     error codes       a macro of the build renames MPIO_Err_create_code to MPIR_Err_create_code
 *     error handlers    MPI_File_call_errhandler() of libmpich finds the handler in struct ADIOI_FileD, which is the
 *                       same on both sides because both are of the same version
 *     thread safety     a global lock around each call, under MPI_THREAD_MULTIPLE
 *     contiguous types  MPIR_Datatype_iscontig() by envelope and contents
 *
 * Not here: the driver (../driver/), and the edits to ROMIO (scripts/mpi-driver.sh). */
#include "adio.h"
#include "adio_extern.h"
#include "mpioimpl.h"
#include <pthread.h>
#include <sched.h>

/* ---- Error handlers ---- */

int MPIO_Err_return_file(MPI_File file, int error_code)
{
    if (error_code != MPI_SUCCESS)
        MPI_File_call_errhandler(file, error_code);
    return error_code;
}

int MPIO_Err_return_comm(MPI_Comm comm, int error_code)
{
    if (error_code != MPI_SUCCESS)
        MPI_Comm_call_errhandler(comm, error_code);
    return error_code;
}

/* Returns the default handler of new files, as set by MPI_File_set_errhandler(MPI_FILE_NULL, ...). */
MPI_Errhandler weft_romio_default_errhandler(void)
{
    MPI_Errhandler handler = MPI_ERRORS_RETURN;
    MPI_File_get_errhandler(MPI_FILE_NULL, &handler);
    return handler;
}

/* ---- Threads ---- */

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex; /* recursive: calls of MPI-IO call one another */
static int has_threads;

static void look(void)
{
    int level = MPI_THREAD_SINGLE;
    pthread_mutexattr_t attributes;
    MPI_Query_thread(&level);
    has_threads = level == MPI_THREAD_MULTIPLE;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void weft_romio_enter(void)
{
    pthread_once(&looked, look);
    if (has_threads)
        pthread_mutex_lock(&mutex);
}

void weft_romio_exit(void)
{
    if (has_threads)
        pthread_mutex_unlock(&mutex);
}

void weft_romio_yield(void)
{
    weft_romio_exit();
    sched_yield();
    weft_romio_enter();
}

/* ---- Contiguous types ---- */

static int is_contiguous(MPI_Datatype type);

/* Envelope and contents of a derived datatype. */
struct contents {
    int combiner;
    int integer_count, address_count, type_count;
    int *integers;
    MPI_Aint *addresses;
    MPI_Datatype *types;
};

/* A block of a derived datatype: `length` times `type` at `displacement` bytes. */
struct block {
    int length;
    MPI_Aint displacement;
    MPI_Datatype type;
};

/* Number of blocks to look at. Of a vector the second one shows whether all are adjacent. */
static int block_count(const struct contents *made)
{
    switch (made->combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
    case MPI_COMBINER_CONTIGUOUS:
    case MPI_COMBINER_SUBARRAY: /* its size is its extent, so it is the whole array */
        return 1;
    case MPI_COMBINER_VECTOR:
    case MPI_COMBINER_HVECTOR:
        return MPL_MIN(made->integers[0], 2);
    case MPI_COMBINER_INDEXED:
    case MPI_COMBINER_HINDEXED:
    case MPI_COMBINER_INDEXED_BLOCK:
    case MPI_COMBINER_HINDEXED_BLOCK:
    case MPI_COMBINER_STRUCT:
        return made->integers[0];
    default:
        return 0;
    }
}

static struct block block_at(const struct contents *made, int index)
{
    const int *integers = made->integers, count = made->integer_count > 0 ? made->integers[0] : 0;
    struct block block = {1, 0, made->types[0]};
    MPI_Aint lower, extent;
    MPI_Type_get_extent(made->types[0], &lower, &extent);
    switch (made->combiner) {
    case MPI_COMBINER_CONTIGUOUS:
        block.length = integers[0];
        break;
    case MPI_COMBINER_VECTOR:
        block.length = integers[1];
        block.displacement = (MPI_Aint)index * integers[2] * extent;
        break;
    case MPI_COMBINER_HVECTOR:
        block.length = integers[1];
        block.displacement = index * made->addresses[0];
        break;
    case MPI_COMBINER_INDEXED:
        block.length = integers[1 + index];
        block.displacement = integers[1 + count + index] * extent;
        break;
    case MPI_COMBINER_INDEXED_BLOCK:
        block.length = integers[1];
        block.displacement = integers[2 + index] * extent;
        break;
    case MPI_COMBINER_HINDEXED_BLOCK:
        block.length = integers[1];
        block.displacement = made->addresses[index];
        break;
    case MPI_COMBINER_STRUCT:
        block.type = made->types[index];
        block.length = integers[1 + index];
        block.displacement = made->addresses[index];
        break;
    case MPI_COMBINER_HINDEXED:
        block.length = integers[1 + index];
        block.displacement = made->addresses[index];
        break;
    }
    return block;
}

static int blocks_touch(const struct contents *made)
{
    int count = block_count(made);
    MPI_Aint end = 0;
    for (int index = 0; index < count; index++) {
        struct block block = block_at(made, index);
        MPI_Count size;
        if (block.length == 0)
            continue;
        if (made->combiner != MPI_COMBINER_SUBARRAY && block.displacement != end)
            return 0;
        if (!is_contiguous(block.type))
            return 0;
        MPI_Type_size_x(block.type, &size);
        end += block.length * size;
    }
    return count > 0;
}

static int is_made_contiguous(MPI_Datatype type, struct contents *made)
{
    made->integers = ADIOI_Malloc((made->integer_count + 1) * sizeof *made->integers);
    made->addresses = ADIOI_Malloc((made->address_count + 1) * sizeof *made->addresses);
    made->types = ADIOI_Malloc((made->type_count + 1) * sizeof *made->types);
    MPI_Type_get_contents(type, made->integer_count, made->address_count, made->type_count, made->integers,
                          made->addresses, made->types);
    int touch = made->type_count > 0 && blocks_touch(made);
    for (int index = 0; index < made->type_count; index++) {
        int integers, addresses, types, combiner;
        MPI_Type_get_envelope(made->types[index], &integers, &addresses, &types, &combiner);
        if (combiner != MPI_COMBINER_NAMED)
            MPI_Type_free(&made->types[index]);
    }
    ADIOI_Free(made->integers);
    ADIOI_Free(made->addresses);
    ADIOI_Free(made->types);
    return touch;
}

/* Returns whether a repeated type is contiguous and in order. False negatives are safe: the type is then flattened.
 * ROMIO relies on empty types being contiguous. */
static int is_contiguous(MPI_Datatype type)
{
    MPI_Count size, lower, extent;
    struct contents made = {0};
    MPI_Type_size_x(type, &size);
    MPI_Type_get_extent_x(type, &lower, &extent);
    if (lower != 0 || size != extent)
        return 0;
    if (size == 0)
        return 1;
    MPI_Type_get_envelope(type, &made.integer_count, &made.address_count, &made.type_count, &made.combiner);
    return made.combiner == MPI_COMBINER_NAMED || is_made_contiguous(type, &made);
}

void MPIR_Datatype_iscontig(MPI_Datatype type, int *flag)
{
    *flag = is_contiguous(type);
}
