/* IP addresses as socket calls have them: struct harp_address to struct sockaddr and back. */
#ifndef HARP_SOCKADDR_H
#define HARP_SOCKADDR_H

#include <netinet/in.h>

#include "base/address.h"

union harp_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* Write an address of family HARP_INET; `interface` is the index of the one on which a link-local
 * address is meant. Returns how many bytes it takes. */
socklen_t harp_sockaddr_write(const struct harp_address *from, uint32_t interface,
                              union harp_sockaddr *to);

/* Read one whose sa_family is AF_INET or AF_INET6. */
void harp_sockaddr_read(const struct sockaddr *from, struct harp_address *to);

/* Whether both name the same address and port. */
bool harp_sockaddr_same(const union harp_sockaddr *a, const union harp_sockaddr *b);

#endif
