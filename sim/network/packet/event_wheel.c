#include "event_wheel.h"

#include <assert.h>
#include <stdlib.h>

#define WORDS (VIRTUAL_WHEEL_NS / 64)

bool virtual_wheel_open(struct virtual_wheel *wheel)
{
    *wheel = (struct virtual_wheel){.soon_ns = VIRTUAL_NEVER};
    return virtual_events_open(&wheel->later, 64);
}

void virtual_wheel_close(struct virtual_wheel *wheel)
{
    virtual_events_close(&wheel->later);
    free(wheel->soon);
    *wheel = (struct virtual_wheel){.soon_ns = VIRTUAL_NEVER};
}

/* Twice the room for events that are soon. */
static bool double_room(struct virtual_wheel *wheel)
{
    if (wheel->room > UINT32_MAX / 2)
        return false;
    uint32_t room = wheel->room ? 2 * wheel->room : 1024;
    struct virtual_soon *soon = realloc(wheel->soon, room * sizeof *soon);
    if (!soon)
        return false;
    wheel->soon = soon;
    for (uint32_t i = room - 1; i >= (wheel->room ? wheel->room : 1); i--) {
        soon[i].next = wheel->free;
        wheel->free = i;
    }
    wheel->room = room;
    return true;
}

bool virtual_wheel_push(struct virtual_wheel *wheel, uint64_t at_ns, uint64_t what)
{
    assert(at_ns >= wheel->now_ns);
    if (at_ns - wheel->now_ns >= VIRTUAL_WHEEL_NS)
        return virtual_events_push(&wheel->later, at_ns, what);
    if (!wheel->free && !double_room(wheel))
        return false;
    uint32_t number = wheel->free, list = at_ns % VIRTUAL_WHEEL_NS;
    wheel->free = wheel->soon[number].next;
    wheel->soon[number] = (struct virtual_soon){what, 0};
    if (wheel->lists[list].first)
        wheel->soon[wheel->lists[list].last].next = number;
    else
        wheel->lists[list].first = number;
    wheel->lists[list].last = number;
    wheel->filled[list / 64] |= UINT64_C(1) << list % 64;
    if (at_ns < wheel->soon_ns)
        wheel->soon_ns = at_ns;
    return true;
}

/* The first time from `from_ns` on that has events on the wheel. */
static uint64_t find_soon_ns(const struct virtual_wheel *wheel, uint64_t from_ns)
{
    uint32_t list = from_ns % VIRTUAL_WHEEL_NS, word = list / 64;
    uint64_t bits = wheel->filled[word] >> list % 64 << list % 64;
    for (uint32_t i = 0; i <= WORDS; i++, bits = wheel->filled[word]) {
        if (bits) {
            uint32_t found = word * 64 + (uint32_t)__builtin_ctzll(bits);
            return from_ns + (found - list) % VIRTUAL_WHEEL_NS;
        }
        word = (word + 1) % WORDS;
    }
    return VIRTUAL_NEVER;
}

static uint64_t take_soon(struct virtual_wheel *wheel)
{
    uint32_t list = wheel->soon_ns % VIRTUAL_WHEEL_NS, number = wheel->lists[list].first;
    struct virtual_soon *soon = &wheel->soon[number];
    wheel->lists[list].first = soon->next;
    wheel->now_ns = wheel->soon_ns;
    soon->next = wheel->free;
    wheel->free = number;
    if (!wheel->lists[list].first) {
        wheel->filled[list / 64] &= ~(UINT64_C(1) << list % 64);
        wheel->soon_ns = find_soon_ns(wheel, wheel->soon_ns);
    }
    return soon->what;
}

uint64_t virtual_wheel_take(struct virtual_wheel *wheel)
{
    if (wheel->soon_ns < virtual_events_next_ns(&wheel->later))
        return take_soon(wheel);
    struct virtual_event event = virtual_events_take(&wheel->later);
    wheel->now_ns = event.at_ns;
    return event.what;
}
