/* bpf(2), as far as the xdp port needs it. All return a descriptor or 0, or -errno.
 *
 * Descriptors close on exec. Those by id need CAP_SYS_ADMIN: ids name what other processes made.
 */
#ifndef HARP_BPF_H
#define HARP_BPF_H

#include <linux/bpf.h>
#include <stdint.h>

int harp_bpf_map(const char *name, uint32_t type, uint32_t key_bytes, uint32_t value_bytes,
                 uint32_t entries, uint32_t flags);
int harp_bpf_map_get(int map, const void *key, void *value);
int harp_bpf_map_set(int map, const void *key, const void *value);
int harp_bpf_map_remove(int map, const void *key);

/* The key behind `key`, or the first if that is NULL; -ENOENT at the end. */
int harp_bpf_map_next(int map, const void *key, void *next);

/* Load an XDP program; `log` (may be NULL) gets what the verifier says. */
int harp_bpf_load(const char *name, const struct bpf_insn *code, uint32_t count, uint32_t flags,
                  char *log, uint32_t log_bytes);

/* Attach a program to an interface for as long as the descriptor, or a copy of it, is open. */
int harp_bpf_attach(int program, uint32_t interface, uint32_t flags);

/* The object behind `id` among links, maps or programs (BPF_LINK_GET_NEXT_ID, …). */
int harp_bpf_next_id(int command, uint32_t id, uint32_t *next);

/* Open the object with that id (BPF_LINK_GET_FD_BY_ID, …). */
int harp_bpf_open_id(int command, uint32_t id);

/* Read struct bpf_link_info, bpf_map_info or bpf_prog_info. */
int harp_bpf_info(int fd, void *info, uint32_t bytes);

#endif
