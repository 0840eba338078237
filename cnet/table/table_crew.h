/* Threads that work at parts of one call side by side.
 *
 * They are those of the process's OpenMP, where harp_embedding_use_openmp named it: torch's threads
 * look for work for milliseconds after their last one, and threads beside them would wait for a CPU
 * that long. Elsewhere, and in a process that was forked from such a one, since OpenMP does not
 * outlive a fork, there is one crew in a process; its threads are started when they are first
 * needed, and sleep between calls.
 *
 * A call has as many parts as there are to be workers. Each thread takes one after another, so all
 * are done if fewer threads come or one comes late. They meet where a call begins and where it
 * ends, and nowhere else. A caller that finds another thread's call under way, or its own crew in a
 * process that was forked, does all the work itself, as one worker.
 */
#ifndef HARP_EMBEDDING_CREW_H
#define HARP_EMBEDDING_CREW_H

#include <stdint.h>

enum { TABLE_CREW_MOST = 64 };

typedef void table_crew_work(void *with, uint32_t worker, uint32_t workers);

/* Have the work done by up to `workers`, and wait. */
void table_crew_run(table_crew_work *work, void *with, uint32_t workers);

#endif
