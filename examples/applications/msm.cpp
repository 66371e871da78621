// Each point doubled and added, in Montgomery's form, then one inversion a sum:
// kernelwright verify examples/applications/msm.cpp --problem expert:msm:64x2 --target cpu
typedef unsigned long long u64;
typedef unsigned __int128 u128;

struct F {
    u64 v[4];
};

static const F P = {{0x3C208C16D87CFD47, 0x97816A916871CA8D, 0xB85045B68181585D, 0x30644E72E131A029}};
static const F ZERO = {{0, 0, 0, 0}};
static const u64 INVERSE = 0x87D20782E4866389;  // -1 / P mod 2^64

static bool less(const F& a, const F& b) {
    for (int i = 3; i >= 0; i--)
        if (a.v[i] != b.v[i]) return a.v[i] < b.v[i];
    return false;
}

static bool zero(const F& a) { return !(a.v[0] | a.v[1] | a.v[2] | a.v[3]); }

static F minus_raw(const F& a, const F& b) {
    F r;
    u64 borrow = 0;
    for (int i = 0; i < 4; i++) {
        u128 d = u128(a.v[i]) - b.v[i] - borrow;
        r.v[i] = u64(d), borrow = u64(d >> 64) & 1;
    }
    return r;
}

static F plus(const F& a, const F& b) {
    F r;
    u128 carry = 0;
    for (int i = 0; i < 4; i++) carry += u128(a.v[i]) + b.v[i], r.v[i] = u64(carry), carry >>= 64;
    return less(r, P) ? r : minus_raw(r, P);
}

static F minus(const F& a, const F& b) { return less(a, b) ? plus(a, minus_raw(P, b)) : minus_raw(a, b); }

static F times(const F& a, const F& b) {  // a b / 2^256
    u64 t[6] = {0, 0, 0, 0, 0, 0};
    for (int i = 0; i < 4; i++) {
        u128 carry = 0;
        for (int j = 0; j < 4; j++) carry += u128(a.v[i]) * b.v[j] + t[j], t[j] = u64(carry), carry >>= 64;
        carry += t[4], t[4] = u64(carry), t[5] = u64(carry >> 64);
        u64 m = t[0] * INVERSE;
        carry = (u128(m) * P.v[0] + t[0]) >> 64;
        for (int j = 1; j < 4; j++) carry += u128(m) * P.v[j] + t[j], t[j - 1] = u64(carry), carry >>= 64;
        carry += t[4], t[3] = u64(carry), t[4] = t[5] + u64(carry >> 64);
    }
    F r = {{t[0], t[1], t[2], t[3]}};
    return less(r, P) && !t[4] ? r : minus_raw(r, P);
}

static F square_of_r() {  // 2^512 mod P, by doubling
    F r = {{1, 0, 0, 0}};
    for (int i = 0; i < 512; i++) r = plus(r, r);
    return r;
}

static F inverse(const F& a) {  // a^(P - 2)
    F r = a;
    F e = minus_raw(P, F{{2, 0, 0, 0}});
    for (int bit = 252; bit >= 0; bit--) {
        r = times(r, r);
        if (e.v[bit / 64] >> (bit % 64) & 1) r = times(r, a);
    }
    return r;
}

struct Point {  // Jacobian; z of zero is the identity
    F x, y, z;
};

static Point twice(const Point& p) {
    if (zero(p.z)) return p;
    F a = times(p.x, p.x), b = times(p.y, p.y), c = times(b, b);
    F s = plus(p.x, b), d = minus(minus(times(s, s), a), c), e = plus(a, plus(a, a)), c8 = plus(c, c);
    d = plus(d, d), c8 = plus(c8, c8), c8 = plus(c8, c8);
    Point r;
    r.x = minus(times(e, e), plus(d, d));
    r.y = minus(times(e, minus(d, r.x)), c8);
    r.z = times(p.y, p.z), r.z = plus(r.z, r.z);
    return r;
}

static Point sum(const Point& p, const Point& q) {
    if (zero(p.z)) return q;
    if (zero(q.z)) return p;
    F pp = times(p.z, p.z), qq = times(q.z, q.z);
    F u = times(p.x, qq), s = times(p.y, times(q.z, qq)), h = minus(times(q.x, pp), u), r = minus(times(q.y, times(p.z, pp)), s);
    if (zero(h)) return zero(r) ? twice(p) : Point{ZERO, ZERO, ZERO};
    F hh = times(h, h), hhh = times(h, hh), v = times(u, hh);
    Point t;
    t.x = minus(minus(times(r, r), hhh), plus(v, v));
    t.y = minus(times(r, minus(v, t.x)), times(s, hhh));
    t.z = times(h, times(p.z, q.z));
    return t;
}

static F read(const int* limbs) {
    F r;
    for (int i = 0; i < 4; i++) r.v[i] = u64(unsigned(limbs[2 * i])) | u64(unsigned(limbs[2 * i + 1])) << 32;
    return r;
}

extern "C" void kernel(const int* points, const int* scalars, int* sums, long n, long batch, long ld_points, long ld_scalars, long ld_sums) {
    F factor = square_of_r(), one = {{1, 0, 0, 0}};
    for (long b = 0; b < batch; b++) {
        Point total = {ZERO, ZERO, ZERO};
        for (long i = 0; i < n; i++) {
            F x = read(points + i * ld_points), y = read(points + i * ld_points + 8), s = read(scalars + (b * n + i) * ld_scalars);
            if (zero(x) && zero(y)) continue;
            Point p = {times(x, factor), times(y, factor), times(one, factor)}, q = {ZERO, ZERO, ZERO};
            for (int bit = 253; bit >= 0; bit--) {
                q = twice(q);
                if (s.v[bit / 64] >> (bit % 64) & 1) q = sum(q, p);
            }
            total = sum(total, q);
        }
        F x = ZERO, y = ZERO;
        if (!zero(total.z)) {
            F i = inverse(total.z), ii = times(i, i);
            x = times(times(total.x, ii), one), y = times(times(total.y, times(i, ii)), one);
        }
        for (int i = 0; i < 4; i++) {
            int* out = sums + b * ld_sums + 2 * i;
            out[0] = int(x.v[i]), out[1] = int(x.v[i] >> 32), out[8] = int(y.v[i]), out[9] = int(y.v[i] >> 32);
        }
    }
}
