/* Rendezvous of two processes. The rest of the job has its own network for this, so it is a
 * Unix socket, which network namespaces do not part, or TCP between hosts. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE_MS = 30000 };

static char folder[64], path[96];

void meet_forget(void)
{
    if (!folder[0])
        return;
    unlink(path);
    rmdir(folder);
    folder[0] = 0;
}

static int unix_socket(const char *at, bool listening)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (strlen(at) >= sizeof(address.sun_path))
        fail("the path %s is too long for a socket", at);
    strcpy(address.sun_path, at);
    if (listening ? bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 2)
                  : connect(fd, (struct sockaddr *)&address, sizeof(address)))
        fail("no meeting at %s: %s", at, strerror(errno));
    return fd;
}

/* HOST:PORT; listening, HOST may be empty and PORT 0. */
static int tcp_socket(const char *place, bool listening)
{
    char host[256];
    const int yes = 1;
    snprintf(host, sizeof(host), "%s", place);
    char *colon = strrchr(host, ':');
    if (!colon)
        fail("the place to meet is a path or HOST:PORT, not %s", place);
    *colon = 0;
    struct addrinfo *found, wish = {.ai_socktype = SOCK_STREAM,
                                    .ai_family = listening && !host[0] ? AF_INET6 : AF_UNSPEC,
                                    .ai_flags = listening ? AI_PASSIVE : 0};
    int error = getaddrinfo(host[0] ? host : NULL, colon + 1, &wish, &found);
    if (error)
        fail("%s: %s", place, gai_strerror(error));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (listening ? bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 2)
                  : connect(fd, found->ai_addr, found->ai_addrlen))
        fail("no meeting at %s: %s", place, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

static int take_one(int listening)
{
    struct pollfd caller = {.fd = listening, .events = POLLIN};
    if (poll(&caller, 1, PATIENCE_MS) <= 0)
        fail("rank 1 did not come within %d s", PATIENCE_MS / 1000);
    return accept4(listening, NULL, NULL, SOCK_CLOEXEC);
}

struct meeting meet_open(int rank, const char *place)
{
    struct meeting made;
    if (rank == 1) {
        made.control = strchr(place, '/') ? unix_socket(place, false) : tcp_socket(place, false);
        made.meet = strchr(place, '/') ? unix_socket(place, false) : tcp_socket(place, false);
        return made;
    }
    int listening;
    if (place) {
        listening = tcp_socket(place, true);
        struct sockaddr_in6 bound;
        socklen_t room = sizeof(bound);
        getsockname(listening, (struct sockaddr *)&bound, &room);
        char host[256] = "localhost";
        gethostname(host, sizeof(host) - 1);
        printf("ready %s:%d\n", host, ntohs(bound.sin6_port));
    } else {
        snprintf(folder, sizeof(folder), "/tmp/nccl-client-XXXXXX");
        if (!mkdtemp(folder))
            fail("no folder in /tmp: %s", strerror(errno));
        snprintf(path, sizeof(path), "%s/meet", folder);
        listening = unix_socket(path, true);
        printf("ready %s\n", path);
    }
    fflush(stdout);
    made.control = take_one(listening);
    made.meet = take_one(listening);
    close(listening);
    meet_forget();
    return made;
}

void meet_send(int fd, const void *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t sent = send(fd, (const char *)bytes + at, count - at, MSG_NOSIGNAL);
        if (sent <= 0)
            fail("the other rank's process is gone");
        at += (size_t)sent;
    }
}

void meet_receive(int fd, void *bytes, size_t count)
{
    for (size_t at = 0; at < count;) {
        ssize_t got = recv(fd, (char *)bytes + at, count - at, 0);
        if (got <= 0)
            fail("the other rank's process is gone");
        at += (size_t)got;
    }
}

void meet_barrier(int fd)
{
    char byte = 'b';
    meet_send(fd, &byte, 1);
    meet_receive(fd, &byte, 1);
    if (byte != 'b')
        fail("the two ranks are not at the same step");
}
