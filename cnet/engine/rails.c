#include "engine/rails.h"

#include <assert.h>

/* Bits that two addresses have in common from the left; -1 if neither can reach the other. */
static int common_prefix_bits(const struct harp_address *a, const struct harp_address *b)
{
    if (a->family != b->family || harp_address_is_ipv4(a) != harp_address_is_ipv4(b))
        return -1;
    for (int i = 0; i < 16; i++)
        if (a->ip[i] != b->ip[i])
            return 8 * i + __builtin_clz((unsigned)(a->ip[i] ^ b->ip[i])) - 24;
    return 128;
}

struct uses {
    uint8_t local[HARP_RAIL_ENDS], remote[HARP_RAIL_ENDS]; /* number of rails that use it */
};

/* Of the pairs with an end that no rail has yet the one whose ends are used least, then the one of
 * the longest prefix, then the first. */
static bool find_best_pair(const struct harp_address *locals, uint32_t locals_n,
                           const struct harp_address *remotes, uint32_t remotes_n,
                           const struct uses *uses, struct harp_rail *best)
{
    int best_used = 0, best_bits = -1;
    for (uint32_t l = 0; l < locals_n; l++) {
        for (uint32_t r = 0; r < remotes_n; r++) {
            int bits = common_prefix_bits(&locals[l], &remotes[r]);
            int used = uses->local[l] + uses->remote[r];
            if (bits < 0 || (uses->local[l] && uses->remote[r]))
                continue;
            if (best_bits >= 0 && (used > best_used || (used == best_used && bits <= best_bits)))
                continue;
            *best = (struct harp_rail){.local = (uint8_t)l, .remote = (uint8_t)r};
            best_used = used;
            best_bits = bits;
        }
    }
    return best_bits >= 0;
}

uint32_t harp_rails_match(const struct harp_address *locals, uint32_t locals_n,
                          const struct harp_address *remotes, uint32_t remotes_n,
                          struct harp_rail rails[HARP_RAILS_MAX])
{
    struct uses uses = {.local = {0}};
    uint32_t n = 0;
    assert(locals_n <= HARP_RAIL_ENDS && remotes_n <= HARP_RAIL_ENDS);
    while (find_best_pair(locals, locals_n, remotes, remotes_n, &uses, &rails[n])) {
        uses.local[rails[n].local]++;
        uses.remote[rails[n].remote]++;
        n++;
        assert(n < HARP_RAILS_MAX + 1);
    }
    return n;
}
