/* Parses file names.
 *
 * ROMIO strips the prefix from `weft:NAME:/path` and `weft:/path` (the only running file system). A path below a mount
 * has no prefix: ROMIO calls ad_weft_is_mounted() for each name, and /proc/self/mountinfo says which file system is
 * mounted there. I/O then bypasses the mount. */
#include "ad_weft.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Type and source of a mount of Weft: `fuse.weft`, `weft:NAME`. */
#define MOUNT_TYPE "fuse.weft"
#define MOUNT_SOURCE "weft:"

static int copy(char *to, size_t room, const char *from, size_t length)
{
    if (length >= room)
        return -ENAMETOOLONG;
    memcpy(to, from, length);
    to[length] = '\0';
    return 0;
}

/* Returns the length of NAME in `NAME:/path`, or 0. */
static size_t file_system_length(const char *name)
{
    size_t length = 0;
    while (isalnum((unsigned char)name[length]) || (name[length] != '\0' && strchr("-_.", name[length]) != NULL))
        length++;
    return name[length] == ':' && name[length + 1] == '/' ? length : 0;
}

int ad_weft_parse(const char *name, struct ad_weft_name *parsed)
{
    if (strncasecmp(name, "weft:", 5) == 0)
        name += 5;
    size_t length = file_system_length(name);
    parsed->is_read_only = 0;
    int error = copy(parsed->file_system, sizeof parsed->file_system, name, length);
    if (error < 0)
        return error;
    const char *path = length > 0 ? name + length + 1 : name;
    parsed->path[0] = '/';
    while (*path == '/')
        path++;
    return copy(parsed->path + 1, sizeof parsed->path - 1, path, strlen(path));
}

char *ad_weft_name_text(const struct ad_weft_name *parsed)
{
    size_t room = strlen(parsed->file_system) + 1 + strlen(parsed->path) + 1;
    char *text = ADIOI_Malloc(room);
    if (text != NULL)
        snprintf(text, room, "%s%s%s", parsed->file_system, *parsed->file_system != '\0' ? ":" : "", parsed->path);
    return text;
}

/* Decodes the octal escapes of mountinfo (`\040` for a space) in place. */
static void unescape(char *field)
{
    char *to = field;
    for (const char *from = field; *from != '\0'; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
            from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

/* Returns the rest of `path` below `directory`, with its leading slash, or NULL if it is not below. */
static const char *below(const char *path, const char *directory)
{
    size_t length = strcmp(directory, "/") == 0 ? 0 : strlen(directory);
    if (strncmp(path, directory, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return NULL;
    return path + length;
}

/* A line of /proc/self/mountinfo: ID PARENT DEVICE ROOT POINT OPTIONS ... - TYPE SOURCE SUPER-OPTIONS */
struct mount {
    char *root, *point, *options, *type, *source, *super_options;
};

static int parse_mount(char *line, struct mount *mount)
{
    char *rest = line, *field;
    memset(mount, 0, sizeof *mount);
    for (int index = 0; (field = strsep(&rest, " \n")) != NULL; index++) {
        if (index == 3)
            mount->root = field;
        else if (index == 4)
            mount->point = field;
        else if (index == 5)
            mount->options = field;
        else if (index > 5 && strcmp(field, "-") == 0)
            break;
    }
    mount->type = strsep(&rest, " \n");
    mount->source = strsep(&rest, " \n");
    mount->super_options = strsep(&rest, " \n");
    if (mount->options == NULL || mount->super_options == NULL)
        return 0;
    unescape(mount->root);
    unescape(mount->point);
    unescape(mount->source);
    return 1;
}

static int is_read_only(const char *options)
{
    return strcmp(options, "ro") == 0 || strncmp(options, "ro,", 3) == 0;
}

/* Finds the mount of an absolute path without symbolic links: the longest mount point that is a prefix. Of several
 * mounts on one mount point the last one is on top. */
static int find(FILE *list, const char *path, struct ad_weft_name *found)
{
    char *line = NULL;
    size_t room = 0, longest = 0;
    int result = -ENOENT;
    while (getline(&line, &room, list) > 0) {
        struct mount mount;
        const char *rest;
        if (!parse_mount(line, &mount) || (rest = below(path, mount.point)) == NULL || strlen(mount.point) < longest)
            continue;
        longest = strlen(mount.point);
        result = -ENOENT;
        if (strcmp(mount.type, MOUNT_TYPE) != 0 || strncmp(mount.source, MOUNT_SOURCE, strlen(MOUNT_SOURCE)) != 0)
            continue;
        found->is_read_only = is_read_only(mount.options) || is_read_only(mount.super_options);
        const char *name = mount.source + strlen(MOUNT_SOURCE), *root = strcmp(mount.root, "/") == 0 ? "" : mount.root;
        const char *path = *rest != '\0' || *root != '\0' ? rest : "/";
        int length = snprintf(found->path, sizeof found->path, "%s%s", root, path);
        result = length < (int)sizeof found->path
            ? copy(found->file_system, sizeof found->file_system, name, strlen(name))
            : -ENAMETOOLONG;
    }
    free(line);
    return result;
}

/* Resolves symbolic links. The file itself need not exist. */
static int resolve(const char *path, char resolved[PATH_MAX])
{
    char directory[PATH_MAX];
    if (realpath(path, resolved) != NULL)
        return 0;
    if (errno != ENOENT)
        return -errno;
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    int error = slash == NULL ? copy(directory, sizeof directory, ".", 1)
                              : copy(directory, sizeof directory, path, slash == path ? 1 : (size_t)(slash - path));
    if (error < 0)
        return error;
    if (realpath(directory, resolved) == NULL)
        return -errno;
    size_t length = strlen(resolved);
    int is_root = length == 1;
    if (!is_root && length + 1 < PATH_MAX)
        resolved[length++] = '/';
    return copy(resolved + length, PATH_MAX - length, name, strlen(name));
}

int ad_weft_parse_mounted(const char *path, struct ad_weft_name *parsed)
{
    char resolved[PATH_MAX];
    if (resolve(path, resolved) < 0)
        return -ENOENT;
    FILE *list = fopen("/proc/self/mountinfo", "re");
    if (list == NULL)
        return -ENOENT;
    int error = find(list, resolved, parsed);
    fclose(list);
    return error;
}

/* Returns whether a file name is a path below a mount of Weft. Called by ROMIO before it looks for a prefix.
 * Collective: only rank 0 needs the mount. */
int ad_weft_is_mounted(MPI_Comm comm, const char *name)
{
    struct ad_weft_name ignored;
    int rank, is_mounted = 0;
    MPI_Comm_rank(comm, &rank);
    if (rank == 0)
        is_mounted = getenv("ROMIO_FSTYPE_FORCE") == NULL && ad_weft_parse_mounted(name, &ignored) == 0;
    MPI_Bcast(&is_mounted, 1, MPI_INT, 0, comm);
    return is_mounted;
}
