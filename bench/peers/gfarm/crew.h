/* crew.h - options, several processes that do each phase at the same time, and JSON as bench-files prints it. */
#ifndef CREW_H
#define CREW_H
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES_MAX = 256, PHASES_MAX = 4, PAGE = 4096 };

static struct options {
	int meta, processes, shared;
	long long size, request, files;
	const char *directory;
} options = { 0, 1, 0, 256 << 20, 1 << 20, 1000, "/" };

/* Shared by all processes. */
static struct common {
	int arrived[PHASES_MAX + 1], failed;
	double begin[PHASES_MAX][PROCESSES_MAX], end[PHASES_MAX][PROCESSES_MAX], cpu[PHASES_MAX][PROCESSES_MAX];
	long long work[PHASES_MAX][PROCESSES_MAX]; /* bytes or operations */
	char way[PROCESSES_MAX][32];		   /* how the data moved */
} *common;
static int rank;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "process %d: ", rank);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	__atomic_store_n(&common->failed, 1, __ATOMIC_SEQ_CST);
	_exit(1);
}

/* All processes meet before a phase; one more after the last. */
static void meet(int phase)
{
	__atomic_add_fetch(&common->arrived[phase], 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&common->arrived[phase], __ATOMIC_SEQ_CST) < options.processes) {
		struct timespec t = { 0, 200000 };
		if (__atomic_load_n(&common->failed, __ATOMIC_SEQ_CST))
			_exit(1);
		nanosleep(&t, NULL);
	}
}

static void begin(int phase)
{
	meet(phase);
	common->cpu[phase][rank] = cpu();
	common->begin[phase][rank] = now();
}

static void end(int phase, long long work)
{
	common->end[phase][rank] = now();
	common->cpu[phase][rank] = cpu() - common->cpu[phase][rank];
	common->work[phase][rank] = work;
}

static uint64_t stamp_of(uint64_t seed, long long page)
{
	return ((uint64_t)page ^ seed) * 0xd6e8feb86659fd93ULL;
}

/* The first 8 bytes of each page say where it belongs: as much work as in bench-files. */
static void stamp(uint64_t seed, char *buffer, long long bytes, long long offset)
{
	for (long long at = 0; at < bytes; at += PAGE) {
		uint64_t s = stamp_of(seed, (offset + at) / PAGE);
		memcpy(buffer + at, &s, bytes - at < 8 ? bytes - at : 8);
	}
}

static int stamped(uint64_t seed, const char *buffer, long long bytes, long long offset)
{
	for (long long at = 0; at < bytes; at += PAGE) {
		uint64_t s = stamp_of(seed, (offset + at) / PAGE);
		if (memcmp(buffer + at, &s, bytes - at < 8 ? bytes - at : 8))
			return 0;
	}
	return 1;
}

static long long number(const char *text)
{
	char *rest;
	long long value = strtoll(text, &rest, 0);
	if (*rest || value <= 0) {
		fprintf(stderr, "not a positive number: %s\n", text);
		exit(2);
	}
	return value;
}

static void parse(int argc, char **argv)
{
	int c;
	if (argc < 2 || (strcmp(argv[1], "data") && strcmp(argv[1], "meta"))) {
	usage:
		fprintf(stderr, "usage: %s data|meta [-d DIRECTORY] [-p PROCESSES] [-s BYTES] [-r BYTES] [-n FILES] [-S]\n",
			argv[0]);
		exit(2);
	}
	options.meta = !strcmp(argv[1], "meta");
	optind = 2;
	while ((c = getopt(argc, argv, "d:p:s:r:n:S")) != -1)
		switch (c) {
		case 'd': options.directory = optarg; break;
		case 'p': options.processes = number(optarg); break;
		case 's': options.size = number(optarg); break;
		case 'r': options.request = number(optarg); break;
		case 'n': options.files = number(optarg); break;
		case 'S': options.shared = 1; break;
		default: goto usage;
		}
	if (options.processes > PROCESSES_MAX || options.request > 1 << 30)
		goto usage;
	common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (common == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
}

static void row(const char *operation, int phase, const char *before)
{
	double first = common->begin[phase][0], last = common->end[phase][0], work = 0, seconds, cpu_seconds = 0;
	for (int i = 0; i < options.processes; i++) {
		if (common->begin[phase][i] < first)
			first = common->begin[phase][i];
		if (common->end[phase][i] > last)
			last = common->end[phase][i];
		work += common->work[phase][i];
		cpu_seconds += common->cpu[phase][i];
	}
	seconds = last - first > 1e-9 ? last - first : 1e-9;
	printf("%s{\"operation\":\"%s\",\"work\":%.0f,\"seconds\":%.9f,\"per_second\":%.3f,\"cpu_seconds\":%.6f,\"way\":\"%s\"}",
	       before, operation, work, seconds, work / seconds, cpu_seconds, common->way[0]);
}

/* Starts the processes, waits, prints an array of rows. */
static int crew(void (*data)(void), void (*meta)(void))
{
	int bad = 0, status;
	fflush(NULL);
	for (int i = 0; i < options.processes; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			rank = i;
			(options.meta ? meta : data)();
			_exit(0);
		}
		if (pid < 0) {
			perror("fork");
			__atomic_store_n(&common->failed, bad = 1, __ATOMIC_SEQ_CST);
			break;
		}
	}
	while (wait(&status) > 0)
		if (status)
			__atomic_store_n(&common->failed, bad = 1, __ATOMIC_SEQ_CST);
	if (bad)
		return 1;
	row(options.meta ? "create" : "write", 0, "[");
	row(options.meta ? "stat" : "read", 1, ",");
	if (options.meta)
		row("unlink", 2, ",");
	puts("]");
	return 0;
}
#endif
