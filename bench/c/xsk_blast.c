/* The ceiling of AF_XDP: frames one way, as fast as they go, nothing checked, nothing sent again.
 *
 *     xsk_blast recv INTERFACE QUEUE copy|zerocopy CPU PORT SECONDS
 *     xsk_blast send INTERFACE QUEUE copy|zerocopy CPU PORT PAYLOAD TO_MAC TO_IPV4 FROM_MAC
 * FROM_IPV4
 *
 * The frames to send are written once, before the first leaves; PAYLOAD is what UDP carries.
 */
#define _GNU_SOURCE
#include <poll.h>

#include "xsk_raw.h"

#define BATCH 64

static void count_payload(void *context, uint8_t *frame, uint32_t bytes)
{
    (void)frame;
    *(uint64_t *)context += bytes - XSK_HEADERS;
}

static void receive(struct xsk *xsk, double seconds)
{
    struct bench_window window;
    char more[64];
    uint64_t bytes;
    uint32_t count;
    struct pollfd wait = {.fd = xsk->fd, .events = POLLIN};
    bench_window(&window, seconds);
    do {
        bytes = 0;
        while ((count = xsk_receive(xsk, BATCH, count_payload, &bytes)) == 0)
            poll(&wait, 1, 1);
    } while (bench_count(&window, bytes, count));
    snprintf(more, sizeof more, ", \"zero_copy\": %s", xsk->zero_copy ? "true" : "false");
    bench_print(&window, more);
}

static void mac(const char *word, uint8_t bytes[6])
{
    if (sscanf(word, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", bytes, bytes + 1, bytes + 2, bytes + 3,
               bytes + 4, bytes + 5) != 6)
        bench_die("%s is no Ethernet address", word);
}

static void transmit(struct xsk *xsk, uint16_t port, uint32_t payload, char **words)
{
    uint8_t to[6], from[6];
    uint32_t bytes = payload + XSK_HEADERS;
    if (bytes > XSK_FRAME_BYTES)
        bench_die("a payload of %u bytes; at most %u fit a frame", payload,
                  XSK_FRAME_BYTES - XSK_HEADERS);
    mac(words[0], to);
    mac(words[2], from);
    for (uint32_t i = 0; i < XSK_FRAMES / 2; i++) {
        xsk->next_tx = i;
        xsk_headers(xsk_next(xsk), to, from, inet_addr(words[1]), inet_addr(words[3]), port, bytes);
    }
    for (;;)
        xsk_send(xsk, BATCH, bytes);
}

int main(int count, char **words)
{
    struct xsk xsk;
    bool receives = count == 8 && !strcmp(words[1], "recv");
    if (!receives && !(count == 12 && !strcmp(words[1], "send")))
        bench_die("xsk_blast recv|send INTERFACE QUEUE copy|zerocopy CPU PORT [SECONDS | PAYLOAD "
                  "TO_MAC TO_IPV4 FROM_MAC FROM_IPV4]");
    uint32_t queue = (uint32_t)atoi(words[3]);
    uint16_t port = (uint16_t)atoi(words[6]);
    bench_pin(atoi(words[5]));
    xsk_open(&xsk, words[2], queue, strcmp(words[4], "zerocopy") ? XDP_COPY : XDP_ZEROCOPY);
    xsk_steer(&xsk, words[2], queue, port, XDP_FLAGS_DRV_MODE);
    if (receives)
        receive(&xsk, atof(words[7]));
    else
        transmit(&xsk, port, (uint32_t)atoi(words[7]), words + 8);
    return 0;
}
