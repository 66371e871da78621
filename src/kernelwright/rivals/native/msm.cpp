// Pippenger's buckets (1976) over Montgomery's arithmetic, affine points added to Jacobian sums; one inversion a sum.
#include <vector>
typedef unsigned long long u64;
typedef unsigned __int128 u128;

struct F {
    u64 v[4];
};

static const F P = {{0x3C208C16D87CFD47, 0x97816A916871CA8D, 0xB85045B68181585D, 0x30644E72E131A029}};
static const F ZERO = {{0, 0, 0, 0}}, UNIT = {{1, 0, 0, 0}};
static const u64 NEGATED_INVERSE = 0x87D20782E4866389;  // -1 / P mod 2^64
static const int BITS = 254;

static inline bool below(const F& a, const F& b) {
    for (int i = 3; i >= 0; i--)
        if (a.v[i] != b.v[i]) return a.v[i] < b.v[i];
    return false;
}

static inline bool zero(const F& a) { return !(a.v[0] | a.v[1] | a.v[2] | a.v[3]); }

static inline F less(const F& a, const F& b) {  // mod 2^256
    F r;
    u64 borrow = 0;
    for (int i = 0; i < 4; i++) {
        u128 d = u128(a.v[i]) - b.v[i] - borrow;
        r.v[i] = u64(d), borrow = u64(d >> 64) & 1;
    }
    return r;
}

static inline F plus(const F& a, const F& b) {
    F r;
    u128 carry = 0;
    for (int i = 0; i < 4; i++) carry += u128(a.v[i]) + b.v[i], r.v[i] = u64(carry), carry >>= 64;
    return below(r, P) ? r : less(r, P);
}

static inline F minus(const F& a, const F& b) { return below(a, b) ? plus(a, less(P, b)) : less(a, b); }

// Not inlined: g++ would take 12 s for the whole file, and the call costs a few of its 30 ns.
__attribute__((noinline)) static F times(const F& a, const F& b) {  // a b / 2^256
    u64 t[5] = {0, 0, 0, 0, 0};
    for (int i = 0; i < 4; i++) {
        u128 c = 0;
        for (int j = 0; j < 4; j++) c += u128(a.v[i]) * b.v[j] + t[j], t[j] = u64(c), c >>= 64;
        u64 top = t[4] + u64(c);  // P has two bits to spare: this does not overflow
        u64 m = t[0] * NEGATED_INVERSE;
        c = (u128(m) * P.v[0] + t[0]) >> 64;
        for (int j = 1; j < 4; j++) c += u128(m) * P.v[j] + t[j], t[j - 1] = u64(c), c >>= 64;
        c += top, t[3] = u64(c), t[4] = u64(c >> 64);
    }
    F r = {{t[0], t[1], t[2], t[3]}};
    return below(r, P) ? r : less(r, P);
}

static F inverse(const F& a) {  // a^(P - 2)
    F r = a, e = less(P, F{{2, 0, 0, 0}});
    for (int bit = 252; bit >= 0; bit--) {
        r = times(r, r);
        if (e.v[bit / 64] >> (bit % 64) & 1) r = times(r, a);
    }
    return r;
}

struct Point {  // Jacobian; z of zero is the identity
    F x, y, z;
};
struct Affine {
    F x, y;
};

static const Point NOTHING = {ZERO, ZERO, ZERO};
static F one;  // in Montgomery's form

static Point twice(const Point& p) {
    if (zero(p.z)) return p;
    F a = times(p.x, p.x), b = times(p.y, p.y), c = times(b, b), s = plus(p.x, b);
    F d = minus(minus(times(s, s), a), c), e = plus(a, plus(a, a)), c8 = plus(c, c);
    d = plus(d, d), c8 = plus(c8, c8), c8 = plus(c8, c8);
    Point r;
    r.x = minus(times(e, e), plus(d, d));
    r.y = minus(times(e, minus(d, r.x)), c8);
    r.z = times(p.y, p.z), r.z = plus(r.z, r.z);
    return r;
}

// Both scaled to the other's z: u, s of p; h, r the differences of q's.
static Point joined(const Point& p, const F& u, const F& s, const F& h, const F& r, const F& z) {
    if (zero(h)) return zero(r) ? twice(p) : NOTHING;
    F hh = times(h, h), hhh = times(h, hh), v = times(u, hh);
    Point t;
    t.x = minus(minus(times(r, r), hhh), plus(v, v));
    t.y = minus(times(r, minus(v, t.x)), times(s, hhh));
    t.z = times(h, z);
    return t;
}

static Point sum(const Point& p, const Point& q) {
    if (zero(p.z)) return q;
    if (zero(q.z)) return p;
    F pp = times(p.z, p.z), qq = times(q.z, q.z), u = times(p.x, qq), s = times(p.y, times(q.z, qq));
    return joined(p, u, s, minus(times(q.x, pp), u), minus(times(q.y, times(p.z, pp)), s), times(p.z, q.z));
}

static Point sum(const Point& p, const Affine& q) {
    if (zero(p.z)) return {q.x, q.y, one};
    F pp = times(p.z, p.z);
    return joined(p, p.x, p.y, minus(times(q.x, pp), p.x), minus(times(q.y, times(p.z, pp)), p.y), p.z);
}

static F read(const int* limbs) {
    F r;
    for (int i = 0; i < 4; i++) r.v[i] = u64(unsigned(limbs[2 * i])) | u64(unsigned(limbs[2 * i + 1])) << 32;
    return r;
}

static void write(const F& a, int* limbs) {
    for (int i = 0; i < 4; i++) limbs[2 * i] = int(a.v[i]), limbs[2 * i + 1] = int(a.v[i] >> 32);
}

extern "C" void kernel(const int* points, const int* scalars, int* sums, long n, long batch) {
    F square = UNIT;
    for (int i = 0; i < 512; i++) square = plus(square, square);
    one = times(UNIT, square);
    std::vector<Affine> bases(n);
    std::vector<char> nothing(n);
    for (long i = 0; i < n; i++) {
        F x = read(points + 16 * i), y = read(points + 16 * i + 8);
        nothing[i] = zero(x) && zero(y);
        bases[i] = {times(x, square), times(y, square)};
    }
    int width = 2;
    while (width < 12 && n >> (width + 3)) width++;
    std::vector<Point> buckets(1l << width);
    for (long b = 0; b < batch; b++) {
        Point total = NOTHING;
        for (int window = (BITS - 1) / width; window >= 0; window--) {
            for (int i = 0; i < width; i++) total = twice(total);
            for (Point& bucket : buckets) bucket = NOTHING;
            for (long i = 0; i < n; i++) {
                F s = read(scalars + 8 * (b * n + i));
                int at = window * width;
                u64 digit = s.v[at / 64] >> (at % 64);
                if (at % 64 + width > 64 && at / 64 < 3) digit |= s.v[at / 64 + 1] << (64 - at % 64);
                digit &= (1ull << width) - 1;
                if (digit && !nothing[i]) buckets[digit] = sum(buckets[digit], bases[i]);
            }
            Point running = NOTHING, inner = NOTHING;
            for (long k = long(buckets.size()) - 1; k > 0; k--) running = sum(running, buckets[k]), inner = sum(inner, running);
            total = sum(total, inner);
        }
        F x = ZERO, y = ZERO;
        if (!zero(total.z)) {
            F i = inverse(total.z), ii = times(i, i);
            x = times(times(total.x, ii), UNIT), y = times(times(total.y, times(i, ii)), UNIT);
        }
        write(x, sums + 16 * b), write(y, sums + 16 * b + 8);
    }
}
