#include "ports/xdp_program.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "ports/bpf.h"
#include "ports/port.h"

enum {
    CODE_MAX = 80,
    JUMPS_MAX = 24,
    MAPS_MAX = 8,
    /* Offsets in a packet from its Ethernet header on, which has no VLAN tag here. */
    ETHERTYPE = 12,
    TAG = 14,
    TAG_BYTES = 4,
    IP = 14,
    IP4_FRAGMENT = IP + 6,
    IP4_PROTOCOL = IP + 9,
    IP4_TO = IP + 16,
    UDP4_TO = IP + 20 + 2,
    END4 = IP + 20 + 8,
    IP6_NEXT = IP + 6,
    IP6_TO = IP + 24,
    UDP6_TO = IP + 40 + 2,
    END6 = IP + 40 + 8,
    ETHERTYPE_IP4 = 0x0800,
    ETHERTYPE_IP6 = 0x86dd,
    ETHERTYPE_TAG = 0x8100,
    VLAN_MASK = 0x0fff,
    FRAGMENT_MASK = 0x3fff, /* offset, and more to come */
    VERSION_AND_LENGTH = 0x45,
    UDP = 17,
    KEY = -24, /* on the stack: struct harp_xdp_port_key */
    PASS = 2,
};
_Static_assert(sizeof(struct harp_xdp_port_key) == 20, "KEY, and the stores below");

/* Registers: 1 to 5 are arguments and scratch, 6 and up survive calls, 10 is the stack. */
enum { R0, R1, R2, R3, CONTEXT = 6, DATA = 7, END = 8, NOW = 9, STACK = 10 };

/* Labels that are jumped to before they are set. */
enum label { TO_PASS, TO_UNTAGGED, TO_IP6, TO_LOOKUP, TO_SOCKET };

struct code {
    struct bpf_insn at[CODE_MAX];
    uint32_t count;
    struct {
        uint32_t from;
        enum label to;
    } jumps[JUMPS_MAX];
    uint32_t jumps_n;
};

static void emit_op(struct code *code, uint8_t op, uint8_t to, uint8_t from, int16_t offset,
                    int32_t imm)
{
    assert(code->count < CODE_MAX);
    code->at[code->count++] = (struct bpf_insn){
        .code = op, .dst_reg = to & 15, .src_reg = from & 15, .off = offset, .imm = imm};
}

static void emit_load(struct code *code, uint8_t size, uint8_t to, uint8_t from, int16_t offset)
{
    emit_op(code, BPF_LDX | BPF_MEM | size, to, from, offset, 0);
}

static void emit_store(struct code *code, uint8_t size, int16_t offset, uint8_t from)
{
    emit_op(code, BPF_STX | BPF_MEM | size, STACK, from, offset, 0);
}

static void emit_jump(struct code *code, uint8_t op, uint8_t left, uint8_t right, int32_t imm,
                      enum label to)
{
    assert(code->jumps_n < JUMPS_MAX);
    code->jumps[code->jumps_n].from = code->count;
    code->jumps[code->jumps_n++].to = to;
    emit_op(code, BPF_JMP | op, left, right, 0, imm);
}

static void place_label(struct code *code, enum label here)
{
    for (uint32_t i = 0; i < code->jumps_n; i++)
        if (code->jumps[i].to == here)
            code->at[code->jumps[i].from].off = (int16_t)(code->count - code->jumps[i].from - 1);
}

static void load_map(struct code *code, uint8_t to, int map)
{
    emit_op(code, BPF_LD | BPF_IMM | BPF_DW, to, BPF_PSEUDO_MAP_FD, 0, map);
    emit_op(code, 0, 0, 0, 0, 0);
}

/* Pass on packets that end before `bytes`. */
static void require_length(struct code *code, int32_t bytes)
{
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_X, R2, DATA, 0, 0);
    emit_op(code, BPF_ALU64 | BPF_ADD | BPF_K, R2, 0, 0, bytes);
    emit_jump(code, BPF_JGT | BPF_X, R2, END, 0, TO_PASS);
}

/* Pass on packets whose byte there is not `value`. */
static void require_byte(struct code *code, int16_t offset, int32_t value)
{
    emit_load(code, BPF_B, R3, DATA, offset);
    emit_jump(code, BPF_JNE | BPF_K, R3, 0, value, TO_PASS);
}

/* Pass on packets that have one of these bits set. */
static void refuse_bits(struct code *code, int16_t offset, uint16_t bits)
{
    emit_load(code, BPF_H, R3, DATA, offset);
    emit_op(code, BPF_ALU64 | BPF_AND | BPF_K, R3, 0, 0, htons(bits));
    emit_jump(code, BPF_JNE | BPF_K, R3, 0, 0, TO_PASS);
}

/* Leaves the destination address in the key and the port in R3, or jumps. */
static void read_packet(struct code *code)
{
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_X, CONTEXT, R1, 0, 0);
    emit_load(code, BPF_W, DATA, R1, offsetof(struct xdp_md, data));
    emit_load(code, BPF_W, END, R1, offsetof(struct xdp_md, data_end));
    require_length(code, END4);
    emit_load(code, BPF_H, R3, DATA, ETHERTYPE);
    emit_jump(code, BPF_JNE | BPF_K, R3, 0, htons(ETHERTYPE_TAG), TO_UNTAGGED);
    refuse_bits(code, TAG, VLAN_MASK);
    emit_load(code, BPF_H, R3, DATA, ETHERTYPE + TAG_BYTES);
    emit_op(code, BPF_ALU64 | BPF_ADD | BPF_K, DATA, 0, 0, TAG_BYTES);
    place_label(code, TO_UNTAGGED);
    emit_jump(code, BPF_JEQ | BPF_K, R3, 0, htons(ETHERTYPE_IP6), TO_IP6);
    emit_jump(code, BPF_JNE | BPF_K, R3, 0, htons(ETHERTYPE_IP4), TO_PASS);

    require_length(code, END4);
    require_byte(code, IP, VERSION_AND_LENGTH);
    require_byte(code, IP4_PROTOCOL, UDP);
    refuse_bits(code, IP4_FRAGMENT, FRAGMENT_MASK);
    emit_op(code, BPF_ST | BPF_MEM | BPF_DW, STACK, 0, KEY, 0);
    emit_op(code, BPF_ST | BPF_MEM | BPF_W, STACK, 0, KEY + 8, (int32_t)0xffff0000); /* ::ffff: */
    emit_load(code, BPF_W, R3, DATA, IP4_TO);
    emit_store(code, BPF_W, KEY + 12, R3);
    emit_load(code, BPF_H, R3, DATA, UDP4_TO);
    emit_jump(code, BPF_JA, 0, 0, 0, TO_LOOKUP);

    place_label(code, TO_IP6);
    require_length(code, END6);
    require_byte(code, IP6_NEXT, UDP);
    for (int16_t i = 0; i < 16; i += 4) {
        emit_load(code, BPF_W, R3, DATA, IP6_TO + i);
        emit_store(code, BPF_W, KEY + i, R3);
    }
    emit_load(code, BPF_H, R3, DATA, UDP6_TO);
    place_label(code, TO_LOOKUP);
}

/* Write the time before the packet, where the driver has room for metadata. */
static void write_time_stamp(struct code *code)
{
    const int32_t bytes = sizeof(uint64_t);
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_X, R1, CONTEXT, 0, 0);
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_K, R2, 0, 0, -bytes);
    emit_op(code, BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_xdp_adjust_meta);
    emit_jump(code, BPF_JNE | BPF_K, R0, 0, 0, TO_SOCKET);
    emit_op(code, BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_ktime_get_ns);
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_X, NOW, R0, 0, 0);
    emit_load(code, BPF_W, R1, CONTEXT, offsetof(struct xdp_md, data_meta));
    emit_load(code, BPF_W, R2, CONTEXT, offsetof(struct xdp_md, data));
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_X, R3, R1, 0, 0);
    emit_op(code, BPF_ALU64 | BPF_ADD | BPF_K, R3, 0, 0, bytes);
    emit_jump(code, BPF_JGT | BPF_X, R3, R2, 0, TO_SOCKET);
    emit_op(code, BPF_STX | BPF_MEM | BPF_DW, R1, NOW, 0, 0);
}

static void assemble_program(struct code *code, const struct harp_xdp_program *program,
                             uint32_t interface)
{
    read_packet(code);
    emit_store(code, BPF_H, KEY + 16, R3);
    emit_op(code, BPF_ST | BPF_MEM | BPF_H, STACK, 0, KEY + 18, 0);
    load_map(code, R1, program->ports);
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_X, R2, STACK, 0, 0);
    emit_op(code, BPF_ALU64 | BPF_ADD | BPF_K, R2, 0, 0, KEY);
    emit_op(code, BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem);
    emit_jump(code, BPF_JEQ | BPF_K, R0, 0, 0, TO_PASS);
    emit_load(code, BPF_W, R2, CONTEXT, offsetof(struct xdp_md, ingress_ifindex));
    emit_jump(code, BPF_JNE | BPF_K, R2, 0, (int32_t)interface, TO_PASS);
    emit_load(code, BPF_W, R2, CONTEXT, offsetof(struct xdp_md, rx_queue_index));
    emit_load(code, BPF_W, R3, R0, 0);
    emit_jump(code, BPF_JNE | BPF_X, R2, R3, 0, TO_PASS);
    write_time_stamp(code);
    place_label(code, TO_SOCKET);
    emit_load(code, BPF_W, R2, CONTEXT, offsetof(struct xdp_md, rx_queue_index));
    load_map(code, R1, program->sockets);
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_K, R3, 0, 0, PASS);
    emit_op(code, BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map);
    emit_op(code, BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    place_label(code, TO_PASS);
    emit_op(code, BPF_ALU64 | BPF_MOV | BPF_K, R0, 0, 0, PASS);
    emit_op(code, BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
}

struct harp_xdp_port_key harp_xdp_port_key(const struct harp_address *address)
{
    struct harp_xdp_port_key key = {.port = htons(address->port)};
    memcpy(key.ip, address->ip, sizeof key.ip);
    return key;
}

int harp_xdp_program_load(struct harp_xdp_program *program, uint32_t interface, uint32_t queues,
                          char *why)
{
    char log[4096] = "";
    struct code code = {.count = 0};
    *program = (struct harp_xdp_program){-1, -1, -1};
    program->ports = harp_bpf_map("harp_ports", BPF_MAP_TYPE_HASH, sizeof(struct harp_xdp_port_key),
                                  sizeof(uint32_t), HARP_XDP_PORTS_MAX, BPF_F_NO_PREALLOC);
    program->sockets =
        harp_bpf_map("harp_sockets", BPF_MAP_TYPE_XSKMAP, sizeof(uint32_t), sizeof(int), queues, 0);
    int error = program->ports < 0 ? program->ports : program->sockets;
    if (error < 0) {
        harp_xdp_program_close(program);
        snprintf(why, HARP_WHY_BYTES, "no BPF map can be made (%s): %s", strerror(-error),
                 error == -EPERM ? "the xdp port needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, and "
                                   "before Linux 5.11 ulimit -l unlimited"
                                 : "the kernel needs CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS");
        return error;
    }
    assemble_program(&code, program, interface);
    /* Kernels before 5.18 do not know packets in several buffers. */
    error = harp_bpf_load(HARP_XDP_PROGRAM_NAME, code.at, code.count, BPF_F_XDP_HAS_FRAGS, NULL, 0);
    if (error == -EINVAL)
        error = harp_bpf_load(HARP_XDP_PROGRAM_NAME, code.at, code.count, 0, NULL, 0);
    /* A log that is too short makes kernels before 6.4 refuse what they would take. */
    if (error < 0) {
        int again = harp_bpf_load(HARP_XDP_PROGRAM_NAME, code.at, code.count, 0, log, sizeof log);
        error = again < 0 ? error : again;
    }
    program->program = error;
    if (error >= 0)
        return 0;
    harp_xdp_program_close(program);
    log[strcspn(log, "\n")] = 0;
    snprintf(why, HARP_WHY_BYTES, "the kernel refuses the XDP program (%s): %.100s%s",
             strerror(-error), log,
             error == -EPERM ? "the xdp port needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW" : "");
    return error;
}

/* Open the program's maps, recognised by their types. */
static int find_maps(struct harp_xdp_program *program)
{
    uint32_t ids[MAPS_MAX];
    struct bpf_prog_info info = {.nr_map_ids = MAPS_MAX, .map_ids = (uint64_t)(uintptr_t)ids};
    int error = harp_bpf_info(program->program, &info, sizeof info);
    for (uint32_t i = 0; error == 0 && i < info.nr_map_ids && i < MAPS_MAX; i++) {
        struct bpf_map_info map = {0};
        int fd = harp_bpf_open_id(BPF_MAP_GET_FD_BY_ID, ids[i]);
        if (fd < 0)
            return fd;
        error = harp_bpf_info(fd, &map, sizeof map);
        if (error == 0 && map.type == BPF_MAP_TYPE_XSKMAP && program->sockets < 0)
            program->sockets = fd;
        else if (error == 0 && map.key_size == sizeof(struct harp_xdp_port_key) &&
                 program->ports < 0)
            program->ports = fd;
        else
            close(fd);
    }
    if (error == 0 && (program->sockets < 0 || program->ports < 0))
        error = -EPROTO;
    return error;
}

static bool lists_map(const struct bpf_prog_info *info, const uint32_t *ids, int map, uint32_t type)
{
    struct bpf_map_info about = {0};
    if (harp_bpf_info(map, &about, sizeof about) < 0 || about.type != type)
        return false;
    for (uint32_t i = 0; i < info->nr_map_ids && i < MAPS_MAX; i++)
        if (ids[i] == about.id)
            return true;
    return false;
}

bool harp_xdp_program_is(const struct harp_xdp_program *program, uint32_t id)
{
    uint32_t ids[MAPS_MAX];
    struct bpf_prog_info info = {.nr_map_ids = MAPS_MAX, .map_ids = (uint64_t)(uintptr_t)ids};
    return harp_bpf_info(program->program, &info, sizeof info) == 0 && info.id == id &&
           strcmp(info.name, HARP_XDP_PROGRAM_NAME) == 0 &&
           lists_map(&info, ids, program->ports, BPF_MAP_TYPE_HASH) &&
           lists_map(&info, ids, program->sockets, BPF_MAP_TYPE_XSKMAP);
}

int harp_xdp_program_find(struct harp_xdp_program *program, uint32_t id, const char *interface,
                          char *why)
{
    struct bpf_prog_info info = {0};
    *program = (struct harp_xdp_program){-1, -1, -1};
    int error = program->program = harp_bpf_open_id(BPF_PROG_GET_FD_BY_ID, id);
    if (error == -EPERM || error == -EACCES) {
        snprintf(why, HARP_WHY_BYTES,
                 "%s has an XDP program already (id %u), and no HARP process of this user hands it "
                 "over: end what attached it, or give CAP_SYS_ADMIN",
                 interface, id);
        return error;
    }
    if (error >= 0)
        error = harp_bpf_info(program->program, &info, sizeof info);
    if (error == 0 && strcmp(info.name, HARP_XDP_PROGRAM_NAME) == 0)
        error = find_maps(program);
    else if (error == 0)
        error = -EEXIST;
    if (error == 0)
        return 0;
    harp_xdp_program_close(program);
    if (error == -EEXIST &&
        strncmp(info.name, HARP_XDP_PROGRAM_STEM, strlen(HARP_XDP_PROGRAM_STEM)) == 0)
        snprintf(why, HARP_WHY_BYTES,
                 "%s is used by another version of HARP, whose XDP program is %s and not %s: run "
                 "one version on it",
                 interface, info.name, HARP_XDP_PROGRAM_NAME);
    else if (error == -EEXIST)
        snprintf(why, HARP_WHY_BYTES,
                 "%s has another XDP program already, '%s' (id %u): detach it, or use port udp",
                 interface, info.name, id);
    else
        snprintf(why, HARP_WHY_BYTES, "the XDP program of %s (id %u) cannot be shared: %s",
                 interface, id, strerror(-error));
    return error;
}

void harp_xdp_program_close(struct harp_xdp_program *program)
{
    int *const fds[] = {&program->program, &program->ports, &program->sockets};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}
