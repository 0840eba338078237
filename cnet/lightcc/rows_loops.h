/* The loops of rows.h over one row; kernel_loops.h includes this for each kind of CPU. */

TARGET static void scale_row(float *restrict to, const float *restrict from, float weight, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] * weight;
}

TARGET static void add_row(float *restrict to, const float *restrict from, float weight, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i] * weight;
}

TARGET static float dot_rows(const float *one, const float *other, size_t n)
{
    float lanes[HARP_ROW_LANES] = {0}, total = 0;
    size_t at = 0;
    for (; at + HARP_ROW_LANES <= n; at += HARP_ROW_LANES)
        for (size_t i = 0; i < HARP_ROW_LANES; i++)
            lanes[i] += one[at + i] * other[at + i];
    for (size_t i = 0; at + i < n; i++)
        lanes[i] += one[at + i] * other[at + i];
    for (size_t i = 0; i < HARP_ROW_LANES; i++)
        total += lanes[i];
    return total;
}
