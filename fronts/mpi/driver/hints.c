/* MPI_Info hints.
 *
 *     striping_factor   number of nodes a new file is striped over; 1: not striped
 *     striping_unit     stripe size in bytes, a multiple of 64 KiB; only with striping_factor
 *     weft_rdma         RDMA registration: auto, static (the connection's memory), dynamic (the program's)
 *
 * ROMIO handles its own hints and ignores unknown ones. After the open, MPI_File_get_info() returns the actual layout
 * of a striped file, and collective buffering aligns file domains to stripes. */
#include "ad_weft.h"
#include "hint_fns.h"
#include <stdio.h>
#include <string.h>

#define RDMA "weft_rdma"

static void set_number(ADIO_File fd, const char *key, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    ADIOI_Info_set(fd->info, key, text);
}

static int is_known_rdma(const char *value)
{
    return strcmp(value, "auto") == 0 || strcmp(value, "static") == 0 || strcmp(value, "dynamic") == 0;
}

/* Stores the hint in `fd->info`; ad_weft_rdma_words() reads it there. */
static void install_rdma(ADIO_File fd, MPI_Info info)
{
    char value[MPI_MAX_INFO_VAL + 1];
    int is_set = 0;
    ADIOI_Info_get(info, RDMA, MPI_MAX_INFO_VAL, value, &is_set);
    if (is_set && is_known_rdma(value))
        ADIOI_Info_set(fd->info, RDMA, value);
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
    install_rdma(fd, info);
}

void ad_weft_layout_words(ADIO_File fd, char words[AD_WEFT_WORDS])
{
    int width = fd->hints->striping_factor, stripe = fd->hints->striping_unit;
    *words = '\0';
    if (width == 1)
        snprintf(words, AD_WEFT_WORDS, "whole");
    else if (width > 1 && stripe > 0)
        snprintf(words, AD_WEFT_WORDS, "width=%d stripe=%d", width, stripe);
    else if (width > 1)
        snprintf(words, AD_WEFT_WORDS, "width=%d", width);
}

void ad_weft_rdma_words(ADIO_File fd, char words[AD_WEFT_WORDS])
{
    char value[MPI_MAX_INFO_VAL + 1];
    int is_set = 0;
    *words = '\0';
    ADIOI_Info_get(fd->info, RDMA, MPI_MAX_INFO_VAL, value, &is_set);
    if (is_set)
        snprintf(words, AD_WEFT_WORDS, "rdma=%.16s", value);
}

/* Parses the extended attribute: `whole`, or `width=N stripe=SIZE`, SIZE in bytes, KiB or MiB. */
struct ad_weft_layout ad_weft_layout(weft_t fs, const char *path)
{
    struct ad_weft_layout layout = {1, 0};
    char value[128], unit[4] = "";
    ssize_t length = weft_getxattr(fs, path, "weft.layout", value, sizeof value - 1);
    if (length < 0)
        return layout;
    value[length] = '\0';
    if (sscanf(value, "width=%d stripe=%d%3s", &layout.width, &layout.stripe, unit) < 1)
        return layout;
    if (strcmp(unit, "KiB") == 0)
        layout.stripe <<= 10;
    else if (strcmp(unit, "MiB") == 0)
        layout.stripe <<= 20;
    return layout;
}

/* The hints of a file that is not striped stay unset, unless the program has set them. */
void ad_weft_set_layout(ADIO_File fd, struct ad_weft_layout layout)
{
    if (layout.width <= 1 && fd->hints->striping_factor <= 0)
        return;
    fd->hints->striping_factor = layout.width;
    fd->hints->striping_unit = layout.stripe;
    set_number(fd, "striping_factor", layout.width);
    set_number(fd, "striping_unit", layout.stripe);
}
