/* Links of a mem port: how ports find each other, and the memory that two of them share. */
#define _GNU_SOURCE
#include "ports/port_mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* ---- Names ---- */

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

/* ---- Links ---- */

/* Of linux/mman.h and linux/memfd.h, which not all C libraries pass on. */
enum { HUGE_2MIB = 21 << 26 };
enum { HUGE_BYTES = 1 << 21, EVENTS = 16, CONNECT_SECONDS = 1 };

static int watch_descriptor(struct mem_port *port, int fd, uint32_t number)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = number};
    return epoll_ctl(port->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int mem_listen(struct mem_port *port)
{
    port->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (port->epoll < 0)
        return -errno;
    port->listener = mem_name_listen(&port->name);
    return port->listener < 0 ? port->listener
                              : watch_descriptor(port, port->listener, MEM_LISTENER);
}

/* Whether the process at the other end of a socket belongs to the same user. */
static bool same_user(int fd, unsigned *user)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        return false;
    *user = peer.uid;
    return peer.uid == geteuid();
}

/* ---- Memory ---- */

/* Rings that are multiples of huge pages lie on them, and so does what stands behind them. */
static size_t control_bytes(uint64_t ring_bytes)
{
    return ring_bytes % HUGE_BYTES == 0 ? HUGE_BYTES : MEM_CONTROL_BYTES;
}

static size_t file_bytes(uint64_t ring_bytes)
{
    return 2 * (size_t)ring_bytes + control_bytes(ring_bytes);
}

/* Map one part at its place. */
static bool map_part(uint8_t *at, size_t bytes, int fd, size_t offset)
{
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) ==
        MAP_FAILED)
        return false;
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* a kernel without them has its own way */
    if (madvise(at, bytes, MADV_DONTFORK) < 0)
        return false;
    if (madvise(at, bytes, HARP_POPULATE_WRITE) < 0 && errno != EINVAL)
        return false;
    return true;
}

/* Map the rings, `first` the one that we write. On failure nothing stays mapped. */
static int map_rings(struct mem_link *link, int fd, uint64_t ring_bytes, int first)
{
    size_t ring = (size_t)ring_bytes, total = 4 * ring + 2 * HUGE_BYTES;
    uint8_t *base =
        mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return -ENOMEM;
    uint8_t *at = base + (HUGE_BYTES - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
    uint8_t *control = at + 4 * ring;
    for (size_t part = 0; part < 4; part++)
        if (!map_part(at + part * ring, ring, fd, part / 2 * ring))
            goto failed;
    if (!map_part(control, control_bytes(ring_bytes), fd, 2 * ring))
        goto failed;
    struct mem_control *controls = (struct mem_control *)(void *)control;
    link->base = base;
    link->mapped_bytes = total;
    link->out = (struct mem_out){
        .control = &controls[first], .data = at + (size_t)first * 2 * ring, .bytes = ring_bytes};
    link->in = (struct mem_in){.control = &controls[1 - first],
                               .data = at + (size_t)(1 - first) * 2 * ring,
                               .bytes = ring_bytes};
    return 0;
failed:
    munmap(base, total);
    return -ENOMEM;
}

/* Memory that two processes share; it can be neither cut nor grown from now on, so that no access
 * to it can fail. */
static int make_memory(uint64_t ring_bytes, bool huge)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | HUGE_2MIB : 0);
    int fd = memfd_create("harp-mem", flags);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)file_bytes(ring_bytes)) < 0 ||
        (huge && fallocate(fd, 0, 0, (off_t)file_bytes(ring_bytes)) < 0) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        int failed = errno;
        close(fd);
        return -failed;
    }
    return fd;
}

/* Huge pages are only had if rings are multiples of them. */
static int map_new(struct mem_port *port, struct mem_link *link)
{
    int fd = -1;
    bool huge = port->ring_bytes % HUGE_BYTES == 0;
    if (huge)
        fd = make_memory(port->ring_bytes, true);
    huge = fd >= 0;
    if (!huge)
        fd = make_memory(port->ring_bytes, false);
    if (fd < 0)
        return fd;
    int failed = map_rings(link, fd, port->ring_bytes, 0);
    if (failed) {
        close(fd);
        return failed;
    }
    snprintf(port->port.line, sizeof port->port.line, "mem: rings of %llu KiB in %s",
             (unsigned long long)port->ring_bytes / 1024,
             huge ? "pages of 2 MiB" : "ordinary or transparent huge pages");
    return fd;
}

/* Whether memory that somebody gave us is what its hello says and cannot be cut. */
static bool memory_holds(int fd, const struct mem_hello *hello)
{
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    return hello->magic == MEM_MAGIC && hello->version == MEM_VERSION &&
           hello->ring_bytes >= MEM_RING_LEAST && hello->ring_bytes <= MEM_RING_MOST &&
           (hello->ring_bytes & (hello->ring_bytes - 1)) == 0 && seals >= 0 &&
           (seals & F_SEAL_SHRINK) && fstat(fd, &about) == 0 &&
           (uint64_t)about.st_size >= file_bytes(hello->ring_bytes);
}

/* ---- Links ---- */

static struct mem_link *new_link(struct mem_port *port)
{
    for (uint32_t i = 0; i < MEM_LINKS_MAX; i++) {
        if (port->links[i].state != MEM_FREE)
            continue;
        port->links_n = i < port->links_n ? port->links_n : i + 1;
        port->links[i] = (struct mem_link){.socket = -1};
        return &port->links[i];
    }
    return NULL;
}

/* A child of fork may hold the socket too, so closing it would not end the watch. */
static void hang_up(struct mem_port *port, struct mem_link *link)
{
    if (link->socket < 0)
        return;
    (void)epoll_ctl(port->epoll, EPOLL_CTL_DEL, link->socket, NULL);
    close(link->socket);
    link->socket = -1;
}

void mem_free(struct mem_port *port, struct mem_link *link)
{
    if (link->base)
        munmap(link->base, link->mapped_bytes);
    hang_up(port, link);
    *link = (struct mem_link){.state = MEM_FREE, .socket = -1};
}

void mem_end(struct mem_port *port, struct mem_link *link)
{
    assert(link->state == MEM_LINKED);
    link->state = MEM_ENDED;
    hang_up(port, link);
}

/* A socket that is connected to the port of that name; -errno and a sentence. */
static int dial_port(const struct harp_address *to, char *why)
{
    char text[64];
    unsigned user = 0;
    struct sockaddr_un name = mem_name(to);
    const struct timeval bound = {.tv_sec = CONNECT_SECONDS};
    harp_address_format(to, text, sizeof text);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int failed = fd < 0 ? errno : 0;
    if (!failed && (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound) < 0 ||
                    connect(fd, (struct sockaddr *)&name, sizeof name) < 0))
        failed = errno == ENOENT ? ECONNREFUSED : errno;
    if (failed)
        snprintf(
            why, HARP_WHY_BYTES, "%s: %s", text,
            failed == ECONNREFUSED
                ? "no process that shares /dev/shm with this one has this port; it is gone, or "
                  "in another container"
                : strerror(failed));
    if (!failed && !same_user(fd, &user)) {
        snprintf(why, HARP_WHY_BYTES,
                 "%s belongs to user %u; only processes of one user share memory", text, user);
        failed = EPERM;
    }
    if (!failed)
        return fd;
    if (fd >= 0)
        close(fd);
    return -failed;
}

static int greet_port(struct mem_port *port, int socket, int memory)
{
    struct mem_hello hello = {
        .magic = MEM_MAGIC, .version = MEM_VERSION, .ring_bytes = port->ring_bytes};
    memcpy(hello.from, port->name.ip, sizeof hello.from);
    struct iovec piece = {&hello, sizeof hello};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &memory, sizeof memory);
    if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
        return -errno;
    return fcntl(socket, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

int mem_connect(struct mem_port *port, const struct harp_address *to, char *why)
{
    struct mem_link *link = new_link(port);
    if (!link) {
        snprintf(why, HARP_WHY_BYTES, "this mem port is linked to %d others already, the most",
                 MEM_LINKS_MAX);
        return -ENOSPC;
    }
    link->socket = dial_port(to, why);
    if (link->socket < 0)
        return link->socket;
    int memory = map_new(port, link);
    int failed = memory < 0 ? memory : greet_port(port, link->socket, memory);
    if (memory >= 0)
        close(memory);
    if (!failed)
        failed = watch_descriptor(port, link->socket, (uint32_t)(link - port->links));
    if (failed) {
        char text[64];
        harp_address_format(to, text, sizeof text);
        snprintf(why, HARP_WHY_BYTES, "%s: %s, for two rings of %llu KiB", text, strerror(-failed),
                 (unsigned long long)port->ring_bytes / 1024);
        mem_free(port, link);
        return failed;
    }
    link->peer = *to;
    link->state = MEM_LINKED;
    return (int)(link - port->links);
}

/* ---- What comes on sockets ---- */

static void accept_all(struct mem_port *port)
{
    for (int i = 0; i < EVENTS; i++) {
        unsigned user;
        int fd = accept4(port->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        struct mem_link *link = same_user(fd, &user) ? new_link(port) : NULL;
        if (!link || watch_descriptor(port, fd, (uint32_t)(link - port->links)) != 0) {
            close(fd);
            continue;
        }
        link->socket = fd;
        link->state = MEM_GREETING;
    }
}

/* The hello and its memory; -1 if it is not a hello. */
static int receive_hello(int socket, struct mem_hello *hello)
{
    struct iovec piece = {hello, sizeof *hello};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *rights = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (rights && rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    if (got == sizeof *hello || fd < 0)
        return fd;
    close(fd);
    return -1;
}

static void welcome_link(struct mem_port *port, struct mem_link *link)
{
    struct mem_hello hello = {0};
    int memory = receive_hello(link->socket, &hello);
    bool linked = memory >= 0 && memory_holds(memory, &hello) &&
                  map_rings(link, memory, hello.ring_bytes, 1) == 0;
    if (memory >= 0)
        close(memory);
    if (!linked) {
        mem_free(port, link);
        return;
    }
    link->peer = (struct harp_address){.family = HARP_MEM};
    memcpy(link->peer.ip, hello.from, sizeof hello.from);
    link->state = MEM_LINKED;
}

/* Wake-ups say nothing but that they came; their end is the link's. */
static void hear_link(struct mem_port *port, struct mem_link *link)
{
    char bytes[8];
    ssize_t got;
    while ((got = recv(link->socket, bytes, sizeof bytes, 0)) > 0)
        ;
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
        mem_end(port, link);
}

static void handle_event(struct mem_port *port, uint32_t number)
{
    struct mem_link *link = number == MEM_LISTENER ? NULL : &port->links[number];
    if (!link)
        accept_all(port);
    else if (link->state == MEM_GREETING)
        welcome_link(port, link);
    else if (link->state == MEM_LINKED)
        hear_link(port, link);
}

/* A newcomer's hello is there by the second round. */
void mem_look(struct mem_port *port)
{
    struct epoll_event events[EVENTS];
    for (int round = 0; round < 4; round++) {
        int count = epoll_wait(port->epoll, events, EVENTS, 0);
        port->port.counters.receive_calls++;
        for (int i = 0; i < count; i++)
            handle_event(port, events[i].data.u32);
        if (count <= 0)
            return;
    }
}
