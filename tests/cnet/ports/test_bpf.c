/* Calls of bpf(2): maps, programs, links, and what the kernel says of them. */
#define _GNU_SOURCE
#include "ports/bpf.h"

#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { ENTRIES = 4 };

static void test_a_map_keeps_what_was_set_until_it_is_removed(void)
{
    int map = harp_bpf_map("test", BPF_MAP_TYPE_HASH, 4, 8, ENTRIES, 0);
    CHECK(map >= 0, "no map: %s", strerror(-map));
    uint32_t seen = 0, key, next;
    uint64_t value;
    key = 99;
    CHECK(harp_bpf_map_next(map, NULL, &next) == -ENOENT, "an empty map has a key");
    CHECK(harp_bpf_map_get(map, &key, &value) == -ENOENT, "nobody has set it");
    CHECK(harp_bpf_map_remove(map, &key) == -ENOENT, "nobody has set it");
    for (key = 0; key < ENTRIES; key++) {
        value = 1000 + key;
        CHECK(harp_bpf_map_set(map, &key, &value) == 0, "set %u", key);
    }
    CHECK(harp_bpf_map_set(map, &key, &value) == -E2BIG, "one more than it holds");
    for (int at = harp_bpf_map_next(map, NULL, &next); !at;
         at = harp_bpf_map_next(map, &key, &next)) {
        CHECK(harp_bpf_map_get(map, &next, &value) == 0 && value == 1000 + next, "key %u", next);
        seen |= 1u << next;
        key = next;
    }
    CHECK(seen == (1u << ENTRIES) - 1, "keys %x", seen);
    key = 2;
    CHECK(harp_bpf_map_remove(map, &key) == 0, "remove");
    CHECK(harp_bpf_map_get(map, &key, &value) == -ENOENT, "it is still there");
    close(map);
}

/* return XDP_PASS; the second instruction alone returns what nobody has set. */
static const struct bpf_insn passes[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = 2},
                                         {.code = BPF_JMP | BPF_EXIT}};

static void test_a_program_is_loaded_and_found_by_its_id(void)
{
    struct bpf_prog_info info = {0}, same = {0};
    int program = harp_bpf_load("passes", passes, 2, 0, NULL, 0);
    CHECK(program >= 0, "not loaded: %s", strerror(-program));
    CHECK(harp_bpf_info(program, &info, sizeof info) == 0, "no info");
    CHECK(info.type == BPF_PROG_TYPE_XDP && strcmp(info.name, "passes") == 0, "%s", info.name);
    int other = harp_bpf_open_id(BPF_PROG_GET_FD_BY_ID, info.id);
    CHECK(other >= 0 && harp_bpf_info(other, &same, sizeof same) == 0, "not found by its id");
    CHECK(same.id == info.id, "another program");
    uint32_t id = info.id - 1;
    CHECK(harp_bpf_next_id(BPF_PROG_GET_NEXT_ID, id, &id) == 0 && id == info.id, "id %u", id);
    CHECK(harp_bpf_next_id(BPF_PROG_GET_NEXT_ID, INT32_MAX - 1, &id) == -ENOENT, "a last id");
    close(other);
    close(program);
}

static void test_the_verifier_says_what_it_minds(void)
{
    char log[4096] = "";
    int program = harp_bpf_load("wrong", passes + 1, 1, 0, log, sizeof log);
    CHECK(program == -EACCES, "loaded: %d", program);
    CHECK(strstr(log, "R0 !read_ok"), "the log is \"%s\"", log);
}

static void test_a_program_is_attached_while_its_link_is_open(const char *device)
{
    struct bpf_link_info info = {0};
    uint32_t index = if_nametoindex(device);
    int program = harp_bpf_load("passes", passes, 2, 0, NULL, 0);
    int link = harp_bpf_attach(program, index, 0);
    CHECK(link >= 0, "not attached: %s", strerror(-link));
    CHECK(harp_bpf_info(link, &info, sizeof info) == 0 && info.xdp.ifindex == index, "elsewhere");
    CHECK(harp_bpf_attach(program, index, 0) == -EBUSY, "two at once");
    close(link);
    link = harp_bpf_attach(program, index, 0);
    CHECK(link >= 0, "the card is not free: %s", strerror(-link));
    close(link);
    close(program);
}

int main(int count, char **words)
{
    CHECK(count == 2, "usage: %s DEVICE", words[0]);
    test_a_map_keeps_what_was_set_until_it_is_removed();
    test_a_program_is_loaded_and_found_by_its_id();
    test_the_verifier_says_what_it_minds();
    test_a_program_is_attached_while_its_link_is_open(words[1]);
    return 0;
}
