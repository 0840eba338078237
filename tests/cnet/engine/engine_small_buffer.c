/* A process without CAP_NET_ADMIN has sockets of what net.core.rmem_max allows, which is 208 KiB on
 * a fresh host. Its thread is kept off its core while another sends, and the kernel must not have
 * to drop anything (/proc/net/udp).
 *
 * The kernel's limit is one of the whole host, so the program itself refuses larger buffers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/engine_state.h"
#include "engine_two.h"

enum { RMEM_MAX = 212992, SIZE = 1 << 20, MESSAGES = 16, TURNS = 1000, STALLS = 4 };

static uint8_t out[SIZE], in[MESSAGES][SIZE];

int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
    int bytes;
    if (level == SOL_SOCKET && (option == SO_RCVBUFFORCE || option == SO_SNDBUFFORCE))
        return errno = EPERM, -1;
    if (level == SOL_SOCKET && option == SO_RCVBUF) {
        memcpy(&bytes, value, sizeof bytes);
        bytes = bytes < RMEM_MAX ? bytes : RMEM_MAX;
        value = &bytes;
    }
    return (int)syscall(SYS_setsockopt, fd, level, option, value, length);
}

/* Datagrams that the kernel dropped at the socket with this UDP port. */
static long count_drops(uint16_t port)
{
    char line[256];
    FILE *table = fopen("/proc/net/udp", "r");
    long found = -1;
    CHECK(table, "no /proc/net/udp");
    while (found < 0 && fgets(line, sizeof line, table)) {
        unsigned local;
        long drops;
        if (sscanf(line, "%*d: %*8x:%4x %*s %*s %*s %*s %*s %*d %*d %*d %*d %*s %ld", &local,
                   &drops) == 2 &&
            local == port)
            found = drops;
    }
    fclose(table);
    return found;
}

/* Messages from end 0 to end 1, which is not driven for a while. */
static void pass_messages(void)
{
    uint32_t sent = 0, received = 0;
    struct harp_completion done[16];
    for (uint32_t m = 0; m < MESSAGES; m++) {
        memset(in[m], 0, SIZE);
        CHECK(harp_receive(connections[1], in[m], SIZE, m), "not posted");
    }
    for (int i = 0; i < TURNS; i++) /* credit arrives */
        go_on();
    for (uint32_t m = 0; m < MESSAGES; m++)
        CHECK(harp_send(connections[0], out, SIZE, m), "not sent");
    for (int i = 0; i < TURNS; i++)
        harp_engine_drive(engines[0]);
    while (sent < MESSAGES || received < MESSAGES) {
        go_on();
        sent += (uint32_t)harp_poll(connections[0], done, 16);
        received += (uint32_t)harp_poll(connections[1], done, 16);
    }
    for (uint32_t m = 0; m < MESSAGES; m++)
        CHECK(memcmp(in[m], out, SIZE) == 0, "message %u differs", m);
}

int main(void)
{
    mtu_of_two = 1500;
    window_of_two = 4 << 20; /* congestion control knows the network, and not the far buffer */
    connect_two(HARP_PROGRESS_MANUAL, -1, harp_port_udp_open);
    uint16_t port = engines[1]->ports[0]->locals[0].port;
    for (uint32_t i = 0; i < SIZE; i++)
        out[i] = (uint8_t)(i * 31 + i / 4096);
    for (int i = 0; i < STALLS; i++)
        pass_messages();
    CHECK(count_drops(port) == 0, "the kernel dropped %ld datagrams", count_drops(port));
    return 0;
}
