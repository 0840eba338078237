/* Control messages that go to the kernel with a datagram (cmsg(3)). */
#ifndef HARP_CONTROL_H
#define HARP_CONTROL_H

#include <assert.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "ports/port.h"

union harp_control {
    char bytes[CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

/* Add one to `header`, whose room for them is `control`. */
static inline void harp_control_add(struct msghdr *header, union harp_control *control, int level,
                                    int type, const void *value, size_t bytes)
{
    size_t at = header->msg_control ? header->msg_controllen : 0;
    assert(at + CMSG_SPACE(bytes) <= sizeof control->bytes);
    struct cmsghdr *item = (struct cmsghdr *)(void *)(control->bytes + at);
    memset(item, 0, CMSG_SPACE(bytes));
    *item = (struct cmsghdr){.cmsg_len = CMSG_LEN(bytes), .cmsg_level = level, .cmsg_type = type};
    memcpy(CMSG_DATA(item), value, bytes);
    header->msg_control = control->bytes;
    header->msg_controllen = at + CMSG_SPACE(bytes);
}

/* Send it with this traffic class and ECT(0), which lets routers mark it (RFC 3168). The socket
 * sets ECT(0) by itself, so class 0 needs nothing. */
static inline void harp_control_add_class(struct msghdr *header, union harp_control *control,
                                          bool v4, uint8_t traffic_class)
{
    int byte = traffic_class | HARP_ECT0;
    if (traffic_class)
        harp_control_add(header, control, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                         &byte, sizeof byte);
}

#endif
