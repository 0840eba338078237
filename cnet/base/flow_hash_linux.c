#include "base/flow_hash_linux.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "base/flow_hash.h"
#include "base/siphash.h"

enum { PROTO_AT = 2, PORTS_AT = 28, ADDRESSES_AT = 36, IPV4_BYTES = 48, IPV6_BYTES = 72 };

static void store_ports(uint8_t *keys, uint16_t one, uint16_t other)
{
    harp_store16(keys + PORTS_AT, one < other ? one : other);
    harp_store16(keys + PORTS_AT + 2, one < other ? other : one);
}

static uint32_t hash_keys(const uint8_t *keys, size_t bytes, uint32_t seed)
{
    uint64_t twice = (uint64_t)seed << 32 | seed;
    struct harp_key key = {.low = twice, .high = twice};
    uint32_t hash = (uint32_t)harp_siphash(&key, keys, bytes);
    return hash ? hash : 1;
}

/* Addresses and ports as a little-endian host loads them from a packet. */
static uint32_t hash_ipv4(uint32_t src, uint32_t dst, uint16_t src_port, uint16_t dst_port,
                          uint8_t proto, uint32_t seed)
{
    uint8_t keys[IPV4_BYTES] = {0};
    keys[PROTO_AT] = proto;
    store_ports(keys, src_port, dst_port);
    harp_store32(keys + ADDRESSES_AT, src < dst ? src : dst);
    harp_store32(keys + ADDRESSES_AT + 4, src < dst ? dst : src);
    return hash_keys(keys, sizeof keys, seed);
}

static uint32_t hash_ipv6(const uint8_t *tuple, uint32_t seed)
{
    const uint8_t *src = tuple, *dst = tuple + 16;
    uint8_t keys[IPV6_BYTES] = {0};
    int order = memcmp(src, dst, 16);
    keys[PROTO_AT] = tuple[36];
    store_ports(keys, harp_load16(tuple + 32), harp_load16(tuple + 34));
    memcpy(keys + ADDRESSES_AT, order < 0 ? src : dst, 16);
    memcpy(keys + ADDRESSES_AT + 16, order < 0 ? dst : src, 16);
    return hash_keys(keys, sizeof keys, seed);
}

uint32_t harp_linux_hash(const uint8_t *tuple, size_t tuple_bytes, uint32_t seed)
{
    assert(tuple_bytes == HARP_TUPLE4_BYTES || tuple_bytes == HARP_TUPLE6_BYTES);
    if (tuple_bytes == HARP_TUPLE6_BYTES)
        return hash_ipv6(tuple, seed);
    return hash_ipv4(harp_load32(tuple), harp_load32(tuple + 4), harp_load16(tuple + 8),
                     harp_load16(tuple + 10), tuple[12], seed);
}

uint32_t harp_linux_hash4(uint32_t src_ip, uint32_t dst_ip, uint16_t src_port, uint16_t dst_port,
                          uint8_t proto, uint32_t seed)
{
    return hash_ipv4(__builtin_bswap32(src_ip), __builtin_bswap32(dst_ip),
                     __builtin_bswap16(src_port), __builtin_bswap16(dst_port), proto, seed);
}

/* The first place beyond next hop `index`: DIV_ROUND_CLOSEST of the kernel. */
static uint64_t find_end(uint32_t index, uint32_t next_hops)
{
    return (((uint64_t)(index + 1) << 31) + next_hops / 2) / next_hops;
}

uint32_t harp_linux_pick(uint32_t hash, uint32_t next_hops)
{
    assert(next_hops > 0);
    uint32_t place = hash >> 1;
    uint32_t index = (uint32_t)((uint64_t)place * next_hops >> 31);
    while (index > 0 && place < find_end(index - 1, next_hops))
        index--;
    while (place >= find_end(index, next_hops))
        index++;
    return index;
}

void harp_linux_next_hops(const uint32_t *src_ip, const uint32_t *dst_ip, const uint16_t *src_port,
                          const uint16_t *dst_port, const uint8_t *proto, const uint32_t *seed,
                          const uint32_t *next_hops, size_t count, uint32_t *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = harp_linux_pick(
            harp_linux_hash4(src_ip[i], dst_ip[i], src_port[i], dst_port[i], proto[i], seed[i]),
            next_hops[i]);
}
