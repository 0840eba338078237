#define _GNU_SOURCE
#include "trial.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/perf.h"
#include "plugin.h"

#define MESSAGE_BYTES                                                                              \
    (UINT32_C(256) << 10) /* a chunk of NCCL's in a ring of many MiB is as long                    \
                           */
#define WINDOW 8          /* under way, as many requests as NCCL has */
#define LEAST_MESSAGES 8
#define MOST_MESSAGES 4096
#define ROUNDS 2
#define LANES 2
#define SLICE_NS UINT64_C(1000000)
#define RUN_NS UINT64_C(4000000) /* a run lasts so long at least, above the noise of wake-ups */
#define RUN_MOST_NS UINT64_C(1000000000)
#define GRACE_NS UINT64_C(250000000)   /* for the second port to be ready, once the first is */
#define BUSY_NS UINT64_C(1000000000)   /* for an answer to come from a peer that is there */
#define ANSWER_NS UINT64_C(5000000000) /* for any to answer; then the connection proper tries */
#define GUEST_NS UINT64_C(5000000000)  /* a place is held so long at most: its host may be gone */

/* A connection by one of the ports. */
struct lane {
    uint8_t family;
    enum { LANE_ASKS, LANE_WARMS, LANE_READY, LANE_LOST } state;
    bool running;
    struct harp_connection *connection; /* NULL: none */
    struct harp_perf run;
    uint32_t messages;          /* of a run */
    uint64_t there_ns, best_ns; /* of a message; best_ns there and back, 0: not known */
};

struct trial {
    struct harp_engine *engine;
    struct lane lanes[LANES];
    uint32_t lane, round;
    bool gives; /* the listening end sends in this run */
    uint64_t begun_ns, ready_ns;
    uint8_t *memory;
};

bool trial_is_due(const struct harp_handle *handle)
{
    bool inet = false, tcp = false;
    for (uint32_t i = 0; i < HARP_HANDLE_ADDRESSES; i++) {
        inet |= handle->addresses[i].family == HARP_INET;
        tcp |= handle->addresses[i].family == HARP_TCP;
    }
    return inet && tcp;
}

static bool send_opening(struct harp_connection *connection, enum opening_kind kind,
                         uint32_t messages)
{
    struct opening opening = {.kind = kind, .messages = messages};
    return harp_send_short(connection, &opening, sizeof opening);
}

bool trial_open_data(struct harp_connection *connection)
{
    return send_opening(connection, OPENING_DATA, 0);
}

static void set_run(struct harp_perf *run, enum harp_perf_role role, uint32_t messages,
                    uint8_t *memory)
{
    *run = (struct harp_perf){.role = role,
                              .size = MESSAGE_BYTES,
                              .window = WINDOW,
                              .messages = messages,
                              .memory = memory};
}

static uint8_t *make_memory(void)
{
    return calloc(2 * WINDOW, MESSAGE_BYTES);
}

/* ---- The connecting end ---- */

struct trial *trial_begin(struct harp_engine *engine, const struct harp_handle *handle,
                          const struct harp_connection_config *config)
{
    static const uint8_t families[LANES] = {HARP_INET, HARP_TCP};
    struct trial *trial = calloc(1, sizeof *trial);
    uint8_t *memory = make_memory();
    char why[HARP_WHY_BYTES];
    if (!trial || !memory) {
        free(trial);
        free(memory);
        return NULL;
    }
    trial->engine = engine;
    trial->memory = memory;
    trial->begun_ns = harp_clock_ns();
    for (uint32_t i = 0; i < LANES; i++) {
        struct harp_connection_config of_lane = *config;
        struct lane *lane = &trial->lanes[i];
        *lane = (struct lane){.family = families[i], .messages = LEAST_MESSAGES};
        of_lane.family = lane->family;
        of_lane.flows_n = 0;
        if (harp_connect(engine, handle, &of_lane, &lane->connection, why) != 0) {
            lane->connection = NULL;
            lane->state = LANE_LOST;
        }
    }
    return trial;
}

static void lose_lane(struct lane *lane)
{
    lane->state = LANE_LOST;
    if (lane->connection)
        harp_connection_abort(lane->connection, "the trial of its port failed");
    lane->connection = NULL;
}

static void begin_run(struct trial *trial, struct lane *lane, bool gives, uint32_t messages)
{
    if (!send_opening(lane->connection, gives ? OPENING_GIVE : OPENING_TAKE, messages))
        return; /* next time */
    set_run(&lane->run, gives ? HARP_PERF_RECEIVE : HARP_PERF_SEND, messages, trial->memory);
    lane->running = true;
}

/* Whether the run is over, and well. */
static bool go_on_running(struct trial *trial, struct lane *lane, uint64_t slice_ns)
{
    uint32_t state = harp_perf_run(lane->connection, trial->engine, &lane->run, slice_ns);
    lane->running = state == HARP_PERF_MORE;
    if (state != HARP_PERF_MORE && state != HARP_PERF_DONE)
        lose_lane(lane);
    return state == HARP_PERF_DONE;
}

/* Until one message has arrived: then that end's NCCL serves the trial, and its port takes frames
 * of full size. */
static void warm_lane(struct trial *trial, struct lane *lane)
{
    struct harp_completion done;
    if (lane->state == LANE_ASKS && harp_poll(lane->connection, &done, 1)) {
        if (done.type != HARP_COMPLETION_CONNECTED) {
            lose_lane(lane);
            return;
        }
        lane->state = LANE_WARMS;
    }
    if (lane->state != LANE_WARMS)
        return;
    if (!lane->running)
        begin_run(trial, lane, false, 1);
    if (lane->running && go_on_running(trial, lane, 0)) /* a turn: others may wait for us */
        lane->state = LANE_READY;
}

static uint32_t count_lanes(const struct trial *trial, int state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < LANES; i++)
        n += (int)trial->lanes[i].state == state;
    return n;
}

bool trial_is_busy(const struct trial *trial)
{
    return trial->ready_ns || harp_clock_ns() - trial->begun_ns < BUSY_NS;
}

/* Whether each lane is ready, or lost. */
static bool are_warm(struct trial *trial)
{
    for (uint32_t i = 0; i < LANES; i++)
        warm_lane(trial, &trial->lanes[i]);
    uint64_t now_ns = harp_clock_ns();
    uint32_t ready = count_lanes(trial, LANE_READY), lost = count_lanes(trial, LANE_LOST);
    if (ready && !trial->ready_ns)
        trial->ready_ns = now_ns;
    bool late = ready                            ? now_ns - trial->ready_ns > GRACE_NS
                : count_lanes(trial, LANE_WARMS) ? false
                                                 : now_ns - trial->begun_ns > ANSWER_NS;
    for (uint32_t i = 0; i < LANES && late; i++)
        if (trial->lanes[i].state == LANE_ASKS || trial->lanes[i].state == LANE_WARMS)
            lose_lane(&trial->lanes[i]);
    return late || ready + lost == LANES;
}

static void next_lane(struct trial *trial)
{
    trial->gives = false;
    trial->lane = (trial->lane + 1) % LANES;
    trial->round += trial->lane == 0;
}

/* A run is over: what comes next. */
static void count_run(struct trial *trial, struct lane *lane)
{
    uint64_t took_ns = lane->run.end_ns - lane->run.begin_ns;
    if (!trial->gives && took_ns < RUN_NS && lane->messages < MOST_MESSAGES) {
        lane->messages *= 2;
        return;
    }
    uint64_t of_message_ns = took_ns / lane->messages + 1;
    if (!trial->gives) {
        lane->there_ns = of_message_ns;
        trial->gives = true;
        return;
    }
    uint64_t both_ns = lane->there_ns + of_message_ns;
    lane->best_ns = lane->best_ns && lane->best_ns < both_ns ? lane->best_ns : both_ns;
    next_lane(trial);
}

static void measure_lane(struct trial *trial)
{
    struct lane *lane = &trial->lanes[trial->lane];
    if (!lane->running)
        begin_run(trial, lane, trial->gives, lane->messages);
    if (lane->running && go_on_running(trial, lane, SLICE_NS))
        count_run(trial, lane);
    else if (lane->running && harp_clock_ns() - lane->run.begin_ns > RUN_MOST_NS)
        lose_lane(lane);
}

static void conclude_trial(const struct trial *trial, struct trial_result *result)
{
    const struct lane *first = &trial->lanes[0], *second = &trial->lanes[1];
    bool is_second = first->state == LANE_LOST ||
                     (second->state != LANE_LOST && second->best_ns < first->best_ns);
    const struct lane *winner = is_second ? second : first, *other = is_second ? first : second;
    *result = (struct trial_result){.family = winner->state == LANE_LOST ? 0 : winner->family};
    if (other->state != LANE_LOST)
        result->percent = (uint32_t)(other->best_ns * 100 / winner->best_ns);
}

bool trial_step(struct trial *trial, struct trial_result *result)
{
    if (plugin.drives)
        harp_engine_drive(trial->engine);
    if (!are_warm(trial))
        return false;
    if (count_lanes(trial, LANE_READY) == LANES && trial->round < ROUNDS)
        measure_lane(trial);
    if (count_lanes(trial, LANE_READY) == LANES && trial->round < ROUNDS)
        return false;
    conclude_trial(trial, result);
    return true;
}

void trial_end(struct trial *trial)
{
    for (uint32_t i = 0; i < LANES; i++)
        if (trial->lanes[i].connection)
            harp_connection_close(trial->lanes[i].connection);
    free(trial->memory);
    free(trial);
}

/* ---- The listening end ---- */

/* Hosts that this rank runs trials with now. A trial has two connections, both from one host. */
static struct guest {
    struct harp_address host;
    uint64_t until_ns; /* the place is free then */
} guests[TRIALS];

struct newcomer {
    struct harp_engine *engine;
    struct harp_connection *connection; /* NULL: it was taken */
    struct harp_address host;           /* of a trial */
    struct opening opening;
    bool posted, waits, running, is_data; /* waits: for a place among the guests */
    struct harp_perf run;
    uint8_t *memory; /* NULL: no trial so far */
};

struct newcomer *newcomer_new(struct harp_engine *engine, struct harp_connection *connection)
{
    struct newcomer *newcomer = calloc(1, sizeof *newcomer);
    if (newcomer)
        *newcomer = (struct newcomer){.engine = engine, .connection = connection};
    return newcomer;
}

static bool is_guest(const struct guest *guest, const struct harp_address *host)
{
    return memcmp(guest->host.ip, host->ip, sizeof host->ip) == 0;
}

/* Take a place among the guests, unless others have all of them. */
static bool become_guest(struct newcomer *newcomer)
{
    struct guest *place = NULL;
    struct harp_path_info info;
    struct harp_address local;
    uint64_t now_ns = harp_clock_ns();
    if (!newcomer->host.family &&
        !harp_connection_path(newcomer->connection, 0, &info, &local, &newcomer->host))
        return false;
    for (uint32_t i = 0; i < TRIALS; i++) {
        if (guests[i].until_ns <= now_ns)
            place = &guests[i];
        else if (is_guest(&guests[i], &newcomer->host))
            return true;
    }
    if (place)
        *place = (struct guest){.host = newcomer->host, .until_ns = now_ns + GUEST_NS};
    return place;
}

void newcomer_end(struct newcomer *newcomer)
{
    for (uint32_t i = 0; newcomer->memory && i < TRIALS; i++)
        if (is_guest(&guests[i], &newcomer->host))
            guests[i].until_ns = 0;
    if (newcomer->connection)
        harp_connection_close(newcomer->connection);
    free(newcomer->memory);
    free(newcomer);
}

struct harp_connection *newcomer_take(struct newcomer *newcomer)
{
    struct harp_connection *connection = newcomer->connection;
    newcomer->connection = NULL;
    return connection;
}

static enum newcomer_state take_opening(struct newcomer *newcomer)
{
    const struct opening *opening = &newcomer->opening;
    newcomer->is_data = opening->kind == OPENING_DATA;
    if (newcomer->is_data)
        return NEWCOMER_DATA;
    bool known = opening->kind == OPENING_TAKE || opening->kind == OPENING_GIVE;
    if (!known || opening->messages - 1 >= MOST_MESSAGES)
        return NEWCOMER_OVER;
    newcomer->waits = !newcomer->memory && !become_guest(newcomer);
    if (newcomer->waits)
        return NEWCOMER_WAITS;
    if (!newcomer->memory && !(newcomer->memory = make_memory()))
        return NEWCOMER_OVER;
    set_run(&newcomer->run, opening->kind == OPENING_TAKE ? HARP_PERF_RECEIVE : HARP_PERF_SEND,
            opening->messages, newcomer->memory);
    newcomer->running = true;
    return NEWCOMER_RUNS;
}

static enum newcomer_state await_opening(struct newcomer *newcomer)
{
    struct harp_completion done;
    if (newcomer->waits)
        return take_opening(newcomer);
    if (!newcomer->posted)
        newcomer->posted =
            harp_receive(newcomer->connection, &newcomer->opening, sizeof newcomer->opening, 0);
    if (!harp_poll(newcomer->connection, &done, 1))
        return newcomer->memory ? NEWCOMER_RUNS : NEWCOMER_WAITS;
    if (done.type != HARP_COMPLETION_RECEIVED || done.size != sizeof newcomer->opening)
        return NEWCOMER_OVER;
    newcomer->posted = false;
    return take_opening(newcomer);
}

enum newcomer_state newcomer_step(struct newcomer *newcomer)
{
    if (newcomer->is_data) /* what comes next is NCCL's */
        return NEWCOMER_DATA;
    if (!newcomer->running)
        return await_opening(newcomer);
    uint32_t state =
        harp_perf_run(newcomer->connection, newcomer->engine, &newcomer->run, SLICE_NS);
    newcomer->running = state == HARP_PERF_MORE;
    return state == HARP_PERF_MORE || state == HARP_PERF_DONE ? NEWCOMER_RUNS : NEWCOMER_OVER;
}
