// A worker's weights [K, REAL, taps] in float32 as the lanes of a warp multiply them, in bf16: for the
// outputs from the inputs and, after that, for the inputs' gradient from the outputs'. A block has 16
// of the outputs.

__device__ __forceinline__ u32 two(const float* at, int step) { return round2(at[0], at[step]); }

// The outputs of tile `tile` that lane `lane` multiplies, where a lane has 2 * vec side by side.
__device__ __forceinline__ int output_of(int tile, int lane, int vec) {
  return tile / vec * 8 * vec + lane / 8 * 2 * vec + tile % vec * 2 + lane / 4 % 2;
}

extern "C" __global__ void __launch_bounds__(THREADS) pack_weights(
    const float* weight, uint4* ahead, uint4* back, int apart) {
  extern __shared__ uint4 memory[];
  float* own = (float*)memory;  // [16][C][TAPS + 1], the rest zeros
  const int first = blockIdx.x * 16;
  weight += (size_t)blockIdx.y * apart + first * REAL * TAPS;
#pragma unroll 9
  for (int i = threadIdx.x; i < 16 * C * TAPS; i += THREADS) {  // many on their way at a time
    const int tap = i % TAPS, c = i / TAPS % C, k = i / TAPS / C;
    own[(k * C + c) * (TAPS + 1) + tap] = c < REAL ? weight[(k * REAL + c) * TAPS + tap] : 0;
  }
  __syncthreads();
  const int start = TAPS == 9 ? 0 : 4, taps = TAPS;
  ahead += (size_t)blockIdx.y * 9 * C * K / 8;
  back += (size_t)blockIdx.y * 9 * C * K / 8;
#pragma unroll 3
  for (int i = threadIdx.x; i < taps * (C / 16) * 2 * 32; i += THREADS) {
    const int lane = i % 32, tap = i / 64 / (C / 16), c = i / 64 % (C / 16);
    // Of VEC tiles in a row, those pairs of which some outputs are ours.
    const int pair = VEC == 4 ? first / 32 * 2 + i / 32 % 2 : first / 16;
    if (VEC == 2 && i / 32 % 2) continue;
    const int k = output_of(2 * pair, lane, VEC) - first;
    if (k < 0 || k >= 16) continue;
    const float* at = own + (k * C + c * 16 + lane % 4 * 2) * (TAPS + 1) + tap;
    const float* next = at + 2 * C * (TAPS + 1);  // the next tile's output is two further
    ahead[(((start + tap) * (C / 16) + c) * (K / 16) + pair) * 32 + lane] =
        make_uint4(two(at, TAPS + 1), two(at + 8 * (TAPS + 1), TAPS + 1), two(next, TAPS + 1),
                   two(next + 8 * (TAPS + 1), TAPS + 1));
  }
  if (REAL < C) return;  // images have no gradient
#pragma unroll 3
  for (int i = threadIdx.x; i < taps * (C / 16) * 32; i += THREADS) {
    const int lane = i % 32, pair = i / 32 % (C / 16), tap = i / 32 / (C / 16);
    const int c = output_of(2 * pair, lane, VEC_BACK), kept = FLIP ? TAPS - 1 - tap : tap;
    const float* at = own + (lane % 4 * 2 * C + c) * (TAPS + 1) + kept;
    const float* next = at + 2 * (TAPS + 1);
    const int step = C * (TAPS + 1);
    back[(((start + tap) * (K / 16) + first / 16) * (C / 16) + pair) * 32 + lane] =
        make_uint4(two(at, step), two(at + 8 * step, step), two(next, step), two(next + 8 * step, step));
  }
}
