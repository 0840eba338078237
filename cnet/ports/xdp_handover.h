/* A card's program and maps for processes that may not open them by their ids.
 *
 *     process 1: listens at "harp_xdp_1/3/0"      process 2: may load programs, but not open ids
 *         |  <-------- connect ------------------------ |
 *         |  -- SCM_RIGHTS: link, program, ports, sockets -> |   "harp_xdp_1/3/1" is its own
 *
 * Opening a link, a program or a map by its id takes CAP_SYS_ADMIN; holding a descriptor takes
 * nothing. So every process that has them listens at an abstract UNIX socket, whose name is the
 * program's, the interface's index and the first number that is free. Abstract names belong to the
 * network namespace, as interfaces do, so that pods on the host's network meet there, too, and
 * nothing is left behind in a file system. Any process that shares the card may answer: the first
 * one may end.
 *
 * Each end checks the credentials of the other (SO_PEERCRED): it gives descriptors to the same user
 * and to root only, and takes them from no other. The asking end also checks that it got the
 * program that is attached, with its maps.
 *
 * Owner: one port; control plane.
 */
#ifndef HARP_XDP_HANDOVER_H
#define HARP_XDP_HANDOVER_H

#include "ports/xdp_program.h"

/* Listen for processes that want to share the card. A descriptor, or -errno. */
int harp_xdp_handover_listen(uint32_t interface);

/* Answer those who have come; never waits. */
void harp_xdp_handover_answer(int listener, int link, const struct harp_xdp_program *program);

/* Ask whoever shares the card for the link and the program with the id `attached`. Returns the
 * link; -EBUSY if nobody answers yet, -ETIMEDOUT if somebody listens and does not answer in time,
 * -EPROTO if what came is something else. */
int harp_xdp_handover_ask(uint32_t interface, uint32_t attached, struct harp_xdp_program *program);

#endif
