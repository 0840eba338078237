/* The memory of another process of this host, read where it lies (process_vm_readv, Linux 3.2).
 *
 * A process that lets others read shows them its number and a word: 64 random bits at an address.
 * Whoever reads takes the word after the bytes, in the same system call. The word is withdrawn, set
 * to zero, before memory that was offered is given back without having been read: so bytes that
 * came with the word are those that were offered. It tells also whether there is such a process:
 * in another PID namespace, or later, its number may be another one's.
 *
 * The kernel may refuse: to other users, with ptrace_scope of Yama (Linux, Yama.rst), by seccomp in
 * a container. Try it before it is relied upon.
 */
#ifndef HARP_LIGHTCC_PEER_MEMORY_H
#define HARP_LIGHTCC_PEER_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
struct harp_peer_memory {
    int32_t process;
    uint64_t word_at;
    uint64_t word;
};

enum harp_peer_read {
    HARP_PEER_READ,
    HARP_PEER_WITHDRAWN, /* its word is not there: it has given up, or is gone */
    HARP_PEER_UNREADABLE /* the bytes are no memory that may be read */
};

/* Read `bytes` at `from` of the peer. */
enum harp_peer_read harp_peer_memory_read(const struct harp_peer_memory *peer, void *to,
                                          uint64_t from, size_t bytes);

/* Allow the other processes of this one's parent to read, where Yama allows it to parents alone:
 * ranks are started by one launcher. */
void harp_peer_memory_allow(void);
/* cdef: end */

#endif
