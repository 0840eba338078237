/* Bytes of the headers before a datagram, and where a buffer for one begins. */
#ifndef HARP_HEADERS_H
#define HARP_HEADERS_H

#include "wire/wire.h"

enum {
    ETHERNET_BYTES = 14,
    VLAN_TAG_BYTES = 4, /* IEEE 802.1Q */
    IP4_BYTES = 20,     /* without options, as all that we send */
    IP6_BYTES = 40,
    UDP_BYTES = 8,
    IP4_UDP_BYTES = IP4_BYTES + UDP_BYTES,
    IP6_UDP_BYTES = IP6_BYTES + UDP_BYTES,
};

/* A datagram begins here in a buffer that is aligned to 64 bytes: so its payload is aligned. */
enum { HARP_DATAGRAM_AT = 64 - HARP_HEADER_BYTES };

#endif
