/* Flattens memory and file types to the strides and extent lists of weft.h.
 *
 * Two iterators advance together, one over the blocks of the memory type and one over those of the file type; each step
 * yields an extent, and extents that are adjacent in both are merged. As long as the extents form a single stride, only
 * the stride is stored, whatever its count; otherwise they become a list. A pattern is the argument of one library
 * call: the whole access, except for lists longer than AD_WEFT_EXTENTS_MAX. */
#include "ad_weft.h"
#include "adio_extern.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>

ADIO_Offset ad_weft_walk_position(const struct ad_weft_walk *walk)
{
    return walk->origin + walk->tile * walk->extent + walk->starts[walk->block] + walk->used;
}

static ADIO_Offset left_in_block(const struct ad_weft_walk *walk)
{
    return walk->lengths[walk->block] - walk->used;
}

/* Skips exhausted and empty blocks. At least one block is not empty. */
static void settle(struct ad_weft_walk *walk)
{
    while (left_in_block(walk) == 0) {
        walk->used = 0;
        if (++walk->block == walk->blocks) {
            walk->block = 0;
            walk->tile++;
        }
    }
}

void ad_weft_walk_on(struct ad_weft_walk *walk, ADIO_Offset bytes)
{
    while (bytes > 0) {
        ADIO_Offset step = MPL_MIN(bytes, left_in_block(walk));
        walk->used += step;
        bytes -= step;
        settle(walk);
    }
}

/* Initializes an iterator over one unbounded block. */
static void walk_block(struct ad_weft_walk *walk, ADIO_Offset origin)
{
    memset(walk, 0, sizeof *walk);
    walk->single[1] = INT64_MAX / 2;
    walk->starts = &walk->single[0];
    walk->lengths = &walk->single[1];
    walk->blocks = 1;
    walk->extent = walk->single[1];
    walk->origin = origin;
}

/* Initializes an iterator at the first byte of a type. */
static void walk_type(struct ad_weft_walk *walk, MPI_Datatype type, ADIO_Offset origin)
{
    int is_contiguous;
    MPI_Aint lower, extent;
    ADIOI_Datatype_iscontig(type, &is_contiguous);
    if (is_contiguous) {
        walk_block(walk, origin);
        return;
    }
    ADIOI_Flatlist_node *flat = ADIOI_Flatten_and_find(type);
    MPI_Type_get_extent(type, &lower, &extent);
    memset(walk, 0, sizeof *walk);
    walk->starts = flat->indices;
    walk->lengths = flat->blocklens;
    walk->blocks = flat->count;
    walk->extent = extent;
    walk->origin = origin;
    settle(walk);
}

/* Moves to the first byte of the view at or after a file offset. */
static void walk_to(struct ad_weft_walk *walk, ADIO_Offset offset)
{
    ADIO_Offset end = 0;
    if (walk->starts == &walk->single[0]) {
        walk->used = offset - walk->origin;
        return;
    }
    for (MPI_Count block = 0; block < walk->blocks; block++)
        end = MPL_MAX(end, walk->starts[block] + walk->lengths[block]);
    /* Earlier tiles end before the offset. */
    walk->tile = MPL_MAX(0, (offset - walk->origin - end) / MPL_MAX(walk->extent, 1));
    walk->block = 0;
    walk->used = 0;
    settle(walk);
    while (ad_weft_walk_position(walk) + left_in_block(walk) <= offset) {
        walk->used = walk->lengths[walk->block];
        settle(walk);
    }
    walk->used = MPL_MAX(0, offset - ad_weft_walk_position(walk));
}

/* Moves to an offset in bytes of the view. */
static void walk_view(struct ad_weft_walk *walk, MPI_Datatype type, ADIO_Offset bytes)
{
    MPI_Count size;
    MPI_Type_size_x(type, &size);
    if (walk->starts == &walk->single[0]) {
        walk->used = bytes;
        return;
    }
    walk->tile += bytes / size;
    ad_weft_walk_on(walk, bytes % size);
}

int ad_weft_begin(struct ad_weft_access *access, ADIO_File fd, const void *buf, int count, MPI_Datatype datatype,
                  int file_ptr_type, ADIO_Offset offset)
{
    MPI_Count memory_size, file_size;
    MPI_Type_size_x(datatype, &memory_size);
    MPI_Type_size_x(fd->filetype, &file_size);
    memset(access, 0, sizeof *access);
    access->left = (ADIO_Offset)memory_size * count;
    if (access->left == 0)
        return 0;
    if (file_size == 0)
        return -EINVAL; /* empty file type */
    access->type = datatype;
    walk_type(&access->memory, datatype, (ADIO_Offset)(uintptr_t)buf);
    walk_type(&access->file, fd->filetype, fd->disp);
    if (file_ptr_type == ADIO_INDIVIDUAL)
        walk_to(&access->file, fd->fp_ind);
    else
        walk_view(&access->file, fd->filetype, offset * fd->etype_size);
    return 0;
}

/* The old ROMIO keeps a flattened type by its handle, which may be another type's later. */
void ad_weft_end(struct ad_weft_access *access)
{
#ifdef AD_WEFT_OLD_ROMIO
    if (access->memory.starts != NULL && access->memory.starts != &access->memory.single[0])
        ADIOI_Delete_flattened(access->type);
    access->memory.starts = NULL;
#else
    (void)access;
#endif
}

/* Advances the iterators by one extent, which is contiguous in memory and file. */
static struct weft_extent walk_extent(struct ad_weft_access *access)
{
    ADIO_Offset memory = ad_weft_walk_position(&access->memory), file = ad_weft_walk_position(&access->file), taken = 0;
    do {
        ADIO_Offset step = MPL_MIN(left_in_block(&access->memory), left_in_block(&access->file));
        step = MPL_MIN(step, access->left);
        ad_weft_walk_on(&access->memory, step);
        ad_weft_walk_on(&access->file, step);
        access->left -= step;
        taken += step;
    } while (access->left > 0 && ad_weft_walk_position(&access->memory) == memory + taken &&
             ad_weft_walk_position(&access->file) == file + taken);
    struct weft_extent extent = {(void *)(uintptr_t)memory, (size_t)taken, file};
    return extent;
}

/* Returns the next extent, starting with the kept one. Returns 0 at the end. */
static int take(struct ad_weft_access *access, struct weft_extent *extent)
{
    if (access->kept.length > 0) {
        *extent = access->kept;
        access->kept.length = 0;
        return 1;
    }
    if (access->left == 0)
        return 0;
    *extent = walk_extent(access);
    return 1;
}

static int append(struct ad_weft_pattern *pattern, const struct weft_extent *extent)
{
    if (pattern->count == pattern->room) {
        size_t room = pattern->room > 0 ? pattern->room * 2 : 64;
        struct weft_extent *extents = realloc(pattern->extents, room * sizeof *extents);
        if (extents == NULL)
            return -ENOMEM;
        pattern->extents = extents;
        pattern->room = room;
    }
    pattern->extents[pattern->count++] = *extent;
    return 0;
}

int ad_weft_to_list(struct ad_weft_pattern *pattern)
{
    struct weft_strided regular = pattern->regular;
    pattern->regular.count = 0;
    for (size_t index = 0; index < regular.count; index++) {
        struct weft_extent extent = {
            (char *)regular.memory + index * regular.memory_stride,
            regular.block,
            regular.offset + (off_t)index * regular.file_stride,
        };
        int error = append(pattern, &extent);
        if (error < 0)
            return error;
    }
    return 0;
}

/* Appends an extent to a stride if it is the next block. Returns whether it was. */
static int continues(struct weft_strided *regular, const struct weft_extent *extent)
{
    ptrdiff_t memory_stride = (char *)extent->memory - (char *)regular->memory;
    off_t file_stride = extent->offset - regular->offset;
    if (extent->length != regular->block)
        return 0;
    if (regular->count == 1) {
        if (memory_stride < (ptrdiff_t)regular->block || file_stride < (off_t)regular->block)
            return 0;
        regular->memory_stride = (size_t)memory_stride;
        regular->file_stride = file_stride;
    } else if (memory_stride != (ptrdiff_t)(regular->count * regular->memory_stride) ||
               file_stride != (off_t)regular->count * regular->file_stride) {
        return 0;
    }
    regular->count++;
    return 1;
}

/* Adds an extent. Returns 1, 0 if the pattern is full, or -ENOMEM. */
static int add(struct ad_weft_pattern *pattern, const struct weft_extent *extent)
{
    struct weft_strided *regular = &pattern->regular;
    if (pattern->count == 0 && regular->count == 0) {
        struct weft_strided first = {extent->memory, extent->length, 1, extent->length, extent->offset,
                                     (off_t)extent->length};
        *regular = first;
        return 1;
    }
    if (pattern->count == 0 && continues(regular, extent))
        return 1;
    if (MPL_MAX(pattern->count, regular->count) >= AD_WEFT_EXTENTS_MAX)
        return 0;
    int error = regular->count > 0 ? ad_weft_to_list(pattern) : 0;
    if (error == 0)
        error = append(pattern, extent);
    return error < 0 ? error : 1;
}

int ad_weft_next(struct ad_weft_access *access, struct ad_weft_pattern *pattern)
{
    struct weft_extent extent;
    pattern->regular.count = 0;
    pattern->count = 0;
    pattern->bytes = 0;
    while (take(access, &extent)) {
        int added = add(pattern, &extent);
        if (added < 0)
            return added;
        if (added == 0) {
            access->kept = extent;
            return 1;
        }
        pattern->bytes += (ADIO_Offset)extent.length;
    }
    return pattern->bytes > 0;
}

void ad_weft_free_pattern(struct ad_weft_pattern *pattern)
{
    free(pattern->extents);
    memset(pattern, 0, sizeof *pattern);
}
