/* Threads of MPI_THREAD_MULTIPLE that each write and read a file of their own, with nonblocking calls among them:
 * threads PLACE */
#include "../programs/suite.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 50, BYTES = 3000 };

int rank, processes;
static const char *place;

static void *work(void *number)
{
    int own = rank * THREADS + (int)(long)number;
    char name[512];
    unsigned char bytes[BYTES], read[BYTES];
    MPI_File file;
    MPI_Request request;
    snprintf(name, sizeof name, "%sthread-%d", place, own);
    CHECK(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Offset offset = (MPI_Offset)round * BYTES;
        memset(bytes, 1 + (own * 50 + round) % 255, BYTES);
        CHECK(MPI_File_iwrite_at(file, offset, bytes, BYTES, MPI_BYTE, &request) == MPI_SUCCESS);
        CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        CHECK(MPI_File_iread_at(file, offset, read, BYTES, MPI_BYTE, &request) == MPI_SUCCESS);
        CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        CHECK(memcmp(bytes, read, BYTES) == 0);
        CHECK(MPI_File_read_at(file, offset, read, BYTES, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
        CHECK(memcmp(bytes, read, BYTES) == 0);
    }
    CHECK(MPI_File_close(&file) == MPI_SUCCESS);
    return NULL;
}

int main(int count, char **words)
{
    int level;
    pthread_t threads[THREADS];
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    CHECK(count == 2 && level == MPI_THREAD_MULTIPLE);
    place = words[1];
    for (long number = 0; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, work, (void *)number) == 0);
    for (int number = 0; number < THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    if (rank == 0)
        printf("threads hold\n");
    MPI_Finalize();
    return 0;
}
