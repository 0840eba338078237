/* 1 GiB through the production engine over the xdp port, every byte looked at.
 *
 *     stream receive INTERFACES             "ready HANDLE", then one line of JSON
 *     stream send INTERFACES HANDLE [FILE]  one line of JSON
 *
 * MESSAGES messages of MESSAGE_BYTES, or as many as the sender has begun when FILE exists, up to
 * MESSAGES_MOST: the sender writes them where they leave from (drafts), the receiver reads them
 * where they arrived (streamed), so on this way no byte is copied. Every eight bytes depend on
 * message and position. Several INTERFACES, with commas between, have a path each. JSON has the
 * first port's line and all ports' counters.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/engine_state.h"

enum {
    MESSAGES = 1024,
    MESSAGES_MOST = 64 * MESSAGES,
    MESSAGE_BYTES = 1 << 20,
    DRAFTS_MAX = 1024, /* frames of a message */
    FRAMES = 8192,     /* for each interface */
    BATCH = 64,
    WINDOW_BYTES = 200 << 10, /* frames for which the emulated NIC's 256 slots have room */
};
#define PATIENCE_NS UINT64_C(100000000)

static struct harp_engine *engine;
static struct harp_connection *connection;
static bool connected, closed;
static uint32_t reason;                        /* of `closed` */
static uint16_t paths;                         /* one for each interface */
static uint32_t sent, received;                /* messages that are done */
static uint64_t received_bytes[MESSAGES_MOST]; /* of chunks */

static uint64_t expected_word(uint32_t message, uint32_t position)
{
    return ((uint64_t)message << 32 | position) * UINT64_C(0x9e3779b97f4a7c15);
}

static void write_pattern(uint32_t message, uint32_t offset, uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i += 8) {
        uint64_t value = expected_word(message, offset + i);
        memcpy(bytes + i, &value, sizeof value);
    }
}

static void check_pattern(uint32_t message, uint32_t offset, const uint8_t *bytes, uint32_t count)
{
    CHECK(message < MESSAGES_MOST && offset <= MESSAGE_BYTES && count <= MESSAGE_BYTES - offset,
          "%u bytes at %u of message %u, which nobody sent", count, offset, message);
    for (uint32_t i = 0; i < count; i += 8) {
        uint64_t value;
        memcpy(&value, bytes + i, sizeof value);
        CHECK(value == expected_word(message, offset + i), "message %u differs at byte %u", message,
              offset + i);
    }
    received_bytes[message] += count;
}

static void open_engine(char *interfaces)
{
    struct harp_engine_config config;
    char why[HARP_WHY_BYTES];
    char *rest = interfaces;
    harp_engine_defaults(&config);
    config.name = "stream";
    config.progress = HARP_PROGRESS_INLINE;
    for (char *name; (name = strsep(&rest, ","));) {
        CHECK(config.ports_n < HARP_PORTS_MAX, "more than %d interfaces", HARP_PORTS_MAX);
        config.ports[config.ports_n++] = (struct harp_engine_port){
            .open = harp_port_xdp_open,
            .config = {.interface = name, .locals = 1, .queue = -1, .frames_max = FRAMES / 4}};
    }
    paths = (uint16_t)config.ports_n;
    config.frames = FRAMES * paths;
    CHECK(harp_engine_open(&engine, &config, why) == 0, "%s", why);
}

static void configure_connection(struct harp_connection_config *config)
{
    harp_connection_defaults(config);
    config->paths = paths;
    /* Delays between emulated NICs are those of the host's scheduler, not of a network. */
    config->cc = &harp_cc_fixed;
    config->window.initial_bytes = config->window.max_bytes = WINDOW_BYTES;
    config->stream_frames = FRAMES / 4;
    config->draft_frames = FRAMES / 4;
}

static void take_completions(void)
{
    struct harp_completion done[BATCH];
    uint32_t lent[BATCH], lent_n = 0;
    size_t count = harp_poll(connection, done, BATCH);
    for (size_t i = 0; i < count; i++) {
        const struct harp_completion *c = &done[i];
        switch (c->type) {
        case HARP_COMPLETION_CONNECTED:
            connected = true;
            break;
        case HARP_COMPLETION_SENT:
            sent++;
            break;
        case HARP_COMPLETION_CHUNK:
            check_pattern(c->message, c->offset, c->bytes, c->size);
            lent[lent_n++] = c->frame;
            break;
        case HARP_COMPLETION_RECEIVED:
            CHECK(c->message == received && received_bytes[received] == MESSAGE_BYTES,
                  "message %u came after %u whole ones, with %" PRIu64 " bytes", c->message,
                  received, received_bytes[c->message % MESSAGES_MOST]);
            received++;
            break;
        case HARP_COMPLETION_CLOSED:
            closed = true;
            reason = c->reason;
        }
    }
    if (lent_n)
        harp_return(connection, lent, lent_n);
}

/* Sleeps while there is nothing to do: the thread that moves frames needs the host's CPU. */
static void take_turn(bool may_close)
{
    char why[HARP_WHY_BYTES];
    harp_connection_wait(connection, PATIENCE_NS);
    take_completions();
    if (!closed || (may_close && reason == HARP_REASON_DONE))
        return;
    harp_connection_why(connection, why);
    CHECK(false, "the connection ended after %u messages: %s", sent + received, why);
}

/* Write a message into frames and send it. Frames that do not suffice yet are kept for it. */
static bool submit_message(uint32_t message)
{
    static uint32_t frames[DRAFTS_MAX], held;
    uint32_t segment = harp_segment(connection);
    uint32_t wanted = (MESSAGE_BYTES + segment - 1) / segment;
    CHECK(wanted <= DRAFTS_MAX, "segments of %u bytes are too small", segment);
    held += harp_drafts(connection, frames + held, wanted - held);
    if (held < wanted)
        return false;
    for (uint32_t i = 0, at = 0; i < wanted; i++, at += segment) {
        uint32_t left = MESSAGE_BYTES - at;
        write_pattern(message, at, harp_draft_bytes(connection, frames[i]),
                      left < segment ? left : segment);
    }
    if (!harp_send_frames(connection, frames, MESSAGE_BYTES, 0))
        return false;
    held = 0;
    return true;
}

static void report_rates(const char *role)
{
    struct harp_port_counters sum = {.sent = 0};
    for (uint32_t i = 0; i < paths; i++) {
        const struct harp_port_counters *c = &engine->ports[i]->counters;
        sum.sent += c->sent;
        sum.sent_copied += c->sent_copied;
        sum.received += c->received;
        sum.received_copied += c->received_copied;
    }
    printf("{\"role\": \"%s\", \"line\": \"%s\", \"messages\": %u, \"bytes\": %" PRIu64
           ", \"sent\": %" PRIu64 ", \"sent_copied\": %" PRIu64 ", \"received\": %" PRIu64
           ", \"received_copied\": %" PRIu64 "}\n",
           role, engine->ports[0]->line, sent + received,
           (uint64_t)(sent + received) * MESSAGE_BYTES, sum.sent, sum.sent_copied, sum.received,
           sum.received_copied);
}

static void send_all(const char *handle_text, const char *enough)
{
    uint32_t wanted = enough ? MESSAGES_MOST : MESSAGES;

    struct harp_connection_config config;
    struct harp_handle handle;
    char why[HARP_WHY_BYTES];
    CHECK(strlen(handle_text) == 2 * sizeof handle, "the handle has the wrong length");
    for (size_t i = 0; i < sizeof handle; i++)
        CHECK(sscanf(handle_text + 2 * i, "%2hhx", (uint8_t *)&handle + i) == 1, "no handle");
    configure_connection(&config);
    CHECK(harp_connect(engine, &handle, &config, &connection, why) == 0, "%s", why);
    while (!connected)
        take_turn(false);
    for (uint32_t next = 0; sent < wanted; take_turn(sent == wanted)) {
        while (next < wanted && submit_message(next))
            next++;
        if (next && enough && access(enough, F_OK) == 0)
            wanted = next;
    }
}

static void receive_all(void)
{
    struct harp_connection_config config;
    struct harp_listening *listening;
    struct harp_handle handle;
    char why[HARP_WHY_BYTES];
    configure_connection(&config);
    CHECK(harp_listen(engine, &config, &listening, &handle, why) == 0, "%s", why);
    fputs("ready ", stdout);
    for (size_t i = 0; i < sizeof handle; i++)
        printf("%02x", ((const uint8_t *)&handle)[i]);
    puts("");
    fflush(stdout);
    while (!(connection = harp_accept(listening)))
        harp_listening_wait(listening, PATIENCE_NS);
    while (!closed) /* as the sender does once it knows that all came */
        take_turn(received > 0);
}

/* The other end is to hear of the end. */
static void await_end(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (time_t until = now.tv_sec + 2; now.tv_sec < until;) {
        harp_engine_drive(engine);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
}

int main(int count, char **words)
{
    bool sends = count >= 4 && count <= 5 && !strcmp(words[1], "send");
    if (!sends && (count != 3 || strcmp(words[1], "receive"))) {
        fputs("usage: stream receive INTERFACES | send INTERFACES HANDLE [FILE]\n", stderr);
        return 2;
    }
    alarm(1200);
    open_engine(words[2]);
    if (sends)
        send_all(words[3], words[4]);
    else
        receive_all();
    report_rates(words[1]);
    harp_connection_close(connection);
    await_end();
    harp_engine_close(engine);
    return 0;
}
