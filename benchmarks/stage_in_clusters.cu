// Convolutions of 64 channels, 8 x 8 pixels, 3 x 3 taps, each with a BatchNorm, perhaps an addition, and
// a ReLU: the last stage of ResNet-20 after its first convolution. A cluster of four blocks has a worker's
// 32 images in its shared memory until the stage is over.
//
// The row y of all eight images of a block lies in one piece: nine pixels each, of which the first is
// zero, a rim for both its neighbors. So any row of any image is nine pixels from the next, and a
// tap is the same matrix a few pixels on. A warp group computes two rows of all images and all outputs: a
// product of weights, 64 x 16, by pixels, 16 x N. A thread has two outputs, 8 apart, of N / 4 pixels.
//
// Constants given: CONVS, BLOCKS of a cluster, warp GROUPS of a block, whether there are PRODUCTS, whether
// to WRITE more than the stage's outputs, and DEPTH, taps in shared memory: nine of a convolution, some of the next.

#define C 64
#define IMAGES 8               // of a block
#define THREADS (128 * GROUPS)
#define ROWS (8 / GROUPS)      // of a warp group
#define N (64 * ROWS)          // pixels of a warp group
#define LINE (9 * IMAGES)      // pixels from a row to the next
#define PLANE ((10 * LINE + 1) * 8)  // eight channels of all pixels; planes begin in different banks
#define TAP (C * C)            // weights
#define TAPS (9 * CONVS)       // of a worker
#define PIECES (N * C / 8 / 128)  // of 16 bytes that a thread copies of its warp group's pixels
#define PIXELS (64 * IMAGES)   // of a block
#define ADDED(conv) ((conv) % 2 == 0)  // these convolutions end a block of the network

// Where the i-th piece of a thread is: eight channels of a pixel, in shared memory from the warp group's
// first pixel on, and in memory from the block's.
struct Piece { int here, there; };
__device__ __forceinline__ Piece piece_of(int i, int group, int t) {
  const int part = t % 8, column = t / 8 % 8, image = 2 * (i % 4) + t / 64, row = i / 4;
  return {part * PLANE + (row * LINE + image * 9 + column) * 8,
          ((image * 8 + group * ROWS + row) * 8 + column) * C + part * 8};
}
__device__ __forceinline__ void save(u16* there, const u16* inner, Piece at) {
  *(uint4*)(there + at.there) = *(const uint4*)(inner + at.here);
}

// Begins to bring a tap of this worker, if there is one.
__device__ __forceinline__ void bring(u16* weights, u64* came, const u16* weight, int tap) {
  if (tap >= TAPS) return;
  const int slot = tap % DEPTH;
  announce_bytes(came + slot, TAP * 2);
  copy_block(weights + slot * TAP, weight + tap * TAP, TAP * 2, came + slot);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1) stage(
    const u16* x, const u16* shortcut, const u16* weight, const float* gamma, const float* beta,
    u16* y, u16* z, float* mean, float* rstd) {
  extern __shared__ __align__(1024) uint4 memory[];
  u16* field = (u16*)memory;
  u16* weights = field + 8 * PLANE;
  float2* found = (float2*)(weights + DEPTH * TAP);   // [GROUPS][C]: sums, and of squares
  float2* told = found + GROUPS * C;                  // [2][BLOCKS][C], by all blocks: sums, and squared deviations
  float2* norm = told + 2 * BLOCKS * C;               // [C]: factor and shift
  u64* came = (u64*)(norm + C);                       // [DEPTH]
  u64* heard = came + DEPTH;                          // [2]
  const int t = threadIdx.x % 128, group = threadIdx.x / 128, warp = t / 32, lane = threadIdx.x % 32;
  const int worker = blockIdx.x / BLOCKS, block = blockIdx.x % BLOCKS;
  const int k = warp * 16 + lane / 4;  // and k + 8
  const u32 next = threadIdx.x - (THREADS - 32);  // which taps the last warp's threads bring
  u16* inner = field + ((group * ROWS + 1) * LINE + 1) * 8;
  // A row of one of four matrices: outputs 0 to 7 and 8 to 15 of a warp, of eight pixels and the next eight.
  u16* own = inner + (warp * 2 + lane / 8 % 2) * PLANE + (lane / 16 * 9 + lane % 8) * 8;
  const size_t first = (size_t)blockIdx.x * PIXELS * C, of_all = (size_t)gridDim.x * PIXELS * C;
  weight += (size_t)worker * TAPS * TAP;

  if (threadIdx.x == 0) {
    for (int i = 0; i < DEPTH + 2; i++) prepare(came + i, 1);
    show_barriers();
  }
  for (int i = threadIdx.x; i < PLANE; i += THREADS) memory[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  if (threadIdx.x < DEPTH) bring(weights, came, weight, threadIdx.x);
  __align__(16) u32 kept[N / 4];  // what is added later, a thread's outputs in pairs of neighbors
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const Piece at = piece_of(i, group, t);
    copy16(inner + at.here, x + first + at.there, true);
    *(uint4*)(kept + i * 4) = *(const uint4*)(shortcut + first + at.there);
  }
  commit();
  wait_all();
  show_to_products();
  meet_cluster();  // all pixels have come; all blocks are there to be told, and their barriers are prepared

#pragma unroll 1
  for (int conv = 0; conv < CONVS; conv++) {
    const size_t from = first + conv * of_all;
    const int channel = (worker * CONVS + conv) * C + threadIdx.x;
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] = 0;

#pragma unroll 1
    for (int tap = 0; tap < 9; tap++) {
      const int number = conv * 9 + tap, slot = number % DEPTH;
      await(came + slot, number / DEPTH % 2);
      __syncwarp();
      const u16* left = weights + slot * TAP;
      const u16* right = inner + ((tap / 3 - 1) * LINE + tap % 3 - 1) * 8;
      if (PRODUCTS) {
        begin_products();
#pragma unroll
        for (int c = 0; c < C / 16; c++)
          add_product<0, 0>(sums, matrix(left + c * 16 * C, 16 * C, 128),
                            matrix(right + c * 2 * PLANE, 2 * PLANE, 144));
        commit_products();
      }
      // Meanwhile what was computed before goes to memory.
      if (WRITE && conv > 0 && tap < PIECES) save(z + from - of_all, inner, piece_of(tap, group, t));
    }
    if (PRODUCTS) wait_for_sums(sums);

    float factor = 0, shift = 0;
    if (threadIdx.x < C) factor = gamma[channel], shift = beta[channel];
    float total[2] = {}, squares[2] = {};
#pragma unroll
    for (int i = 0; i < N / 2; i++) total[i / 2 % 2] += sums[i], squares[i / 2 % 2] += sums[i] * sums[i];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int across = 1; across < 4; across *= 2) {
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], across);
        squares[half] += __shfl_xor_sync(0xffffffffu, squares[half], across);
      }
      if (lane % 4 == 0) found[group * C + k + half * 8] = make_float2(total[half], squares[half]);
    }
    __syncthreads();  // all products are done, too: nobody reads these pixels or weights again
    if (next < 9) bring(weights, came, weight, conv * 9 + DEPTH + next);
    float2* all = told + conv % 2 * BLOCKS * C;
    if (threadIdx.x == 0) announce_bytes(heard + conv % 2, BLOCKS * C * 8);
    __syncwarp();
    if (threadIdx.x < BLOCKS * C) {
      const int channel = threadIdx.x % C, to = threadIdx.x / C;
      float sum = 0, square = 0;
#pragma unroll
      for (int g = 0; g < GROUPS; g++) sum += found[g * C + channel].x, square += found[g * C + channel].y;
      const float2 value = make_float2(sum, fmaxf(square - sum * sum / PIXELS, 0.0f));
      tell(to, all + block * C + channel, value, heard + conv % 2);
    }

    if (WRITE) {
#pragma unroll
      for (int n = 0; n < N / 8; n += 2) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = round2(sums[(n * 2 + i) * 2], sums[(n * 2 + i) * 2 + 1]);
        write4_across(own, n * 9 * 8, words);
      }
      meet_at<128>(1 + group);
#pragma unroll
      for (int i = 0; i < PIECES; i++) save(y + from, inner, piece_of(i, group, t));
    }
    if (conv == 0) {  // the network's shortcut, from threads that have pixels to those that have channels
      meet_at<128>(1 + group);
#pragma unroll
      for (int i = 0; i < PIECES; i++) *(uint4*)(inner + piece_of(i, group, t).here) = *(uint4*)(kept + i * 4);
      meet_at<128>(1 + group);
#pragma unroll
      for (int n = 0; n < N / 8; n += 2) read4_across(kept + n * 2, own, n * 9 * 8);
    }

    if (threadIdx.x < C) {
      await(heard + conv % 2, conv / 2 % 2);
      float sum = 0, squared = 0;
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) sum += all[b * C + threadIdx.x].x;
      const float center = sum / (BLOCKS * PIXELS);
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) {
        const float2 one = all[b * C + threadIdx.x];
        const float apart = one.x / PIXELS - center;
        squared += one.y + PIXELS * apart * apart;
      }
      const float inverse = rsqrtf(squared / (BLOCKS * PIXELS) + 1e-5f);
      if (block == 0) mean[channel] = center, rstd[channel] = inverse;
      norm[threadIdx.x] = make_float2(factor * inverse, shift - center * factor * inverse);
    }
    __syncthreads();
    const float2 lower = norm[k], upper = norm[k + 8];
#pragma unroll
    for (int n = 0; n < N / 8; n += 2) {
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 by = i % 2 ? upper : lower;
        float one = sums[(n * 2 + i) * 2] * by.x + by.y, two = sums[(n * 2 + i) * 2 + 1] * by.x + by.y;
        if (ADDED(conv)) one += low(kept[n * 2 + i]), two += high(kept[n * 2 + i]);
        words[i] = round2(fmaxf(one, 0.0f), fmaxf(two, 0.0f));
        if (ADDED(conv)) kept[n * 2 + i] = words[i];
      }
      write4_across(own, n * 9 * 8, words);
    }
    show_to_products();
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < PIECES; i++) save(z + first + (CONVS - 1) * of_all, inner, piece_of(i, group, t));
}
