// The weights' gradient of a convolution of squares: of three taps in a row, for 64 inputs and N outputs.
// A warp group for each tap; the fourth brings two squares at a time, 128 pixels.

// Pixels lie one after another with 64 channels each, and are summed over.

#define FIELD 80            // pixels of a square's rows, with the rim beside it
#define PLANE (2 * 64 * 64)  // 64 channels of all pixels without a rim
#define AT_ONCE (2 * FIELD * 64 + (N + 63) / 64 * PLANE)

// Where eight channels of a pixel lie: in another order for each pixel, so that banks differ.
__device__ __forceinline__ int place_of(int pixel, int part) { return pixel * 64 + (part ^ pixel % 8) * 8; }

extern "C" __global__ void __launch_bounds__(512, 1) weigh_squares(
    const u16* x, const u16* grad, float* out, int count, int each, int workers) {
  extern __shared__ __align__(1024) uint4 memory[];
  u64 *came = (u64*)memory, *free = came + DEPTH;
  u16* tiles = (u16*)(memory + 64);  // as the order of rows needs it, at a multiple of 1024 bytes
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
    grad += (size_t)worker * count * (GH / STEP_Y * (GW / STEP_Y)) * K + k + part * 8;
    int down[5], right[5];  // of the pixels that this thread copies, five of each square
#pragma unroll
    for (int i = 0; i < 5; i++) down[i] = (t / 8 + 16 * i) / 10 + row - 1, right[i] = (t / 8 + 16 * i) % 10 - 1;
    for (int step = begin; step < end; step++) {
      const int turn = step - begin;
      u16* to = tiles + turn % DEPTH * AT_ONCE;
      await(free + turn % DEPTH, turn / DEPTH % 2 ^ 1);
#pragma unroll
      for (int square = 0; square < 2; square++) {
        const int own = step * 2 + square, place = own % PER_IMAGE;
        const int y = place / PER_ROW * 8, left = place % PER_ROW * 8;
        const bool real = own < count * PER_IMAGE;
        const int first = (own / PER_IMAGE * GH + y) * GW + left;
        if (there)
#pragma unroll
          for (int i = 0; i < 5; i++) {
            const bool inside = real && (u32)(y + down[i]) < GH && (u32)(left + right[i]) < GW;
            const int pixel = first + down[i] * GW + right[i];
            copy16(to + place_of(square * FIELD + t / 8 + 16 * i, part), inside ? x + (size_t)pixel * C : grad, inside);
          }
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int pixel = pixel_of(own, t / 64 + 2 * i, t / 8 % 8, count, STEP_Y);
#pragma unroll
          for (int n = 0; n < N; n += 64)
            if (n + part * 8 < N)
              copy16(to + 2 * FIELD * 64 + n / 64 * PLANE + place_of(square * 64 + t / 8 + 16 * i, part),
                     pixel < 0 ? x : grad + (size_t)pixel * K + n, pixel >= 0);
        }
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
                          matrix_of_pixels(here + (rows / 4 * FIELD + rows % 4 * 20 + group) * 64, 1280, 0),
                          matrix_of_pixels(here + (2 * FIELD + rows * 16) * 64, 1024, PLANE * 2));
      commit_products();
      if (turn > 0) {
        wait_for_products<1>();
        if (lane == 0) announce(free + (turn - 1) % DEPTH);
      }
    }
    wait_for_sums(sums);
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
