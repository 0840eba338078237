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

/* ---- UDP ports of hops ---- */

static bool is_between(const struct harp_planned_flow *flow, const struct harp_port *port,
                       const struct harp_address *to)
{
    return memcmp(flow->source.ip, port->locals[0].ip, sizeof flow->source.ip) == 0 &&
           harp_address_same_place(&flow->target, to);
}

/* The flow that a plan has for path number `turn` of those from this port to this address. */
static const struct harp_planned_flow *
find_planned_flow(const struct harp_connection_config *config, const struct harp_port *port,
                  const struct harp_address *to, uint32_t turn)
{
    const struct harp_planned_flow *found = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < config->flows_n; i++)
        n += is_between(&config->flows[i], port, to);
    for (uint32_t i = 0, nth = n ? (config->flows_first + turn) % n : 0; n && !found; i++)
        if (is_between(&config->flows[i], port, to) && nth-- == 0)
            found = &config->flows[i];
    return found;
}

/* The local that has this source port, opened if it is not yet; or -errno and one sentence. The
 * first one of a tcp port listens, and what connects from it leaves by any port. */
static int find_local(struct harp_port *port, uint16_t source, char *why)
{
    for (uint16_t i = port->locals[0].family == HARP_TCP; i < port->locals_n; i++)
        if (port->locals[i].port == source)
            return i;
    if (!port->ops->add_local)
        return snprintf(why, HARP_WHY_BYTES, "port %s has no source ports to choose from",
                        port->ops->name),
               -EOPNOTSUPP;
    return port->ops->add_local(port, source, why);
}

static void note_missing_flow(const struct harp_port *port, const struct harp_address *to,
                              char *note)
{
    char from[64], target[64];
    harp_address_format(&port->locals[0], from, sizeof from);
    harp_address_format(to, target, sizeof target);
    snprintf(note, HARP_WHY_BYTES, "the plan has no flow from %s to %s", from, target);
}

bool harp_engine_choose_local(const struct harp_connection_config *config, struct harp_port *port,
                              const struct harp_address *to, uint32_t turn, uint16_t *local,
                              char *note)
{
    const struct harp_planned_flow *flow = find_planned_flow(config, port, to, turn);
    char why[HARP_WHY_BYTES] = "";
    int found = flow ? find_local(port, flow->source.port, why) : -ENOENT;
    *local = found >= 0 ? (uint16_t)found : (uint16_t)(turn % port->locals_n);
    if (!flow && config->flows_n && !*note)
        note_missing_flow(port, to, note);
    else if (flow && found < 0 && !*note)
        memcpy(note, why, HARP_WHY_BYTES);
    return found >= 0;
}

/* ---- Hops ---- */

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

/* Inputs of a new connection. */
struct making {
    const struct harp_engine *engine;
    const struct harp_connection_config *config;
    char note[HARP_WHY_BYTES]; /* why a planned UDP port cannot be had; "" */
};

/* Path number `turn` of those from this port to this address. */
static int make_path(struct making *making, uint8_t port, const struct harp_address *to,
                     uint32_t turn, struct harp_hop *hop, char *why)
{
    const struct harp_engine *engine = making->engine;
    uint16_t local;
    bool planned = harp_engine_choose_local(making->config, engine->ports[port], to, turn, &local,
                                            making->note);
    int error = make_hop(engine, port, local, to, hop, why);
    if (error == -EADDRNOTAVAIL && planned) { /* TCP keeps an earlier flow from there */
        if (!*making->note)
            memcpy(making->note, why, HARP_WHY_BYTES);
        planned = false;
        error = make_hop(engine, port, 0, to, hop, why);
    }
    if (!error)
        hop->planned = planned;
    return error;
}

/* Rails on which a hop can be made now; a NIC without a route there is passed over. Path r of
 * `hops` takes rail r, for as many paths as there are. Returns how many rails are left, or -errno
 * of the last one that failed. */
static int make_first_hops(struct making *making, const struct harp_address *remotes,
                           uint32_t remotes_n, struct harp_hop *hops, char *why)
{
    const struct harp_engine *engine = making->engine;
    struct harp_address locals[HARP_PORTS_MAX];
    struct harp_rail rails[HARP_RAILS_MAX];
    int error = -EHOSTUNREACH;
    uint32_t n = 0;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        locals[p] = engine->ports[p]->locals[0];
    uint32_t rails_n = harp_rails_match(locals, engine->ports_n, remotes, remotes_n, rails);
    for (uint32_t r = 0; r < rails_n && n < making->config->paths; r++) {
        int result = make_path(making, rails[r].local, &remotes[rails[r].remote], 0, &hops[n], why);
        if (result < 0)
            error = result;
        else
            n++;
    }
    return n ? (int)n : error;
}

/* Hops to addresses of one family. If there is no port that leads to one, `why` stays as it was. */
static int make_hops_of_family(struct making *making, const struct harp_handle *handle,
                               enum harp_family family, struct harp_hop *hops, char *why)
{
    struct harp_address remotes[HARP_HANDLE_ADDRESSES];
    uint32_t remotes_n = list_remotes(handle, family, remotes), paths = making->config->paths;
    int rails_n = make_first_hops(making, remotes, remotes_n, hops, why);
    if (rails_n < 0)
        return rails_n;
    for (uint32_t p = (uint32_t)rails_n; p < paths; p++) {
        const struct harp_hop *first = &hops[p % (uint32_t)rails_n];
        int error =
            make_path(making, first->port, &first->remote, p / (uint32_t)rails_n, &hops[p], why);
        if (!error)
            continue;
        harp_engine_drop_hops(making->engine, hops, p);
        return error;
    }
    return 0;
}

int harp_engine_make_hops(struct harp_engine *engine, const struct harp_handle *handle,
                          const struct harp_connection_config *config, struct harp_hop *hops,
                          char *why)
{
    struct making making = {.engine = engine, .config = config};
    snprintf(why, HARP_WHY_BYTES, "the handle has no address that a port of this engine leads to");
    static const enum harp_family best_first[] = {HARP_MEM, HARP_INET, HARP_TCP};
    int error = -EHOSTUNREACH;
    for (size_t i = 0; error && i < sizeof best_first / sizeof best_first[0]; i++)
        if (!config->family || config->family == best_first[i])
            error = make_hops_of_family(&making, handle, best_first[i], hops, why);
    for (uint32_t p = 0; !error && p < config->paths; p++)
        harp_engine_mark_hop(engine, &hops[p], config->traffic_class);
    if (!error)
        memcpy(why, making.note, sizeof making.note);
    return error;
}

/* ---- Addresses that handles and ACCEPT advertise ---- */

/* Number of ports before this one that have addresses of its family. */
static uint32_t turn_in_family(const struct harp_engine *engine, uint32_t port)
{
    uint32_t turn = 0;
    for (uint32_t p = 0; p < port; p++)
        turn += engine->ports[p]->locals[0].family == engine->ports[port]->locals[0].family;
    return turn;
}

uint32_t harp_engine_list_own(const struct harp_engine *engine,
                              const struct harp_address *own[HARP_PORTS_MAX])
{
    uint32_t n = 0;
    for (uint32_t turn = 0; n < engine->ports_n; turn++)
        for (uint32_t p = 0; p < engine->ports_n; p++)
            if (turn_in_family(engine, p) == turn)
                own[n++] = &engine->ports[p]->locals[0];
    return n;
}

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

/* Where the paths lead, and what the peer advertises. Returns how many there are, and whether the
 * paths lead to all of them already. */
static uint32_t list_advertised_remotes(const struct harp_connection *connection,
                                        struct harp_address *remotes, bool *known)
{
    const struct harp_parameters *peer = harp_session_peer(connection->session);
    uint32_t n = 0;
    for (uint32_t p = 0; p < connection->config.paths; p++)
        n = add_remote(remotes, n, &connection->hops[p].remote);
    uint32_t led_to = n;
    for (uint32_t i = 0; i < peer->addresses_n; i++) {
        struct harp_address advertised = {.family = connection->hops[0].remote.family,
                                          .port = peer->addresses[i].port};
        memcpy(advertised.ip, peer->addresses[i].ip, sizeof advertised.ip);
        if (advertised.port)
            n = add_remote(remotes, n, &advertised);
    }
    *known = n == led_to;
    return n;
}

static bool is_hop_of(const struct harp_hop *hop, const struct harp_rail *rail,
                      const struct harp_address *remotes)
{
    return hop->port == rail->local && harp_address_same(&hop->remote, &remotes[rail->remote]);
}

/* Whether the path leaves as path number `turn` of those from this port to this address does. */
static bool has_hop(const struct harp_connection *connection, uint32_t path, uint8_t port,
                    uint32_t turn, const struct harp_address *to)
{
    const struct harp_hop *hop = &connection->hops[path];
    const struct harp_port *from = connection->engine->ports[port];
    const struct harp_planned_flow *flow = find_planned_flow(&connection->config, from, to, turn);
    return hop->port == port && harp_address_same(&hop->remote, to) &&
           (flow ? from->locals[hop->local].port == flow->source.port
                 : hop->local == turn % from->locals_n);
}

/* The path takes this way from now on, if there is one that carries its frames. */
static void remake_hop(struct harp_connection *connection, uint32_t path, uint8_t port,
                       uint32_t turn, const struct harp_address *to)
{
    struct harp_engine *engine = connection->engine;
    struct making making = {.engine = engine, .config = &connection->config};
    struct harp_hop *hop = &connection->hops[path], made;
    char why[HARP_WHY_BYTES];
    if (make_path(&making, port, to, turn, &made, why) < 0)
        return;
    if (harp_engine_hops_payload_max(engine, &made, 1) <
        HARP_HEADER_BYTES + connection->shared.segment) {
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
    bool known, again = connection->off_rail > 0;
    uint32_t remotes_n = list_advertised_remotes(connection, remotes, &known);
    connection->off_rail = 0;
    if ((known && !again) || kept >= connection->config.paths)
        return;
    for (uint32_t p = 0; p < engine->ports_n; p++)
        locals[p] = engine->ports[p]->locals[0];
    uint32_t n = harp_rails_match(locals, engine->ports_n, remotes, remotes_n, rails);
    bool on_rail = false;
    for (uint32_t r = 0; r < n && !on_rail; r++)
        if (is_hop_of(&connection->hops[kept], &rails[r], remotes)) {
            struct harp_rail swapped = rails[kept % n];
            rails[kept % n] = rails[r];
            rails[r] = swapped;
            on_rail = true;
        }
    connection->off_rail = on_rail || again ? 0 : (uint8_t)(kept + 1);
    for (uint32_t p = 0; p < connection->config.paths && n; p++) {
        const struct harp_rail *rail = &rails[p % n];
        if (p != kept && !has_hop(connection, p, rail->local, p / n, &remotes[rail->remote]))
            remake_hop(connection, p, rail->local, p / n, &remotes[rail->remote]);
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

void harp_engine_let_go(const struct harp_connection *connection, const uint8_t *bytes, size_t size)
{
    for (uint32_t p = 0; p < connection->config.paths; p++) {
        const struct harp_hop *hop = &connection->hops[p];
        struct harp_port *port = connection->engine->ports[hop->port];
        if (hop->hop != HARP_NO_HOP && port->ops->let_go)
            port->ops->let_go(port, hop->hop, bytes, size);
    }
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
