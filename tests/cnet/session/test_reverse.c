/* The queue of the way back, from clocks that nobody has set: against the queue that there is. */
#include "session/reverse.h"

#include "check.h"

#define US 1000
#define MS INT64_C(1000000)
#define STEP_NS (100 * US) /* from one ACK to the next */
#define RUN_NS (1000 * MS)
#define SETTLED_NS (20 * MS) /* each way has run empty since then */
#define PRECISE_NS (5 * US)  /* 200 ppm over the 10 ms between two times at which it does, twice */

/* One run: a path, two clocks, and what happens to them in the middle. */
struct scene {
    const char *name;
    int64_t apart_ns;    /* the clocks, at first */
    int64_t drift_ppm;   /* from then on */
    int64_t step_ns;     /* one is set in the middle, by this */
    int64_t shorter_ns;  /* and the way back becomes shorter */
    int64_t standing_ns; /* and a queue stands there, which never runs empty again */
    bool out_of_order;   /* every second ACK is overtaken by the next */
};

struct sample {
    int64_t at_ns, there_ns, back_ns; /* queues */
    uint32_t took_ns;
};

/* A queue that grows to `most_ns` and runs empty for a while, once in a period. */
static int64_t sawtooth_ns(int64_t at_ns, int64_t period_ns, int64_t most_ns)
{
    int64_t part_ns = at_ns % period_ns - period_ns / 4;
    return part_ns < 0 ? 0 : part_ns * most_ns / (period_ns - period_ns / 4);
}

static struct sample sample_at(const struct scene *scene, int64_t at_ns)
{
    bool second = at_ns >= RUN_NS / 2;
    int64_t way_ns = 80 * US - (second ? scene->shorter_ns : 0);
    struct sample sample = {.at_ns = at_ns, .there_ns = sawtooth_ns(at_ns, 10 * MS, 200 * US)};
    sample.back_ns = second && scene->standing_ns ? scene->standing_ns
                                                  : sawtooth_ns(at_ns + 3 * MS, 7 * MS, 300 * US);
    int64_t apart_ns = scene->apart_ns + at_ns / 1000000 * scene->drift_ppm;
    apart_ns += second ? scene->step_ns : 0;
    sample.took_ns = (uint32_t)(way_ns + sample.back_ns - apart_ns);
    return sample;
}

static void check_sample(const struct scene *scene, struct harp_reverse *reverse, int64_t at_ns)
{
    struct sample sample = sample_at(scene, at_ns);
    int64_t queues_ns = sample.there_ns + sample.back_ns;
    int64_t said_ns = (int64_t)harp_reverse_queue_ns(reverse, sample.took_ns, (uint64_t)queues_ns);
    int64_t off_ns = said_ns - sample.back_ns;
    CHECK(said_ns >= 0 && said_ns <= queues_ns, "%s: at %lld us of %lld us in both queues %lld us",
          scene->name, (long long)at_ns / US, (long long)queues_ns / US, (long long)said_ns / US);
    if (at_ns % (RUN_NS / 2) < SETTLED_NS)
        return;
    CHECK(off_ns <= PRECISE_NS && off_ns >= -PRECISE_NS,
          "%s: at %lld us the queue is %lld ns, found were %lld", scene->name,
          (long long)at_ns / US, (long long)sample.back_ns, (long long)said_ns);
}

static void run_scene(const struct scene *scene)
{
    struct harp_reverse reverse = {0};
    for (int64_t at_ns = 0; at_ns < RUN_NS; at_ns += 2 * STEP_NS) {
        check_sample(scene, &reverse, at_ns + (scene->out_of_order ? STEP_NS : 0));
        check_sample(scene, &reverse, at_ns + (scene->out_of_order ? 0 : STEP_NS));
    }
}

int main(void)
{
    const int64_t s = 1000 * MS, wrap_ns = INT64_C(1) << 32;
    const struct scene scenes[] = {
        {.name = "one clock"},
        {.name = "clocks apart", .apart_ns = 12345 * s},
        {.name = "200 ppm faster", .drift_ppm = 200},
        {.name = "200 ppm slower", .drift_ppm = -200},
        {.name = "set forward", .step_ns = s / 2},
        {.name = "set back", .step_ns = -s / 2},
        {.name = "set by less than a queue", .step_ns = 100 * US},
        {.name = "set back by less than a queue", .step_ns = -100 * US},
        {.name = "a shorter way back", .shorter_ns = 50 * US},
        {.name = "a queue that stands", .standing_ns = 300 * US},
        {.name = "a queue that stands, 200 ppm", .standing_ns = 300 * US, .drift_ppm = -200},
        {.name = "the difference wraps", .apart_ns = wrap_ns + 180 * US, .drift_ppm = 200},
        {.name = "the difference wraps back", .apart_ns = wrap_ns + 280 * US, .drift_ppm = -200},
        {.name = "half of its range", .apart_ns = wrap_ns / 2, .step_ns = s / 2},
        {.name = "out of order", .out_of_order = true},
        {.name = "out of order, 200 ppm", .out_of_order = true, .drift_ppm = 200},
    };
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        run_scene(&scenes[i]);
    return 0;
}
