#define _GNU_SOURCE
#include "trial_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/siphash.h"
#include "wire/wire.h"

#define FOLDER "/dev/shm"
#define PREFIX "harp-port-"
#define WORTH_S (24 * 60 * 60)
#define LINE_BYTES 256

static const char *const names[] = {[HARP_INET] = "packets", [HARP_TCP] = "tcp"};

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71 /* Linux 5.14 */
#endif

/* The number of this network namespace, which no other one gets until the host boots; 0 on older
 * kernels. Pods may share a /dev/shm, and addresses. */
static uint64_t read_namespace(void)
{
    uint64_t cookie = 0;
    socklen_t bytes = sizeof cookie;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &bytes) < 0)
        cookie = 0;
    if (fd >= 0)
        close(fd);
    return cookie;
}

/* Name and version of the card's driver, as far as sysfs has them; "" of a virtual interface. */
static void describe_driver(const char *card, char *out, size_t room)
{
    char path[128], link[256];
    snprintf(path, sizeof path, "/sys/class/net/%.32s/device/driver", card);
    ssize_t length = readlink(path, link, sizeof link - 1);
    link[length > 0 ? length : 0] = 0;
    snprintf(path, sizeof path, "/sys/class/net/%.32s/device/driver/module/version", card);
    FILE *from = fopen(path, "re");
    char version[64] = "";
    if (from && fscanf(from, "%63s", version) != 1)
        *version = 0;
    if (from)
        fclose(from);
    snprintf(out, room, "%.160s %.60s", link, version);
}

static void path_of(const struct harp_address *own, const struct harp_address *peer,
                    const char *card, char *out, size_t room)
{
    static const struct harp_key no_secret = {0};
    struct utsname host = {0};
    char driver[256], text[512], from[64], to[64];
    uname(&host);
    describe_driver(card, driver, sizeof driver);
    harp_address_format(own, from, sizeof from);
    harp_address_format(peer, to, sizeof to);
    int length = snprintf(text, sizeof text, "%d %" PRIu64 " %s %s %s %.64s", HARP_VERSION,
                          read_namespace(), from, to, driver, host.release);
    snprintf(out, room, FOLDER "/" PREFIX "%u-%016" PRIx64, geteuid(),
             harp_siphash(&no_secret, (const uint8_t *)text, (size_t)length));
}

/* Remove files that have expired. */
static void remove_old(void)
{
    struct stat about;
    DIR *folder = opendir(FOLDER);
    if (!folder)
        return;
    for (struct dirent *found; (found = readdir(folder));)
        if (strncmp(found->d_name, PREFIX, sizeof PREFIX - 1) == 0 &&
            fstatat(dirfd(folder), found->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            about.st_uid == geteuid() && time(NULL) - about.st_mtime >= WORTH_S)
            unlinkat(dirfd(folder), found->d_name, 0);
    closedir(folder);
}

/* As addresses are written in the file: without ports. */
static struct harp_address bare_host(const struct harp_address *address)
{
    struct harp_address host = *address;
    host.port = 0;
    host.family = HARP_INET;
    return host;
}

static bool read_line(int fd, struct trial_result *result)
{
    char line[LINE_BYTES], from[64], to[64], name[16];
    struct stat about;
    ssize_t length = pread(fd, line, sizeof line - 1, 0);
    if (length <= 0 || fstat(fd, &about) < 0)
        return false;
    line[length] = 0;
    if (time(NULL) - about.st_mtime >= WORTH_S ||
        sscanf(line, "%63s %63s %15s %" SCNu32, from, to, name, &result->percent) != 4)
        return false;
    for (uint8_t family = HARP_INET; family <= HARP_TCP; family++)
        if (names[family] && strcmp(name, names[family]) == 0)
            result->family = family;
    return result->family != 0;
}

enum trial_cache_state trial_cache_read(const struct harp_address *own,
                                        const struct harp_address *peer, const char *card, int *fd,
                                        struct trial_result *result)
{
    char path[128];
    struct harp_address here = bare_host(own), there = bare_host(peer);
    path_of(&here, &there, card, path, sizeof path);
    *result = (struct trial_result){0};
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return TRIAL_DUE;
    bool mine = flock(*fd, LOCK_EX | LOCK_NB) == 0;
    bool known = mine && read_line(*fd, result);
    if (mine && !known)
        return TRIAL_DUE;
    close(*fd);
    *fd = -1;
    return known ? TRIAL_CACHED : TRIAL_ELSEWHERE;
}

void trial_cache_write(int fd, const struct harp_address *own, const struct harp_address *peer,
                       const struct trial_result *result)
{
    char line[LINE_BYTES], from[64], to[64];
    int length = 0;
    if (fd < 0)
        return;
    if (result) {
        struct harp_address here = bare_host(own), there = bare_host(peer);
        harp_address_format(&here, from, sizeof from);
        harp_address_format(&there, to, sizeof to);
        length = snprintf(line, sizeof line, "%s %s %s %u\n", from, to, names[result->family],
                          result->percent);
    }
    if (ftruncate(fd, 0) < 0 || pwrite(fd, line, (size_t)length, 0) != length)
        (void)!ftruncate(fd, 0); /* a torn line would be one that says something else */
    close(fd);
    remove_old();
}
