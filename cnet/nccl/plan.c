#define _GNU_SOURCE
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_reader.h"

#define FORMAT "harp-plan-1"
#define KEY_BYTES 32
#define ADDRESS_BYTES 64

static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                         "SLURM_PROCID"};

int64_t plan_rank_of_environment(void)
{
    for (size_t i = 0; i < sizeof rank_names / sizeof rank_names[0]; i++) {
        const char *text = getenv(rank_names[i]);
        char *end;
        if (!text || *text < '0' || *text > '9')
            continue;
        long rank = strtol(text, &end, 10);
        if (!*end && rank <= INT32_MAX)
            return rank;
    }
    return -1;
}

static bool is_same_host(const struct harp_address *a, const struct harp_address *b)
{
    return memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

/* ---- The file ---- */

/* Keys and findings of one pass over the file. */
struct reading {
    struct json_reader json;
    const struct plan_place *place;
    struct plan *plan;
    char format[KEY_BYTES];
    char protocol[KEY_BYTES];   /* "": udp */
    bool flows_only;            /* the second pass: the rank is known */
    uint32_t ranks_n;           /* of the plan */
    uint32_t here_n;            /* of them with an address of this host */
    int64_t here;               /* the first of these, or -1 */
    bool has_own_rank;          /* the launcher's rank is one of the plan's */
    bool own_rank_here;         /* and has an address of this host */
    uint32_t room;              /* for flows */
    char stale[HARP_WHY_BYTES]; /* why the fabric is not the one that was planned for, or "" */
};

static bool read_address(struct json_reader *json, struct harp_address *address)
{
    char text[ADDRESS_BYTES];
    if (!json_text(json, text, sizeof text))
        return false;
    if (harp_address_parse(text, address) && address->port)
        return true;
    json->wrong = "an address and port, as 10.0.0.1:7000";
    return false;
}

struct rank_read {
    uint64_t rank;
    struct harp_address listens[PLAN_LISTENS];
    uint32_t listens_n;
    uint64_t mbps[PLAN_LISTENS]; /* of the NIC of each, as planned */
    uint32_t mbps_n;             /* 0: an older plan */
};

static void read_listens(struct json_reader *json, struct rank_read *rank)
{
    json_take(json, '[');
    for (bool first = true; json_next(json, ']', &first);) {
        if (rank->listens_n == PLAN_LISTENS)
            json->wrong = "at most 64 addresses";
        else
            rank->listens_n += read_address(json, &rank->listens[rank->listens_n]);
    }
}

static void read_rates(struct json_reader *json, struct rank_read *rank)
{
    json_take(json, '[');
    for (bool first = true; json_next(json, ']', &first);) {
        if (rank->mbps_n == PLAN_LISTENS)
            json->wrong = "at most 64 rates";
        else
            rank->mbps_n += json_number(json, UINT32_MAX, &rank->mbps[rank->mbps_n]);
    }
}

/* Number of this host's NIC that has the address, or -1. */
static int find_nic(const struct plan_place *place, const struct harp_address *address)
{
    for (uint32_t i = 0; i < place->addresses_n; i++)
        if (is_same_host(&place->addresses[i], address))
            return (int)i;
    return -1;
}

static bool is_of_this_host(const struct rank_read *rank, const struct plan_place *place)
{
    for (uint32_t i = 0; i < rank->listens_n; i++)
        if (find_nic(place, &rank->listens[i]) >= 0)
            return true;
    return false;
}

/* Note what this host sees of a fabric that has changed since: of the NICs with which the rank was
 * planned one is gone, or slower. A NIC may be faster than what the network gives it. */
static void note_changes(struct reading *reading, const struct rank_read *rank)
{
    const struct plan_place *place = reading->place;
    for (uint32_t i = 0; i < rank->listens_n && !*reading->stale; i++) {
        struct harp_address planned_nic = rank->listens[i];
        char text[ADDRESS_BYTES];
        int nic = find_nic(place, &planned_nic);
        uint32_t mbps = nic < 0 ? 0 : place->mbps[nic];
        uint64_t planned = i < rank->mbps_n ? rank->mbps[i] : 0;
        planned_nic.port = 0;
        harp_address_format(&planned_nic, text, sizeof text);
        if (nic < 0)
            snprintf(reading->stale, sizeof reading->stale,
                     "its rank %llu has the NIC %s, and this host uses none with that address: "
                     "the fabric has changed, so make it anew with harp plan",
                     (unsigned long long)rank->rank, text);
        else if (mbps && mbps < planned)
            snprintf(reading->stale, sizeof reading->stale,
                     "it counts on %llu Mb/s of the NIC %s, which has %u: the fabric has "
                     "changed, so make it anew with harp plan",
                     (unsigned long long)planned, text, mbps);
    }
}

static void note_rank(struct reading *reading, const struct rank_read *rank)
{
    bool here = is_of_this_host(rank, reading->place);
    bool own = (int64_t)rank->rank == reading->place->rank;
    reading->ranks_n++;
    reading->has_own_rank |= own;
    reading->own_rank_here |= own && here;
    if (here && reading->here_n++ == 0)
        reading->here = (int64_t)rank->rank;
    if (here && (own || (reading->place->rank < 0 && reading->here_n == 1))) {
        memcpy(reading->plan->listens, rank->listens, sizeof rank->listens);
        reading->plan->listens_n = rank->listens_n;
        note_changes(reading, rank);
    }
}

/* One of "ranks": {"rank": 0, "listen": ["10.0.0.1:61000"], "mbps": [25000]}. */
static void read_rank(struct reading *reading)
{
    struct json_reader *json = &reading->json;
    struct rank_read rank = {.rank = UINT64_MAX};
    char key[KEY_BYTES];
    json_take(json, '{');
    for (bool first = true; json_member(json, &first, key, sizeof key);) {
        if (strcmp(key, "rank") == 0)
            json_number(json, INT32_MAX, &rank.rank);
        else if (strcmp(key, "listen") == 0)
            read_listens(json, &rank);
        else if (strcmp(key, "mbps") == 0)
            read_rates(json, &rank);
        else
            json_skip(json);
    }
    if (!json->wrong && rank.mbps_n && rank.mbps_n != rank.listens_n)
        json->wrong = "a rate in mbps for each address to listen on";
    if (!json->wrong && rank.rank == UINT64_MAX)
        json->wrong = "rank in each of the ranks";
    if (!json->wrong)
        note_rank(reading, &rank);
}

static void add_flow(struct reading *reading, const struct harp_planned_flow *flow)
{
    struct plan *plan = reading->plan;
    if (plan->flows_n == reading->room) {
        uint32_t room = reading->room ? 2 * reading->room : 64;
        struct harp_planned_flow *wider = realloc(plan->flows, room * sizeof *wider);
        if (!wider) {
            reading->json.wrong = "more memory";
            return;
        }
        plan->flows = wider;
        reading->room = room;
    }
    plan->flows[plan->flows_n++] = *flow;
}

/* One of "flows": {"from": 0, "to": 1, "source": "10.0.0.1:61100", "target": "10.0.0.2:61000"}. */
static void read_flow(struct reading *reading)
{
    struct json_reader *json = &reading->json;
    struct harp_planned_flow flow = {.source.port = 0};
    uint64_t from = UINT64_MAX;
    char key[KEY_BYTES];
    json_take(json, '{');
    for (bool first = true; json_member(json, &first, key, sizeof key);) {
        if (strcmp(key, "from") == 0)
            json_number(json, INT32_MAX, &from);
        else if (strcmp(key, "source") == 0)
            read_address(json, &flow.source);
        else if (strcmp(key, "target") == 0)
            read_address(json, &flow.target);
        else
            json_skip(json);
    }
    if (json->wrong)
        return;
    if (from == UINT64_MAX || !flow.source.port || !flow.target.port)
        json->wrong = "from, source and target in each flow";
    else if (from == reading->plan->rank)
        add_flow(reading, &flow);
}

static void read_list(struct reading *reading, void (*read_one)(struct reading *reading))
{
    json_take(&reading->json, '[');
    for (bool first = true; json_next(&reading->json, ']', &first);)
        read_one(reading);
}

/* One pass over the whole file. */
static void read_members(struct reading *reading)
{
    struct json_reader *json = &reading->json;
    char key[KEY_BYTES];
    json_take(json, '{');
    for (bool first = true; json_member(json, &first, key, sizeof key);) {
        if (strcmp(key, "format") == 0)
            json_text(json, reading->format, sizeof reading->format);
        else if (strcmp(key, "protocol") == 0)
            json_text(json, reading->protocol, sizeof reading->protocol);
        else if (strcmp(key, "fabric") == 0)
            json_text(json, reading->plan->fabric, sizeof reading->plan->fabric);
        else if (strcmp(key, "ranks") == 0 && !reading->flows_only)
            read_list(reading, read_rank);
        else if (strcmp(key, "flows") == 0 && reading->flows_only)
            read_list(reading, read_flow);
        else
            json_skip(json);
    }
    json_ends(json);
}

/* ---- Which rank this is ---- */

static bool fits_port(const struct reading *reading, char *why)
{
    bool tcp = strcmp(reading->protocol, "tcp") == 0;
    if (*reading->protocol && !tcp && strcmp(reading->protocol, "udp") != 0)
        return snprintf(why, HARP_WHY_BYTES,
                        "its protocol is \"%s\", and there are udp and tcp: make it anew with harp "
                        "plan",
                        reading->protocol),
               false;
    if (tcp == reading->place->tcp)
        return true;
    snprintf(
        why, HARP_WHY_BYTES,
        "it plans ports of %s, and data goes over %s: set HARP_PORT=%s, or protocol: %s in the "
        "job and make it anew with harp plan",
        tcp ? "TCP" : "UDP", tcp ? "packets of HARP's own" : "kernel TCP", tcp ? "tcp" : "udp",
        tcp ? "udp" : "tcp");
    return false;
}

static bool find_rank(struct reading *reading, char *why)
{
    const struct plan_place *place = reading->place;
    if (place->rank >= 0 && !reading->has_own_rank)
        return snprintf(why, HARP_WHY_BYTES, "it has no rank %lld, only %u others",
                        (long long)place->rank, reading->ranks_n),
               false;
    if (place->rank >= 0 && !reading->own_rank_here)
        return snprintf(why, HARP_WHY_BYTES,
                        "its rank %lld listens at no address of this host: it is a plan of other "
                        "hosts",
                        (long long)place->rank),
               false;
    if (reading->here_n == 0)
        return snprintf(why, HARP_WHY_BYTES,
                        "none of its %u ranks listens at an address of this host: it is a plan of "
                        "other hosts",
                        reading->ranks_n),
               false;
    if (place->rank < 0 && reading->here_n > 1)
        return snprintf(why, HARP_WHY_BYTES,
                        "%u of its ranks are on this host and nothing says which this is: set RANK "
                        "as torchrun does",
                        reading->here_n),
               false;
    if (*reading->stale)
        return memcpy(why, reading->stale, sizeof reading->stale), false;
    reading->plan->rank = (uint32_t)(place->rank >= 0 ? place->rank : reading->here);
    return true;
}

static bool say_what_is_wrong(const struct reading *reading, const char *text, char *why)
{
    snprintf(why, HARP_WHY_BYTES, "line %u is no plan's: expected %s",
             json_line(&reading->json, text), reading->json.wrong);
    return false;
}

static bool read_text(struct plan *plan, const char *text, size_t length,
                      const struct plan_place *place, char *why)
{
    const struct json_reader start = {.at = text, .end = text + length};
    struct reading reading = {.json = start, .place = place, .plan = plan, .here = -1};
    read_members(&reading);
    if (reading.json.wrong)
        return say_what_is_wrong(&reading, text, why);
    if (strcmp(reading.format, FORMAT) != 0)
        return snprintf(why, HARP_WHY_BYTES,
                        "its format is \"%s\" and this HARP reads " FORMAT ": make it anew with "
                        "harp plan",
                        reading.format),
               false;
    if (!fits_port(&reading, why) || !find_rank(&reading, why))
        return false;
    reading.json = start;
    reading.flows_only = true;
    read_members(&reading);
    plan->taken = calloc(plan->flows_n + 1, sizeof *plan->taken);
    if (!reading.json.wrong && !plan->taken)
        reading.json.wrong = "more memory";
    return !reading.json.wrong || say_what_is_wrong(&reading, text, why);
}

bool plan_read(struct plan *plan, const char *path, const struct plan_place *place, char *why)
{
    size_t length = 0;
    *plan = (struct plan){.used = false};
    char *text = json_file_read(path, &length, why);
    plan->used = text && read_text(plan, text, length, place, why);
    free(text);
    return plan->used;
}

void plan_free(struct plan *plan)
{
    free(plan->flows);
    free(plan->taken);
    *plan = (struct plan){.used = false};
}

/* ---- Another revision ---- */

bool plan_is_revision(const struct plan *plan, const struct plan *next, char *why)
{
    bool same = next->rank == plan->rank && next->listens_n == plan->listens_n &&
                next->flows_n == plan->flows_n;
    for (uint32_t i = 0; same && i < plan->listens_n; i++)
        same = harp_address_same(&plan->listens[i], &next->listens[i]);
    for (uint32_t i = 0; same && i < plan->flows_n; i++)
        same = is_same_host(&plan->flows[i].source, &next->flows[i].source) &&
               harp_address_same(&plan->flows[i].target, &next->flows[i].target);
    if (!same)
        snprintf(why, HARP_WHY_BYTES,
                 "it has other ranks or flows than the one that this job was started with: make it "
                 "with harp plan --replan");
    return same;
}

void plan_replace(struct plan *plan, struct plan *next)
{
    memcpy(next->taken, plan->taken, plan->flows_n * sizeof *next->taken);
    plan_free(plan);
    *plan = *next;
}

/* ---- What it says ---- */

uint16_t plan_listen_port(const struct plan *plan, const struct harp_address *nic, uint32_t engine)
{
    for (uint32_t i = 0; plan->used && i < plan->listens_n; i++)
        if (is_same_host(&plan->listens[i], nic) && engine-- == 0)
            return plan->listens[i].port;
    return 0;
}

static bool leads_there(const struct harp_planned_flow *flow, const struct harp_address *nics,
                        uint32_t nics_n, const struct harp_handle *handle)
{
    bool ours = false, theirs = false;
    for (uint32_t i = 0; i < nics_n; i++)
        ours |= is_same_host(&flow->source, &nics[i]);
    for (uint32_t i = 0; i < HARP_HANDLE_ADDRESSES; i++)
        theirs |= harp_address_same_place(&flow->target, &handle->addresses[i]);
    return ours && theirs;
}

bool plan_connection(struct plan *plan, const struct harp_address *nics, uint32_t nics_n,
                     const struct harp_handle *handle, uint32_t paths,
                     struct harp_connection_config *config)
{
    for (uint32_t i = 0; plan->used && i < plan->flows_n; i++) {
        if (!leads_there(&plan->flows[i], nics, nics_n, handle))
            continue;
        config->flows = plan->flows;
        config->flows_n = plan->flows_n;
        config->flows_first = plan->taken[i];
        plan->taken[i] += paths;
        return true;
    }
    return false;
}
