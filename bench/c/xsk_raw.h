/* AF_XDP by the kernel's own interface alone, for measuring what it can do at best.
 *
 * One socket on one queue of one interface, its rings mapped, its memory registered, and a BPF
 * program of a dozen instructions that gives it UDP over IPv4 to one port and leaves everything
 * else to the kernel. No libxdp, no libbpf; the constants below are those of linux/if_xdp.h and
 * linux/bpf.h, which older headers lack.
 *
 *     frames 0 .. n/2-1 are received into, n/2 .. n-1 are sent from
 *
 *     application --fill--> kernel --rx--> application        (a frame to receive into)
 *     application ---tx---> kernel --completion--> application (a frame to send)
 *
 * Each ring has one producer and one consumer: the index that the other side writes is read with
 * acquire, and one's own is written with release after the entries.
 *
 * Errors end the program: this is a tool, not the stack. Owner: one thread.
 */
#ifndef BENCH_XSK_RAW_H
#define BENCH_XSK_RAW_H

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "bench.h"

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9 /* since 6.17 */
#endif

#define XSK_FRAME_BYTES 4096u
#define XSK_ENTRIES 2048u /* of each ring */
#define XSK_FRAMES (4 * XSK_ENTRIES)
#define XSK_HEADERS 42u /* Ethernet, IPv4, UDP */

struct xsk_ring {
    uint32_t *producer, *consumer, *flags;
    void *entries;
};

struct xsk {
    int fd;
    struct xsk_ring rx, tx, fill, done;
    uint8_t *memory;
    bool zero_copy;
    uint32_t budget;  /* frames that one system call sends in copy mode */
    uint32_t flying;  /* frames between tx and completion */
    uint32_t next_tx; /* sent next, of those to send from */
};

static inline int xsk_bpf(int command, union bpf_attr *attributes)
{
    return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

/* Load the program that gives UDP to `port` to the socket of its queue, and attach it for as long
 * as this process lives. */
static inline void xsk_steer(const struct xsk *xsk, const char *interface, uint32_t queue,
                             uint16_t port, uint32_t mode)
{
    union bpf_attr a = {
        .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = queue + 1};
    int map = xsk_bpf(BPF_MAP_CREATE, &a), fd = xsk->fd;
    if (map < 0)
        bench_die("a map of AF_XDP sockets");
#define LOAD(size, to, from, at) {BPF_LDX | (size) | BPF_MEM, to, from, at, 0}
#define PASS_UNLESS(reg, value, further) {BPF_JMP | BPF_JNE | BPF_K, reg, 0, further, value}
    const struct bpf_insn code[] = {
        LOAD(BPF_W, 2, 1, 0),                                /* r2 = data */
        LOAD(BPF_W, 3, 1, 4),                                /* r3 = data_end */
        {BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0},           /* r4 = r2 */
        {BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, XSK_HEADERS}, /* r4 += headers */
        {BPF_JMP | BPF_JGT | BPF_X, 4, 3, 12, 0},            /* pass what is shorter */
        LOAD(BPF_H, 5, 2, 12),
        PASS_UNLESS(5, htons(0x0800), 10), /* IPv4 */
        LOAD(BPF_B, 5, 2, 23),
        PASS_UNLESS(5, 17, 8), /* UDP */
        LOAD(BPF_H, 5, 2, 36),
        PASS_UNLESS(5, htons(port), 6), /* our port */
        LOAD(BPF_W, 2, 1, 16),          /* r2 = the queue */
        {BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, map},
        {0, 0, 0, 0, 0},
        {BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS}, /* where there is no socket */
        {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
        {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    };
#undef LOAD
#undef PASS_UNLESS
    a = (union bpf_attr){.prog_type = BPF_PROG_TYPE_XDP,
                         .insns = (uintptr_t)code,
                         .insn_cnt = sizeof code / sizeof *code,
                         .license = (uintptr_t)"Dual BSD/GPL"};
    int program = xsk_bpf(BPF_PROG_LOAD, &a);
    if (program < 0)
        bench_die("loading the XDP program");
    a = (union bpf_attr){.link_create = {.prog_fd = (uint32_t)program,
                                         .target_ifindex = if_nametoindex(interface),
                                         .attach_type = BPF_XDP,
                                         .flags = mode}};
    if (xsk_bpf(BPF_LINK_CREATE, &a) < 0)
        bench_die("attaching the XDP program to %s", interface);
    a = (union bpf_attr){
        .map_fd = (uint32_t)map, .key = (uintptr_t)&queue, .value = (uintptr_t)&fd};
    if (xsk_bpf(BPF_MAP_UPDATE_ELEM, &a))
        bench_die("giving queue %u of %s to the socket", queue, interface);
}

static inline struct xsk_ring xsk_map(int fd, int option, uint64_t at,
                                      const struct xdp_ring_offset *offset, size_t entry_bytes)
{
    uint32_t entries = XSK_ENTRIES;
    if (setsockopt(fd, SOL_XDP, option, &entries, sizeof entries))
        bench_die("a ring of %u entries", entries);
    uint8_t *start = mmap(NULL, offset->desc + entries * entry_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_POPULATE, fd, (off_t)at);
    if (start == MAP_FAILED)
        bench_die("mapping a ring");
    return (struct xsk_ring){
        (uint32_t *)(void *)(start + offset->producer),
        (uint32_t *)(void *)(start + offset->consumer),
        (uint32_t *)(void *)(start + offset->flags),
        start + offset->desc,
    };
}

static inline void xsk_rings(struct xsk *xsk)
{
    struct xdp_mmap_offsets at;
    socklen_t length = sizeof at;
    struct xdp_umem_reg umem = {.addr = (uintptr_t)xsk->memory,
                                .len = (uint64_t)XSK_FRAMES * XSK_FRAME_BYTES,
                                .chunk_size = XSK_FRAME_BYTES,
                                .headroom = 64}; /* virtio's header fits into it */
    if (setsockopt(xsk->fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem))
        bench_die("registering memory");
    if (getsockopt(xsk->fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &length))
        bench_die("the rings' offsets");
    size_t desc = sizeof(struct xdp_desc);
    xsk->fill = xsk_map(xsk->fd, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &at.fr, 8);
    xsk->done =
        xsk_map(xsk->fd, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, 8);
    xsk->rx = xsk_map(xsk->fd, XDP_RX_RING, XDP_PGOFF_RX_RING, &at.rx, desc);
    xsk->tx = xsk_map(xsk->fd, XDP_TX_RING, XDP_PGOFF_TX_RING, &at.tx, desc);
}

/* Give all frames to receive into to the kernel. */
static inline void xsk_fill_all(struct xsk *xsk)
{
    for (uint32_t i = 0; i < XSK_ENTRIES; i++)
        ((uint64_t *)xsk->fill.entries)[i] = (uint64_t)i * XSK_FRAME_BYTES;
    __atomic_store_n(xsk->fill.producer, XSK_ENTRIES, __ATOMIC_RELEASE);
}

/* Open a socket on a queue. `bind_flags`: XDP_ZEROCOPY or XDP_COPY; there is no falling back. */
static inline void xsk_open(struct xsk *xsk, const char *interface, uint32_t queue,
                            uint16_t bind_flags)
{
    uint32_t budget = 256;
    int bytes = 64 << 20; /* copy mode charges what it sends to the socket's buffer */
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP,
                                   .sxdp_flags = (uint16_t)(bind_flags | XDP_USE_NEED_WAKEUP),
                                   .sxdp_ifindex = if_nametoindex(interface),
                                   .sxdp_queue_id = queue};
    if (!address.sxdp_ifindex)
        bench_die("no interface %s", interface);
    *xsk = (struct xsk){.fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0), .budget = 32};
    if (xsk->fd < 0)
        bench_die("an AF_XDP socket");
    xsk->memory = bench_memory((size_t)XSK_FRAMES * XSK_FRAME_BYTES);
    xsk_rings(xsk);
    xsk_fill_all(xsk);
    setsockopt(xsk->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    if (!setsockopt(xsk->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof budget))
        xsk->budget = budget;
    while (bind(xsk->fd, (struct sockaddr *)&address, sizeof address))
        if (errno != EBUSY) /* that goes away by itself soon after another socket was closed */
            bench_die("bind to queue %u of %s with %s", queue, interface,
                      bind_flags & XDP_ZEROCOPY ? "zero copy" : "copies");
    struct xdp_options options;
    socklen_t length = sizeof options;
    if (getsockopt(xsk->fd, SOL_XDP, XDP_OPTIONS, &options, &length))
        bench_die("XDP_OPTIONS");
    xsk->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
}

static inline void xsk_kick(struct xsk *xsk)
{
    if (sendto(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
        errno != ENOBUFS)
        bench_die("sendto");
}

/* Take back the frames that the kernel is done with. */
static inline void xsk_complete(struct xsk *xsk)
{
    uint32_t done = __atomic_load_n(xsk->done.producer, __ATOMIC_ACQUIRE) - *xsk->done.consumer;
    __atomic_store_n(xsk->done.consumer, *xsk->done.consumer + done, __ATOMIC_RELEASE);
    xsk->flying -= done;
}

/* The bytes of the frame that is sent next. */
static inline uint8_t *xsk_next(const struct xsk *xsk)
{
    return xsk->memory + (size_t)(XSK_FRAMES / 2 + xsk->next_tx) * XSK_FRAME_BYTES;
}

/* Send the next `count` frames of `bytes` each, once that many are done with; false: not yet. */
static inline bool xsk_send(struct xsk *xsk, uint32_t count, uint32_t bytes)
{
    xsk_complete(xsk);
    if (xsk->flying + count > XSK_ENTRIES) {
        xsk_kick(xsk);
        return false;
    }
    uint32_t at = *xsk->tx.producer;
    for (uint32_t i = 0; i < count; i++) {
        ((struct xdp_desc *)xsk->tx.entries)[(at + i) % XSK_ENTRIES] =
            (struct xdp_desc){.addr = (uint64_t)(xsk_next(xsk) - xsk->memory), .len = bytes};
        xsk->next_tx = (xsk->next_tx + 1) % (XSK_FRAMES / 2);
    }
    __atomic_store_n(xsk->tx.producer, at + count, __ATOMIC_RELEASE);
    xsk->flying += count;
    if (__atomic_load_n(xsk->tx.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP)
        xsk_kick(xsk);
    return true;
}

/* Take up to `room` frames that came, hand each to `use`, give them back; how many. */
static inline uint32_t xsk_receive(struct xsk *xsk, uint32_t room,
                                   void (*use)(void *context, uint8_t *frame, uint32_t bytes),
                                   void *context)
{
    uint32_t at = *xsk->rx.consumer, fill = *xsk->fill.producer;
    uint32_t count = __atomic_load_n(xsk->rx.producer, __ATOMIC_ACQUIRE) - at;
    count = count < room ? count : room;
    for (uint32_t i = 0; i < count; i++) {
        struct xdp_desc desc = ((struct xdp_desc *)xsk->rx.entries)[(at + i) % XSK_ENTRIES];
        use(context, xsk->memory + desc.addr, desc.len);
        /* The fill ring holds as many entries as there are frames to receive into: there is room.
         */
        ((uint64_t *)xsk->fill.entries)[(fill + i) % XSK_ENTRIES] =
            desc.addr / XSK_FRAME_BYTES * XSK_FRAME_BYTES;
    }
    __atomic_store_n(xsk->rx.consumer, at + count, __ATOMIC_RELEASE);
    __atomic_store_n(xsk->fill.producer, fill + count, __ATOMIC_RELEASE);
    if (__atomic_load_n(xsk->fill.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP)
        recvfrom(xsk->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
    return count;
}

/* Ethernet, IPv4 and UDP headers of a frame of `bytes` in all. */
static inline void xsk_headers(uint8_t *frame, const uint8_t to[6], const uint8_t from[6],
                               uint32_t to_ipv4, uint32_t from_ipv4, uint16_t port, uint32_t bytes)
{
    uint16_t ip[10] = {htons(0x4500), htons((uint16_t)(bytes - 14)), 0, htons(0x4000),
                       htons(64 << 8 | 17)};
    uint16_t udp[4] = {htons(port), htons(port), htons((uint16_t)(bytes - 34)), 0};
    uint32_t sum = 0;
    memcpy(ip + 6, &from_ipv4, 4);
    memcpy(ip + 8, &to_ipv4, 4);
    for (int i = 0; i < 10; i++)
        sum += ip[i];
    sum = (sum & 0xffff) + (sum >> 16);
    ip[5] = (uint16_t)~(sum + (sum >> 16));
    memcpy(frame, to, 6);
    memcpy(frame + 6, from, 6);
    memcpy(frame + 12, (uint16_t[]){htons(0x0800)}, 2);
    memcpy(frame + 14, ip, 20);
    memcpy(frame + 34, udp, 8);
}

#endif
