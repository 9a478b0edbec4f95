// What the kernels share. A tile is IMAGES x ROWS x GW pixels of one worker's images, [n, h, w, c] in
// bf16. Its inputs lie in shared memory with a rim of one pixel. 16 neighbors of a row, a strip, are
// one operand of a matrix product; where rows have 8 pixels, those of two images are neighbors.

#define PITCH (C + 8)  // of a pixel in shared memory, so that eight of them lie in different banks
#define RIM ((ROWS - 1) * STRIDE + 3)
#define SPAN ((GW - 1) * STRIDE + 3)
#define TILE (IMAGES * RIM * SPAN * PITCH)
#define PER_ROW (GW >= 16 ? GW / 16 : 1)
#define STRIPS (IMAGES * GW / 16)
#define PIXELS (IMAGES * ROWS * GW)
#define BANDS (GH / ROWS)
#define PARTS (GIVEN / 8 > 0 ? GIVEN / 8 : 1)  // copies of a pixel; 4 channels are one copy of 8 bytes

__device__ __forceinline__ int image_of(int strip, int p) {
  return GW >= 16 ? strip / PER_ROW : strip * (16 / GW) + p / GW;
}
__device__ __forceinline__ int column_of(int strip, int p) {
  return GW >= 16 ? strip % PER_ROW * 16 + p : p % GW;
}

// Begins to copy the inputs of tile t of a worker's `count` images, zeros where there are none. A
// tile is as wide as its images: the rim's columns are zero from the start and stay so, and pixels
// one after another in a tile are so in memory, too.
__device__ __forceinline__ void load_rimmed(u16* tile, const u16* x, int t, int count) {
  const int first = t / BANDS * IMAGES, top = t % BANDS * ROWS * STRIDE - 1;
#pragma unroll 4
  for (int i = threadIdx.x; i < IMAGES * RIM * GW * STRIDE * PARTS; i += THREADS) {
    const int part = i % PARTS, column = i / PARTS % (GW * STRIDE), line = i / (GW * STRIDE * PARTS);
    const int row = top + (IMAGES > 1 ? line % RIM : line), image = first + (IMAGES > 1 ? line / RIM : 0);
    const bool real = row >= 0 && row < GH * STRIDE && image < count;
    const u16* from = x + ((image * GH * STRIDE + row) * GW * STRIDE + column) * GIVEN + part * 8;
    u16* to = tile + (line * SPAN + column + 1) * PITCH + part * 8;
    if (GIVEN < 8) copy8(to, real ? from : x, real);
    else copy16(to, real ? from : x, real);
  }
}

// The same for the pixels of tile t themselves, of K channels each.
__device__ __forceinline__ void load_pixels(u16* to, const u16* x, int t, int count) {
  const int begin = t * PIXELS * (K / 8), end = count * GH * GW * (K / 8);
#pragma unroll 4
  for (int i = threadIdx.x; i < PIXELS * (K / 8); i += THREADS) {
    const bool real = begin + i < end;
    copy16(to + i / (K / 8) * (K + 8) + i % (K / 8) * 8, real ? x + (begin + i) * 8 : x, real);
  }
}

// Calls work(at) for eight channels after eight of all pixels of tile t that lie inside the images.
// A thread gets the same channels, from threadIdx.x % PARTS * 8 on, every time.
template <class Work>
__device__ __forceinline__ void inside(int t, int count, Work work) {
  const int first = t / BANDS * IMAGES, top = t % BANDS * ROWS * STRIDE - 1;
#pragma unroll 2
  for (int i = threadIdx.x; i < IMAGES * RIM * GW * STRIDE * PARTS; i += THREADS) {
    const int column = i / PARTS % (GW * STRIDE), line = i / (GW * STRIDE * PARTS);
    const int row = top + (IMAGES > 1 ? line % RIM : line), image = first + (IMAGES > 1 ? line / RIM : 0);
    if (row < 0 || row >= GH * STRIDE || image >= count) continue;
    work((line * SPAN + column + 1) * PITCH + i % PARTS * 8);
  }
}

// 2 * N numbers side by side.
template <int N> union Words;
template <> union Words<2> { uint2 whole; u32 both[2]; };
template <> union Words<4> { uint4 whole; u32 both[4]; };

template <int N>
__device__ __forceinline__ Words<N> read(const u16* at) {
  Words<N> found;
  found.whole = ((const Words<N>*)at)->whole;
  return found;
}

// Where a tap reads the rimmed tile, and which of a pixel's outputs it adds to. UP is the input
// gradient of stride 2, where each pixel of a tile becomes four.
__device__ constexpr int tap_row(int t) { return UP ? (t / 3 == 0 ? 2 : 1) : t / 3; }
__device__ constexpr int tap_column(int t) { return UP ? (t % 3 == 0 ? 2 : 1) : t % 3; }
__device__ constexpr int tap_set(int t) { return UP ? (t / 3 != 1) * 2 + (t % 3 != 1) : 0; }
// Whether a tap adds what it reads here to one of so many rows; whether any does.
__device__ constexpr bool uses(int t, int row, int column, int rows) {
  return (TAPS == 9 || t == 4) && tap_column(t) == column && row >= tap_row(t)
         && (row - tap_row(t)) % STRIDE == 0 && (row - tap_row(t)) / STRIDE < rows;
}
__device__ constexpr bool used(int row, int column, int rows) {
  for (int t = 0; t < 9; t++) if (uses(t, row, column, rows)) return true;
  return false;
}
#define STEPS(rows) (((rows) - 1) * STRIDE + 3)  // rows that are read for so many

__device__ __forceinline__ void clear(uint4* memory) {
  for (int i = threadIdx.x; i < 2 * TILE / 8; i += THREADS) memory[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
}
