#include "answers.h"

bool answers_make_room(struct answers *answers)
{
    if (answers->posted - answers->came > answers->due)
        return true;
    uint32_t *number = &answers->numbers[answers->posted % ANSWERS];
    if (answers->due >= ANSWERS || !harp_receive(answers->connection, number, sizeof *number, 0))
        return false;
    answers->posted++;
    return true;
}

void answers_expect(struct answers *answers)
{
    answers->due++;
}

uint32_t answers_take(struct answers *answers)
{
    answers->due--;
    return answers->numbers[answers->came++ % ANSWERS];
}
