/* Addresses on the command line, IPv4 or IPv6. */
#ifndef BENCH_INET_H
#define BENCH_INET_H

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "bench.h"

/* A socket of `type`, bound to ADDRESS PORT or connected to it. */
static inline int inet_socket(int type, const char *address, const char *port, bool connects)
{
    struct addrinfo *found, wanted = {.ai_socktype = type, .ai_flags = AI_NUMERICHOST};
    int error = getaddrinfo(address, port, &wanted, &found), on = 1;
    errno = 0;
    if (error)
        bench_die("%s port %s: %s", address, port, gai_strerror(error));
    int fd = socket(found->ai_family, type, 0);
    if (fd < 0)
        bench_die("a socket for %s", address);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!connects && bind(fd, found->ai_addr, found->ai_addrlen))
        bench_die("bind to %s port %s", address, port);
    if (connects && type == SOCK_DGRAM && connect(fd, found->ai_addr, found->ai_addrlen))
        bench_die("connect to %s port %s", address, port);
    freeaddrinfo(found);
    return fd;
}

#endif
