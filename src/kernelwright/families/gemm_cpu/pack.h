// Copies of matrix blocks into dense fp32 panels.

// dst[r * dst_ld + c] = src[r * src_ld + c]; columns from `cols` to `width` become zero.
template <class E>
void pack_copy(float *dst, long dst_ld, long width, const E *src, long src_ld, long rows, long cols) {
    for (long r = 0; r < rows; r++) {
        long c = 0;
        for (; c + VL <= cols; c += VL) store(dst + r * dst_ld + c, load(src + r * src_ld + c));
        for (; c < width; c += VL) store(dst + r * dst_ld + c, load(src + r * src_ld + c, cols > c ? cols - c : 0), least(VL, width - c));
    }
}

// dst[c * dst_ld + r] = src[r * src_ld + c]; r from `rows` to `height` becomes zero.
template <class E>
void pack_transpose(float *dst, long dst_ld, long height, const E *src, long src_ld, long rows, long cols) {
    for (long r0 = 0; r0 < height; r0 += VL)
        for (long c0 = 0; c0 < cols; c0 += VL) {
            const long nr = least(VL, rows - r0), nc = least(VL, cols - c0), nh = least(VL, height - r0);
            const E *from = src + r0 * src_ld + c0;
            float *to = dst + c0 * dst_ld + r0;
            vec x[VL];
            if (nr == VL && nc == VL && nh == VL) {
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++) x[i] = load(from + i * src_ld);
                transpose(x);
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++) store(to + i * dst_ld, x[i]);
            } else {
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++) x[i] = i < nr ? load(from + i * src_ld, nc) : zero();
                transpose(x);
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++)
                    if (i < nc) store(to + i * dst_ld, x[i], nh);
            }
        }
}
