// What the kernels for squares share. A square is 8 x 8 pixels of one worker's images, [n, h, w, c] in
// bf16; C and K are multiples of 32. In shared memory eight channels of all pixels lie together, pixel
// after pixel, so that eight pixels of a row are a block of a matrix wherever they begin: a tap is
// the same matrix a few pixels on.

#define PER_ROW (GW / 8)
#define PER_IMAGE (GH / 8 * PER_ROW)

// Where pixel (row, column) of a square is, from the worker's first; -1 outside of its images, and where
// only every `step`-th pixel is in memory and this is none of them.
__device__ __forceinline__ int pixel_of(int square, int row, int column, int count, int step) {
  const int image = square / PER_IMAGE, own = square % PER_IMAGE;
  const int y = own / PER_ROW * 8 + row, x = own % PER_ROW * 8 + column;
  const bool there = image < count && y >= 0 && y < GH && x >= 0 && x < GW && y % step == 0 && x % step == 0;
  return there ? (image * (GH / step) + y / step) * (GW / step) + x / step : -1;
}
