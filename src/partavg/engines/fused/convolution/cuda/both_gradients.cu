// The way back through a 3 x 3 convolution between two BatchNorms, in one kernel: the gradient of the
// outputs, from that of what the BatchNorm after them made of them; the inputs' gradient, sent back
// through the ReLU before it and added up, by some of the warps; the weights', by the others.

#define FIRST (32 * GROUPS * WN)  // threads for the inputs
#define SIDES (C / 16 * (K / 16))
#define TURNS ((THREADS - FIRST) / 32 / SIDES)  // warps side by side along the pixels, for the weights
#define OTHER (PIXELS * (K + 8))

// The gradient of the normalized outputs becomes that of the outputs: by g + ay y + b.
__device__ __forceinline__ void through_norm(u16* tile, const u16* outputs, const float* norm, int t, int count) {
  const int part = threadIdx.x % PARTS * 8;
  float by[8], ay[8], b[8];
#pragma unroll
  for (int c = 0; c < 8; c++)
    by[c] = norm[part + c], ay[c] = norm[C + part + c], b[c] = norm[2 * C + part + c];
  inside(t, count, [&](int at) {
    Words<4> g = read<4>(tile + at), y = read<4>(outputs + at);
#pragma unroll
    for (int c = 0; c < 4; c++)
      g.both[c] = round2(low(g.both[c]) * by[2 * c] + (low(y.both[c]) * ay[2 * c] + b[2 * c]),
                         high(g.both[c]) * by[2 * c + 1] + (high(y.both[c]) * ay[2 * c + 1] + b[2 * c + 1]));
    *(uint4*)(tile + at) = g.whole;
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) both_gradients(
    const u16* grad, const u16* outputs, const float* sums_after, const float* mean_after,
    const float* rstd_after, const float* gamma_after, const uint4* weight, const u16* added,
    const u16* before, const u16* z, const float* mean, const float* rstd, const float* gamma,
    const float* beta, u16* out, float* partial, float* parts, float* dweight, float* dgamma, float* dbeta,
    u32* tickets, int count, int each, int workers, int pieces, int apart_after, int apart, int apart_weight,
    int apart_affine) {
  extern __shared__ uint4 memory[];
  u16* tiles = (u16*)memory;
  u16* after = tiles + 2 * TILE;
  u16* others = after + 2 * TILE;
  uint4* packed = (uint4*)(others + 2 * OTHER);
  float* norm = (float*)(packed + 9 * C * K / 8);  // [3][C] for the BatchNorm after, [3][K] for the one before
  const int lane = threadIdx.x % 32, worker = blockIdx.y;
  const bool inputs = threadIdx.x < FIRST;
  const int warp = inputs ? threadIdx.x / 32 : (threadIdx.x - FIRST) / 32;
  const int all = (count + IMAGES - 1) / IMAGES * BANDS;
  const int begin = blockIdx.x * each, end = begin + each < all ? begin + each : all;
  const size_t start = (size_t)worker * count * GH * GW;
  grad += start * C, outputs += start * C;
  z += start * K, added += start * K, before += start * K, out += start * K;
  weight += (size_t)worker * 9 * C * K / 8;

  clear(memory);
  for (int i = threadIdx.x; i < 9 * C * K / 8; i += THREADS)
    copy16((u16*)(packed + i), (const u16*)(weight + i), true);
  auto load = [&](int place, int t) {
    load_rimmed(tiles + place * TILE, grad, t, count);
    load_rimmed(after + place * TILE, outputs, t, count);
    load_pixels(others + place * OTHER, z, t, count);
  };
  load(0, begin);
  commit();
  const float pixels = count * GH * GW;
  sums_after += (size_t)worker * pieces * 2 * C;
  for (int i = threadIdx.x / 8; i < 2 * C; i += THREADS / 8) {  // eight threads for each
    float sum = 0;
    for (int piece = threadIdx.x % 8; piece < pieces; piece += 8) sum += sums_after[piece * 2 * C + i];
    for (int across = 1; across < 8; across *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, across);
    if (threadIdx.x % 8 == 0) norm[i] = sum / pixels;
  }
  for (int k = threadIdx.x; k < K; k += THREADS) {
    const float factor = rstd[worker * K + k] * gamma[worker * apart + k];
    norm[3 * C + k] = mean[worker * K + k];
    norm[3 * C + K + k] = factor;
    norm[3 * C + 2 * K + k] = beta[worker * apart + k] - mean[worker * K + k] * factor;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < C; c += THREADS) {
    const float scale = rstd_after[worker * C + c], factor = gamma_after[worker * apart_after + c] * scale;
    const float total = norm[c], along = norm[C + c] * scale;
    norm[c] = factor;
    norm[C + c] = -factor * along;
    norm[2 * C + c] = factor * (along * mean_after[worker * C + c] - total);
  }

  if (inputs) {
    const int side = warp % WN, group = warp / WN;
    const int strip = group % STRIPS, row0 = group / STRIPS * RW;
    float total[OWN] = {}, along[OWN] = {};
    for (int t = begin; t < end; t++) {
      const int now = (t - begin) % 2;
      if (t + 1 < end) load(1 - now, t + 1);
      commit();
      const int first = t / BANDS * IMAGES, top = t % BANDS * ROWS + row0, k = side * NT * 8 + lane % 4 * OWN;
      Words<NT> other[PLACES], past[PLACES];
#pragma unroll
      for (int m = 0; m < PLACES; m++) {  // on their way while the products are computed
        if (first + image_of(strip, m % 2 * 8 + lane / 4) >= count) continue;
        const size_t at = place_of(m, strip, first, top, lane) + k;
        if (ADD) other[m] = read<NT>(added + at);
        past[m] = read<NT>(before + at);
      }
      wait_all_but_one();
      __syncthreads();
      through_norm(tiles + now * TILE, after + now * TILE, norm, t, count);
      __syncthreads();
      float sums[RW][SETS][NT][4];
#pragma unroll
      for (int i = 0; i < RW * SETS * NT * 4; i++) (&sums[0][0][0][0])[i] = 0;
      add_products(sums, tiles + now * TILE, nullptr, packed, strip, row0, side, lane);
      auto finish = [&](int m, int i, u32 active) {  // two of a pixel's gradients, through the ReLU
        const float* own = norm + 3 * C + k + 2 * i;
        const u32 x = past[m].both[i];
        float one = sums[m / 2][0][i][m % 2 * 2], two = sums[m / 2][0][i][m % 2 * 2 + 1];
        if (ADD) one += low(other[m].both[i]), two += high(other[m].both[i]);
        if (RELU) {
          one = (NORMED ? low(x) * own[K] + own[2 * K] : low(active)) > 0 ? one : 0;
          two = (NORMED ? high(x) * own[K + 1] + own[2 * K + 1] : high(active)) > 0 ? two : 0;
        }
        total[2 * i] += one;
        total[2 * i + 1] += two;
        along[2 * i] += one * (low(x) - own[0]);
        along[2 * i + 1] += two * (high(x) - own[1]);
        return round2(one, two);
      };
      // In the order that needs fewer registers: with too many, an iteration takes 3 % longer.
      Words<NT> found[PLACES];
#pragma unroll
      for (int i = 0; NORMED && i < NT; i++)
#pragma unroll
        for (int m = 0; m < PLACES; m++)
          if (first + image_of(strip, m % 2 * 8 + lane / 4) < count) found[m].both[i] = finish(m, i, 0);
#pragma unroll
      for (int m = 0; m < PLACES; m++) {
        const int p = m % 2 * 8 + lane / 4, image = image_of(strip, p), column = column_of(strip, p);
        if (first + image >= count) continue;
        if (!NORMED) {
          const int pixel = (image * ROWS + row0 + m / 2) * GW + column;
          const Words<NT> active = read<NT>(others + now * OTHER + pixel * (K + 8) + k);
#pragma unroll
          for (int i = 0; i < NT; i++) found[m].both[i] = finish(m, i, active.both[i]);
        }
        ((Words<NT>*)(out + place_of(m, strip, first, top, lane) + k))->whole = found[m].whole;
      }
      __syncthreads();
    }
    write_sums((float*)memory, total, along, side, group, lane);
  } else {
    const int input = warp % (K / 16) * 16, output = warp / (K / 16) % (C / 16) * 16, turn = warp / SIDES;
    float sums[9][2][4] = {};
    const float* own = norm + 3 * C + K + input + lane / 4;
    for (int t = begin; t < end; t++) {
      const int now = (t - begin) % 2;
      if (t + 1 < end) load(1 - now, t + 1);
      commit();
      wait_all_but_one();
      __syncthreads();
      through_norm(tiles + now * TILE, after + now * TILE, norm, t, count);
      __syncthreads();
      for (int unit = turn; unit < STRIPS * (ROWS / 4); unit += TURNS) {
        const int strip = unit % STRIPS, row0 = unit / STRIPS * 4;
        add_taps<4>(sums, tiles + now * TILE + output, others + now * OTHER + input, strip, row0, lane,
                    [&](u32* pixels) {
#pragma unroll
                      for (int i = 0; i < 4; i++) {
                        const float by[2] = {own[i / 2 * 8], own[i / 2 * 8]};
                        const float plus[2] = {own[K + i / 2 * 8], own[K + i / 2 * 8]};
                        if (NORMED) pixels[i] = normalized(pixels[i], by, plus);
                      }
                    });
      }
      __syncthreads();
    }
    float* found = (float*)memory + 2 * GROUPS * K;  // [C][K][9]
    for (int i = 0; i < TURNS; i++) {
      if (turn == i)
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
              const int c = output + j / 2 * 8 + lane / 4, k = input + n * 8 + lane % 4 * 2 + j % 2;
              float* at = found + (c * K + k) * 9 + 8 - tap;
              *at = i ? *at + sums[tap][n][j] : sums[tap][n][j];
            }
      meet<THREADS - FIRST>();
    }
  }
  __syncthreads();
  float* found = (float*)memory;
  partial += ((size_t)worker * gridDim.x + blockIdx.x) * 2 * K;
  for (int k = threadIdx.x; k < K; k += THREADS) {
    float one = 0, two = 0;
    for (int g = 0; g < GROUPS; g++) one += found[g * K + k], two += found[(GROUPS + g) * K + k];
    partial[k] = one;
    partial[K + k] = two * rstd[worker * K + k];
  }
  parts += (size_t)worker * C * K * 9;
  dweight += (size_t)worker * apart_weight;
  const size_t all_parts = (size_t)workers * C * K * 9;
  float* to = gridDim.x == 1 ? dweight : parts + blockIdx.x * all_parts;
  for (int i = threadIdx.x; i < C * K * 9; i += THREADS) to[i] = found[2 * GROUPS * K + i];
  if (!comes_last(tickets + worker, memory)) return;
  if (gridDim.x > 1) add_blocks(dweight, parts, C * K * 9, all_parts);
  if (AFFINE)
    add_affine(dgamma + (size_t)worker * apart_affine, dbeta + (size_t)worker * apart_affine,
               partial - blockIdx.x * 2 * K);
}
