#include "dual_spectral.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "math.hpp"

namespace drago {

void spectral_masses(int family, double parameter, In upper, In p, Out sigma) {
    if (family == 1) {
        for (Index i = 0; i < p.size; ++i) {
            const double share = std::min(p[i] / upper[i], 1.0);
            const double log_rest = share < 1.0 ? std::log1p(-share) : -infinity;
            sigma[i] = std::pow(upper[i], parameter) * -std::expm1(parameter * log_rest);
        }
        return;
    }
    const double scale = -std::expm1(-parameter);
    for (Index i = 0; i < p.size; ++i) {
        sigma[i] = std::exp(-parameter * (1.0 - upper[i])) * -std::expm1(-parameter * p[i]);
        sigma[i] /= scale;
    }
}

Index spectral_vertex(In u, In p, In sigma, Out ratio, Vec<std::int64_t> first) {
    const Index n = u.size;
    Index start = 0, count = 0;
    while (start < n) {
        Index end = start;
        double mass = 0.0, weight = 0.0;
        while (end < n && u[end] == u[start]) {
            mass += sigma[end];
            weight += p[end];
            ++end;
        }
        std::fill(ratio.data + start, ratio.data + end, mass / weight);
        first[count++] = start;
        start = end;
    }
    return count;
}

Index spectral_chi2(In u, In p, In sigma, double c, Out ratio, Out mean, Out weight,
                           Vec<std::int64_t> first) {
    const Index n = u.size;
    // Of each pool: the mean of u above that of its first row, its weight, its mass by weight.
    const Out level = ratio;
    const double inverse = 1.0 / c;
    Index top = -1;
    for (Index k = 0; k < n; ++k) {
        double here_mean = 0.0, here_weight = p[k], here_level = sigma[k] / p[k];
        Index start = k;
        while (top >= 0) {
            const double shift = u[start] - u[first[top]] + here_mean - mean[top];
            const double rise = here_level - level[top];
            if (rise < shift * inverse) break;  // v rises from the pool before to this one
            const double total = weight[top] + here_weight;
            const double share = here_weight / total;
            here_mean = mean[top] + shift * share;
            here_level = level[top] + rise * share;
            here_weight = total;
            start = first[top];
            --top;
        }
        ++top;
        mean[top] = here_mean;
        weight[top] = here_weight;
        level[top] = here_level;
        first[top] = start;
    }
    first[top + 1] = n;
    // From the last pool down: a row's place is never before its pool's, which is still needed.
    for (Index b = top; b >= 0; --b) {
        const Index begin = first[b], end = first[b + 1];
        const double ref = u[begin], base = level[b] - mean[b] * inverse;
        const double* __restrict from = u.data;
        double* __restrict to = ratio.data;
        for (Index k = begin; k < end; ++k) to[k] = std::max((from[k] - ref) * inverse + base, 0.0);
    }
    return top + 1;
}

Index spectral_kl(In u, In p, In sigma, double c, Out ratio, Out mass, Out log_ratio,
                         Vec<std::int64_t> first) {
    const Index n = u.size;
    // Of each pool: sum p exp((u - its largest u) / c), and its mass.
    const Out scaled = ratio;
    const double inverse = 1.0 / c;
    const double* __restrict from = u.data;
    double* __restrict to = ratio.data;
    // Each row is compared with the one before: what that takes waits, many at once, where no pool
    // is written before the row's turn.
    for (Index k = 1; k < n; ++k) {
        const double exponent = (from[k - 1] - from[k]) * inverse, power = exp_fast(exponent);
        to[k] = exponent > -700.0 ? power : 0.0;
    }
    Index top = -1;
    for (Index k = 0; k < n; ++k) {
        double here_scaled = p[k], here_mass = sigma[k], power = ratio[k];
        Index start = k;
        while (top >= 0) {
            const double decay = scaled[top] * power;
            // A pool without mass has v = inf and joins the next, also where decay underflows.
            if (decay * here_mass < here_scaled * mass[top]) break;
            here_scaled += decay;
            here_mass += mass[top];
            start = first[top];
            if (--top < 0) break;
            const double exponent = (u[start - 1] - u[k]) * inverse;
            power = exponent > -700.0 ? exp_fast(exponent) : 0.0;
        }
        ++top;
        scaled[top] = here_scaled;
        mass[top] = here_mass;
        first[top] = start;
    }
    first[top + 1] = n;
    const bool keep_log = !log_ratio.empty();
    // From the last pool down: a row's place is never before its pool's, which is still needed.
    for (Index b = top; b >= 0; --b) {
        const Index begin = first[b], end = first[b + 1];
        const double level = mass[b] / scaled[b], ref = u[end - 1];
        for (Index k = begin; k < end - 1; ++k) {
            const double exponent = (from[k] - ref) * inverse, value = level * exp_fast(exponent);
            const double other = exponent > -700.0 ? value : 0.0;
            to[k] = exponent == 0.0 ? level : other;
        }
        to[end - 1] = (ref - ref) * inverse == 0.0 ? level : 0.0;
        if (!keep_log) continue;
        const double log_level = std::log(level);
        double* __restrict logs = log_ratio.data;
        for (Index k = begin; k < end; ++k) logs[k] = (from[k] - ref) * inverse + log_level;
    }
    return top + 1;
}

void scatter(In ratio, In p, Vec<const std::int64_t> order, Out q) {
    const double *__restrict a = ratio.data, *__restrict b = p.data;
    const std::int64_t* __restrict at = order.data;
    double* __restrict out = q.data;
    for (Index k = 0; k < order.size; ++k) out[at[k]] = a[k] * b[k];
}

}  // namespace drago
