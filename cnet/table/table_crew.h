/* Threads that work at parts of one call side by side.
 *
 * There is one crew in a process; its threads are started when they are first needed, and sleep
 * between calls. The caller is worker 0. Workers meet where a call begins and where it ends, and
 * nowhere else. A caller that finds the crew at work for another thread, or in a forked process,
 * does all the work itself, as one worker.
 */
#ifndef HARP_EMBEDDING_CREW_H
#define HARP_EMBEDDING_CREW_H

#include <stdint.h>

enum { TABLE_CREW_MOST = 64 };

typedef void table_crew_work(void *with, uint32_t worker, uint32_t workers);

/* Have the work done by up to `workers`, and wait. */
void table_crew_run(table_crew_work *work, void *with, uint32_t workers);

#endif
