// The weights' gradient of a convolution, over `each` tiles of a worker's images; TOTAL of all blocks, or
// that of each in a part of its own.

#define INPUTS (C / 16)
#define OUTPUTS (K / SIDE)
#define GROUPS (THREADS / 32 / (INPUTS * OUTPUTS))  // warps side by side along the pixels
#define OTHER (PIXELS * (K + 8))

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) weight_gradient(
    const u16* x, const u16* grad, float* parts, float* out, u32* tickets, int count, int each, int workers,
    int apart) {
  extern __shared__ uint4 memory[];
  u16* tiles = (u16*)memory;
  u16* others = tiles + 2 * TILE;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, worker = blockIdx.y;
  const int input = warp % INPUTS, output = warp / INPUTS % OUTPUTS, group = warp / (INPUTS * OUTPUTS);
  const int all = (count + IMAGES - 1) / IMAGES * BANDS;
  const int begin = blockIdx.x * each, end = begin + each < all ? begin + each : all;
  x += (size_t)worker * count * GH * GW * STRIDE * STRIDE * GIVEN;
  grad += (size_t)worker * count * GH * GW * K;
  clear(memory);
  float sums[TAPS][SIDE / 8][4] = {};
  load_rimmed(tiles, x, begin, count);
  load_pixels(others, grad, begin, count);
  commit();
  for (int t = begin; t < end; t++) {
    const int now = (t - begin) % 2;
    if (t + 1 < end) {
      load_rimmed(tiles + (1 - now) * TILE, x, t + 1, count);
      load_pixels(others + (1 - now) * OTHER, grad, t + 1, count);
    }
    commit();
    wait_all_but_one();
    __syncthreads();
    for (int unit = group; unit < STRIPS * (ROWS / RW); unit += GROUPS) {
      const int strip = unit % STRIPS, row0 = unit / STRIPS * RW;
      add_taps<RW>(sums, tiles + now * TILE + input * 16, others + now * OTHER + output * SIDE, strip, row0,
                   lane, [](u32*) {});
    }
    __syncthreads();
  }
  float* found = (float*)memory;  // [K][REAL][taps]
  // One group after another, so that the sum is the same every time.
  for (int turn = 0; turn < GROUPS; turn++) {
    if (group == turn)
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int c = input * 16 + i / 2 * 8 + lane / 4;
            const int k = output * SIDE + n * 8 + lane % 4 * 2 + i % 2;
            if (c >= REAL) continue;
            float* at = found + (k * REAL + c) * TAPS + tap;
            *at = turn ? *at + sums[tap][n][i] : sums[tap][n][i];
          }
    __syncthreads();
  }
  parts += (size_t)worker * K * REAL * TAPS;
  out += (size_t)worker * apart;
  const size_t all_parts = (size_t)workers * K * REAL * TAPS;
  float* to = gridDim.x == 1 ? out : parts + blockIdx.x * all_parts;
  for (int i = threadIdx.x; i < K * REAL * TAPS; i += THREADS) to[i] = found[i];
  if (TOTAL && gridDim.x > 1 && comes_last(tickets + worker, memory)) add_blocks(out, parts, K * REAL * TAPS, all_parts);
}
