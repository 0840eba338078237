/* The mem port's end of a link whose other end breaks the rules: it ends the link and comes to no
 * harm. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "port_mem_end.h"
#include "ports/port_mem.h"
#include "ports/port_mem_ring.h"

struct rogue {
    int socket, memory;
    uint8_t *ring;
    struct mem_control *control;
};

enum { ROGUE_RING = 1 << 20 };

/* Send a hello with whatever memory. */
static void rogue_hello(struct rogue *rogue, const struct harp_address *to,
                        const struct mem_hello *hello)
{
    struct sockaddr_un name = mem_name(to);
    rogue->socket = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    int connected = connect(rogue->socket, (struct sockaddr *)&name, sizeof name);
    assert(connected == 0);
    struct iovec piece = {(void *)(uintptr_t)hello, sizeof *hello};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (rogue->memory >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &rogue->memory, sizeof(int));
    }
    assert(sendmsg(rogue->socket, &message, MSG_NOSIGNAL) == sizeof *hello);
}

static struct rogue rogue_link(const struct harp_address *to)
{
    struct rogue rogue = {.memory = memfd_create("rogue", MFD_ALLOW_SEALING)};
    size_t bytes = 2 * ROGUE_RING + MEM_CONTROL_BYTES;
    assert(rogue.memory >= 0 && ftruncate(rogue.memory, (off_t)bytes) == 0);
    assert(fcntl(rogue.memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    rogue.ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, rogue.memory, 0);
    assert(rogue.ring != MAP_FAILED);
    rogue.control = (struct mem_control *)(void *)(rogue.ring + 2 * ROGUE_RING);
    struct mem_hello hello = {MEM_MAGIC, MEM_VERSION, 0, ROGUE_RING, {1, 2, 3}};
    rogue_hello(&rogue, to, &hello);
    return rogue;
}

static void rogue_close(struct rogue *rogue)
{
    close(rogue->socket);
    if (rogue->memory >= 0)
        close(rogue->memory);
    if (rogue->ring)
        munmap(rogue->ring, 2 * ROGUE_RING + MEM_CONTROL_BYTES);
}

/* Its writes, and the number of datagrams received before the link ends. */
struct crime {
    uint64_t produced;
    uint32_t lengths[4];
    size_t received;
};

static void test_corrupt_indices(void)
{
    static const struct crime crimes[] = {
        {63, {0}, 0},
        {ROGUE_RING + 64, {0}, 0},
        {UINT64_MAX - 63, {0}, 0},
        {64, {45}, 0}, /* reaches beyond what is published */
        {128, {44, UINT32_MAX}, 1},
        {ROGUE_RING, {MEM_PAYLOAD_MAX + 1}, 0},
        {ROGUE_RING, {UINT32_MAX - 40}, 0},
    };
    static const struct harp_address rogue_name = {.family = HARP_MEM, .ip = {1, 2, 3}};
    for (size_t i = 0; i < sizeof crimes / sizeof crimes[0]; i++) {
        struct harp_port *port = open_port(0);
        struct rogue rogue = rogue_link(&port->locals[0]);
        struct harp_arrival arrivals[32];
        tend_port(port);
        for (size_t k = 0; k < 4; k++)
            memcpy(rogue.ring + k * 64 + MEM_LENGTH_AT, &crimes[i].lengths[k], 4);
        atomic_store(&rogue.control[0].produced, crimes[i].produced);
        size_t count = port->ops->receive(port, now_ns(), arrivals, 32);
        assert(count == crimes[i].received);
        if (count)
            port->ops->release(port, arrivals, count);
        tend_port(port);
        struct harp_notice notice;
        assert(port->ops->notice(port, &notice) && harp_address_same(&notice.about, &rogue_name));
        char byte;
        assert(recv(rogue.socket, &byte, 1, 0) == 0);
        rogue_close(&rogue);
        port->ops->close(port);
    }
}

static void test_corrupt_consumer(void)
{
    static const uint64_t consumed[] = {64, 1, UINT64_MAX - 63};
    for (size_t i = 0; i < sizeof consumed / sizeof consumed[0]; i++) {
        struct harp_port *port = open_port(0);
        struct rogue rogue = rogue_link(&port->locals[0]);
        static const struct harp_address rogue_name = {.family = HARP_MEM, .ip = {1, 2, 3}};
        tend_port(port);
        int hop = hop_to(port, &rogue_name);
        assert(hop >= 0);
        atomic_store(&rogue.control[1].consumed, consumed[i]);
        (void)port->ops->room(port, hop);
        while (port->ops->slot(port, hop, 60000))
            ;
        tend_port(port);
        struct harp_notice notice;
        assert(port->ops->notice(port, &notice));
        rogue_close(&rogue);
        port->ops->close(port);
    }
}

/* Hellos that are none, or whose memory is not what they say, are turned away. */
static void test_bad_hellos(void)
{
    struct harp_port *port = open_port(0);
    const struct mem_hello good = {MEM_MAGIC, MEM_VERSION, 0, ROGUE_RING, {9}};
    for (int what = 0; what < 6; what++) {
        struct mem_hello hello = good;
        struct rogue rogue = {.memory = what == 0 ? -1 : memfd_create("rogue", MFD_ALLOW_SEALING)};
        hello.magic += what == 1;
        hello.version += what == 2;
        hello.ring_bytes += what == 3;
        if (rogue.memory >= 0 && what != 4)
            assert(ftruncate(rogue.memory, 2 * ROGUE_RING + MEM_CONTROL_BYTES) == 0);
        if (rogue.memory >= 0 && what != 5)
            assert(fcntl(rogue.memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
        rogue_hello(&rogue, &port->locals[0], &hello);
        tend_port(port);
        tend_port(port);
        char byte;
        assert(recv(rogue.socket, &byte, 1, 0) == 0);
        rogue_close(&rogue);
    }
    struct harp_notice notice;
    assert(!port->ops->notice(port, &notice));
    port->ops->close(port);
}

int main(void)
{
    test_corrupt_indices();
    test_corrupt_consumer();
    test_bad_hellos();
    return 0;
}
