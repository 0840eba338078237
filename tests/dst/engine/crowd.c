#include "crowd.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/sequence.h"

#define MESSAGES_MOST 12 /* each way, behind the first, which says who it is */
#define AHEAD 4          /* buffers posted */
#define NAME_BYTES 8

struct end {
    struct harp_connection *connection;
    bool begun, connected, closed, gone; /* gone: let go of, or killed */
    uint32_t sent, reported, posted, received;
    uint8_t *out[MESSAGES_MOST + 1], *in[MESSAGES_MOST + 1];
};

struct member {
    struct end ends[2];
    uint32_t messages;  /* each way, the first included */
    uint64_t begin_ns;  /* when it connects */
    uint64_t let_go_ns; /* when one end lets go in the middle; HARP_NEVER: not */
    uint8_t let_go_side;
};

struct dst_crowd {
    struct dst_side *sides;
    uint32_t count;
    struct member members[DST_CROWD_MOST];
    struct end strangers[DST_CROWD_MOST]; /* accepted, and have not said who they are */
};

static uint32_t size_of(uint32_t member, uint8_t side, uint32_t message)
{
    uint32_t drawn = (member * 2 + side) * UINT32_C(2654435761) + message * UINT32_C(40503);
    return message ? (drawn >> 8) % (drawn & 15 ? 3000 : 30000) : NAME_BYTES;
}

static uint8_t byte_of(uint32_t member, uint8_t side, uint32_t message, uint32_t i)
{
    return (uint8_t)(dst_pattern(side, message, i) + member * 37);
}

struct dst_crowd *dst_crowd_new(struct dst_side *sides, uint64_t *random, uint32_t count,
                                uint64_t begin_ns)
{
    struct dst_crowd *crowd = calloc(1, sizeof *crowd);
    uint64_t now_ns = *sides[0].true_ns;
    crowd->sides = sides;
    crowd->count = count;
    for (uint32_t m = 0; m < count; m++) {
        struct member *member = &crowd->members[m];
        member->messages = 1 + (uint32_t)virtual_below(random, MESSAGES_MOST + 1);
        member->begin_ns = now_ns + virtual_below(random, begin_ns);
        member->let_go_ns = HARP_NEVER;
        if (virtual_chance(random, 250))
            member->let_go_ns = member->begin_ns + virtual_below(random, 30 * DST_MS);
        member->let_go_side = (uint8_t)virtual_below(random, 2);
    }
    return crowd;
}

static void free_buffers(struct end *end)
{
    for (uint32_t m = 0; m <= MESSAGES_MOST; m++) {
        free(end->out[m]);
        free(end->in[m]);
        end->out[m] = end->in[m] = NULL;
    }
}

static void let_go(struct end *end)
{
    if (end->connection && !end->gone)
        harp_connection_close(end->connection);
    end->gone = true;
    end->connection = NULL;
    free_buffers(end);
}

void dst_crowd_killed(struct dst_crowd *crowd, uint8_t side)
{
    for (uint32_t m = 0; m < crowd->count; m++) {
        for (int i = 0; i < 2; i++) {
            struct end *end = i ? &crowd->members[m].ends[side] : &crowd->strangers[m];
            if (!i && !side)
                continue;
            end->gone = true;
            end->connection = NULL;
            free_buffers(end);
        }
    }
}

void dst_crowd_close(struct dst_crowd *crowd)
{
    for (uint32_t m = 0; m < crowd->count; m++) {
        let_go(&crowd->members[m].ends[0]);
        let_go(&crowd->members[m].ends[1]);
        let_go(&crowd->strangers[m]);
    }
}

void dst_crowd_free(struct dst_crowd *crowd)
{
    if (!crowd)
        return;
    dst_crowd_killed(crowd, 0);
    dst_crowd_killed(crowd, 1);
    free(crowd);
}

/* ---- One end ---- */

static void send_more(struct end *end, uint32_t member, uint8_t side, uint32_t messages)
{
    while (end->connected && end->sent < messages) {
        uint32_t m = end->sent, size = size_of(member, side, m);
        uint8_t *buffer = malloc(size + 1u);
        for (uint32_t i = 0; i < size; i++)
            buffer[i] = byte_of(member, side, m, i);
        if (!m)
            harp_store64(buffer, member);
        if (!harp_send(end->connection, buffer, size, m)) {
            free(buffer);
            return;
        }
        end->out[m] = buffer;
        end->sent++;
    }
}

static void post_more(struct end *end, uint32_t member, uint8_t side, uint32_t messages)
{
    while (end->posted < messages && end->posted < end->received + AHEAD) {
        uint32_t size = size_of(member, !side, end->posted);
        uint8_t *buffer = malloc(size + 1u);
        if (!harp_receive(end->connection, buffer, size, end->posted)) {
            free(buffer);
            return;
        }
        end->in[end->posted++] = buffer;
    }
}

static void take_received(struct end *end, const struct harp_completion *done, uint32_t member,
                          uint8_t side)
{
    uint32_t m = end->received++;
    DST_CHECK(done->context == m && done->message == m, "received out of order", done->context, m);
    DST_CHECK(done->size == size_of(member, !side, m), "received with another size", done->size, m);
    for (uint32_t i = m ? 0 : NAME_BYTES; i < done->size; i++)
        DST_CHECK(end->in[m][i] == byte_of(member, !side, m, i), "bytes differ", member, m);
    if (m) {
        free(end->in[m]);
        end->in[m] = NULL;
    }
}

static bool poll_end(struct end *end, uint32_t member, uint8_t side)
{
    struct harp_completion done;
    bool any = false;
    while (harp_poll(end->connection, &done, 1)) {
        any = true;
        if (done.type == HARP_COMPLETION_CONNECTED) {
            end->connected = true;
        } else if (done.type == HARP_COMPLETION_SENT) {
            DST_CHECK(done.context == end->reported, "sent out of order", done.context, member);
            free(end->out[end->reported]);
            end->out[end->reported++] = NULL;
        } else if (done.type == HARP_COMPLETION_RECEIVED) {
            take_received(end, &done, member, side);
        } else {
            end->closed = true;
        }
    }
    return any;
}

/* ---- All of a side ---- */

static void connect_due(struct dst_crowd *crowd, struct dst_side *side, uint64_t *wake_ns)
{
    char why[HARP_WHY_BYTES] = "";
    for (uint32_t m = 0; m < crowd->count; m++) {
        struct member *member = &crowd->members[m];
        struct end *end = &member->ends[0];
        if (end->begun || end->gone)
            continue;
        if (*side->true_ns < member->begin_ns) {
            *wake_ns = harp_min(*wake_ns, member->begin_ns);
            continue;
        }
        int error = harp_connect(side->engine, &side->handle, &side->wanted, &end->connection, why);
        DST_CHECK(!error, why, -error, m);
        end->begun = true;
    }
}

static bool accept_more(struct dst_crowd *crowd, struct dst_side *side)
{
    bool any = false;
    for (uint32_t i = 0; side->listening && i < crowd->count; i++) {
        struct end *end = &crowd->strangers[i];
        if (end->connection)
            continue;
        *end = (struct end){.connection = harp_accept(side->listening), .begun = true};
        if (!end->connection)
            return any;
        any = true;
    }
    return any;
}

/* One that was accepted gets its first message, which says who it is. */
static bool meet_stranger(struct dst_crowd *crowd, struct end *stranger)
{
    bool any = poll_end(stranger, 0, 1);
    if (!stranger->closed)
        post_more(stranger, 0, 1, 1);
    if (!stranger->received) {
        if (stranger->closed)
            let_go(stranger);
        return any;
    }
    uint64_t member = harp_load64(stranger->in[0]);
    DST_CHECK(member < crowd->count, "a member that there is not", member, crowd->count);
    struct end *end = &crowd->members[member].ends[1];
    DST_CHECK(!end->begun, "a member came twice", member, 0);
    *end = *stranger;
    *stranger = (struct end){.begun = false};
    return true;
}

static bool work_of_member(struct dst_crowd *crowd, uint32_t m, struct dst_side *side,
                           uint64_t *wake_ns)
{
    struct member *member = &crowd->members[m];
    struct end *end = &member->ends[side->number];
    if (!end->connection)
        return false;
    bool mine = side->number == member->let_go_side && member->let_go_ns != HARP_NEVER;
    if (mine && *side->true_ns >= member->let_go_ns) {
        let_go(end);
        return true;
    }
    if (mine)
        *wake_ns = harp_min(*wake_ns, member->let_go_ns);
    bool any = poll_end(end, m, side->number);
    if (end->closed)
        return any;
    post_more(end, m, side->number, member->messages);
    send_more(end, m, side->number, member->messages);
    return any;
}

bool dst_crowd_work(struct dst_crowd *crowd, struct dst_side *side, uint64_t *wake_ns)
{
    bool any = false;
    *wake_ns = HARP_NEVER;
    if (side->number)
        any = accept_more(crowd, side);
    else
        connect_due(crowd, side, wake_ns);
    for (uint32_t i = 0; side->number && i < crowd->count; i++)
        if (crowd->strangers[i].connection)
            any |= meet_stranger(crowd, &crowd->strangers[i]);
    for (uint32_t m = 0; m < crowd->count; m++)
        any |= work_of_member(crowd, m, side, wake_ns);
    return any;
}

/* ---- What must come of it ---- */

static bool is_end_through(const struct member *member, uint8_t side)
{
    const struct end *end = &member->ends[side];
    if (end->gone || end->closed)
        return true;
    return member->ends[!side].gone
               ? !end->begun && side
               : end->received == member->messages && end->reported == member->messages;
}

bool dst_crowd_through(const struct dst_crowd *crowd)
{
    for (uint32_t m = 0; m < crowd->count; m++) {
        const struct member *member = &crowd->members[m];
        bool let_go = member->let_go_ns != HARP_NEVER;
        if (!is_end_through(member, 0) || !is_end_through(member, 1))
            return false;
        for (int i = 0; i < 2; i++)
            DST_CHECK(let_go || !member->ends[i].closed, "a connection broke", m, i);
    }
    return true;
}

bool dst_crowd_ended(const struct dst_crowd *crowd, uint8_t side)
{
    for (uint32_t m = 0; m < crowd->count; m++) {
        const struct end *end = &crowd->members[m].ends[side];
        if (!end->closed && !end->gone)
            return false;
    }
    return true;
}
