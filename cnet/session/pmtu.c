#include "session/pmtu.h"

#include <assert.h>

#define RAISE_NS UINT64_C(1000000000)
#define RAISE_MOST_NS (32 * RAISE_NS)
#define BACKOFF_MOST 10

void harp_pmtu_init(struct harp_pmtu *pmtu, uint16_t segment, uint16_t base_bytes,
                    uint16_t least_bytes)
{
    *pmtu = (struct harp_pmtu){
        .state = HARP_PMTU_CONFIRMING,
        .segment = segment,
        .base = harp_fragments_within(segment, base_bytes),
        .most = harp_fragments_within(segment, harp_min(base_bytes, least_bytes)),
        .fragments = 1,
        .next_ns = HARP_NEVER,
        .raise_ns = RAISE_NS};
}

/* Choose the size to try next while searching: ICMP's word first, then whole chunks, then the
 * middle. 0: nothing is left between what passes and what does not. */
static uint8_t next_candidate(struct harp_pmtu *pmtu)
{
    if (pmtu->hint > pmtu->too_few && pmtu->hint < pmtu->fragments)
        return pmtu->hint;
    while (pmtu->too_few + 1 < pmtu->fragments) {
        uint32_t middle = pmtu->too_few ? (pmtu->too_few + pmtu->fragments) / 2u : 1;
        uint8_t least =
            harp_fragments_within(pmtu->segment, harp_fragment_frame_bytes(pmtu->segment, middle));
        if (least > pmtu->too_few)
            return least;
        pmtu->too_few = (uint8_t)middle; /* which makes frames of the same size */
    }
    return 0;
}

static void complete_search(struct harp_pmtu *pmtu, uint64_t now_ns)
{
    pmtu->state = HARP_PMTU_COMPLETE;
    pmtu->next_ns = HARP_NEVER;
    if (pmtu->fragments == 1)
        return;
    pmtu->next_ns = now_ns + pmtu->raise_ns;
    pmtu->raise_ns = harp_min(2 * pmtu->raise_ns, RAISE_MOST_NS);
}

static void search_on(struct harp_pmtu *pmtu, uint64_t now_ns)
{
    pmtu->state = HARP_PMTU_SEARCHING;
    pmtu->losses = 0;
    pmtu->next_ns = now_ns;
    if (!next_candidate(pmtu))
        complete_search(pmtu, now_ns);
}

/* The fragments that a probe's size is of: those in use, or of what is tried. */
static uint8_t probed_fragments(struct harp_pmtu *pmtu)
{
    return pmtu->state == HARP_PMTU_SEARCHING ? next_candidate(pmtu) : pmtu->fragments;
}

uint16_t harp_pmtu_probe_bytes(struct harp_pmtu *pmtu, uint64_t now_ns)
{
    if (pmtu->next_ns > now_ns)
        return 0;
    pmtu->next_ns = HARP_NEVER;
    if (pmtu->state == HARP_PMTU_COMPLETE) {
        pmtu->too_few = pmtu->hint = 0;
        search_on(pmtu, now_ns);
        pmtu->next_ns = HARP_NEVER;
    }
    return harp_fragment_frame_bytes(pmtu->segment, probed_fragments(pmtu));
}

void harp_pmtu_arrived(struct harp_pmtu *pmtu, uint16_t frame_bytes, uint64_t now_ns)
{
    bool known = pmtu->state == HARP_PMTU_COMPLETE && pmtu->fragments == 1;
    if (known || frame_bytes < harp_pmtu_frame_bytes(pmtu))
        return;
    uint8_t fragments = harp_fragments_within(pmtu->segment, frame_bytes);
    bool wider = fragments < pmtu->fragments;
    if (wider) {
        pmtu->fragments = fragments;
        pmtu->raise_ns = RAISE_NS;
        pmtu->too_few = pmtu->too_few < fragments ? pmtu->too_few : 0;
    }
    if (wider || pmtu->state == HARP_PMTU_CONFIRMING || pmtu->state == HARP_PMTU_ERROR)
        search_on(pmtu, now_ns);
}

static void fall_back(struct harp_pmtu *pmtu, uint64_t now_ns)
{
    pmtu->state = HARP_PMTU_CONFIRMING;
    pmtu->fragments = pmtu->fragments < pmtu->base ? pmtu->base : pmtu->most;
    pmtu->too_few = 0;
    pmtu->losses = 0;
    pmtu->raise_ns = RAISE_NS;
    pmtu->next_ns = now_ns;
}

void harp_pmtu_black_hole(struct harp_pmtu *pmtu, uint64_t now_ns)
{
    bool finding_out = pmtu->state == HARP_PMTU_CONFIRMING && pmtu->fragments >= pmtu->base;
    if (!finding_out && pmtu->state != HARP_PMTU_ERROR)
        fall_back(pmtu, now_ns);
}

/* Too long, as far as can be known. */
static void give_up_size(struct harp_pmtu *pmtu, uint8_t fragments, uint64_t now_ns)
{
    if (pmtu->state == HARP_PMTU_SEARCHING) {
        pmtu->too_few = fragments;
        search_on(pmtu, now_ns);
    } else if (fragments < pmtu->most) {
        fall_back(pmtu, now_ns);
        pmtu->too_few = fragments;
    } else {
        pmtu->state = HARP_PMTU_ERROR;
    }
}

void harp_pmtu_lost(struct harp_pmtu *pmtu, uint16_t frame_bytes, bool overtaken, uint64_t now_ns,
                    uint64_t rto_ns, uint64_t most_ns)
{
    uint8_t fragments = probed_fragments(pmtu);
    if (pmtu->state == HARP_PMTU_COMPLETE ||
        frame_bytes != harp_fragment_frame_bytes(pmtu->segment, fragments))
        return;
    if (overtaken && pmtu->losses < BACKOFF_MOST)
        pmtu->losses++;
    bool error = pmtu->state == HARP_PMTU_ERROR;
    pmtu->next_ns = now_ns + harp_min(error ? rto_ns << pmtu->losses : rto_ns, most_ns);
    if (pmtu->losses >= HARP_PMTU_PROBES && !error)
        give_up_size(pmtu, fragments, now_ns);
}

void harp_pmtu_confirm_again(struct harp_pmtu *pmtu, uint64_t now_ns, uint32_t hint_bytes)
{
    pmtu->hint = hint_bytes ? harp_fragments_within(pmtu->segment, hint_bytes) : 0;
    if (pmtu->state == HARP_PMTU_ERROR || pmtu->state == HARP_PMTU_CONFIRMING)
        return; /* it is being found out */
    pmtu->state = HARP_PMTU_CONFIRMING;
    pmtu->losses = 0;
    pmtu->too_few = 0;
    pmtu->next_ns = now_ns;
}
