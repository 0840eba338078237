#define _GNU_SOURCE
#include "ports/bpf.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel refuses bytes that it does not know unless they are zero, so that every command may
 * pass the whole union. */
static int call_bpf(int command, union bpf_attr *attributes)
{
    long result;
    do
        result = syscall(SYS_bpf, command, attributes, sizeof *attributes);
    while (result < 0 && errno == EAGAIN && command == BPF_PROG_LOAD);
    return result < 0 ? -errno : (int)result;
}

static uint64_t to_address(const void *of)
{
    return (uint64_t)(uintptr_t)of;
}

int harp_bpf_map(const char *name, uint32_t type, uint32_t key_bytes, uint32_t value_bytes,
                 uint32_t entries, uint32_t flags)
{
    union bpf_attr attributes = {0};
    attributes.map_type = type;
    attributes.key_size = key_bytes;
    attributes.value_size = value_bytes;
    attributes.max_entries = entries;
    attributes.map_flags = flags;
    strncpy(attributes.map_name, name, sizeof attributes.map_name - 1);
    return call_bpf(BPF_MAP_CREATE, &attributes);
}

static int access_element(int command, int map, const void *key, const void *value)
{
    union bpf_attr attributes = {0};
    attributes.map_fd = (uint32_t)map;
    attributes.key = to_address(key);
    attributes.value = to_address(value);
    return call_bpf(command, &attributes);
}

int harp_bpf_map_get(int map, const void *key, void *value)
{
    return access_element(BPF_MAP_LOOKUP_ELEM, map, key, value);
}

int harp_bpf_map_set(int map, const void *key, const void *value)
{
    return access_element(BPF_MAP_UPDATE_ELEM, map, key, value);
}

int harp_bpf_map_remove(int map, const void *key)
{
    return access_element(BPF_MAP_DELETE_ELEM, map, key, NULL);
}

int harp_bpf_map_next(int map, const void *key, void *next)
{
    return access_element(BPF_MAP_GET_NEXT_KEY, map, key, next);
}

int harp_bpf_load(const char *name, const struct bpf_insn *code, uint32_t count, uint32_t flags,
                  char *log, uint32_t log_bytes)
{
    union bpf_attr attributes = {0};
    attributes.prog_type = BPF_PROG_TYPE_XDP;
    attributes.insns = to_address(code);
    attributes.insn_cnt = count;
    attributes.license = to_address("Apache-2.0");
    attributes.prog_flags = flags;
    attributes.expected_attach_type = BPF_XDP;
    attributes.log_buf = to_address(log);
    attributes.log_size = log ? log_bytes : 0;
    attributes.log_level = log ? 1 : 0;
    strncpy(attributes.prog_name, name, sizeof attributes.prog_name - 1);
    return call_bpf(BPF_PROG_LOAD, &attributes);
}

int harp_bpf_attach(int program, uint32_t interface, uint32_t flags)
{
    union bpf_attr attributes = {0};
    attributes.link_create.prog_fd = (uint32_t)program;
    attributes.link_create.target_ifindex = interface;
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = flags;
    return call_bpf(BPF_LINK_CREATE, &attributes);
}

int harp_bpf_next_id(int command, uint32_t id, uint32_t *next)
{
    union bpf_attr attributes = {0};
    attributes.start_id = id;
    int error = call_bpf(command, &attributes);
    *next = attributes.next_id;
    return error;
}

int harp_bpf_open_id(int command, uint32_t id)
{
    union bpf_attr attributes = {0};
    attributes.prog_id = id; /* one union for all kinds */
    return call_bpf(command, &attributes);
}

int harp_bpf_info(int fd, void *info, uint32_t bytes)
{
    union bpf_attr attributes = {0};
    attributes.info.bpf_fd = (uint32_t)fd;
    attributes.info.info_len = bytes;
    attributes.info.info = to_address(info);
    return call_bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes);
}
