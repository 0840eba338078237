/* Every field of every frame, one change a run: each bit, and telling values of the whole field.
 *
 * The change is made once by somebody without the key, which must change nothing, and then by one
 * end itself under a tag that holds, which must break nothing but, perhaps, the connection. */
#include "base/sequence.h"
#include "forge.h"
#include "world.h"

#define LONGEST (HARP_HEADER_BYTES + 78) /* bodies without a fixed length count as far as this */
#define CHANGED_NS (300 * DST_MS)

struct change {
    const struct dst_field *field;
    uint8_t type;
    size_t which;
};

/* Number `which` of all changes; false if there are fewer. */
static bool find_change(uint64_t which, struct change *change)
{
    for (size_t f = 0; f < dst_fields_n; f++) {
        const struct dst_field *field = &dst_fields[f];
        uint8_t first = field->type ? field->type : HARP_FIRST;
        uint8_t last = field->type ? field->type : HARP_VERSION_NOTICE;
        size_t each = dst_changes_of(field, LONGEST);
        if (which >= each * (last - first + 1u)) {
            which -= each * (last - first + 1u);
            continue;
        }
        *change = (struct change){
            .field = field, .type = (uint8_t)(first + which / each), .which = which % each};
        return true;
    }
    return false;
}

/* A few messages of some chunks, so that no type is missing, and no field that is changed. */
static void shorten_scripts(struct dst_world *w)
{
    for (int side = 0; side < 2; side++) {
        struct dst_script *script = &w->scripts[side];
        script->n = 2 + (uint32_t)harp_min(script->n, 4);
        for (uint32_t m = 0; m < script->n; m++)
            script->size[m] = 8 + script->size[m] % (40 * HARP_CHUNK_ALIGN);
    }
}

static bool is_from_listener(uint8_t type)
{
    return type == HARP_COOKIE || type == HARP_ACCEPT || type == HARP_VERSION_NOTICE;
}

static void run_for(struct dst_world *w, uint64_t time_ns)
{
    uint64_t stop_ns = w->now_ns + time_ns;
    while (w->now_ns < stop_ns && !(w->ends[0].app.closed && w->ends[1].app.closed))
        dst_step(w, stop_ns);
}

bool dst_run_field(uint64_t which)
{
    struct change change;
    if (!find_change(which, &change))
        return false;
    struct dst_world *w = dst_world_new(which, DST_FIELD, true);
    dst_begin(w, 1);
    shorten_scripts(w);
    uint8_t side = change.type == HARP_FIRST       ? 0
                   : is_from_listener(change.type) ? 1
                                                   : (uint8_t)virtual_below(&w->random, 2);
    w->ends[0].app.trusts = w->ends[1].app.trusts = false;
    w->ends[0].malice.old = change.type == HARP_VERSION_NOTICE;
    w->ends[1].listener.calm = change.type == HARP_COOKIE ? 0 : w->ends[1].listener.calm;
    struct dst_malice *malice = &w->ends[side].malice;
    malice->field = change.field;
    malice->type = change.type;
    malice->change = change.which;
    malice->count = change.type >= HARP_DATA && change.type <= HARP_PROBE
                        ? (uint32_t)virtual_below(&w->random, 2)
                        : 0;
    run_for(w, CHANGED_NS);
    if (w->ends[side].session)
        dst_end_close(&w->ends[side], w->now_ns);
    run_for(w, 2 * DST_DEAD_NS);
    bool met = w->ends[side].malice.changed;
    dst_world_free(w);
    DST_CHECK(met || change.field->bytes == 0, "the frame to change never came", change.type,
              change.which);
    return true;
}
