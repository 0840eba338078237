/* Priority flow control (IEEE 802.1Qbb), with one priority: switches that pause the links towards
 * them before they would have to drop.
 *
 * A switch counts what came by each of its links and waits in its ports. When that is more than
 * XOFF it pauses the link's sender, and resumes it when it has fallen by an offset. Either
 * takes effect a latency and the time of a PAUSE frame later; until then what comes goes into the
 * link's own headroom. A pause holds until it is taken back, as it does where PAUSE frames are
 * repeated in time. NICs are paused like switches, and hosts pause nobody.
 *
 * XOFF is the same for all links, or alpha times what is free of the buffer that is no headroom
 * (Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015, section 4).
 *
 * Where routes make a circle, pauses can, too, and then nothing ever moves again. A link that has
 * been paused for the time of SONiC's PFC watchdog is looked at: if pauses lead from it back to it
 * by way of what waits, the network stops and names them.
 */
#include "base/sequence.h"
#include "world.h"

#define PAUSE_FRAME_BYTES 84            /* with preamble and gap */
#define WATCHDOG_NS UINT64_C(200000000) /* SONiC's default detection time */

void packet_set_pfc(packet_world *w, const uint64_t *headroom_bytes, uint64_t xoff_bytes,
                    uint64_t xon_offset_bytes)
{
    w->pfc =
        (struct pfc){.is_on = true,
                     .xoff_bytes = xoff_bytes,
                     .xon_offset_bytes = xon_offset_bytes,
                     .shared = zeroed_array((size_t)w->buffers.switches, sizeof *w->pfc.shared)};
    for (int32_t s = 0; s < w->buffers.switches; s++)
        w->pfc.shared[s] = w->buffers.bytes;
    for (size_t i = 0; i < w->fabric.links_n; i++) {
        struct link *link = &w->fabric.links[i];
        link->headroom_bytes = headroom_bytes[i];
        if (link->to != NOBODY)
            w->pfc.shared[link->to] -= harp_min(headroom_bytes[i], w->pfc.shared[link->to]);
    }
}

static uint64_t xoff_now(const struct packet_world *w, int32_t at)
{
    if (w->pfc.xoff_bytes)
        return w->pfc.xoff_bytes;
    uint64_t shared = w->pfc.shared[at];
    return (shared - harp_min(w->buffers.used[at], shared)) * w->buffers.alpha_q8 / 256;
}

static void tell_sender(struct packet_world *w, uint32_t which, enum event_kind what)
{
    struct link *link = &w->fabric.links[which];
    uint64_t frame_ns = (PAUSE_FRAME_BYTES * link->ps_per_byte_q16 >> 16) / 1000;
    link->asks_pause = what == LINK_PAUSES;
    link->headroom_used = 0;
    push_event(w, w->now_ns + link->latency_ns + frame_ns, what, which);
}

bool fits_with_pauses(const struct packet_world *w, const struct packet *packet)
{
    const struct link *came_by = &w->fabric.links[packet->came_by];
    uint64_t free_bytes =
        w->buffers.bytes - harp_min(w->buffers.used[came_by->to], w->buffers.bytes);
    return packet->bytes <= free_bytes &&
           (!came_by->asks_pause ||
            came_by->headroom_used + packet->bytes <= came_by->headroom_bytes);
}

void count_for_pause(struct packet_world *w, const struct packet *packet, bool more)
{
    struct link *came_by = &w->fabric.links[packet->came_by];
    if (more) {
        came_by->held_bytes += packet->bytes;
        if (came_by->asks_pause)
            came_by->headroom_used += packet->bytes;
        else if (came_by->held_bytes > xoff_now(w, came_by->to))
            tell_sender(w, packet->came_by, LINK_PAUSES);
        return;
    }
    came_by->held_bytes -= packet->bytes;
    uint64_t xoff = xoff_now(w, came_by->to);
    uint64_t xon = xoff - harp_min(w->pfc.xon_offset_bytes, xoff);
    if (came_by->asks_pause && came_by->held_bytes <= xon)
        tell_sender(w, packet->came_by, LINK_GOES_ON);
}

void pause_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->fabric.links[which];
    link->is_paused = true;
    link->paused_ns = w->now_ns;
    link->counts.pauses++;
    if (!link->is_watched)
        push_event(w, w->now_ns + WATCHDOG_NS, LINK_WATCHED, which);
    link->is_watched = true;
}

void resume_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->fabric.links[which];
    link->is_paused = false;
    link->counts.paused_ns += w->now_ns - link->paused_ns;
    push_event(w, harp_max(w->now_ns, (link->free_ps + 999) / 1000), LINK_SENDS, which);
}

/* ---- loops */

static bool has_waiting_from(const struct packet_world *w, const struct link *port,
                             uint32_t came_by)
{
    for (uint32_t n = port->waiting.first; n != NO_PACKET; n = w->pool.packets[n].next)
        if (w->pool.packets[n].came_by == came_by)
            return true;
    return false;
}

/* Follow pauses from what came by `at` to `goal`: each link on the way is paused since what it
 * brought waits for the next one. Writes the links after `goal` from the last one on. */
static bool find_loop(struct packet_world *w, uint32_t at, uint32_t goal, bool *seen)
{
    for (uint32_t next = 0; next < w->fabric.links_n; next++) {
        const struct link *port = &w->fabric.links[next];
        if (seen[next] || !port->is_paused || port->from != w->fabric.links[at].to ||
            !has_waiting_from(w, port, at))
            continue;
        seen[next] = true;
        if (next != goal && !find_loop(w, next, goal, seen))
            continue;
        GROW_ARRAY(w->pfc.loop);
        w->pfc.loop[w->pfc.loop_n++] = (int32_t)next;
        return true;
    }
    return false;
}

void watch_link(struct packet_world *w, uint32_t which)
{
    struct link *link = &w->fabric.links[which];
    link->is_watched = link->is_paused;
    if (!link->is_paused)
        return;
    if (link->paused_ns + WATCHDOG_NS <= w->now_ns && !w->pfc.loop_n) {
        bool *seen = zeroed_array(w->fabric.links_n, sizeof *seen);
        find_loop(w, which, which, seen);
        free(seen);
    }
    push_event(w, harp_max(link->paused_ns, w->now_ns) + WATCHDOG_NS, LINK_WATCHED, which);
}

int32_t packet_loop(const packet_world *w, int32_t *links, int32_t room)
{
    int32_t n = (int32_t)w->pfc.loop_n;
    for (int32_t i = 0; i < n && i < room; i++)
        links[i] = w->pfc.loop[n - 1 - i];
    return n;
}
