// The weights' gradient of a convolution, over `each` tiles of a worker's images.

#define SIDE (K >= 32 ? 32 : 16)  // outputs of a warp; it has 16 inputs
#define INPUTS (C / 16)
#define OUTPUTS (K / SIDE)
#define GROUPS (THREADS / 32 / (INPUTS * OUTPUTS))  // warps side by side along the pixels
#define STEPS ((RW - 1) * STRIDE + 3)
#define OTHER (PIXELS * (K + 8))

__device__ constexpr bool uses(int t, int row, int column) {
  return (TAPS == 9 || t == 4) && t % 3 == column && row >= t / 3
         && (row - t / 3) % STRIDE == 0 && (row - t / 3) / STRIDE < RW;
}
__device__ constexpr bool used(int row, int column) {
  for (int t = 0; t < 9; t++) if (uses(t, row, column)) return true;
  return false;
}

__device__ __forceinline__ void load_gradient(u16* other, const u16* grad, int t, int count) {
  const int begin = t * PIXELS * (K / 8), end = count * GH * GW * (K / 8);
#pragma unroll 4
  for (int i = threadIdx.x; i < PIXELS * (K / 8); i += THREADS) {
    const bool inside = begin + i < end;
    copy16(other + i / (K / 8) * (K + 8) + i % (K / 8) * 8, inside ? grad + (begin + i) * 8 : grad, inside);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) weight(
    const u16* x, const u16* grad, float* out, int count, int each, int workers) {
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
  load_gradient(others, grad, begin, count);
  commit();
  for (int t = begin; t < end; t++) {
    const int now = (t - begin) % 2;
    if (t + 1 < end) {
      load_rimmed(tiles + (1 - now) * TILE, x, t + 1, count);
      load_gradient(others + (1 - now) * OTHER, grad, t + 1, count);
    }
    commit();
    wait_all_but_one();
    __syncthreads();
    for (int unit = group; unit < STRIPS * (ROWS / RW); unit += GROUPS) {
      const int strip = unit % STRIPS, row0 = unit / STRIPS * RW;
      const int p = lane % 8 + lane / 8 % 2 * 8, q = lane % 8 + lane / 16 * 8;
      const u16* right = others + now * OTHER + output * SIDE + lane / 16 * 8
          + ((image_of(strip, p) * ROWS + row0) * GW + column_of(strip, p)) * (K + 8);
      const u16* left = tiles + now * TILE + input * 16 + lane / 8 % 2 * 8
          + ((image_of(strip, q) * RIM + row0 * STRIDE) * SPAN + column_of(strip, q) * STRIDE) * PITCH;
      u32 b[RW][SIDE / 16][4];
#pragma unroll
      for (int row = 0; row < STEPS; row++) {
        if (row % STRIDE == 0 && row / STRIDE < RW)
#pragma unroll
          for (int n = 0; n < SIDE / 16; n++)
            read4_across(b[row / STRIDE < RW ? row / STRIDE : 0][n], right,
                         row / STRIDE * GW * (K + 8) + n * 16);
#pragma unroll
        for (int column = 0; column < 3; column++) {
          if (!used(row, column)) continue;
          u32 a[4];
          read4_across(a, left, (row * SPAN + column) * PITCH);
#pragma unroll
          for (int tap = 0; tap < 9; tap++)
            if (uses(tap, row, column))
#pragma unroll
              for (int n = 0; n < SIDE / 16; n++) {
                const u32* with = b[(row - tap / 3) / STRIDE][n];
                multiply(sums[TAPS == 9 ? tap : 0][2 * n], a, with[0], with[1]);
                multiply(sums[TAPS == 9 ? tap : 0][2 * n + 1], a, with[2], with[3]);
              }
        }
      }
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
  out += ((size_t)blockIdx.x * workers + worker) * K * REAL * TAPS;
  for (int i = threadIdx.x; i < K * REAL * TAPS; i += THREADS) out[i] = found[i];
}
