/* The frame pool: taking, handing on, and each step that the table forbids.
 * Prints the table as code has it, "FROM TO" a line, for the test that reads the manual. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/frames.h"
#include "frame_names.h"
#include "virtual/random.h"

enum { COUNT = 40, FRAME_BYTES = 2048 };

static struct harp_arena arena;
static struct harp_frames frames;

static void open_pool(void)
{
    assert(harp_arena_open(&arena, harp_frames_need(COUNT, FRAME_BYTES), HARP_ARENA_LOCAL) == 0);
    assert(harp_frames_open(&frames, &arena, COUNT, FRAME_BYTES) == 0);
}

static void takes_what_is_free(void)
{
    open_pool();
    uint32_t out[COUNT + 1];
    assert((uintptr_t)frames.base % 4096 == 0);
    assert(harp_frames_take(&frames, HARP_FRAME_FILL, out, COUNT - 1) == COUNT - 1);
    for (uint32_t i = 0; i < COUNT - 1; i++)
        assert(out[i] == i && harp_frame_of(&frames, out[i] * (uint64_t)FRAME_BYTES + 77) == i);
    assert(harp_frames_take(&frames, HARP_FRAME_DRAFT, out, 3) == 1 && out[0] == COUNT - 1);
    assert(harp_frames_take(&frames, HARP_FRAME_DRAFT, out, 1) == 0);
    assert(frames.in_state[HARP_FRAME_FILL] == COUNT - 1);
    harp_frames_move(&frames, 5, HARP_FRAME_FILL, HARP_FRAME_FREE);
    assert(harp_frames_take(&frames, HARP_FRAME_DRAFT, out, 2) == 1 && out[0] == 5);
    harp_arena_close(&arena);
}

/* A long random walk beside a plain model: the pool and the model never disagree. */
static void random_walk(void)
{
    open_pool();
    uint8_t model[COUNT] = {0};
    uint64_t random = 1;
    for (int turn = 0; turn < 200000; turn++) {
        uint32_t frame = (uint32_t)virtual_below(&random, COUNT), out;
        uint32_t to = (uint32_t)virtual_below(&random, 16);
        if (to < HARP_FRAME_STATES && model[frame] != HARP_FRAME_FREE &&
            harp_frame_may(model[frame], to)) {
            harp_frames_move(&frames, frame, model[frame], to);
            model[frame] = (uint8_t)to;
        } else if (harp_frames_take(&frames, to & 1 ? HARP_FRAME_FILL : HARP_FRAME_DRAFT, &out,
                                    1)) {
            assert(model[out] == HARP_FRAME_FREE);
            model[out] = to & 1 ? HARP_FRAME_FILL : HARP_FRAME_DRAFT;
        }
        uint32_t counted[HARP_FRAME_STATES] = {0};
        for (int i = 0; i < COUNT; i++)
            counted[model[i]]++;
        assert(memcmp(counted, frames.in_state, sizeof counted) == 0);
    }
    harp_arena_close(&arena);
}

/* Whether a step ends the program. */
static int ends_program(uint32_t frame, enum harp_frame_state from, enum harp_frame_state to)
{
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        fclose(stderr);
        harp_frames_move(&frames, frame, from, to);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* The arena is not there in a child, so these states lie outside of it. */
static void wrong_steps_end_the_program(void)
{
    static uint8_t state[1];
    static uint32_t free_list[1];
    for (int is = 0; is < HARP_FRAME_STATES; is++)
        for (int to = 0; to < HARP_FRAME_STATES; to++) {
            frames = (struct harp_frames){
                .frame_bytes = 64, .count = 1, .state = state, .free = free_list};
            state[0] = (uint8_t)is;
            frames.in_state[is] = 1;
            int may = is != HARP_FRAME_FREE && harp_frame_may(is, to);
            assert(ends_program(0, is, to) == !may);
            assert(ends_program(0, (is + 1) % HARP_FRAME_STATES, to)); /* a wrong belief */
        }
    assert(ends_program(1, HARP_FRAME_KEPT, HARP_FRAME_FREE)); /* no such frame */
}

static void too_small_an_arena(void)
{
    assert(harp_arena_open(&arena, 4096, HARP_ARENA_LOCAL) == 0);
    assert(harp_frames_open(&frames, &arena, (uint32_t)(arena.bytes / 64), 64) == -ENOMEM);
    harp_arena_close(&arena);
}

int main(void)
{
    takes_what_is_free();
    random_walk();
    wrong_steps_end_the_program();
    too_small_an_arena();
    for (int from = 0; from < HARP_FRAME_STATES; from++)
        for (int to = 0; to < HARP_FRAME_STATES; to++)
            if (harp_frame_may(from, to))
                printf("%s %s\n", frame_names[from], frame_names[to]);
    return 0;
}
