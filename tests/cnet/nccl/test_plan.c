/* A plan's file as the plugin reads it: what is a rank's own, and nothing else; cut off or changed
 * anywhere it is one sentence, or another plan. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "nccl/plan.h"

static const char text[] =
    "{\"format\": \"harp-plan-1\", \"fabric\": \"0123abcd\", \"load\": [1.5e3, true, null, "
    "\"a\\\"\"],\n"
    " \"ranks\": [{\"rank\": 0, \"listen\": [\"10.0.0.1:61000\", \"10.0.0.1:61001\"]},\n"
    "  {\"rank\": 1, \"host\": {\"name\": \"b\"}, \"listen\": [\"10.0.0.2:61000\"]}],\n"
    " \"flows\": [{\"from\": 0, \"to\": 1, \"source\": \"10.0.0.1:61256\", \"target\": "
    "\"10.0.0.2:61000\"},\n"
    "  {\"from\": 1, \"to\": 0, \"source\": \"10.0.0.2:61300\", \"target\": \"10.0.0.1:61000\"},\n"
    "  {\"from\": 0, \"to\": 1, \"source\": \"10.0.0.1:61257\", \"target\": "
    "\"10.0.0.2:61000\"}]}\n";

static char path[] = "/tmp/harp-test-plan-XXXXXX";
static struct harp_address nic;
static const uint32_t mbps = 25000;
static const struct plan_place here = {
    .addresses = &nic, .mbps = &mbps, .addresses_n = 1, .rank = -1};

static bool read_bytes(struct plan *plan, const char *bytes, size_t n, char *why)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(bytes, 1, n, file) == n, "cannot write %s", path);
    fclose(file);
    why[0] = 0;
    bool right = plan_read(plan, path, &here, why);
    CHECK(right == !*why, "answer %d, sentence \"%s\"", right, why);
    return right;
}

static void check_what_is_read(void)
{
    struct plan plan;
    struct harp_connection_config config = {.flows_n = 0};
    struct harp_handle handle = {.listener = 1};
    char why[HARP_WHY_BYTES];
    CHECK(read_bytes(&plan, text, sizeof text - 1, why), "%s", why);
    CHECK(plan.rank == 0 && plan.flows_n == 2 && strcmp(plan.fabric, "0123abcd") == 0, "rank %u",
          plan.rank);
    CHECK(plan_listen_port(&plan, &nic, 0) == 61000 && plan_listen_port(&plan, &nic, 1) == 61001 &&
              plan_listen_port(&plan, &nic, 2) == 0,
          "listening ports");
    harp_address_parse("10.0.0.2:61000", &handle.addresses[0]);
    for (uint32_t n = 0; n < 3; n++) {
        CHECK(plan_connection(&plan, &nic, 1, &handle, 2, &config), "no flow");
        CHECK(config.flows_n == 2 && config.flows_first == 2 * n, "first %u", config.flows_first);
    }
    harp_address_parse("10.0.0.2:61001", &handle.addresses[0]);
    CHECK(!plan_connection(&plan, &nic, 1, &handle, 1, &config), "a flow to another port");
    plan_free(&plan);
    CHECK(plan_listen_port(&plan, &nic, 0) == 0, "it is gone");
}

/* A host's view of a fabric that is no longer the planned one. */
static void check_stale_fabric(void)
{
    static const struct {
        const char *listen, *rates, *sentence;
    } cases[] = {
        {"\"10.0.0.1:61000\"", "25000", ""},
        {"\"10.0.0.1:61000\"", "10000", ""}, /* the network gives less than the NIC has */
        {"\"10.0.0.1:61000\"", "100000", "counts on 100000 Mb/s of the NIC 10.0.0.1, which has 25"},
        {"\"10.0.0.1:61000\", \"10.0.1.1:61000\"", "1, 1", "rank 0 has the NIC 10.0.1.1, and"},
        {"\"10.0.1.1:61000\", \"10.0.0.1:61000\"", "1, 1", "rank 0 has the NIC 10.0.1.1, and"},
        {"\"10.0.0.1:61000\"", "1, 1", "expected a rate in mbps for each address"},
    };
    struct plan plan;
    char why[HARP_WHY_BYTES], made[1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = snprintf(made, sizeof made,
                         "{\"format\": \"harp-plan-1\", \"ranks\": [{\"rank\": 0, \"listen\": "
                         "[%s], \"mbps\": [%s]}]}",
                         cases[i].listen, cases[i].rates);
        bool fits = read_bytes(&plan, made, (size_t)n, why);
        CHECK(fits == !*cases[i].sentence && strstr(why, cases[i].sentence), "case %zu: \"%s\"", i,
              why);
        plan_free(&plan);
    }
}

static void check_cut_and_changed(void)
{
    static const char others[] = "{}[],:\"\\0x \n";
    char why[HARP_WHY_BYTES], changed[sizeof text];
    struct plan plan;
    for (size_t n = 0; n < sizeof text - 2; n++) {
        CHECK(!read_bytes(&plan, text, n, why), "cut after %zu bytes it is a plan", n);
        plan_free(&plan);
    }
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (const char *other = others; *other; other++) {
            memcpy(changed, text, sizeof text);
            changed[i] = *other;
            read_bytes(&plan, changed, sizeof text - 1, why);
            plan_free(&plan);
        }
}

static void check_deep_nesting(void)
{
    char why[HARP_WHY_BYTES], deep[4096];
    struct plan plan;
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"x\":", 5);
    CHECK(!read_bytes(&plan, deep, sizeof deep, why) && strstr(why, "fewer levels"), "%s", why);
    plan_free(&plan);
}

int main(void)
{
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0, "no file");
    CHECK(harp_address_parse("10.0.0.1", &nic), "address");
    check_what_is_read();
    check_stale_fabric();
    check_cut_and_changed();
    check_deep_nesting();
    unlink(path);
    return 0;
}
