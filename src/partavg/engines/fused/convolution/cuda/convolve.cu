// Convolutions with 3 x 3 taps or one: C channels to K. SUMS 1 also measures the outputs, for the
// BatchNorm after it; SUMS 2 is the gradient of what a BatchNorm and a ReLU gave, sent back through the
// ReLU and added up. NORMED inputs are still to be normalized.

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) convolve(
    const u16* x, const uint4* weight, const u16* added, const u16* before, const u16* after,
    const float* mean, const float* rstd, const float* gamma, const float* beta, u16* y,
    float* partial, float* dgamma, float* dbeta, u32* tickets, int count, int each, int apart,
    int apart_affine) {
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
  if (NORMED)
    for (int c = threadIdx.x; c < C; c += THREADS) {
      const float factor = rstd[worker * C + c] * gamma[worker * apart + c];
      norm[c] = factor;
      norm[C + c] = beta[worker * apart + c] - mean[worker * C + c] * factor;
    }
  float total[OWN] = {}, along[OWN] = {};

  for (int t = begin; t < end; t++) {
    if (t + 1 < end) load_rimmed(tiles + (t + 1 - begin) % 2 * TILE, x, t + 1, count);
    commit();
    wait_all_but_one();
    __syncthreads();
    if (NORMED) {
      u16* tile = tiles + (t - begin) % 2 * TILE;
      float factor[8], shift[8];
#pragma unroll
      for (int c = 0; c < 8; c++)
        factor[c] = norm[threadIdx.x % PARTS * 8 + c], shift[c] = norm[C + threadIdx.x % PARTS * 8 + c];
      inside(t, count, [&](int at) {
        Words<4> x = read<4>(tile + at);
#pragma unroll
        for (int c = 0; c < 4; c++)
          x.both[c] = normalized(x.both[c], factor + 2 * c, shift + 2 * c);
        *(uint4*)(tile + at) = x.whole;
      });
      __syncthreads();
    }
    float sums[RW][SETS][NT][4];
#pragma unroll
    for (int i = 0; i < RW * SETS * NT * 4; i++) (&sums[0][0][0][0])[i] = 0;
    const int first = t / BANDS * IMAGES, top = t % BANDS * ROWS + row0;
    Words<NT> other[PLACES], past[PLACES], active[PLACES];
    if (EARLY)  // on their way while the products are computed
#pragma unroll
      for (int m = 0; m < PLACES; m++) {
        if (first + image_of(strip, m % 2 * 8 + lane / 4) >= count) continue;
        const size_t at = place_of(m, strip, first, top, lane) + side * NT * 8 + lane % 4 * 2 * NT;
        if (ADD) other[m] = read<NT>(added + at);
        if (SUMS == 2) past[m] = read<NT>(before + at);
        if (SUMS == 2 && RESIDUAL) active[m] = read<NT>(after + at);
      }
    add_products(sums, tiles + (t - begin) % 2 * TILE, held, own, strip, row0, side, lane);
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
          if (ADD) other[m] = read<NT>(added + at);
          if (SUMS == 2) past[m] = read<NT>(before + at);
          if (SUMS == 2 && RESIDUAL) active[m] = read<NT>(after + at);
        }
        Words<NT> out;
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
        ((Words<NT>*)(y + at))->whole = out.whole;
      }
    }
  }
  if (!SUMS) return;
  float* found = (float*)memory;  // [2][groups][K]
  __syncthreads();
  write_sums(found, total, along, side, group, lane);
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
  if (SUMS == 2 && AFFINE && comes_last(tickets + worker, memory))
    add_affine(dgamma + (size_t)worker * apart_affine, dbeta + (size_t)worker * apart_affine,
               partial - blockIdx.x * 2 * K);
}
