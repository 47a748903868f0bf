#include "dual_capped.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "math.hpp"
#include "threads.hpp"

namespace drago {

namespace {

// Room that nobody fills with zeros first.
struct Room {
    std::unique_ptr<double[]> held;
    Out view;
    explicit Room(Index size) : held(new double[static_cast<std::size_t>(size)]) {
        view = {held.get(), size};
    }
};

// Every stride-th entry.
Room some_of(In u, Index stride) {
    Room some((u.size + stride - 1) / stride);
    for (Index i = 0; i < some.view.size; ++i) some.view[i] = u[i * stride];
    return some;
}

// The nominal weights of so many rows, each with its own.
Room written_out(In p, Index size) {
    Room all(size);
    std::fill(all.view.data, all.view.data + size, p[0]);
    return all;
}

// Nominal weights of some rows, with sum 1.
Room normalised(In p, Index stride, Index size) {
    Room some = p.size == 1 ? written_out(p, size) : some_of(p, stride);
    double total = 0.0;
    for (Index i = 0; i < some.view.size; ++i) total += some.view[i];
    for (Index i = 0; i < some.view.size; ++i) some.view[i] /= total;
    return some;
}

// The largest value m of `a` with above + w(a >= m) >= mass; both are overwritten. Quickselect by
// mass with three-way partition: ties are one element.
double select(Out values, Out weights, double above, double mass) {
    double *__restrict a = values.data, *__restrict w = weights.data;
    Index lo = 0, hi = values.size;
    while (hi - lo > 1) {
        const double x = a[lo], y = a[(lo + hi) / 2], z = a[hi - 1];
        const double pivot = std::max(std::min(x, y), std::min(std::max(x, y), z));
        // [lo, left) > pivot, [left, i) == pivot, [right, hi) < pivot
        Index left = lo, i = lo, right = hi;
        double mass_greater = 0.0, mass_equal = 0.0;
        while (i < right) {
            const double v = a[i], share = w[i];
            if (v > pivot) {
                mass_greater += share;
                a[i] = a[left];
                a[left] = v;
                w[i] = w[left];
                w[left] = share;
                ++left;
                ++i;
            } else if (v < pivot) {
                --right;
                a[i] = a[right];
                a[right] = v;
                w[i] = w[right];
                w[right] = share;
            } else {
                mass_equal += share;
                ++i;
            }
        }
        if (above + mass_greater >= mass) {
            hi = left;
        } else if (above + mass_greater + mass_equal >= mass || right == hi) {
            return pivot;
        } else {
            above += mass_greater + mass_equal;
            lo = right;
        }
    }
    return a[lo];
}

}  // namespace

std::array<double, 3> outside(In q, In p, double cap) {
    const double* __restrict weight = q.data;
    return with_shares(p, q.size, 0, [=](auto nominal) {
        return long_sums<3>(q.size, [=](Index i) DRAGO_INLINED {
            const double here = weight[i], above = here - cap * nominal(i);
            return std::array<double, 3>{here, here < 0.0 ? -here : 0.0,
                                         above > 0.0 ? above : 0.0};
        });
    });
}

double upper_quantile(In u, In p, double mass) {
    const Index n = u.size;
    Index size = std::max(SAMPLE, static_cast<Index>(std::pow(static_cast<double>(n), 2.0 / 3.0)));
    if (n > 4 * size) {
        const Index stride = n / size;
        const Room some = some_of(u, stride), weight = some_of(p, stride);
        double total = 0.0;
        for (Index i = 0; i < weight.view.size; ++i) total += weight.view[i];
        const double share = std::min(mass, 1.0), count = static_cast<double>(size);
        const double spread = 3.0 * std::sqrt(std::max(share * (1.0 - share), 1.0 / count) / count);
        double low = -infinity, high = infinity;
        if (share + spread < 1.0)
            low = select(some.view, weight.view, 0.0, (share + spread) * total);
        if (share - spread > 0.0)
            high = select(some.view, weight.view, 0.0, (share - spread) * total);
        // The mass above `high`, the mass between, and how many rows that is.
        const double *__restrict value = u.data, *__restrict nominal = p.data;
        const auto [above, between, rows] = long_sums<3>(n, [=](Index i) DRAGO_INLINED {
            const double here = value[i], part = nominal[i];
            const bool inside = (here >= low) & (here <= high);
            return std::array<double, 3>{here > high ? part : 0.0, inside ? part : 0.0,
                                         inside ? 1.0 : 0.0};
        });
        if (above < mass && mass <= above + between) {
            const Index found = static_cast<Index>(rows);
            // One place more: what is not taken is written behind the last that is.
            Room a(found + 1), w(found + 1);
            double *__restrict to = a.view.data, *__restrict parts = w.view.data;
            Index at = 0;
            for (Index i = 0; i < n; ++i) {
                const double here = value[i];
                to[at] = here;
                parts[at] = nominal[i];
                at += (here >= low) & (here <= high);
            }
            return select(a.view.part(0, found), w.view.part(0, found), above, mass);
        }
    }
    Room a(n), w(n);
    std::copy(u.data, u.data + n, a.view.data);
    std::copy(p.data, p.data + n, w.view.data);
    return select(a.view, w.view, 0.0, mass);
}

double capped_vertex(In u, In p, double cap, Out q) {
    const Index n = u.size;
    const double threshold = upper_quantile(u, p, cap < infinity ? 1.0 / cap : 0.0);
    // One row may take what is left of the mass: a sum that loses digits would be its error.
    double above = 0.0, lost = 0.0, tied = 0.0;
    for (Index i = 0; i < n; ++i) {
        if (u[i] > threshold) {
            const double term = p[i] - lost, total = above + term;
            lost = (total - above) - term;
            above = total;
        } else if (u[i] == threshold) {
            tied += p[i];
        }
    }
    if (above > 0.0) cap = std::min(cap, 1.0 / above);
    const double level =
        above > 0.0 ? std::min(std::max(1.0 - cap * above, 0.0) / tied, cap) : 1.0 / tied;
    const double *__restrict value = u.data, *__restrict nominal = p.data;
    double* __restrict out = q.data;
#pragma omp simd
    for (Index i = 0; i < n; ++i) {
        const double share = nominal[i], here = value[i];
        const double lower = here == threshold ? share * level : 0.0;
        out[i] = here > threshold ? share * cap : lower;
    }
    return threshold;
}

namespace {

// Masses of the free and of the capped rows, and sum p (u - ref) of the free ones.
struct Chi2Sums {
    double free = 0.0, capped = 0.0, moment = 0.0;
};

Chi2Sums chi2_sums(In u, In p, double ref, double delta, double top) {
    const double* __restrict value = u.data;
    const auto [free, capped, moment] = with_shares(p, u.size, 0, [=](auto nominal) {
        return long_sums<3>(u.size, [=](Index i) DRAGO_INLINED {
            const double share = nominal(i), d = value[i] - ref, x = d - delta;
            const double w_free = (x > 0.0) & (x < top) ? share : 0.0;
            return std::array<double, 3>{w_free, x >= top ? share : 0.0, w_free * d};
        });
    });
    return {free, capped, moment};
}

struct Chi2Found {
    double ref, delta;
    bool done;
    Chi2Sums sums;
};

// Newton's method on the piecewise linear sum q(tau) - 1 from tau = ref. Done when a pass finds the
// free and capped rows that the step before assumed: tau is then exact for them.
Chi2Found chi2_newton(In u, In p, double c, double cap, double ref) {
    const double top = c * cap;
    double delta = 0.0, lo = -infinity, hi = infinity, last_free = -1.0, last_capped = -1.0;
    for (int pass = 0; pass < PATIENCE; ++pass) {
        const Chi2Sums s = chi2_sums(u, p, ref, delta, top);
        const double full = s.capped > 0.0 ? cap * s.capped : 0.0;
        const double excess = full + (s.moment - delta * s.free) / c - 1.0;
        // Far from all u (an absurd start) the sums have lost their digits.
        if (s.free == last_free && s.capped == last_capped)
            return {ref, delta, std::fabs(excess) <= 1e-6, s};
        // A start that is right up to rounding: steps from it would be noise.
        if (std::fabs(excess) <= 1e-14) return {ref, delta, true, s};
        if (s.free <= 0.0) break;
        last_free = s.free;
        last_capped = s.capped;
        if (excess > 0.0)
            lo = std::max(lo, ref + delta);
        else
            hi = std::min(hi, ref + delta);
        double step = (s.moment - c * (1.0 - full)) / s.free;
        if (!(lo <= ref + step && ref + step <= hi)) {
            if (!(lo > -infinity && hi < infinity)) break;
            step = 0.5 * (lo + hi) - ref;
            last_free = -1.0;
        }
        const double shifted = ref + step;
        delta = step - (shifted - ref);
        ref = shifted;
    }
    return {ref, delta, false, {}};
}

// tau by selection, then a bracketed search among the rows that it leaves open. With m the quantile
// that a vertex would use, tau lies in [m - c cap, m]: rows further than c cap from m are settled,
// and u - m is exact for the others. Returns m and tau - m.
std::pair<double, double> chi2_exact(In u, In p, double c, double cap) {
    const Index n = u.size;
    const bool bounded = cap < infinity;
    const double m = upper_quantile(u, p, bounded ? 1.0 / cap : 0.0);
    double tied = 0.0;
    if (!bounded)
        for (Index i = 0; i < n; ++i)
            if (u[i] == m) tied += p[i];
    const double width = bounded ? c * cap : c / tied;
    double settled = 0.0;
    Index size = 0;
    for (Index i = 0; i < n; ++i) {
        const double gap = u[i] - m;
        if (bounded && gap >= width)
            settled += p[i];
        else
            size += gap > -width;
    }
    // One place more: what is not taken is written behind the last that is.
    Room d(size + 1), w(size + 1);
    double *__restrict to = d.view.data, *__restrict parts = w.view.data;
    size = 0;
    for (Index i = 0; i < n; ++i) {
        const double gap = u[i] - m;
        to[size] = gap;
        parts[size] = p[i];
        size += (gap > -width) & !(bounded & (gap >= width));
    }
    const In gaps = d.view.part(0, size), shares = w.view.part(0, size);
    double lo = -width, hi = 0.0, delta = -width, last_free = -1.0, last_capped = -1.0;
    for (int pass = 0; pass < BISECTIONS; ++pass) {
        const Chi2Sums s = chi2_sums(gaps, shares, 0.0, delta, c * cap);
        const double full = bounded ? cap * (settled + s.capped) : 0.0;
        if (s.free == last_free && s.capped == last_capped) break;
        const double excess = full + (s.moment - delta * s.free) / c - 1.0;
        if (excess > 0.0)
            lo = std::max(lo, delta);
        else
            hi = std::min(hi, delta);
        last_free = s.free;
        last_capped = s.capped;
        double step = s.free > 0.0 ? (s.moment - c * (1.0 - full)) / s.free : nan;
        if (step == delta || excess == 0.0) break;
        if (!(lo < step && step < hi)) {  // not the ends, between which it might go back and forth
            step = 0.5 * (lo + hi);
            last_free = -1.0;
            if (step == delta) break;
        }
        delta = step;
    }
    return {m, delta};
}

// Fill q; the free rows share the mass that the capped ones leave, exactly.
template <class Shares>
void chi2_write(In u, Shares nominal, double c, double cap, double ref, double delta, Chi2Sums s,
                Out q) {
    const double inverse = 1.0 / c, top = c * cap;
    const double rest = s.capped > 0.0 ? 1.0 - cap * s.capped : 1.0;
    const Index n = u.size;
    const double* __restrict value = u.data;
    double* __restrict out = q.data;
    if (s.free <= 0.0) {
        for (Index i = 0; i < n; ++i) {
            const double full = nominal(i) * cap;
            out[i] = (value[i] - ref) - delta >= top ? full : 0.0;
        }
        return;
    }
    const double mean = s.moment / s.free, base = rest / s.free;
    const auto [total] = long_sums<1>(n, [=](Index i) DRAGO_INLINED {
        const double d = value[i] - ref, x = d - delta;
        double here = std::min(std::max((d - mean) * inverse + base, 0.0), cap);
        here = x <= 0.0 ? 0.0 : here;
        here = nominal(i) * (x >= top ? cap : here);
        out[i] = here;
        return std::array<double, 1>{here};
    });
    // The rounding of the mean, by c, is what the sum lacks: it goes to the free rows alike.
    if (std::fabs(total - 1.0) > 2e-13) {
        const double missing = (1.0 - total) / s.free;
#pragma omp simd
        for (Index i = 0; i < n; ++i) {
            const double x = (value[i] - ref) - delta, share = nominal(i), old = out[i];
            const double moved = std::min(std::max(old + share * missing, 0.0), share * cap);
            out[i] = (x > 0.0) & (x < top) ? moved : old;
        }
    }
}

}  // namespace

double capped_chi2(In u, In p, double c, double cap, double tau, Out q) {
    const Index n = u.size;
    if (cap <= 1.0) {
        with_shares(p, n, 0, [=](auto nominal) {
            for (Index i = 0; i < n; ++i) q[i] = nominal(i);
        });
        return tau;
    }
    const bool is_even = p.size == 1 && n > 1;
    if (c < tiny)  // its inverse is not a number
        return capped_vertex(u, is_even ? written_out(p, n).view : p, cap, q);
    Chi2Found found{tau, 0.0, false, {}};
    if (std::isnan(tau) && n > 4 * SAMPLE) {
        const Index stride = n / std::max(SAMPLE, std::min(n / 16, SUBSAMPLE));
        const Room some = some_of(u, stride), w = normalised(p, stride, some.view.size);
        const auto [ref, delta] = chi2_exact(some.view, w.view, c, cap);
        found.ref = ref + delta;
    }
    if (!std::isnan(found.ref)) found = chi2_newton(u, p, c, cap, found.ref);
    if (!found.done) {
        std::tie(found.ref, found.delta) =
            chi2_exact(u, is_even ? written_out(p, n).view : p, c, cap);
        found.sums = chi2_sums(u, p, found.ref, found.delta, c * cap);
    }
    with_shares(p, n, 0, [&](auto nominal) {
        chi2_write(u, nominal, c, cap, found.ref, found.delta, found.sums, q);
    });
    return found.ref + found.delta;
}

namespace {

// e_i = exp((u_i - ref) / c); what would overflow is above the cap at any scale.
void kl_exponentials(In u, double c, double ref, Out e) {
    in_ranges(u.size, [=](Index lo, Index hi) {
        const double inverse = 1.0 / c;
        const double* __restrict value = u.data;
        double* __restrict out = e.data;
#pragma omp simd
        for (Index i = lo; i < hi; ++i) {
            const double exponent = std::min((value[i] - ref) * inverse, 600.0);
            const double power = exp_fast(exponent);
            out[i] = exponent > -700.0 ? power : 0.0;  // below, near the denormal ones; NaN too
        }
    });
}

// The scale s with sum p min(s e, cap) = 1, by Newton's method; 0 when it fails. The sum is concave
// and piecewise linear in s: from the first step on, Newton's method rises monotonically to the
// root and ends on it.
double kl_scale(In e, In p, double cap) {
    double s = 1.0, low = 0.0, high = infinity, last_open = -1.0, last_capped = -1.0;
    const double *__restrict value = e.data, *__restrict nominal = p.data;
    for (int pass = 0; pass < 200; ++pass) {
        // sum p e of the rows below the cap, and the mass of the others.
        const auto [open, capped] = long_sums<2>(e.size, [=](Index i) DRAGO_INLINED {
            const double share = nominal[i], here = value[i];
            const bool below = here * s < cap;
            return std::array<double, 2>{below ? share * here : 0.0, below ? 0.0 : share};
        });
        const double rest = capped > 0.0 ? 1.0 - cap * capped : 1.0;
        const bool settled = open == last_open && capped == last_capped;
        if (settled || std::fabs(rest - open * s) <= 1e-15) return s;
        if (open * s > rest)
            high = std::min(high, s);
        else
            low = std::max(low, s);
        double step = open > 0.0 ? rest / open : infinity;
        if (low < step && step < high) {
            last_open = open;
            last_capped = capped;
        } else {  // too many rows at the cap for a Newton step, or rounding
            step = low > 0.0 ? std::sqrt(low * high) : 0.125 * high;
            last_open = -1.0;
        }
        s = step;
        if (!(1e-200 < s && s < 1e200)) return 0.0;
    }
    return s;
}

}  // namespace

double capped_kl(In u, In p, double c, double cap, double tau, Out q, Out log_ratio) {
    const Index n = u.size;
    if (cap <= 1.0) {
        std::copy(p.data, p.data + n, q.data);
        std::fill(log_ratio.data, log_ratio.data + log_ratio.size, 0.0);
        return tau;
    }
    if (c < tiny) return capped_vertex(u, p, cap, q);  // its inverse is not a number
    const bool bounded = cap < infinity;
    const double log_cap = bounded ? std::log(cap) : infinity;
    double ref = tau;
    if (std::isnan(ref) && bounded && n > 4 * SUBSAMPLE) {
        const Index stride = n / SUBSAMPLE;
        const Room v = some_of(u, stride), w = normalised(p, stride, v.view.size);
        const Room e(v.view.size);
        ref = upper_quantile(v.view, w.view, 1.0 / cap) - c * log_cap;
        kl_exponentials(v.view, c, ref, e.view);
        const double s = kl_scale(e.view, w.view, cap);
        ref = s > 0.0 ? ref - c * std::log(s) : nan;
    }
    double s = 0.0;
    if (!std::isnan(ref)) {
        kl_exponentials(u, c, ref, q);
        s = kl_scale(q, p, cap);
    }
    if (!(1e-30 < s && s < 1e30)) {
        // The rows above this quantile fill the cap at scale 1, so the root lies in (0, 1].
        ref = bounded ? upper_quantile(u, p, 1.0 / cap) - c * log_cap : largest(u);
        kl_exponentials(u, c, ref, q);
        s = kl_scale(q, p, cap);
    }
    if (!(s > 0.0)) {
        // Rows far above the others fill the set up to rounding: nothing is left to share out.
        tau = capped_vertex(u, p, cap, q);
        for (Index i = 0; i < log_ratio.size; ++i)
            log_ratio[i] = q[i] > 0.0 ? std::log(q[i] / p[i]) : (u[i] - tau) / c;
        return tau;
    }
    const double shift = std::log(s);
    in_ranges(n, [=](Index lo, Index hi) {
        const double *__restrict value = u.data, *__restrict nominal = p.data;
        double *__restrict out = q.data, *__restrict logs = log_ratio.data;
#pragma omp simd
        for (Index i = lo; i < hi; ++i) out[i] = nominal[i] * std::min(out[i] * s, cap);
        if (log_ratio.empty()) return;
#pragma omp simd
        for (Index i = lo; i < hi; ++i) logs[i] = std::min((value[i] - ref) / c + shift, log_cap);
    });
    return ref - c * shift;
}

}  // namespace drago
