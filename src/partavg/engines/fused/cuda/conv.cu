// Convolutions with 3 x 3 taps or one: C channels to K. UP is the input gradient of stride 2, where
// each pixel of a tile becomes four. SUMS 1 also measures the outputs, for the BatchNorm after it;
// SUMS 2 is the gradient of what a BatchNorm and a ReLU gave, sent back through the ReLU and added up.

#define SETS (UP ? 4 : 1)              // outputs of a pixel
#define NT (K / 8 / WN)                // tiles of 8 outputs of a warp
#define STEPS ((RW - 1) * STRIDE + 3)  // rows that a warp reads
#define HELD (C == 16)                 // all weights in registers, otherwise in shared memory
#define GROUPS (STRIPS * (ROWS / RW))  // warps side by side along the pixels
#define OWN (NT * 2)                   // outputs of a lane, side by side
#define PLACES (RW * SETS * 2)         // pixels of a lane

// Where a tap reads the rimmed tile, and which of a pixel's outputs it adds to.
__device__ constexpr int tap_row(int t) { return UP ? (t / 3 == 0 ? 2 : 1) : t / 3; }
__device__ constexpr int tap_column(int t) { return UP ? (t % 3 == 0 ? 2 : 1) : t % 3; }
__device__ constexpr int tap_set(int t) { return UP ? (t / 3 != 1) * 2 + (t % 3 != 1) : 0; }
__device__ constexpr bool uses(int t, int row, int column) {
  return (TAPS == 9 || t == 4) && tap_column(t) == column && row >= tap_row(t)
         && (row - tap_row(t)) % STRIDE == 0 && (row - tap_row(t)) / STRIDE < RW;
}
__device__ constexpr bool used(int row, int column) {
  for (int t = 0; t < 9; t++) if (uses(t, row, column)) return true;
  return false;
}

#if NT == 4
union Vector { uint4 whole; u32 both[4]; };
#else
union Vector { uint2 whole; u32 both[2]; };
#endif

__device__ __forceinline__ Vector read(const u16* at) {
  Vector found;
  found.whole = ((const Vector*)at)->whole;
  return found;
}

// Where the m-th pixel of a lane has its outputs.
__device__ __forceinline__ size_t place_of(int m, int strip, int first, int top, int lane) {
  const int p = m % 2 * 8 + lane / 4, set = m / 2 % SETS, row = top + m / 2 / SETS;
  const int image = first + image_of(strip, p), column = column_of(strip, p);
  const int pixel = UP ? (image * GH * 2 + 2 * row + set / 2) * GW * 2 + 2 * column + set % 2
                       : (image * GH + row) * GW + column;
  return (size_t)pixel * K;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv(
    const u16* x, const uint4* weight, const u16* added, const u16* before, const u16* after,
    const float* mean, const float* rstd, const float* gamma, const float* beta, u16* y,
    float* partial, int count, int each, int apart) {
  extern __shared__ uint4 memory[];
  u16* tiles = (u16*)memory;
  uint4* own = memory + 2 * TILE / 8;
  float* norm = (float*)(own + (HELD ? 0 : 9 * C * K / 8));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int worker = blockIdx.y, side = warp % WN, group = warp / WN;
  const int strip = group % STRIPS, row0 = group / STRIPS * RW;
  const int all = (count + IMAGES - 1) / IMAGES * BANDS;
  const int begin = blockIdx.x * each, end = begin + each < all ? begin + each : all;
  x += (size_t)worker * count * GH * GW * STRIDE * STRIDE * GIVEN;
  weight += (size_t)worker * 9 * C * K / 8;
  const size_t outputs = (size_t)worker * count * GH * GW * SETS * K;
  y += outputs, added += outputs, before += outputs, after += outputs;

  clear(memory);
  if (!HELD)
    for (int i = threadIdx.x + (TAPS == 9 ? 0 : C * K / 2); i < (TAPS == 9 ? 9 : 5) * C * K / 8; i += THREADS)
      copy16((u16*)(own + i), (const u16*)(weight + i), true);
  load_rimmed(tiles, x, begin, count);
  commit();
  uint4 held[HELD ? 9 : 1][NT / 2];
  if (HELD)
#pragma unroll
    for (int t = 0; t < 9; t++)
#pragma unroll
      for (int n = 0; n < NT / 2; n++)
        if (TAPS == 9 || t == 4) held[HELD ? t : 0][n] = weight[(t * (K / 16) + side * NT / 2 + n) * 32 + lane];
  if (SUMS == 2)
    for (int k = threadIdx.x; k < K; k += THREADS) {
      const float factor = rstd[worker * K + k] * gamma[worker * apart + k];
      norm[k] = mean[worker * K + k];
      norm[K + k] = factor;
      norm[2 * K + k] = beta[worker * apart + k] - mean[worker * K + k] * factor;
    }
  float total[OWN] = {}, along[OWN] = {};

  for (int t = begin; t < end; t++) {
    if (t + 1 < end) load_rimmed(tiles + (t + 1 - begin) % 2 * TILE, x, t + 1, count);
    commit();
    wait_all_but_one();
    __syncthreads();
    float sums[RW][SETS][NT][4];
#pragma unroll
    for (int i = 0; i < RW * SETS * NT * 4; i++) (&sums[0][0][0][0])[i] = 0;
    const int first = t / BANDS * IMAGES, top = t % BANDS * ROWS + row0;
    Vector other[PLACES], past[PLACES], active[PLACES];
    if (EARLY)  // on their way while the products are computed
#pragma unroll
      for (int m = 0; m < PLACES; m++) {
        if (first + image_of(strip, m % 2 * 8 + lane / 4) >= count) continue;
        const size_t at = place_of(m, strip, first, top, lane) + side * NT * 8 + lane % 4 * 2 * NT;
        if (ADD) other[m] = read(added + at);
        if (SUMS == 2) past[m] = read(before + at);
        if (SUMS == 2 && RESIDUAL) active[m] = read(after + at);
      }
    const u16* from = tiles + (t - begin) % 2 * TILE + lane / 16 * 8
        + ((image_of(strip, lane % 16) * RIM + row0 * STRIDE) * SPAN
           + column_of(strip, lane % 16) * STRIDE) * PITCH;
#pragma unroll
    for (int c = 0; c < C / 16; c++)
#pragma unroll
      for (int column = 0; column < 3; column++) {
        uint4 b[9][NT / 2];
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
          for (int n = 0; n < NT / 2; n++)
            if ((TAPS == 9 || tap == 4) && tap_column(tap) == column)
              b[tap][n] = HELD ? held[HELD ? tap : 0][n]
                               : own[((tap * (C / 16) + c) * (K / 16) + side * NT / 2 + n) * 32 + lane];
#pragma unroll
        for (int row = 0; row < STEPS; row++) {
          if (!used(row, column)) continue;
          u32 a[4];
          read4(a, from, (row * SPAN + column) * PITCH + c * 16);
#pragma unroll
          for (int tap = 0; tap < 9; tap++)
            if (uses(tap, row, column)) {
              float (*into)[4] = sums[(row - tap_row(tap)) / STRIDE][tap_set(tap)];
#pragma unroll
              for (int n = 0; n < NT / 2; n++) {
                multiply(into[2 * n], a, b[tap][n].x, b[tap][n].y);
                multiply(into[2 * n + 1], a, b[tap][n].z, b[tap][n].w);
              }
            }
        }
      }
    __syncthreads();

    const int k = side * NT * 8 + lane % 4 * 2 * NT;
    {
      float center[2 * NT], factor[2 * NT], shift[2 * NT];
      if (SUMS == 2)
#pragma unroll
        for (int i = 0; i < 2 * NT; i++)
          center[i] = norm[k + i], factor[i] = norm[K + k + i], shift[i] = norm[2 * K + k + i];
#pragma unroll
      for (int m = 0; m < PLACES; m++) {
        if (first + image_of(strip, m % 2 * 8 + lane / 4) >= count) continue;
        const size_t at = place_of(m, strip, first, top, lane) + k;
        if (!EARLY) {
          if (ADD) other[m] = read(added + at);
          if (SUMS == 2) past[m] = read(before + at);
          if (SUMS == 2 && RESIDUAL) active[m] = read(after + at);
        }
        Vector out;
#pragma unroll
        for (int i = 0; i < NT; i++) {
          float one = sums[m / 2 / SETS][m / 2 % SETS][i][m % 2 * 2];
          float two = sums[m / 2 / SETS][m / 2 % SETS][i][m % 2 * 2 + 1];
          if (ADD) one += low(other[m].both[i]), two += high(other[m].both[i]);
          if (SUMS == 2 && RESIDUAL) {
            one = low(active[m].both[i]) > 0 ? one : 0;
            two = high(active[m].both[i]) > 0 ? two : 0;
          } else if (SUMS == 2 && RELU) {
            one = low(past[m].both[i]) * factor[2 * i] + shift[2 * i] > 0 ? one : 0;
            two = high(past[m].both[i]) * factor[2 * i + 1] + shift[2 * i + 1] > 0 ? two : 0;
          }
          out.both[i] = round2(one, two);
          if (SUMS) {
            total[2 * i] += one;
            total[2 * i + 1] += two;
            along[2 * i] += one * (SUMS == 1 ? one : low(past[m].both[i]) - center[2 * i]);
            along[2 * i + 1] += two * (SUMS == 1 ? two : high(past[m].both[i]) - center[2 * i + 1]);
          }
        }
        ((Vector*)(y + at))->whole = out.whole;
      }
    }
  }
  if (!SUMS) return;
  float* found = (float*)memory;  // [2][groups][K]
  __syncthreads();
#pragma unroll
  for (int i = 0; i < OWN; i++) {
#pragma unroll
    for (int across = 4; across < 32; across *= 2) {
      total[i] += __shfl_xor_sync(0xffffffffu, total[i], across);
      along[i] += __shfl_xor_sync(0xffffffffu, along[i], across);
    }
    if (lane < 4) {
      const int k = side * NT * 8 + lane * 2 * NT + i;
      found[group * K + k] = total[i];
      found[(GROUPS + group) * K + k] = along[i];
    }
  }
  __syncthreads();
  partial += ((size_t)worker * gridDim.x + blockIdx.x) * 2 * K;
  for (int k = threadIdx.x; k < K; k += THREADS) {
    float one = 0, two = 0;
    for (int g = 0; g < GROUPS; g++) one += found[g * K + k], two += found[(GROUPS + g) * K + k];
    if (SUMS == 1) {  // mean and squared deviations
      const int left = (count * GH * GW - begin * PIXELS) * SETS;
      const float size = left < each * PIXELS * SETS ? left : each * PIXELS * SETS;
      partial[k] = one / size;
      partial[K + k] = fmaxf(two - one * one / size, 0.0f);
    } else {
      partial[k] = one;
      partial[K + k] = two * rstd[worker * K + k];
    }
  }
}
