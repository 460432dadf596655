/*
 * native.c - data and metadata rates of Gfarm through its native API (gfs_pio_*): the workloads of `weft bench`.
 *
 *   native data -d DIRECTORY -p PROCESSES -s BYTES -r BYTES
 *   native meta -d DIRECTORY -p PROCESSES -n FILES [-S]
 *
 * Each process has a connection of its own. "way" in the output says how the data went, from the descriptors of the process:
 * direct-fd (gfsd passed an open descriptor of the spool file; the client goes past gfsd), gfsd-unix or gfsd-tcp.
 */
#include "crew.h" /* first: gfarm.h wants size_t from somebody else */
#include <gfarm/gfarm.h>
#include <sys/socket.h>
#include <sys/stat.h>

static void check(gfarm_error_t error, const char *what, const char *path)
{
	if (error != GFARM_ERR_NO_ERROR)
		fail("%s %s: %s", what, path, gfarm_error_string(error));
}

struct descriptors { int file, local, tcp; };

static struct descriptors count_descriptors(void)
{
	struct descriptors found = { 0, 0, 0 };
	for (int fd = 3; fd < 256; fd++) {
		struct stat st;
		struct sockaddr_storage address;
		socklen_t length = sizeof address;
		if (fstat(fd, &st) < 0)
			continue;
		if (S_ISREG(st.st_mode))
			found.file++;
		else if (S_ISSOCK(st.st_mode) && getsockname(fd, (struct sockaddr *)&address, &length) == 0)
			*(address.ss_family == AF_UNIX ? &found.local : &found.tcp) += 1;
	}
	return found;
}

/* A first file, not measured, shows which way the data goes and makes the connections. */
static void find_way(const char *path, char *buffer)
{
	struct descriptors before = count_descriptors(), after;
	GFS_File file;
	int done;
	check(gfs_pio_create(path, GFARM_FILE_WRONLY | GFARM_FILE_TRUNC, 0644, &file), "create", path);
	check(gfs_pio_write(file, buffer, 16, &done), "write", path);
	check(gfs_pio_flush(file), "flush", path);
	after = count_descriptors();
	check(gfs_pio_close(file), "close", path);
	check(gfs_unlink(path), "unlink", path);
	snprintf(common->way[rank], sizeof common->way[rank], "%s",
		 after.file > before.file ? "direct-fd" : after.tcp > before.tcp ? "gfsd-tcp" :
		 after.local > before.local ? "gfsd-unix" : "unknown");
}

static long long piece(long long offset)
{
	return options.size - offset < options.request ? options.size - offset : options.request;
}

static void data(void)
{
	GFS_File file;
	char path[512], *buffer;
	uint64_t seed = (uint64_t)rank << 40 | (uint64_t)getppid();
	long long offset, length, done;
	int n;

	check(gfarm_initialize(NULL, NULL), "gfarm_initialize", "");
	snprintf(path, sizeof path, "%s/bench-data-%d", options.directory, rank);
	if (posix_memalign((void **)&buffer, PAGE, options.request))
		fail("out of memory");
	memset(buffer, 0x5a, options.request);
	gfs_unlink(path);
	find_way(path, buffer);

	check(gfs_pio_create(path, GFARM_FILE_WRONLY | GFARM_FILE_TRUNC, 0644, &file), "create", path);
	begin(0);
	for (offset = 0; offset < options.size; offset += length) {
		length = piece(offset);
		stamp(seed, buffer, length, offset);
		for (done = 0; done < length; done += n) {
			check(gfs_pio_write(file, buffer + done, length - done, &n), "write", path);
			if (n <= 0)
				fail("write %s: no progress", path);
		}
	}
	check(gfs_pio_close(file), "close", path);
	end(0, offset);

	check(gfs_pio_open(path, GFARM_FILE_RDONLY, &file), "open", path);
	begin(1);
	for (offset = 0; offset < options.size; offset += length) {
		length = piece(offset);
		for (done = 0; done < length; done += n) {
			check(gfs_pio_read(file, buffer + done, length - done, &n), "read", path);
			if (n <= 0)
				fail("read %s: end of file at %lld", path, offset + done);
		}
		if (!stamped(seed, buffer, length, offset))
			fail("read %s: wrong data at %lld", path, offset);
	}
	check(gfs_pio_close(file), "close", path);
	end(1, offset);
	meet(2);
	check(gfs_unlink(path), "unlink", path);
	gfarm_terminate();
}

static void directory_of(char *path, size_t size, int process)
{
	if (options.shared)
		snprintf(path, size, "%s/bench-meta-shared", options.directory);
	else
		snprintf(path, size, "%s/bench-meta-%d", options.directory, process);
}

static void meta(void)
{
	GFS_File file;
	struct gfs_stat st;
	char own[300], others[300], path[400];
	int next = (rank + 1) % options.processes;
	long long i;

	check(gfarm_initialize(NULL, NULL), "gfarm_initialize", "");
	directory_of(own, sizeof own, rank);
	directory_of(others, sizeof others, next);
	if (!options.shared || rank == 0)
		check(gfs_mkdir(own, 0755), "mkdir", own);
#define EACH(directory, process) \
	for (i = 0; i < options.files; i++) \
		if (snprintf(path, sizeof path, "%s/%d-%08lld", directory, process, i) > 0)
	begin(0);
	EACH(own, rank) {
		check(gfs_pio_create(path, GFARM_FILE_WRONLY | GFARM_FILE_EXCLUSIVE, 0644, &file), "create", path);
		check(gfs_pio_close(file), "close", path);
	}
	end(0, i);
	/* Another process's files, as `weft bench meta` does. */
	begin(1);
	EACH(others, next) {
		check(gfs_lstat(path, &st), "stat", path);
		gfs_stat_free(&st);
	}
	end(1, i);
	begin(2);
	EACH(own, rank)
		check(gfs_unlink(path), "unlink", path);
	end(2, i);
	meet(3);
	if (!options.shared || rank == 0)
		check(gfs_rmdir(own), "rmdir", own);
	gfarm_terminate();
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	return crew(data, meta);
}
