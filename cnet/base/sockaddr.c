#include "base/sockaddr.h"

#include <arpa/inet.h>

socklen_t harp_sockaddr_write(const struct harp_address *from, uint32_t interface,
                              union harp_sockaddr *to)
{
    memset(to, 0, sizeof *to);
    if (harp_address_is_ipv4(from)) {
        to->v4.sin_family = AF_INET;
        to->v4.sin_port = htons(from->port);
        memcpy(&to->v4.sin_addr, from->ip + 12, 4);
        return sizeof to->v4;
    }
    to->v6.sin6_family = AF_INET6;
    to->v6.sin6_port = htons(from->port);
    memcpy(&to->v6.sin6_addr, from->ip, 16);
    if (harp_address_is_link_local(from))
        to->v6.sin6_scope_id = interface;
    return sizeof to->v6;
}

void harp_sockaddr_read(const struct sockaddr *from, struct harp_address *to)
{
    union harp_sockaddr is;
    *to = (struct harp_address){.family = HARP_INET};
    if (from->sa_family == AF_INET) {
        memcpy(&is.v4, from, sizeof is.v4);
        to->port = ntohs(is.v4.sin_port);
        to->ip[10] = to->ip[11] = 0xff;
        memcpy(to->ip + 12, &is.v4.sin_addr, 4);
    } else {
        memcpy(&is.v6, from, sizeof is.v6);
        to->port = ntohs(is.v6.sin6_port);
        memcpy(to->ip, &is.v6.sin6_addr, 16);
    }
}

bool harp_sockaddr_same(const union harp_sockaddr *a, const union harp_sockaddr *b)
{
    struct harp_address one, other;
    harp_sockaddr_read(&a->any, &one);
    harp_sockaddr_read(&b->any, &other);
    return harp_address_same(&one, &other);
}
