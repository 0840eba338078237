/* Rails: pairs of an engine's port and an address of the other end.
 *
 *     port 0  10.1.0.1 ───────── 10.1.0.2    rail 0
 *     port 1  10.2.0.1 ───────── 10.2.0.2    rail 1
 *
 * Each port is paired with the address that shares the longest prefix with its own (RFC 6724, 5,
 * rule 9), so NICs of one network find one another whatever the order of the lists; each port and
 * each address is used once before any is used again, so no NIC of either end is left out and none
 * is doubled for nothing.
 */
#ifndef HARP_RAILS_H
#define HARP_RAILS_H

#include "base/address.h"

#define HARP_RAIL_ENDS 16                       /* ports, or addresses, at most */
#define HARP_RAILS_MAX (2 * HARP_RAIL_ENDS - 1) /* each ends at one that no other rail has */

struct harp_rail {
    uint8_t local, remote; /* numbers in the lists */
};

/* Pair `locals` with `remotes`; those that find no partner of their kind (IPv4, IPv6, mem) are left
 * out. Returns how many rails there are. */
uint32_t harp_rails_match(const struct harp_address *locals, uint32_t locals_n,
                          const struct harp_address *remotes, uint32_t remotes_n,
                          struct harp_rail rails[HARP_RAILS_MAX]);

#endif
