#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine/rails.h"

_Static_assert(HARP_PORTS_MAX <= HARP_RAIL_ENDS && HARP_HANDLE_ADDRESSES <= HARP_RAIL_ENDS,
               "a rail has ports and addresses of the lists that there are");

static uint32_t list_remotes(const struct harp_handle *handle, enum harp_family family,
                             struct harp_address *remotes)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < HARP_HANDLE_ADDRESSES; i++)
        if (handle->addresses[i].family == family)
            remotes[n++] = handle->addresses[i];
    return n;
}

static int make_hop(const struct harp_engine *engine, uint8_t port, uint16_t local,
                    const struct harp_address *to, struct harp_hop *hop, char *why)
{
    struct harp_port *from = engine->ports[port];
    int number = from->ops->hop(from, to, local, why);
    if (number < 0)
        return number;
    *hop = (struct harp_hop){.port = port, .local = local, .hop = number, .remote = *to};
    return 0;
}

/* Rails on which a hop can be made now; a NIC without a route there is passed over. Path r of
 * `hops` takes rail r, for as many paths as there are. Returns how many rails are left, or -errno
 * of the last one that failed. */
static int make_first_hops(const struct harp_engine *engine, const struct harp_address *remotes,
                           uint32_t remotes_n, uint32_t paths, struct harp_hop *hops, char *why)
{
    struct harp_address locals[HARP_PORTS_MAX];
    struct harp_rail rails[HARP_RAILS_MAX];
    int error = -EHOSTUNREACH;
    uint32_t n = 0;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        locals[p] = engine->ports[p]->locals[0];
    uint32_t rails_n = harp_rails_match(locals, engine->ports_n, remotes, remotes_n, rails);
    for (uint32_t r = 0; r < rails_n && n < paths; r++) {
        int result = make_hop(engine, rails[r].local, 0, &remotes[rails[r].remote], &hops[n], why);
        if (result < 0)
            error = result;
        else
            n++;
    }
    return n ? (int)n : error;
}

/* Hops to addresses of one family. If there is no port that leads to one, `why` stays as it was. */
static int make_hops_of_family(const struct harp_engine *engine, const struct harp_handle *handle,
                               enum harp_family family, uint32_t paths, struct harp_hop *hops,
                               char *why)
{
    struct harp_address remotes[HARP_HANDLE_ADDRESSES];
    uint32_t remotes_n = list_remotes(handle, family, remotes);
    int rails_n = make_first_hops(engine, remotes, remotes_n, paths, hops, why);
    if (rails_n < 0)
        return rails_n;
    for (uint32_t p = (uint32_t)rails_n; p < paths; p++) {
        const struct harp_hop *first = &hops[p % (uint32_t)rails_n];
        uint32_t local = p / (uint32_t)rails_n % engine->ports[first->port]->locals_n;
        int error = make_hop(engine, first->port, (uint16_t)local, &first->remote, &hops[p], why);
        if (!error)
            continue;
        harp_engine_drop_hops(engine, hops, p);
        return error;
    }
    return 0;
}

int harp_engine_make_hops(struct harp_engine *engine, const struct harp_handle *handle,
                          uint32_t paths, uint8_t traffic_class, struct harp_hop *hops, char *why)
{
    snprintf(why, HARP_WHY_BYTES, "the handle has no address that a port of this engine leads to");
    int error = make_hops_of_family(engine, handle, HARP_MEM, paths, hops, why);
    if (error)
        error = make_hops_of_family(engine, handle, HARP_INET, paths, hops, why);
    for (uint32_t p = 0; !error && p < paths; p++)
        harp_engine_mark_hop(engine, &hops[p], traffic_class);
    return error;
}

/* ---- Addresses that ACCEPT told ---- */

/* Add an address to a list unless it is there, or the list is full. */
static uint32_t add_remote(struct harp_address *remotes, uint32_t n,
                           const struct harp_address *address)
{
    for (uint32_t i = 0; i < n; i++)
        if (harp_address_same(&remotes[i], address))
            return n;
    if (n < HARP_RAIL_ENDS)
        remotes[n++] = *address;
    return n;
}

/* Where the paths lead, and what the peer told. Returns how many there are; 0 if it told nothing
 * new. */
static uint32_t list_told_remotes(const struct harp_connection *connection,
                                  struct harp_address *remotes)
{
    const struct harp_parameters *peer = harp_session_peer(connection->session);
    uint32_t n = 0;
    for (uint32_t p = 0; p < connection->config.paths; p++)
        n = add_remote(remotes, n, &connection->hops[p].remote);
    uint32_t known = n;
    for (uint32_t i = 0; i < peer->addresses_n; i++) {
        struct harp_address told = {.family = HARP_INET, .port = peer->addresses[i].port};
        memcpy(told.ip, peer->addresses[i].ip, sizeof told.ip);
        if (told.port)
            n = add_remote(remotes, n, &told);
    }
    return n > known ? n : 0;
}

static bool is_hop_of(const struct harp_hop *hop, const struct harp_rail *rail,
                      const struct harp_address *remotes)
{
    return hop->port == rail->local && harp_address_same(&hop->remote, &remotes[rail->remote]);
}

/* The path takes this way from now on, if there is one that carries its frames. */
static void remake_hop(struct harp_connection *connection, uint32_t path, uint8_t port,
                       uint16_t local, const struct harp_address *to)
{
    struct harp_engine *engine = connection->engine;
    struct harp_hop *hop = &connection->hops[path], made;
    char why[HARP_WHY_BYTES];
    if (make_hop(engine, port, local, to, &made, why) < 0)
        return;
    if (harp_engine_hops_payload_max(engine, &made, 1) < HARP_HEADER_BYTES + connection->segment) {
        harp_engine_drop_hops(engine, &made, 1);
        return;
    }
    harp_engine_path_ends(connection, path);
    harp_engine_drop_hops(engine, hop, 1);
    *hop = made;
    harp_engine_path_leads(connection, path);
    harp_engine_mark_hop(engine, hop, connection->config.traffic_class);
    harp_recorder_add(engine->recorder, engine->now_ns, HARP_RECORD_PATH, connection->id, path,
                      (uint64_t)hop->hop);
}

void harp_engine_widen_hops(struct harp_connection *connection, uint8_t kept)
{
    const struct harp_engine *engine = connection->engine;
    struct harp_address remotes[HARP_RAIL_ENDS], locals[HARP_PORTS_MAX];
    struct harp_rail rails[HARP_RAILS_MAX];
    uint32_t remotes_n = list_told_remotes(connection, remotes);
    if (!remotes_n || kept >= connection->config.paths)
        return;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        locals[p] = engine->ports[p]->locals[0];
    uint32_t n = harp_rails_match(locals, engine->ports_n, remotes, remotes_n, rails);
    for (uint32_t r = 0; r < n; r++)
        if (is_hop_of(&connection->hops[kept], &rails[r], remotes)) {
            struct harp_rail swapped = rails[kept % n];
            rails[kept % n] = rails[r];
            rails[r] = swapped;
        }
    for (uint32_t p = 0; p < connection->config.paths && n; p++) {
        const struct harp_rail *rail = &rails[p % n];
        uint16_t local = (uint16_t)(p / n % engine->ports[rail->local]->locals_n);
        if (p != kept &&
            (!is_hop_of(&connection->hops[p], rail, remotes) || connection->hops[p].local != local))
            remake_hop(connection, p, rail->local, local, &remotes[rail->remote]);
    }
}

void harp_engine_mark_hop(const struct harp_engine *engine, const struct harp_hop *hop,
                          uint8_t traffic_class)
{
    struct harp_port *port = engine->ports[hop->port];
    if (traffic_class && port->ops->set_traffic_class)
        port->ops->set_traffic_class(port, hop->hop, traffic_class);
}

void harp_engine_drop_hops(const struct harp_engine *engine, const struct harp_hop *hops,
                           uint32_t count)
{
    for (uint32_t p = 0; p < count; p++)
        if (hops[p].hop != HARP_NO_HOP)
            engine->ports[hops[p].port]->ops->unhop(engine->ports[hops[p].port], hops[p].hop);
}

uint32_t harp_engine_hops_payload_max(const struct harp_engine *engine, const struct harp_hop *hops,
                                      uint32_t count)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t p = 0; p < count; p++) {
        const struct harp_port *port = engine->ports[hops[p].port];
        uint32_t here = port->ops->hop_payload_max(port, hops[p].hop);
        least = here < least ? here : least;
    }
    return least;
}

uint32_t harp_engine_payload_max_beside(const struct harp_engine *engine, uint8_t port)
{
    uint32_t least = engine->ports[port]->payload_max;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        if (engine->ports[p]->locals[0].family == engine->ports[port]->locals[0].family &&
            engine->ports[p]->payload_max < least)
            least = engine->ports[p]->payload_max;
    return least;
}
