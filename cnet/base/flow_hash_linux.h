/* The next hop that a Linux router takes, as its kernel computes it.
 *
 * With net.ipv4.fib_multipath_hash_policy = 1 the kernel hashes the five-tuple of what it routes
 * (fib_multipath_hash, net/ipv4/route.c): SipHash-2-4 over the part of its struct flow_keys that
 * begins with `basic`, cut to 32 bits, and 1 instead of 0 (flow_hash_from_keys_seed,
 * net/core/flow_dissector.c; the layout below is Linux 5.13's and later). The key is four times
 * net.ipv4.fib_multipath_hash_seed, which kernels have since 6.11.
 *
 *     0   2      3      28         32         36       40 (IPv4) or 52 (IPv6)   44 or 68   48 or 72
 *     |0  |proto | zero |port      |port      |address | address                | zero      |
 *
 * Both addresses and both ports stand in ascending order, each pair by itself, so that both
 * directions of a connection have one hash. IPv4 addresses and ports are compared as the integers
 * that a little-endian host reads, IPv6 addresses byte by byte.
 *
 * The upper 31 bits of the hash are a place between 0 and 2^31, which next hops of equal weight
 * divide evenly among themselves in the order of the route (hash-threshold, RFC 2992;
 * fib_rebalance, net/ipv4/fib_semantics.c). So a next hop that goes takes flows of others along.
 *
 * The kernel skips all this for a packet that brings a hash along, from a network card (ethtool -k,
 * receive-hashing) or from a TCP socket of the same machine, whose hash is random.
 *
 * No function allocates, keeps state or fails; contracts are asserted.
 */
#ifndef HARP_FLOW_HASH_LINUX_H
#define HARP_FLOW_HASH_LINUX_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
/* Hash of a packed five-tuple (flow_hash.h), of 13 or 37 bytes. A seed of 0 stands for itself,
 * while the kernel takes the sysctl's 0 for a seed of its own choice. */
uint32_t harp_linux_hash(const uint8_t *tuple, size_t tuple_bytes, uint32_t seed);

/* The same of an IPv4 five-tuple in host byte order. */
uint32_t harp_linux_hash4(uint32_t src_ip, uint32_t dst_ip, uint16_t src_port, uint16_t dst_port,
                          uint8_t proto, uint32_t seed);

/* Index of the next hop, 0 <= index < next_hops, that this hash leads to; next_hops > 0. */
uint32_t harp_linux_pick(uint32_t hash, uint32_t next_hops);

/* Index of the next hop that each of `count` five-tuples takes at a router with this seed. */
void harp_linux_next_hops(const uint32_t *src_ip, const uint32_t *dst_ip, const uint16_t *src_port,
                          const uint16_t *dst_port, const uint8_t *proto, const uint32_t *seed,
                          const uint32_t *next_hops, size_t count, uint32_t *out);
/* cdef: end */

#endif
