#include "dual_balls.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dual_capped.hpp"
#include "math.hpp"
#include "threads.hpp"

namespace drago {

double chi2_divergence(In q, In p) {
    const double *__restrict weight = q.data, *__restrict nominal = p.data;
    const auto [total] = long_sums<1>(q.size, [=](Index i) DRAGO_INLINED {
        const double away = weight[i] - nominal[i];
        return std::array<double, 1>{away * away / nominal[i]};
    });
    return 0.5 * total;
}

double chi2_value(In u, In q, In p, double c) {
    const double *__restrict value = u.data, *__restrict weight = q.data;
    const auto [gain, cost] = with_shares(p, q.size, 0, [=](auto nominal) {
        return long_sums<2>(q.size, [=](Index i) DRAGO_INLINED {
            const double share = nominal(i), away = weight[i] - share;
            return std::array<double, 2>{weight[i] * value[i], away * away / share};
        });
    });
    return gain - 0.5 * c * cost;
}

namespace {

struct Moments {
    double mass, mean, variance, dropped;
};

// Mass, mean and variance of u - centre where it exceeds the threshold, mass elsewhere.
Moments moments(In u, In p, double centre, double threshold) {
    const double *__restrict value = u.data, *__restrict nominal = p.data;
    const auto [mass, first, second, dropped] = long_sums<4>(u.size, [=](Index i) DRAGO_INLINED {
        const double share = nominal[i], d = value[i] - centre;
        const bool above = d > threshold;
        const double w = above ? share : 0.0, wd = w * d;
        return std::array<double, 4>{w, wd, wd * d, above ? 0.0 : share};
    });
    const double mean = first / mass;
    return {mass, mean, std::max(second / mass - mean * mean, 0.0), dropped};
}

}  // namespace

Boundary chi2_ball_sorted(In u, In p, double radius) {
    const Index n = u.size;
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    sort_places(u, order);
    const double top = u[order[n - 1]];
    Scratch rest(n + 1, 0.0);  // mass below each place
    for (Index k = 0; k < n; ++k) rest[k + 1] = rest[k] + p[order[k]];
    double mass = 0.0, mean = 0.0, spread = 0.0;
    // Rows join from the top; with k of them the cut is right when the next row lies below it.
    for (Index k = n - 1; k >= 0; --k) {
        const Index i = order[k];
        const double d = u[i] - top;
        mass += p[i];
        const double step = d - mean;
        mean += step * (p[i] / mass);
        spread += p[i] * step * (d - mean);
        const double room = 2.0 * radius * mass - rest[k];
        if (room <= 0.0) continue;
        const double cut = std::sqrt(spread / mass / room);
        if (k == 0 || u[order[k - 1]] - top <= mean - cut) return {top, mean, cut};
    }
    return {top, mean, 0.0};
}

BallAnswer chi2_ball(In u, In p, double c, double radius, double tau, Out q) {
    const Index n = u.size;
    if (radius == 0.0) {
        std::copy(p.data, p.data + n, q.data);
        return {infinity, tau};
    }
    if (c > 0.0)
        tau = capped_chi2(u, p, c, infinity, tau, q);
    else
        capped_vertex(u, p, infinity, q);
    const double *__restrict value = u.data, *__restrict nominal = p.data;
    double* __restrict out = q.data;
    const auto [excess] = long_sums<1>(n, [=](Index i) DRAGO_INLINED {
        const double away = out[i] / nominal[i] - 1.0;
        return std::array<double, 1>{nominal[i] * (away * away)};
    });
    if (excess <= 2.0 * radius * (1.0 + 1e-13)) return {c, tau};
    // The mean is centre + offset: differences to a nearby centre are exact.
    const double top = largest(u);
    double centre = top + moments(u, p, top, -infinity).mean;
    double offset = 0.0, cut = infinity, last = -1.0, threshold = -infinity;
    bool done = false;
    for (int pass = 0; pass < 60; ++pass) {
        const Moments here = moments(u, p, centre, offset - cut);
        const double room = 2.0 * radius * here.mass - here.dropped;  // without the 1
        if (!(room > 0.0)) break;
        threshold = centre + (offset - cut);
        done = here.mass == last;
        const double shifted = centre + here.mean;
        offset = here.mean - (shifted - centre);
        centre = shifted;
        cut = std::sqrt(here.variance / room);
        if (done) break;
        last = here.mass;
    }
    if (!done) {
        const Boundary found = chi2_ball_sorted(u, p, radius);
        centre = found.centre;
        offset = found.offset;
        cut = found.cut;
    }
    // Without a cut the rows that take part are tied, or so close that squares underflow.
    const auto [total] = long_sums<1>(n, [=](Index i) DRAGO_INLINED {
        const double above = std::max((value[i] - centre) - offset + cut, 0.0);
        const double tied = value[i] > threshold ? 1.0 : 0.0;
        const double here = nominal[i] * (cut == 0.0 ? tied : above);
        out[i] = here;
        return std::array<double, 1>{here};
    });
    in_ranges(n, [=, total = total](Index lo, Index hi) {
        double* __restrict weights = q.data;
#pragma omp simd
        for (Index i = lo; i < hi; ++i) weights[i] /= total;
    });
    return {total, tau};
}

namespace {

// The mean of u - centre.
double mean_from(In u, In p, double centre) {
    const auto [mean] = long_sums<1>(u.size, [=](Index i) DRAGO_INLINED {
        return std::array<double, 1>{p[i] * (u[i] - centre)};
    });
    return mean;
}

struct Tilt {
    double spent, spread;
};

// Divergence of q ~ p exp(theta u), variance of u under it. centre + offset is the mean of u.
// Differences to 1 are summed without the 1, so a tiny divergence keeps its digits.
Tilt tilt_near(In u, In p, double centre, double offset, double theta) {
    const double *__restrict value = u.data, *__restrict nominal = p.data;
    const auto [total, first, second] = long_sums<3>(u.size, [=](Index i) DRAGO_INLINED {
        const double d = (value[i] - centre) - offset, x = theta * d, share = nominal[i];
        const double e = expm1_fast(x);
        return std::array<double, 3>{share * (e - x), share * (e * d), share * ((e + 1.0) * d * d)};
    });
    const double mean = first / (1.0 + total);
    const double variance = std::max(second / (1.0 + total) - mean * mean, 0.0);
    return {theta * mean - std::log1p(total), variance};
}

// The same from `top`, the maximum of u: nothing overflows.
Tilt tilt_far(In u, In p, double top, double theta) {
    const double *__restrict value = u.data, *__restrict nominal = p.data;
    const auto [total, first, second] = long_sums<3>(u.size, [=](Index i) DRAGO_INLINED {
        const double d = value[i] - top;
        const double e = nominal[i] * exp_fast(theta * d), ed = e * d;
        return std::array<double, 3>{e, ed, ed * d};
    });
    const double mean = first / total;
    return {theta * mean - std::log(total), std::max(second / total - mean * mean, 0.0)};
}

}  // namespace

BallAnswer kl_ball(In u, In p, double c, double radius, double theta, Out q,
                          Out log_ratio) {
    const Index n = u.size;
    if (radius == 0.0) {
        std::copy(p.data, p.data + n, q.data);
        std::fill(log_ratio.data, log_ratio.data + log_ratio.size, 0.0);
        return {infinity, theta};
    }
    const double top = largest(u);
    const double centre = top + mean_from(u, p, top);
    // What rounding leaves of the mean; losses that are almost tied need it.
    const double offset = mean_from(u, p, centre);
    const auto [variance] = long_sums<1>(n, [=](Index i) DRAGO_INLINED {
        const double d = (u[i] - centre) - offset;
        return std::array<double, 1>{p[i] * (d * d)};
    });
    const bool small = radius < 1e-2;
    const auto tilt = [=](double at) {
        return small && at * (top - centre) < 30.0 ? tilt_near(u, p, centre, offset, at)
                                                   : tilt_far(u, p, top, at);
    };
    double hi = infinity;
    if (c > 0.0) {
        hi = 1.0 / c;
        if (variance == 0.0 || tilt(hi).spent <= radius) {
            capped_kl(u, p, c, infinity, nan, q, log_ratio);
            return {c, theta};
        }
    } else {
        double tied = 0.0;
        for (Index i = 0; i < n; ++i) tied += u[i] == top ? p[i] : 0.0;
        if (-std::log(tied) <= radius) {
            capped_vertex(u, p, infinity, q);
            return {0.0, theta};
        }
    }
    double lo = 0.0;
    const double cold = std::min(std::sqrt(2.0 * radius / variance), 0.5 * hi);
    if (!(1e-6 * cold < theta && theta < std::min(hi, 1e6 * cold))) theta = cold;
    const double target = std::sqrt(2.0 * radius);
    for (int pass = 0; pass < 200; ++pass) {
        const auto [spent, spread] = tilt(theta);
        if (spent > radius)
            hi = theta;
        else
            lo = theta;
        const double root = std::sqrt(2.0 * std::max(spent, 0.0));
        double step = nan;
        if (spread > 0.0) step = theta - (root - target) * root / (theta * spread);
        if (!(lo < step && step < hi)) {
            if (hi == infinity)
                step = 4.0 * theta;
            else if (lo > 0.0)
                step = std::sqrt(lo * hi);
            else
                step = cold < 0.5 * hi ? cold : 0.125 * hi;
        }
        if (std::fabs(step - theta) <= 4e-16 * theta || std::fabs(spent - radius) <= 1e-14 * radius)
            break;
        theta = step;
    }
    capped_kl(u, p, 1.0 / theta, infinity, nan, q, log_ratio);
    return {1.0 / theta, theta};
}

}  // namespace drago
