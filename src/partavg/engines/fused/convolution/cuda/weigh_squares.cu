// The weights' gradient of a convolution of squares: of three taps in a row, for 64 inputs and N outputs.
// A warp group for each tap; the fourth brings two squares at a time, 128 pixels.

#define FIELD 80                        // pixels of a square's rows, with the rim beside it
#define PLANE_X (2 * FIELD * 8 + 8)     // eight channels of all pixels; eight planes lie in different banks
#define PLANE_G (2 * 64 * 8 + 8)
#define AT_ONCE (8 * PLANE_X + N / 8 * PLANE_G)

extern "C" __global__ void __launch_bounds__(512, 1) weigh_squares(
    const u16* x, const u16* grad, float* out, int count, int each, int workers) {
  extern __shared__ uint4 memory[];
  u64 *came = (u64*)memory, *free = came + DEPTH;
  u16* tiles = (u16*)(memory + 16);
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int k = blockIdx.x % (K / N) * N, c = blockIdx.x / (K / N) % ((C + 63) / 64) * 64;
  const int row = blockIdx.x / (K / N) / ((C + 63) / 64), worker = blockIdx.y % workers, split = blockIdx.y / workers;
  const int all = (count * PER_IMAGE + 1) / 2;
  const int begin = split * each, end = begin + each < all ? begin + each : all;
  if (threadIdx.x == 0) {
    for (int i = 0; i < DEPTH; i++) prepare(came + i, 128), prepare(free + i, 12);
    show_barriers();
  }
  __syncthreads();

  if (group == 3) {
    const int t = threadIdx.x % 128, part = t % 8;
    const bool there = c + part * 8 < C;
    x += (size_t)worker * count * GH * GW * C + c + part * 8;
    grad += (size_t)worker * count * GH * GW * K + k;
    for (int step = begin; step < end; step++) {
      const int turn = step - begin;
      u16* to = tiles + turn % DEPTH * AT_ONCE;
      await(free + turn % DEPTH, turn / DEPTH % 2 ^ 1);
      if (there)
#pragma unroll
        for (int i = 0; i < 10; i++) {
          const int p = t / 8 + 16 * i, rest = p % FIELD;
          const int from = pixel_of(step * 2 + p / FIELD, rest / 10 + row - 1, rest % 10 - 1, count);
          copy16(to + part * PLANE_X + p * 8, from < 0 ? grad : x + (size_t)from * C, from >= 0);
        }
#pragma unroll
      for (int i = 0; i < N / 8; i++) {
        const int p = (t + 128 * i) / (N / 8), which = (t + 128 * i) % (N / 8);
        const int from = pixel_of(step * 2 + p / 64, p / 8 % 8, p % 8, count);
        copy16(to + 8 * PLANE_X + which * PLANE_G + p * 8, from < 0 ? grad : grad + (size_t)from * K + which * 8, from >= 0);
      }
      commit();
      if (turn == 0) continue;
      wait_all_but_one();
      show_to_products();
      announce(came + (turn - 1) % DEPTH);
    }
    if (begin >= end) return;
    wait_all();
    show_to_products();
    announce(came + (end - 1 - begin) % DEPTH);
  } else {
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] = 0;
    for (int turn = 0; turn < end - begin; turn++) {
      const u16* here = tiles + turn % DEPTH * AT_ONCE;
      await(came + turn % DEPTH, turn / DEPTH % 2);
      begin_products();
#pragma unroll
      for (int rows = 0; rows < 8; rows++)  // of 8 pixels, two at a time
        add_product<1, 1>(sums,
                          matrix(here + (rows / 4 * FIELD + rows % 4 * 20 + group) * 8, 160, 2 * PLANE_X),
                          matrix(here + 8 * PLANE_X + rows * 128, 128, 2 * PLANE_G));
      commit_products();
      if (turn > 0) {
        wait_for_products<1>();
        if (lane == 0) announce(free + (turn - 1) % DEPTH);
      }
    }
    wait_for_products<0>();
    out += ((size_t)(split * workers + worker) * 9 + row * 3 + group) * C * K;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int input = c + threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
      if (input < C)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
          *(float2*)(out + (size_t)input * K + k + n * 8 + lane % 4 * 2) = {sums[n * 4 + half * 2], sums[n * 4 + half * 2 + 1]};
    }
  }
}
