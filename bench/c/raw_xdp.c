#define _GNU_SOURCE
#include "raw_xdp.h"

#include <assert.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9 /* since Linux 6.17 */
#endif

static void fail_with(const char *what, const char *interface)
{
    fprintf(stderr, "raw AF_XDP on %s: %s: %s\n", interface, what, strerror(errno));
    exit(1);
}

static int call_bpf(enum bpf_cmd command, union bpf_attr *attributes)
{
    return (int)syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

/* The program, by hand. r6 is the context, r2 and r3 are the frame's begin and end. */

#define LOAD(size, to, from, at)                                                                   \
    ((struct bpf_insn){                                                                            \
        .code = BPF_LDX | (size) | BPF_MEM, .dst_reg = (to), .src_reg = (from), .off = (at)})
#define MOVE(to, from)                                                                             \
    ((struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = (to), .src_reg = (from)})
#define SET(to, value)                                                                             \
    ((struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (to), .imm = (value)})
#define ADD(to, value)                                                                             \
    ((struct bpf_insn){.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = (to), .imm = (value)})
#define AND(to, value)                                                                             \
    ((struct bpf_insn){.code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = (to), .imm = (value)})
#define JUMP_ABOVE(left, right, skip)                                                              \
    ((struct bpf_insn){                                                                            \
        .code = BPF_JMP | BPF_JGT | BPF_X, .dst_reg = (left), .src_reg = (right), .off = (skip)})
#define JUMP_UNLIKE(left, value, skip)                                                             \
    ((struct bpf_insn){                                                                            \
        .code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = (left), .off = (skip), .imm = (value)})
#define MAP(to, map_fd) /* one load of 64 bits in two places */                                    \
    ((struct bpf_insn){.code = BPF_LD | BPF_DW | BPF_IMM,                                          \
                       .dst_reg = (to),                                                            \
                       .src_reg = BPF_PSEUDO_MAP_FD,                                               \
                       .imm = (map_fd)}),                                                          \
        ((struct bpf_insn){0})
#define CALL(function) ((struct bpf_insn){.code = BPF_JMP | BPF_CALL, .imm = (function)})
#define RETURN ((struct bpf_insn){.code = BPF_JMP | BPF_EXIT})

enum { PROGRAM_LENGTH = 24, PASS = PROGRAM_LENGTH - 2 };

/* Where a jump at index `from` goes to reach the last two instructions. */
#define TO_PASS(from) (PASS - (from) - 1)

static int load_program(int map_fd, uint16_t udp_port)
{
    /* IPv4 without options, not a fragment, UDP, destination port: everything else is not ours. */
    const struct bpf_insn program[] = {
        [0] = LOAD(BPF_W, BPF_REG_2, BPF_REG_1, 0), /* xdp_md.data */
        [1] = LOAD(BPF_W, BPF_REG_3, BPF_REG_1, 4), /* xdp_md.data_end */
        [2] = MOVE(BPF_REG_4, BPF_REG_2),
        [3] = ADD(BPF_REG_4, 14 + 20 + 8),
        [4] = JUMP_ABOVE(BPF_REG_4, BPF_REG_3, TO_PASS(4)),
        [5] = LOAD(BPF_H, BPF_REG_5, BPF_REG_2, 12), /* EtherType */
        [6] = JUMP_UNLIKE(BPF_REG_5, htons(ETH_P_IP), TO_PASS(6)),
        [7] = LOAD(BPF_B, BPF_REG_5, BPF_REG_2, 14), /* version 4, header of five words */
        [8] = JUMP_UNLIKE(BPF_REG_5, 0x45, TO_PASS(8)),
        [9] = LOAD(BPF_H, BPF_REG_5, BPF_REG_2, 20), /* more fragments, fragment's offset */
        [10] = AND(BPF_REG_5, htons(0x3fff)),
        [11] = JUMP_UNLIKE(BPF_REG_5, 0, TO_PASS(11)),
        [12] = LOAD(BPF_B, BPF_REG_5, BPF_REG_2, 23),
        [13] = JUMP_UNLIKE(BPF_REG_5, IPPROTO_UDP, TO_PASS(13)),
        [14] = LOAD(BPF_H, BPF_REG_5, BPF_REG_2, 36),
        [15] = JUMP_UNLIKE(BPF_REG_5, htons(udp_port), TO_PASS(15)),
        [16] = LOAD(BPF_W, BPF_REG_2, BPF_REG_1, 16), /* xdp_md.rx_queue_index */
        [17] = MAP(BPF_REG_1, map_fd),
        [19] = SET(BPF_REG_3, XDP_PASS), /* when no socket is at that queue */
        [20] = CALL(BPF_FUNC_redirect_map),
        [21] = RETURN,
        [PASS] = SET(BPF_REG_0, XDP_PASS),
        [PASS + 1] = RETURN,
    };
    static_assert(sizeof(program) / sizeof(program[0]) == PROGRAM_LENGTH, "jumps go to the end");
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP,
                           .insns = (uintptr_t)program,
                           .insn_cnt = PROGRAM_LENGTH,
                           .license = (uintptr_t)"Apache-2.0",
                           .expected_attach_type = BPF_XDP};
    return call_bpf(BPF_PROG_LOAD, &load);
}

/* The link goes with its file: a process that dies leaves no program on the NIC. */
static void attach_program(struct raw_xdp *xdp, const struct raw_xdp_options *options)
{
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_XSKMAP,
                          .key_size = sizeof(uint32_t),
                          .value_size = sizeof(int),
                          .max_entries = options->queue + 1};
    xdp->map_fd = call_bpf(BPF_MAP_CREATE, &map);
    if (xdp->map_fd < 0)
        fail_with("no map of sockets (CAP_BPF is needed)", options->interface);
    xdp->program_fd = load_program(xdp->map_fd, options->udp_port);
    if (xdp->program_fd < 0)
        fail_with("the kernel refuses the program", options->interface);
    union bpf_attr update = {.map_fd = (uint32_t)xdp->map_fd,
                             .key = (uintptr_t)&options->queue,
                             .value = (uintptr_t)&xdp->fd};
    if (call_bpf(BPF_MAP_UPDATE_ELEM, &update) < 0)
        fail_with("the socket does not go into the map", options->interface);
    union bpf_attr link = {.link_create = {.prog_fd = (uint32_t)xdp->program_fd,
                                           .target_ifindex = xdp->interface,
                                           .attach_type = BPF_XDP,
                                           .flags = XDP_FLAGS_DRV_MODE}};
    xdp->link_fd = call_bpf(BPF_LINK_CREATE, &link);
    if (xdp->link_fd < 0)
        fail_with("the program cannot be attached to the driver", options->interface);
}

static void set_option(const struct raw_xdp *xdp, int option, const void *value, socklen_t bytes,
                       const char *what, const char *interface)
{
    if (setsockopt(xdp->fd, SOL_XDP, option, value, bytes) < 0)
        fail_with(what, interface);
}

static void map_ring(const struct raw_xdp *xdp, struct raw_ring *ring,
                     const struct xdp_ring_offset *at, size_t entry_bytes, uint64_t page_offset,
                     const char *interface)
{
    char *memory = mmap(NULL, at->desc + RAW_RING_SLOTS * entry_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, xdp->fd, (off_t)page_offset);
    if (memory == MAP_FAILED)
        fail_with("a ring cannot be mapped", interface);
    *ring = (struct raw_ring){.producer = (uint32_t *)(memory + at->producer),
                              .consumer = (uint32_t *)(memory + at->consumer),
                              .flags = (uint32_t *)(memory + at->flags),
                              .entries = memory + at->desc,
                              .mask = RAW_RING_SLOTS - 1};
}

static void make_rings(struct raw_xdp *xdp, const char *interface)
{
    const int slots = RAW_RING_SLOTS;
    set_option(xdp, XDP_UMEM_FILL_RING, &slots, sizeof(slots), "no fill ring", interface);
    set_option(xdp, XDP_UMEM_COMPLETION_RING, &slots, sizeof(slots), "no completion ring",
               interface);
    set_option(xdp, XDP_RX_RING, &slots, sizeof(slots), "no rx ring", interface);
    set_option(xdp, XDP_TX_RING, &slots, sizeof(slots), "no tx ring", interface);
    struct xdp_mmap_offsets at;
    socklen_t bytes = sizeof(at);
    if (getsockopt(xdp->fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &bytes) < 0)
        fail_with("the kernel does not report the rings' layout", interface);
    const size_t desc = sizeof(struct xdp_desc), address = sizeof(uint64_t);
    map_ring(xdp, &xdp->rx, &at.rx, desc, XDP_PGOFF_RX_RING, interface);
    map_ring(xdp, &xdp->tx, &at.tx, desc, XDP_PGOFF_TX_RING, interface);
    map_ring(xdp, &xdp->fill, &at.fr, address, XDP_UMEM_PGOFF_FILL_RING, interface);
    map_ring(xdp, &xdp->completion, &at.cr, address, XDP_UMEM_PGOFF_COMPLETION_RING, interface);
}

static void bind_socket(const struct raw_xdp *xdp, const struct raw_xdp_options *options)
{
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP,
                                   .sxdp_flags = XDP_USE_NEED_WAKEUP |
                                                 (options->zero_copy ? XDP_ZEROCOPY : XDP_COPY),
                                   .sxdp_ifindex = xdp->interface,
                                   .sxdp_queue_id = options->queue};
    /* EBUSY: the kernel is still taking down the last socket of this queue. */
    for (int attempt = 0; bind(xdp->fd, (struct sockaddr *)&address, sizeof(address)) < 0;
         attempt++) {
        if (errno != EBUSY || attempt == 200)
            fail_with(options->zero_copy ? "no bind with zero copy" : "no bind in copy mode",
                      options->interface);
        usleep(10000);
    }
}

void raw_xdp_open(struct raw_xdp *xdp, const struct raw_xdp_options *options)
{
    *xdp = (struct raw_xdp){.map_fd = -1, .program_fd = -1, .link_fd = -1};
    xdp->interface = if_nametoindex(options->interface);
    if (xdp->interface == 0)
        fail_with("there is no such interface", options->interface);
    xdp->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (xdp->fd < 0)
        fail_with("no socket (CAP_NET_RAW is needed)", options->interface);
    xdp->umem_bytes = raw_frame(2 * RAW_RING_SLOTS);
    xdp->umem = mmap(NULL, xdp->umem_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (xdp->umem == MAP_FAILED)
        fail_with("no memory", options->interface);
    struct xdp_umem_reg umem = {.addr = (uintptr_t)xdp->umem,
                                .len = xdp->umem_bytes,
                                .chunk_size = RAW_FRAME_BYTES,
                                .headroom = RAW_HEADROOM_BYTES};
    set_option(xdp, XDP_UMEM_REG, &umem, sizeof(umem), "the memory is refused", options->interface);
    make_rings(xdp, options->interface);
    /* Copy mode charges frames to the socket's buffer. Older kernels send 32 frames a call. */
    const int budget = 256, buffer_bytes = 64 << 20;
    setsockopt(xdp->fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof(buffer_bytes));
    setsockopt(xdp->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget));
    bind_socket(xdp, options);
    if (options->udp_port == 0)
        return;
    for (uint32_t i = 0; i < RAW_RING_SLOTS; i++)
        *raw_addr(&xdp->fill, xdp->fill.own++) = raw_frame(i);
    raw_publish(&xdp->fill);
    attach_program(xdp, options);
    raw_kick_receive(xdp);
}

void raw_xdp_close(struct raw_xdp *xdp)
{
    const int files[] = {xdp->link_fd, xdp->program_fd, xdp->map_fd, xdp->fd};
    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (files[i] >= 0)
            close(files[i]);
    munmap(xdp->umem, xdp->umem_bytes);
}

bool raw_xdp_zero_copy(const struct raw_xdp *xdp)
{
    struct xdp_options taken = {0};
    socklen_t bytes = sizeof(taken);
    int rc = getsockopt(xdp->fd, SOL_XDP, XDP_OPTIONS, &taken, &bytes);
    assert(rc == 0);
    (void)rc;
    return taken.flags & XDP_OPTIONS_ZEROCOPY;
}

bool raw_needs_wakeup(const struct raw_ring *ring)
{
    return __atomic_load_n(ring->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

void raw_kick_send(const struct raw_xdp *xdp)
{
    if (sendto(xdp->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0)
        return;
    /* The kernel took its share (EAGAIN) or has no room just now; the ring keeps the rest. */
    if (errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
        fail_with("sending", "its queue");
}

void raw_kick_receive(const struct raw_xdp *xdp)
{
    recvfrom(xdp->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}
