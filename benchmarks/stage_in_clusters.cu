// Five convolutions of 64 channels, 8 x 8 pixels, 3 x 3 taps, each with a BatchNorm, perhaps an addition,
// and a ReLU, of all workers: the last stage of ResNet-20 after its first convolution. A cluster of four
// blocks has a worker's 32 images in its shared memory until the stage is over.
//
// The row y of all eight images of a block lies in one piece: nine pixels each, of which the first is
// zero, a rim for both its neighbors. So any row of any image is nine pixels from the next, and a
// tap is the same matrix a few pixels on. A warp group computes ROWS rows of all images and all outputs: a
// product of weights, 64 x 16, by pixels, 16 x N. A thread has two outputs, 8 apart, of N / 4 pixels.

#define C 64
#define IMAGES 8               // of a block
#define BLOCKS 4               // of a cluster
#define ROWS (8 / GROUPS)      // of a warp group
#define N (64 * ROWS)          // pixels of a warp group
#define LINE (9 * IMAGES)      // pixels from a row to the next
#define PLANE ((10 * LINE + 1) * 8)  // eight channels of all pixels; planes begin in different banks
#define TAP (C * C)            // weights
#define TAPS (9 * CONVS)       // of a worker
#define DEPTH 16               // taps in shared memory: nine of a convolution, seven of the next
#define PIECES (N * C / 8 / 128)  // of 16 bytes that a thread copies of its warp group's pixels
#define WORDS (N / 4)          // pairs of neighbors' outputs of a thread
#define PER_IMAGE (64 * C)
#define PIXELS (64 * IMAGES)   // of a block
#define OF_BLOCK ((size_t)PIXELS * C)
#define ADDED(conv) ((conv) % 2 == 0)  // these convolutions end a block of the network

// Where the i-th piece of a thread is: eight channels of a pixel, in shared memory from the warp group's
// first pixel on, and in memory from the block's.
struct Piece { int here, there; };
__device__ __forceinline__ Piece piece_of(int i, int group, int t) {
  const int part = t % 8, column = t / 8 % 8, image = 2 * (i % 4) + t / 64, row = i / 4;
  return {part * PLANE + (row * LINE + image * 9 + column) * 8,
          image * PER_IMAGE + ((group * ROWS + row) * 8 + column) * C + part * 8};
}

// Brings all pixels of a block, and waits for this thread's.
__device__ __forceinline__ void load(u16* inner, const u16* x, int group, int t) {
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const Piece at = piece_of(i, group, t);
    copy16(inner + at.here, x + at.there, true);
  }
  commit();
  wait_all();
}

// Begins to bring tap `tap`, counted from the first worker of this cluster.
__device__ __forceinline__ void bring(
    u16* weights, u64* came, const u16* weight, int tap, int clusters, int workers) {
  const int worker = blockIdx.x / BLOCKS + tap / TAPS * clusters, slot = tap % DEPTH;
  if (worker >= workers) return;
  announce_bytes(came + slot, TAP * 2);
  copy_block(weights + slot * TAP, weight + ((size_t)worker * TAPS + tap % TAPS) * TAP, TAP * 2, came + slot);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(128 * GROUPS, 1) stage(
    const u16* x, const u16* shortcut, const u16* weight, const float* gamma, const float* beta,
    u16* y, u16* z, float* mean, float* rstd, int workers) {
  extern __shared__ __align__(1024) uint4 memory[];
  u16* field = (u16*)memory;
  u16* weights = field + 8 * PLANE;
  float2* found = (float2*)(weights + DEPTH * TAP);   // [GROUPS][C]: sums, and of squares
  float2* told = found + GROUPS * C;                  // [2][BLOCKS][C], by all blocks: sums, and squared deviations
  float2* norm = told + 2 * BLOCKS * C;               // [C]: factor and shift
  u64* came = (u64*)(norm + C);                       // [DEPTH]
  u64* heard = came + DEPTH;                          // [2]
  const int t = threadIdx.x % 128, group = threadIdx.x / 128, warp = t / 32, lane = threadIdx.x % 32;
  const int block = blockIdx.x % BLOCKS, clusters = gridDim.x / BLOCKS;
  const int k = warp * 16 + lane / 4;  // and k + 8
  const u32 next = threadIdx.x - (128 * GROUPS - 32);  // which taps the last warp's threads bring
  u16* inner = field + ((group * ROWS + 1) * LINE + 1) * 8;
  // A row of one of four matrices: outputs 0 to 7 and 8 to 15 of a warp, of eight pixels and the next eight.
  u16* own = inner + (warp * 2 + lane / 8 % 2) * PLANE + (lane / 16 * 9 + lane % 8) * 8;

  if (threadIdx.x == 0) {
    for (int i = 0; i < DEPTH + 2; i++) prepare(came + i, 1);
    show_barriers();
  }
  for (int i = threadIdx.x; i < PLANE; i += 128 * GROUPS) memory[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  if (threadIdx.x < DEPTH) bring(weights, came, weight, threadIdx.x, clusters, workers);
  __syncwarp();
  announce_to_cluster(), await_cluster();  // all blocks are there to be told, and their barriers are prepared

  __align__(16) u32 kept[WORDS];  // what is added later
  int turn = 0;          // convolutions so far, of all workers
  for (int worker = blockIdx.x / BLOCKS; worker < workers; worker += clusters) {
    const size_t first = ((size_t)worker * BLOCKS + block) * OF_BLOCK;
    load(inner, x + first, group, t);
    show_to_products();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PIECES; i++)
      *(uint4*)(kept + i * 4) = *(const uint4*)(shortcut + first + piece_of(i, group, t).there);

#pragma unroll 1
    for (int conv = 0; conv < CONVS; conv++, turn++) {
      // Outputs of a convolution, of all workers, lie together.
      const size_t from = first + (size_t)conv * workers * BLOCKS * OF_BLOCK;
      const size_t before = from - (size_t)workers * BLOCKS * OF_BLOCK;
      const int channel = (worker * CONVS + conv) * C + threadIdx.x;
      float sums[N / 2];
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[i] = 0;

#pragma unroll 1
      for (int tap = 0; tap < 9; tap++) {
        const int number = turn * 9 + tap, slot = number % DEPTH;
        await_not_forever(came + slot, number / DEPTH % 2);
        __syncwarp();
        const u16* left = weights + slot * TAP;
        const u16* right = inner + ((tap / 3 - 1) * LINE + tap % 3 - 1) * 8;
        if (PRODUCTS == 1) {
          begin_products();
#pragma unroll
          for (int c = 0; c < C / 16; c++)
            add_product<0, 0>(sums, matrix(left + c * 16 * C, 16 * C, 128),
                              matrix(right + c * 2 * PLANE, 2 * PLANE, 144));
          commit_products();
        }
        if (PRODUCTS == 2)
#pragma unroll
          for (int c = 0; c < C / 16; c++) {
            u32 a[4];  // outputs 0 to 7 and 8 to 15, of eight channels and the next eight
            read4(a, left, c * 16 * C + lane / 16 * 8 * C + (warp * 16 + lane % 16) * 8);
#pragma unroll
            for (int n = 0; n < N / 8; n += 2) {
              u32 b[4];  // eight channels and the next eight, of eight pixels and the next eight
              read4(b, right, (c * 2 + lane / 8 % 2) * PLANE + ((n + lane / 16) * 9 + lane % 8) * 8);
              multiply(sums + n * 4, a, b[0], b[1]);
              multiply(sums + n * 4 + 4, a, b[2], b[3]);
            }
          }
        // Meanwhile what was computed before goes to memory.
        if ((WRITE & 2) && conv > 0 && tap < 8)
#pragma unroll
          for (int i = 0; i < PIECES / 8; i++) {
            const Piece at = piece_of(tap * (PIECES / 8) + i, group, t);
            *(uint4*)(z + before + at.there) = *(const uint4*)(inner + at.here);
          }
        if (conv == CONVS - 1 && tap == 0 && worker + clusters < workers)
#pragma unroll
          for (int i = 0; i < PIXELS; i += 128 * GROUPS)
            prefetch(x + first + (size_t)clusters * BLOCKS * OF_BLOCK + (i + threadIdx.x) * C);
      }
      if (PRODUCTS == 1) wait_for_sums(sums);
      if (!REST) {
        __syncthreads();
        if (next < 9) bring(weights, came, weight, turn * 9 + DEPTH + next, clusters, workers);
        __syncwarp();
        float all = 0;  // of use, or the compiler leaves the products out
#pragma unroll
        for (int i = 0; i < N / 2; i++) all += sums[i];
        if (all == 1.5e38f) mean[channel] = all;
        continue;
      }

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
      if (next < 9) bring(weights, came, weight, turn * 9 + DEPTH + next, clusters, workers);
      if (threadIdx.x == 0 && SUMS == 1) announce_bytes(heard + turn % 2, BLOCKS * C * 8);
      __syncwarp();
      float2* all = told + turn % 2 * BLOCKS * C;
      if (threadIdx.x < BLOCKS * C) {
        const int channel = threadIdx.x % C, to = threadIdx.x / C;
        float sum = 0, square = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) sum += found[g * C + channel].x, square += found[g * C + channel].y;
        const float2 value = make_float2(sum, fmaxf(square - sum * sum / PIXELS, 0.0f));
        if (SUMS == 0) all[to * C + channel] = value;
        if (SUMS == 1) tell(to, all + block * C + channel, value, heard + turn % 2);
        if (SUMS == 2) write_to(to, all + block * C + channel, value);
      }
      if (SUMS == 2) announce_to_cluster();

      if (WRITE & 1) {
#pragma unroll
        for (int n = 0; n < N / 8; n += 2) {
          u32 words[4];
#pragma unroll
          for (int i = 0; i < 4; i++) words[i] = round2(sums[(n * 2 + i) * 2], sums[(n * 2 + i) * 2 + 1]);
          write4_across(own, n * 9 * 8, words);
        }
        meet_at<128>(1 + group);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
          const Piece at = piece_of(i, group, t);
          *(uint4*)(y + from + at.there) = *(const uint4*)(inner + at.here);
        }
      }
      if (conv == 0) {  // the network's shortcut, from threads that have channels to those that have pixels
        meet_at<128>(1 + group);
#pragma unroll
        for (int i = 0; i < PIECES; i++) *(uint4*)(inner + piece_of(i, group, t).here) = *(uint4*)(kept + i * 4);
        meet_at<128>(1 + group);
#pragma unroll
        for (int n = 0; n < N / 8; n += 2) read4_across(kept + n * 2, own, n * 9 * 8);
      }

      if (SUMS == 0) __syncthreads();
      if (SUMS == 2) await_cluster();
      if (threadIdx.x < C) {
        if (SUMS == 1) await_not_forever(heard + turn % 2, turn / 2 % 2);
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
    // The stage's outputs; the next worker's inputs take their place.
    const size_t last = first + (size_t)(CONVS - 1) * workers * BLOCKS * OF_BLOCK;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      const Piece at = piece_of(i, group, t);
      *(uint4*)(z + last + at.there) = *(const uint4*)(inner + at.here);
    }
    meet_at<128>(1 + group);
  }
}
