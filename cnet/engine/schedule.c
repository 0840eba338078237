#include "engine/schedule.h"

bool harp_schedule_open(struct harp_schedule *schedule, uint32_t most)
{
    *schedule = (struct harp_schedule){0};
    if (harp_timers_open(&schedule->timers, most) &&
        harp_index_queue_open(&schedule->queue, most) &&
        harp_index_queue_open(&schedule->blocked, most))
        return true;
    harp_schedule_close(schedule);
    return false;
}

void harp_schedule_close(struct harp_schedule *schedule)
{
    harp_timers_close(&schedule->timers);
    harp_index_queue_close(&schedule->queue);
    harp_index_queue_close(&schedule->blocked);
}

void harp_schedule_wake(struct harp_schedule *schedule, uint32_t i)
{
    harp_index_queue_put(&schedule->queue, i);
    schedule->queue_at_ns = 0;
}

uint32_t harp_schedule_begin(struct harp_schedule *schedule, uint64_t now_ns)
{
    uint32_t i;
    while (harp_timers_take(&schedule->timers, now_ns, &i))
        harp_schedule_wake(schedule, i);
    schedule->unserved = schedule->queue_at_ns <= now_ns ? schedule->queue.count : 0;
    return schedule->unserved;
}

uint32_t harp_schedule_next(struct harp_schedule *schedule)
{
    schedule->unserved--;
    return harp_index_queue_take(&schedule->queue);
}

void harp_schedule_wait(struct harp_schedule *schedule, uint32_t i, uint64_t at_ns)
{
    harp_timers_set(&schedule->timers, i, at_ns);
}

void harp_schedule_again(struct harp_schedule *schedule, uint32_t i)
{
    harp_index_queue_put(&schedule->queue, i);
}

void harp_schedule_blocked(struct harp_schedule *schedule, uint32_t i)
{
    harp_index_queue_put(&schedule->blocked, i);
}

void harp_schedule_end(struct harp_schedule *schedule, uint64_t now_ns)
{
    uint32_t others = schedule->queue.count;
    while (schedule->blocked.count && schedule->unserved)
        harp_index_queue_put(&schedule->queue, harp_index_queue_take(&schedule->blocked));
    while (schedule->blocked.count)
        harp_index_queue_put_first(&schedule->queue,
                                   harp_index_queue_take_last(&schedule->blocked));
    if (schedule->queue_at_ns <= now_ns)
        schedule->queue_at_ns = others ? 0 : now_ns + HARP_RETRY_NS;
}

uint64_t harp_schedule_deadline_ns(struct harp_schedule *schedule)
{
    uint64_t first_ns = harp_timers_first_ns(&schedule->timers);
    if (!schedule->queue.count || first_ns < schedule->queue_at_ns)
        return first_ns;
    return schedule->queue_at_ns;
}

void harp_schedule_forget(struct harp_schedule *schedule, uint32_t i)
{
    harp_timers_set(&schedule->timers, i, HARP_TIMER_NEVER);
}
