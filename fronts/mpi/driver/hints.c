/* MPI_Info hints.
 *
 *     striping_factor   number of nodes a new file is striped over; 1: not striped
 *     striping_unit     stripe size in bytes, a multiple of 64 KiB; only with striping_factor
 *     weft_layout       layout of a new file: split (a part for each rank, on its node), whole
 *     weft_visibility   when others see what was written to a split file: immediate (when the write returns), sync (after
 *                       MPI's sync); immediate by default in processes that have HDF5 or PnetCDF
 *     weft_errors       whether collective reads and writes of a split file agree on errors: agreed (they wait for all
 *                       ranks, and fail at all), own (they wait for none; the next collective call that waits reports
 *                       a failed write to all ranks)
 *     weft_placement    where a rank's part of a split file goes: own (its node), spread (any node, as if it had none)
 *     weft_drain        whether a file is written to the directory that the file system lies over: background (by drains),
 *                       never
 *     weft_spill        true: a rank whose node is full writes on to another node's part of a split file
 *     weft_rdma         RDMA registration: auto, static (the connection's memory), dynamic (the program's)
 *
 * ROMIO handles its own hints and ignores unknown ones. After the open, MPI_File_get_info() returns the values in use,
 * given or not, and collective buffering aligns file domains to stripes. Two are missing at times: weft_layout of a
 * striped file, which the other two tell, and weft_drain where it was not given, which would cost a message. */
#include "ad_weft.h"
#include "hint_fns.h"
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RDMA "weft_rdma"
#define LAYOUT "weft_layout"
#define VISIBILITY "weft_visibility"
#define SPILL "weft_spill"
#define ERRORS "weft_errors"
#define PLACEMENT "weft_placement"
#define DRAIN "weft_drain"
/* Extended attribute of what no drain writes (docs/guide/over.md), and its value. */
#define DRAIN_XATTR "user.weft.drain"
#define NEVER "never"

static void set_number(ADIO_File fd, const char *key, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    ADIOI_Info_set(fd->info, key, text);
}

/* Gets a hint that was given, or is told. Returns whether there is one. */
static int get_hint(ADIO_File fd, const char *key, char value[MPI_MAX_INFO_VAL + 1])
{
    int is_set = 0;
    ADIOI_Info_get(fd->info, key, MPI_MAX_INFO_VAL, value, &is_set);
    return is_set;
}

static int is_known_rdma(const char *value)
{
    return strcmp(value, "auto") == 0 || strcmp(value, "static") == 0 || strcmp(value, "dynamic") == 0;
}

static int is_known_layout(const char *value)
{
    return strcmp(value, "split") == 0 || strcmp(value, "whole") == 0;
}

static int is_known_visibility(const char *value)
{
    return strcmp(value, "immediate") == 0 || strcmp(value, "sync") == 0;
}

static int is_known_errors(const char *value)
{
    return strcmp(value, "agreed") == 0 || strcmp(value, "own") == 0;
}

static int is_known_spill(const char *value)
{
    return strcmp(value, "true") == 0 || strcmp(value, "false") == 0;
}

static int is_known_placement(const char *value)
{
    return strcmp(value, "own") == 0 || strcmp(value, "spread") == 0;
}

static int is_known_drain(const char *value)
{
    return strcmp(value, "background") == 0 || strcmp(value, NEVER) == 0;
}

/* Stores a hint in `fd->info`, where the functions for hint strings read it. */
static void install(ADIO_File fd, MPI_Info info, const char *key, int (*is_known)(const char *))
{
    char value[MPI_MAX_INFO_VAL + 1];
    int is_set = 0;
    ADIOI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &is_set);
    if (is_set && is_known(value))
        ADIOI_Info_set(fd->info, key, value);
}

void ad_weft_set_info(ADIO_File fd, MPI_Info info, int *error_code)
{
    static char where[] = "ad_weft_set_info";
    int is_opening = fd->info == MPI_INFO_NULL;
    ADIOI_GEN_SetInfo(fd, info, error_code);
    if (*error_code != MPI_SUCCESS || !is_opening || info == MPI_INFO_NULL)
        return;
    ADIOI_Info_check_and_install_int(fd, info, "striping_factor", &fd->hints->striping_factor, where, error_code);
    ADIOI_Info_check_and_install_int(fd, info, "striping_unit", &fd->hints->striping_unit, where, error_code);
    install(fd, info, RDMA, is_known_rdma);
    install(fd, info, LAYOUT, is_known_layout);
    install(fd, info, SPILL, is_known_spill);
    install(fd, info, VISIBILITY, is_known_visibility);
    install(fd, info, ERRORS, is_known_errors);
    install(fd, info, PLACEMENT, is_known_placement);
    install(fd, info, DRAIN, is_known_drain);
}

/* HDF5 and PnetCDF read, and write over, at one rank what another one has written, after a barrier without a sync. */
static int relies_on_visibility(struct dl_phdr_info *library, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    return strstr(library->dlpi_name, "/libhdf5") != NULL || strstr(library->dlpi_name, "/libpnetcdf") != NULL;
}

int ad_weft_is_immediate(ADIO_File fd)
{
    char value[MPI_MAX_INFO_VAL + 1];
    return get_hint(fd, VISIBILITY, value) ? strcmp(value, "immediate") == 0 : dl_iterate_phdr(relies_on_visibility, NULL);
}

void ad_weft_layout_words(ADIO_File fd, char words[AD_WEFT_WORDS])
{
    int width = fd->hints->striping_factor, stripe = fd->hints->striping_unit;
    char value[MPI_MAX_INFO_VAL + 1];
    *words = '\0';
    if (get_hint(fd, LAYOUT, value))
        snprintf(words, AD_WEFT_WORDS, "%.16s", value);
    else if (width == 1)
        snprintf(words, AD_WEFT_WORDS, "whole");
    else if (width > 1 && stripe > 0)
        snprintf(words, AD_WEFT_WORDS, "width=%d stripe=%d", width, stripe);
    else if (width > 1)
        snprintf(words, AD_WEFT_WORDS, "width=%d", width);
}

static int is_spilling(ADIO_File fd)
{
    char value[MPI_MAX_INFO_VAL + 1];
    return get_hint(fd, SPILL, value) && strcmp(value, "true") == 0;
}

static int is_spread(ADIO_File fd)
{
    char value[MPI_MAX_INFO_VAL + 1];
    return get_hint(fd, PLACEMENT, value) && strcmp(value, "spread") == 0;
}

void ad_weft_handle_words(ADIO_File fd, char words[AD_WEFT_WORDS])
{
    char value[MPI_MAX_INFO_VAL + 1], rdma[32] = "";
    if (get_hint(fd, RDMA, value))
        snprintf(rdma, sizeof rdma, "rdma=%.16s", value);
    snprintf(words, AD_WEFT_WORDS, "%s%s%s", rdma, is_spilling(fd) ? " spill" : "",
             is_spread(fd) ? " placement=spread" : "");
}

int ad_weft_set_drain(ADIO_File fd, weft_t fs, const char *path)
{
    char value[MPI_MAX_INFO_VAL + 1];
    if (!get_hint(fd, DRAIN, value))
        return 0;
    if (strcmp(value, NEVER) == 0)
        return weft_setxattr(fs, path, DRAIN_XATTR, NEVER, sizeof NEVER - 1, 0) == 0;
    int error = weft_removexattr(fs, path, DRAIN_XATTR);
    return error == 0 || error == -ENODATA;
}

/* Parses `whole`, `split`, or `width=N stripe=BYTES`. */
struct ad_weft_layout ad_weft_layout(weft_file_t file)
{
    struct ad_weft_layout layout = {1, 0, 0};
    char value[128];
    ssize_t length = weft_layout(file, value, sizeof value - 1);
    if (length < 0)
        return layout;
    value[length] = '\0';
    layout.is_split = strcmp(value, "split") == 0;
    sscanf(value, "width=%d stripe=%d", &layout.width, &layout.stripe);
    return layout;
}

int ad_weft_agrees_on_errors(ADIO_File fd)
{
    char value[MPI_MAX_INFO_VAL + 1];
    return !(get_hint(fd, ERRORS, value) && strcmp(value, "own") == 0);
}

/* Without the hint the connection is as the client library's variable says. */
static void set_rdma(ADIO_File fd)
{
    char value[MPI_MAX_INFO_VAL + 1];
    const char *of_process = getenv("WEFT_RDMA_REGISTRATION");
    if (!get_hint(fd, RDMA, value))
        ADIOI_Info_set(fd->info, RDMA, of_process != NULL ? of_process : "auto");
}

/* A program that has said striping_factor = 0, no number of nodes, gets that back of a file that is not striped:
 * ROMIO's test of hints demands it. */
static void set_layout(ADIO_File fd, struct ad_weft_layout layout)
{
    char value[MPI_MAX_INFO_VAL + 1];
    if (layout.is_split || layout.width <= 1)
        ADIOI_Info_set(fd->info, LAYOUT, layout.is_split ? "split" : "whole");
    else if (get_hint(fd, LAYOUT, value))
        ADIOI_Info_delete(fd->info, LAYOUT);
    if (layout.width <= 1 && get_hint(fd, "striping_factor", value) && atoi(value) == 0)
        return;
    fd->hints->striping_factor = layout.width;
    fd->hints->striping_unit = layout.stripe;
    set_number(fd, "striping_factor", layout.width);
    set_number(fd, "striping_unit", layout.stripe);
}

void ad_weft_set_used_hints(ADIO_File fd, struct ad_weft_layout layout, int obeys_drain)
{
    const struct ad_weft_file *open = ad_weft_file(fd);
    char value[MPI_MAX_INFO_VAL + 1];
    if (!obeys_drain && get_hint(fd, DRAIN, value))
        ADIOI_Info_delete(fd->info, DRAIN);
    ADIOI_Info_set(fd->info, PLACEMENT, open->is_split && is_spread(fd) ? "spread" : "own");
    set_layout(fd, layout);
    set_rdma(fd);
    ADIOI_Info_set(fd->info, VISIBILITY, open->is_deferred ? "sync" : "immediate");
    ADIOI_Info_set(fd->info, ERRORS, open->is_split && !open->agrees_on_errors ? "own" : "agreed");
    ADIOI_Info_set(fd->info, SPILL, open->is_split && is_spilling(fd) ? "true" : "false");
}
