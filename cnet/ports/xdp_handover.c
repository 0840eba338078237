#define _GNU_SOURCE
#include "ports/xdp_handover.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "ports/bpf.h"

enum {
    NUMBERS = 256, /* processes on a card, at most */
    WAIT_S = 3,    /* an engine that is being opened answers only when it is driven */
    BACKLOG = 64,
    ANSWERS_AT_ONCE = 4,
    DESCRIPTORS = 4, /* link, program, ports, sockets */
};

union control {
    char bytes[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    struct cmsghdr align;
};

static socklen_t name_of(struct sockaddr_un *name, uint32_t interface, int number)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX}; /* the first byte stays 0: abstract */
    int bytes = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "%s/%u/%d",
                         HARP_XDP_PROGRAM_NAME, interface, number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
}

static bool trusts_peer(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

int harp_xdp_handover_listen(uint32_t interface)
{
    struct sockaddr_un name;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    for (int i = 0; i < NUMBERS; i++) {
        socklen_t bytes = name_of(&name, interface, i);
        if (bind(fd, (struct sockaddr *)&name, bytes) == 0 && listen(fd, BACKLOG) == 0)
            return fd;
        if (errno != EADDRINUSE)
            break;
    }
    int error = errno;
    close(fd);
    return -error;
}

void harp_xdp_handover_answer(int listener, int link, const struct harp_xdp_program *program)
{
    const int descriptors[DESCRIPTORS] = {link, program->program, program->ports, program->sockets};
    for (int i = 0; i < ANSWERS_AT_ONCE; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        union control control = {.align = {.cmsg_len = CMSG_LEN(sizeof descriptors),
                                           .cmsg_level = SOL_SOCKET,
                                           .cmsg_type = SCM_RIGHTS}};
        struct iovec part = {.iov_base = "", .iov_len = 1};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        memcpy(CMSG_DATA(&control.align), descriptors, sizeof descriptors);
        if (trusts_peer(fd))
            (void)sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        close(fd);
    }
}

/* Descriptors that came, -1 for those that did not. */
static int receive_descriptors(int fd, int descriptors[DESCRIPTORS])
{
    union control control;
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EAGAIN ? -ETIMEDOUT : -errno;
    struct cmsghdr *at = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (!at || at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
        return got > 0 ? -EPROTO : -EBUSY; /* it ended, or may not tell us */
    size_t bytes = at->cmsg_len - CMSG_LEN(0);
    memcpy(descriptors, CMSG_DATA(at),
           bytes < DESCRIPTORS * sizeof(int) ? bytes : DESCRIPTORS * sizeof(int));
    return 0;
}

static bool is_link_of(int link, uint32_t interface, uint32_t attached)
{
    struct bpf_link_info info = {0};
    return harp_bpf_info(link, &info, sizeof info) == 0 && info.type == BPF_LINK_TYPE_XDP &&
           info.prog_id == attached && info.xdp.ifindex == interface;
}

static int ask_one(uint32_t interface, int number, uint32_t attached,
                   struct harp_xdp_program *program)
{
    int descriptors[DESCRIPTORS] = {-1, -1, -1, -1}, error = -EPROTO;
    struct sockaddr_un name;
    struct timeval wait = {.tv_sec = WAIT_S};
    socklen_t bytes = name_of(&name, interface, number);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) < 0 ||
        connect(fd, (struct sockaddr *)&name, bytes) < 0)
        error = -EBUSY; /* nobody is there */
    else if (trusts_peer(fd))
        error = receive_descriptors(fd, descriptors);
    close(fd);
    *program = (struct harp_xdp_program){descriptors[1], descriptors[2], descriptors[3]};
    if (error == 0 && is_link_of(descriptors[0], interface, attached) &&
        harp_xdp_program_is(program, attached))
        return descriptors[0];
    harp_xdp_program_close(program);
    if (descriptors[0] >= 0)
        close(descriptors[0]);
    return error == 0 ? -EPROTO : error;
}

int harp_xdp_handover_ask(uint32_t interface, uint32_t attached, struct harp_xdp_program *program)
{
    int worst = -EBUSY;
    for (int i = 0; i < NUMBERS; i++) {
        int link = ask_one(interface, i, attached, program);
        if (link >= 0)
            return link;
        worst = link == -EBUSY ? worst : link;
    }
    return worst;
}
