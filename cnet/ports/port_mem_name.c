#define _GNU_SOURCE
#include "ports/port_mem_name.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER "/dev/shm"
#define PREFIX "harp-mem-"

enum {
    GIVING_SECONDS = 60,
    BACKLOG = 128,
    NAME_BYTES = 16,
    FILE_CHARS = sizeof PREFIX - 1 + 2 * NAME_BYTES
};

struct sockaddr_un mem_name(const struct harp_address *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char *at = name.sun_path + sprintf(name.sun_path, FOLDER "/" PREFIX);
    for (int i = 0; i < NAME_BYTES; i++)
        at += sprintf(at, "%02x", address->ip[i]);
    return name;
}

/* Whether a name that was given leads to no socket. A port's is no datagram socket, so a living one
 * refuses for its type and never learns of it. */
static bool is_dead(const char *file)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    snprintf(name.sun_path, sizeof name.sun_path, FOLDER "/%.*s", FILE_CHARS, file);
    bool refused = connect(fd, (struct sockaddr *)&name, sizeof name) < 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

/* Whether a file of the folder is a name, or was to become one when its process was killed. */
static bool is_name(const char *file, const struct stat *about)
{
    bool half = file[0] == '.';
    return strlen(file) == FILE_CHARS && strncmp(&file[1], &PREFIX[1], strlen(&PREFIX[1])) == 0 &&
           (half || file[0] == PREFIX[0]) && S_ISSOCK(about->st_mode) &&
           about->st_uid == geteuid() && (!half || about->st_ctime + GIVING_SECONDS < time(NULL));
}

/* Names of our user's processes that were killed. */
static void remove_leftovers(void)
{
    struct stat about;
    DIR *folder = opendir(FOLDER);
    if (!folder)
        return;
    for (struct dirent *found; (found = readdir(folder));)
        if (fstatat(dirfd(folder), found->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            is_name(found->d_name, &about) && is_dead(found->d_name))
            (void)unlinkat(dirfd(folder), found->d_name, 0);
    closedir(folder);
}

/* The kernel makes a socket's file first and what leads from it to the socket afterwards. In
 * between it looks dead; so it gets the name that others sweep by when it lives. */
int mem_name_listen(const struct harp_address *address)
{
    struct sockaddr_un name = mem_name(address), first = name;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    remove_leftovers();
    first.sun_path[strlen(FOLDER "/")] = '.';
    if (bind(fd, (struct sockaddr *)&first, sizeof first) == 0 && listen(fd, BACKLOG) == 0 &&
        rename(first.sun_path, name.sun_path) == 0)
        return fd;
    int failed = errno;
    (void)unlink(first.sun_path);
    close(fd);
    return -failed;
}

void mem_name_remove(const struct harp_address *address)
{
    struct sockaddr_un name = mem_name(address);
    (void)unlink(name.sun_path);
}
