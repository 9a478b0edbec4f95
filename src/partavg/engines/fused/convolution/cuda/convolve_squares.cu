// A convolution with 3 x 3 taps of C channels to K. With stride 2 every second output of stride 1 is kept
// (STEP_Y), and for input gradients every second of what is convolved is not zero (STEP_X). Two warp groups multiply, 2 squares with
// N outputs each; the third brings 32 channels of all four squares with their rims, which serve nine
// taps, and the weights of three taps at a time.

#define FIELD 100                   // pixels of a square with its rim
#define PLANE (4 * FIELD * 8 + 16)  // eight channels of all pixels; four planes lie in different banks
#define PIXELS_AT_ONCE (4 * PLANE)
#define WEIGHTS_AT_ONCE (3 * 32 * N)

// Four lanes exchange four words each: lane i gets the i-th ones of all.
__device__ __forceinline__ void turn(u32* words, int lane) {
#pragma unroll
  for (int across = 1; across < 4; across *= 2)
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      u32 *one = words + (across == 1 ? 2 * pair : pair), *other = one + across;
      const bool upper = lane & across;
      const u32 got = __shfl_xor_sync(0xffffffffu, upper ? *one : *other, across);
      *one = upper ? got : *one, *other = upper ? *other : got;
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) convolve_squares(
    const u16* x, const u16* weight, const u16* added, u16* y, int count, int tiles) {
  extern __shared__ __align__(1024) uint4 memory[];
  u64* came_x = (u64*)memory;
  u64 *free_x = came_x + DEPTH_X, *came_w = free_x + DEPTH_X, *free_w = came_w + DEPTH_W;
  u16* pixels = (u16*)(memory + 16);
  u16* weights = pixels + DEPTH_X * PIXELS_AT_ONCE;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int per_worker = (count * PER_IMAGE + 3) / 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < DEPTH_X; i++) prepare(came_x + i, 96), prepare(free_x + i, 8);
    for (int i = 0; i < DEPTH_W; i++) prepare(came_w + i, 1), prepare(free_w + i, 8);
    show_barriers();
  }
  __syncthreads();

  if (group == 2) {
    leave_registers<72>();
    if (threadIdx.x % 128 < 96) {
      const int t = threadIdx.x % 128, part = t % 4;
      int step = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int place = tile / (K / N) % per_worker;
        const u16* own = x + (size_t)(tile / (K / N) / per_worker) * count * (GH / STEP_X * (GW / STEP_X)) * C + part * 8;
        int from[17];
#pragma unroll
        for (int i = 0; i < 17; i++) {
          const int p = t / 4 + 24 * i, rest = p % FIELD;
          from[i] = pixel_of(place * 4 + p / FIELD, rest / 10 - 1, rest % 10 - 1, count, STEP_X);
        }
        for (int c = 0; c < C; c += 32, step++) {
          await(free_x + step % DEPTH_X, step / DEPTH_X % 2 ^ 1);
          u16* to = pixels + step % DEPTH_X * PIXELS_AT_ONCE + part * PLANE;
#pragma unroll
          for (int i = 0; i < 17; i++) {
            const int p = t / 4 + 24 * i;
            if (p < 4 * FIELD) copy16(to + p * 8, from[i] < 0 ? x : own + (size_t)from[i] * C + c, from[i] >= 0);
          }
          commit();
          if (step == 0) continue;
          wait_all_but_one();
          show_to_products();
          announce(came_x + (step - 1) % DEPTH_X);
        }
      }
      if (step == 0) return;
      wait_all();
      show_to_products();
      announce(came_x + (step - 1) % DEPTH_X);
    } else {
      int step = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u16* own = weight + (size_t)(tile / (K / N) / per_worker) * 9 * C * K;
        const int k = tile % (K / N) * N;
        for (int turns = 0; turns < C / 32 * 3; turns++, step++) {
          const int c = turns / 3 * 32, tap = turns % 3 * 3;
          u64* barrier = came_w + step % DEPTH_W;
          u16* to = weights + step % DEPTH_W * WEIGHTS_AT_ONCE;
          await(free_w + step % DEPTH_W, step / DEPTH_W % 2 ^ 1);
          if (lane == 0) announce_bytes(barrier, WEIGHTS_AT_ONCE * 2);
          __syncwarp();
          for (int i = lane; i < 3 * 4; i += 32)
            copy_block(to + i * N * 8, own + (((tap + i / 4) * (C / 8) + c / 8 + i % 4) * K + k) * 8, N * 16, barrier);
        }
      }
    }
  } else {
    take_registers<216>();
    int step_x = 0, step_w = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      float sums[2][N / 2];
#pragma unroll
      for (int i = 0; i < N; i++) (&sums[0][0])[i] = 0;
      for (int turns = 0; turns < C / 32 * 3; turns++, step_w++) {
        const int row = turns % 3;
        if (row == 0) await(came_x + step_x % DEPTH_X, step_x / DEPTH_X % 2);
        await(came_w + step_w % DEPTH_W, step_w / DEPTH_W % 2);
        const u16* here = pixels + step_x % DEPTH_X * PIXELS_AT_ONCE + (group * 2 * FIELD + row * 10) * 8;
        const u16* taps = weights + step_w % DEPTH_W * WEIGHTS_AT_ONCE;
        begin_products();
#pragma unroll
        for (int column = 0; column < 3; column++)
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const u64 own = matrix(taps + column * 32 * N + c * 16 * N, 16 * N, 128);
#pragma unroll
            for (int square = 0; square < 2; square++)
              add_product<0, 0>(sums[square],
                                matrix(here + c * 2 * PLANE + (square * FIELD + column) * 8, 2 * PLANE, 160), own);
          }
        commit_products();
        if (turns > 0) {  // those before are done, and what they read is free
          wait_for_products<1>();
          if (lane == 0) announce(free_w + (step_w - 1) % DEPTH_W);
          if (lane == 0 && row == 0) announce(free_x + (step_x - 1) % DEPTH_X);
        }
        if (row == 2) step_x++;
      }
      wait_for_sums(sums[0]), wait_for_sums(sums[1]);
      if (lane == 0) announce(free_w + (step_w - 1) % DEPTH_W), announce(free_x + (step_x - 1) % DEPTH_X);

      const int worker = tile / (K / N) / per_worker, place = tile / (K / N) % per_worker;
      const int warp = threadIdx.x / 32 % 4;
#pragma unroll
      for (int square = 0; square < 2; square++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int p = pixel_of(place * 4 + group * 2 + square, warp * 2 + half, lane / 4, count, STEP_Y);
          const size_t at = ((size_t)worker * count * (GH / STEP_Y * (GW / STEP_Y)) + (p < 0 ? 0 : p)) * K + tile % (K / N) * N + lane % 4 * 8;
          u32 all[N / 32][4] = {};
          if (ADD && p >= 0)
#pragma unroll
            for (int n = 0; n < N / 32; n++) *(uint4*)all[n] = *(const uint4*)(added + at + n * 32);
#pragma unroll
          for (int n = 0; n < N / 8; n += 4) {
            u32 words[4], *others = all[n / 4];
            if (ADD) turn(others, lane);
#pragma unroll
            for (int i = 0; i < 4; i++) {
              const float* own = sums[square] + (n + i) * 4 + half * 2;
              words[i] = round2(own[0] + (ADD ? low(others[i]) : 0), own[1] + (ADD ? high(others[i]) : 0));
            }
            turn(words, lane);
            if (p >= 0) *(uint4*)(y + at + n * 8) = *(uint4*)words;
          }
        }
    }
  }
}
