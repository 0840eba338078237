/* Source or destination of a frame: an IP address and UDP or TCP port, or a mem port's name.
 *
 * IPv4 addresses are kept as IPv6 ones, ::ffff:a.b.c.d (RFC 4291, 2.5.5.2), so that there is one
 * form. The struct has no padding and may be compared and hashed as bytes.
 */
#ifndef HARP_ADDRESS_H
#define HARP_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* cdef: begin */
enum harp_family {
    HARP_INET = 1, /* ip and UDP port */
    HARP_MEM = 2,  /* ip holds the random name of a mem port, port is 0 */
    HARP_TCP = 3,  /* ip and TCP port */
};

struct harp_address {
    uint8_t family;
    uint8_t zero;
    uint16_t port; /* in the host's order */
    uint8_t ip[16];
};

/* Read "10.0.0.1", "10.0.0.1:7000", "fd00::1" or "[fd00::1]:7000"; without a port it is 0. False if
 * `text` is none of these. */
bool harp_address_parse(const char *text, struct harp_address *address);

/* Write it as harp_address_parse reads it ("mem:0123…" for a mem port's, "tcp:10.0.0.1:7000" for a
 * tcp port's); at most 64 bytes, the closing 0 included. */
void harp_address_format(const struct harp_address *address, char *out, size_t room);
/* cdef: end */

static inline bool harp_address_is_ipv4(const struct harp_address *address)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return address->family != HARP_MEM && memcmp(address->ip, mapped, sizeof mapped) == 0;
}

/* fe80::/10 (RFC 4291, 2.5.6): it means something on one link only. */
static inline bool harp_address_is_link_local(const struct harp_address *address)
{
    return address->ip[0] == 0xfe && (address->ip[1] & 0xc0) == 0x80;
}

/* Whether they name the same IP address and port, be it one of UDP or of TCP. */
static inline bool harp_address_same_place(const struct harp_address *a,
                                           const struct harp_address *b)
{
    return a->port == b->port && memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

static inline bool harp_address_same(const struct harp_address *a, const struct harp_address *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

#endif
