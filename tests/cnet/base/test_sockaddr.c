/* Addresses as socket calls have them, and back. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>

#include "base/sockaddr.h"

enum { INTERFACE = 7 };

static union harp_sockaddr write_address(const char *text, socklen_t bytes)
{
    struct harp_address address, back;
    union harp_sockaddr socket;
    assert(harp_address_parse(text, &address));
    assert(harp_sockaddr_write(&address, INTERFACE, &socket) == bytes);
    harp_sockaddr_read(&socket.any, &back);
    assert(harp_address_same(&address, &back));
    return socket;
}

int main(void)
{
    union harp_sockaddr v4 = write_address("10.1.2.3:7000", sizeof v4.v4);
    assert(v4.v4.sin_family == AF_INET && v4.v4.sin_port == htons(7000));
    assert(v4.v4.sin_addr.s_addr == inet_addr("10.1.2.3"));

    struct in6_addr expected;
    union harp_sockaddr v6 = write_address("[fd00::1]:7000", sizeof v6.v6);
    assert(inet_pton(AF_INET6, "fd00::1", &expected) == 1);
    assert(v6.v6.sin6_family == AF_INET6 && v6.v6.sin6_port == htons(7000));
    assert(memcmp(&v6.v6.sin6_addr, &expected, sizeof expected) == 0 && !v6.v6.sin6_scope_id);

    /* It means an address of each link: which, says the interface. */
    assert(write_address("[fe80::1]:7000", sizeof v6.v6).v6.sin6_scope_id == INTERFACE);
    assert(write_address("[febf::1]:7000", sizeof v6.v6).v6.sin6_scope_id == INTERFACE);
    assert(write_address("[fec0::1]:7000", sizeof v6.v6).v6.sin6_scope_id == 0);

    union harp_sockaddr other = write_address("10.1.2.3:7001", sizeof v4.v4);
    assert(harp_sockaddr_same(&v4, &v4) && harp_sockaddr_same(&v6, &v6));
    assert(!harp_sockaddr_same(&v4, &other) && !harp_sockaddr_same(&v4, &v6));
    return 0;
}
